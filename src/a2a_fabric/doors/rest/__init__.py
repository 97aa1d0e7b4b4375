"""The REST door: agents, messages, conversations and tasks, and the RPC client of the same platform."""

from a2a_fabric.doors.rest.door import RestDoorSettings, build

__all__ = ["RestDoorSettings", "build"]
