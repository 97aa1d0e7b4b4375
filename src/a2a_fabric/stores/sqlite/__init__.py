"""The SQLite store: one file, the default of a node."""

from a2a_fabric.stores.sqlite.store import SqliteSettings, SqliteStore, build

__all__ = ["SqliteSettings", "SqliteStore", "build"]
