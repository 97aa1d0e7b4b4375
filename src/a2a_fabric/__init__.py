"""Fabric: the gateway that lets any agent or client talk to any other agent, whatever protocol each speaks.

The public names are imported when they are first used: a command that needs none of them starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from a2a_fabric.version import __version__

if TYPE_CHECKING:
    from a2a_fabric.agent import Agent
    from a2a_fabric.app import Fabric
    from a2a_fabric.client import FabricClient, SyncFabricClient
    from a2a_fabric.core.errors import FabricError

_LAZY_NAMES = {
    "Agent": "a2a_fabric.agent",
    "Fabric": "a2a_fabric.app",
    "FabricClient": "a2a_fabric.client",
    "FabricError": "a2a_fabric.core.errors",
    "SyncFabricClient": "a2a_fabric.client",
}

__all__ = ["Agent", "Fabric", "FabricClient", "FabricError", "SyncFabricClient", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_NAMES[name]), name)
