"""The A2A door: every agent of the node is an A2A agent, in protocol versions 1.0 and 0.3."""

from a2a_fabric.doors.a2a.door import build
from a2a_fabric.doors.a2a.settings import A2ADoorSettings

__all__ = ["A2ADoorSettings", "build"]
