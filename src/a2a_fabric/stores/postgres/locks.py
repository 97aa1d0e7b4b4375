"""Locks that nodes take in turn, each for the length of one transaction, so that a pooler in between does no harm."""

from __future__ import annotations

from a2a_fabric.stores.postgres.transaction import Transaction

_FAMILY = 0x0A2AFAB  # ours among all who use advisory locks in this database
MIGRATING, CLAIMING, AGENTS = 1, 2, 3


def locking(which: int) -> str:
    return f"SELECT pg_advisory_xact_lock({_FAMILY}, {which})"


async def lock(tx: Transaction, which: int) -> None:
    """Wait for it; it is given back with the end of the transaction."""
    await tx.one(locking(which))
