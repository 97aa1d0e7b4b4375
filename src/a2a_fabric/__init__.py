"""Fabric: the gateway that lets any agent or client talk to any other agent, whatever protocol each speaks."""

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import FabricError
from a2a_fabric.version import __version__

__all__ = ["Agent", "FabricError", "__version__"]
