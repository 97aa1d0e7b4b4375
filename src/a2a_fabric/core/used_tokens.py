"""Tokens that count once: a store remembers them for all its nodes until they have expired.

A node remembers what it saw itself. With the store, a token is refused at the other nodes too, and after a restart."""

from __future__ import annotations

from typing import Protocol


class UsedTokenStore(Protocol):
    """The store port for used tokens. The rules of `core.stores` hold."""

    async def add(self, digest: bytes, seconds: float) -> bool:
        """Remember a token by its hash for so many seconds. False if it was remembered already; then nothing changes.

        Calls that come at the same time share one transaction. Tokens whose time is over are forgotten on the way.
        """
        ...
