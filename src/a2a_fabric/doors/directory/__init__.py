"""The directory door: agents register here, are discovered here, and send each other tasks through it."""

from a2a_fabric.doors.directory.door import build
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings

__all__ = ["DirectoryDoorSettings", "build"]
