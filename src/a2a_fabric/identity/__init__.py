"""From what a caller shows to who is calling."""
