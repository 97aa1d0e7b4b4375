"""The door of document 002: a directory that agents register in, are found in, and send each other tasks through."""

from a2a_fabric.doors.directory.door import build
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings

__all__ = ["DirectoryDoorSettings", "build"]
