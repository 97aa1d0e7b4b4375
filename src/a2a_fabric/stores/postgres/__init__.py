"""The PostgreSQL store: one database, shared by any number of nodes. Needs the extra `postgres`."""

try:
    import asyncpg  # noqa: F401  # first, so that a missing driver is told before anything else fails
except ModuleNotFoundError as exc:
    raise ImportError("it needs asyncpg, which comes with: pip install 'a2a-fabric[postgres]'") from exc

from a2a_fabric.stores.postgres.store import PostgresSettings, PostgresStore, build

__all__ = ["PostgresSettings", "PostgresStore", "build"]
