"""The discovery door: `/.well-known/ai-catalog.json`, MCP server cards, and a search."""

from a2a_fabric.doors.discovery.door import build

__all__ = ["build"]
