"""Door: how others find the agents. `/.well-known/ai-catalog.json`, server cards, and a search."""

from a2a_fabric.doors.discovery.door import build

__all__ = ["build"]
