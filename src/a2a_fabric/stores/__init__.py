"""Where things are kept: one engine per module, all behind the ports of core/stores.py."""
