"""The SQLite store: one file, the default of a node; or a database in memory, for `memory:`."""

from a2a_fabric.stores.sqlite.store import MemoryStore, SqliteSettings, SqliteStore, build, build_memory

__all__ = ["MemoryStore", "SqliteSettings", "SqliteStore", "build", "build_memory"]
