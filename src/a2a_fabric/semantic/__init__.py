"""Choosing agents by meaning: an embedding model that is read from files, without a network and without a framework."""
