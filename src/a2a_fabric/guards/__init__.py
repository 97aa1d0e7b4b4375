"""The built-in guards."""
