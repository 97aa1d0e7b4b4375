"""The door of the Model Context Protocol: every operation and every agent's capability is a tool."""

from a2a_fabric.doors.mcp.door import MCPDoor, MCPDoorSettings, build

__all__ = ["MCPDoor", "MCPDoorSettings", "build"]
