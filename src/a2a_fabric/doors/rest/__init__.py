"""The door of document 004: agents, messages, conversations and tasks over REST, and that platform's RPC client."""

from a2a_fabric.doors.rest.door import build
from a2a_fabric.doors.rest.settings import RestDoorSettings

__all__ = ["RestDoorSettings", "build"]
