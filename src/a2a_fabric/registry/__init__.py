"""Which agents there are, how they are, and the live runtimes behind them."""
