"""Real agents behind a node, with a stub in place of their model."""
