"""Runtime for the agents of a server of the Agent Communication Protocol."""

from __future__ import annotations

from a2a_fabric.runtimes.acp.runtime import build

__all__ = ["build"]
