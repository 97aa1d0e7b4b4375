"""Where the database is, and how patient we are with it."""

from __future__ import annotations

import msgspec

from a2a_fabric.stores.address import without_secrets


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    listen: str | None = None  # an address past the pooler, if `address` is that of one; else only the poll tells
    connections: int = 8
    patience: float = 5.0  # seconds in which a lost server may come back before callers are told
    statement_timeout: float = 20.0

    @property
    def place(self) -> str:
        """The address without its secrets, for messages."""
        return without_secrets(self.address)
