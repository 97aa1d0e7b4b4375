"""The agents of a node: their manifests, their health, and the live runtimes behind them."""
