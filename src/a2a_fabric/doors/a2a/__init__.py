"""The door of A2A, the Linux Foundation's standard: every agent is one of its agents, in version 1.0 and in 0.3."""

from a2a_fabric.doors.a2a.door import build
from a2a_fabric.doors.a2a.settings import A2ADoorSettings

__all__ = ["A2ADoorSettings", "build"]
