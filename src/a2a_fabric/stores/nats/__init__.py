"""The NATS store: every node holds a copy of the state, and all changes go through one JetStream stream, in order."""

from a2a_fabric.stores.nats.store import NatsStore, NatsStoreSettings, build

__all__ = ["NatsStore", "NatsStoreSettings", "build"]
