"""The built-in tools, one module per category, and what they run in."""
