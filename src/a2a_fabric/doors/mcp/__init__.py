"""The door for the Model Context Protocol: every operation and every agent's capability is a tool."""

from a2a_fabric.doors.mcp.door import McpDoor, McpDoorSettings, build

__all__ = ["McpDoor", "McpDoorSettings", "build"]
