"""The store in memory, for tests and nodes that keep nothing."""

from a2a_fabric.stores.memory.store import MemoryStore, build

__all__ = ["MemoryStore", "build"]
