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
    from a2a_fabric.doors.context import Door, DoorContext
    from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint

_LAZY_NAMES = {
    "Agent": "a2a_fabric.agent",
    "Door": "a2a_fabric.doors.context",
    "DoorContext": "a2a_fabric.doors.context",
    "Fabric": "a2a_fabric.app",
    "FabricClient": "a2a_fabric.client",
    "FabricError": "a2a_fabric.core.errors",
    "RuntimeContext": "a2a_fabric.runtimes.context",
    "SyncFabricClient": "a2a_fabric.client",
    "complete_manifest": "a2a_fabric.runtimes.context",
    "decode_endpoint": "a2a_fabric.runtimes.context",
}

__all__ = [
    "Agent",
    "Door",
    "DoorContext",
    "Fabric",
    "FabricClient",
    "FabricError",
    "RuntimeContext",
    "SyncFabricClient",
    "__version__",
    "complete_manifest",
    "decode_endpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_NAMES[name]), name)
