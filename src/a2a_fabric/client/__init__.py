"""Talk to a node from Python: `FabricClient` for async code, `SyncFabricClient` for everything else."""

from a2a_fabric.client.client import FabricClient, JobHandle
from a2a_fabric.client.sync import SyncFabricClient
from a2a_fabric.client.wire import CallResult, NodeUnreachable, StreamEvent

__all__ = ["CallResult", "FabricClient", "JobHandle", "NodeUnreachable", "StreamEvent", "SyncFabricClient"]
