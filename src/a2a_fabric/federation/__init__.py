"""Agents in folders, git repositories and registries: cards, their check, their locations."""
