"""The door of document 000: `POST /mcp/call`, plain or as a stream of events, and the pages beside it."""

from a2a_fabric.doors.fabric.door import FabricDoorSettings, build

__all__ = ["FabricDoorSettings", "build"]
