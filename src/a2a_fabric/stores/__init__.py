"""The stores, one package per engine, all behind the ports of core/stores.py."""
