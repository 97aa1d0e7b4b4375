"""The directory door: agents register here, are discovered here, and send each other tasks through it."""

from a2a_fabric.doors.directory.door import DirectoryDoorSettings, build

__all__ = ["DirectoryDoorSettings", "build"]
