"""The Fabric door: `POST /mcp/call`, plain, as a stream of events or over WebSocket, and the endpoints beside it."""

from a2a_fabric.doors.fabric.door import FabricDoorSettings, build

__all__ = ["FabricDoorSettings", "build"]
