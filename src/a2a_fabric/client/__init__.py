"""Talk to a node from Python: `FabricClient` for async code, `SyncFabricClient` for everything else.

The names are imported when they are first used: a node needs none of them, only what keeps its address and key.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2a_fabric.client.client import FabricClient, JobHandle
    from a2a_fabric.client.sync import SyncFabricClient
    from a2a_fabric.client.wire import CallResult, NodeUnreachable, StreamEvent

_LAZY_NAMES = {
    "CallResult": "a2a_fabric.client.wire",
    "FabricClient": "a2a_fabric.client.client",
    "JobHandle": "a2a_fabric.client.client",
    "NodeUnreachable": "a2a_fabric.client.wire",
    "StreamEvent": "a2a_fabric.client.wire",
    "SyncFabricClient": "a2a_fabric.client.sync",
}

__all__ = ["CallResult", "FabricClient", "JobHandle", "NodeUnreachable", "StreamEvent", "SyncFabricClient"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_NAMES[name]), name)
