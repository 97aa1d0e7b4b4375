"""Credentials of callers that a store keeps: keys, how they are replaced and revoked, and tokens that count once.

A store never sees a key, only its SHA-256 hash. Rows are never removed while they may matter to the operator: a key
that expired or was revoked is listed for 90 days more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import Conflict

KEYS_TOPIC = "keys"  # to watch for changes, see `core.stores`
MAX_KEYS = 10_000  # that can be used at a time
KEEP_ENDED_SECONDS = 90 * 86_400.0

KeyState = Literal["active", "ending", "expired", "revoked"]


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """`lifetime` in seconds; None for a key that does not expire."""

    key_id: str
    name: str  # of the caller
    digest: bytes
    scopes: tuple[str, ...]
    trust: TrustTier = "local"
    view: str | None = None
    lifetime: float | None = None


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """`replaced` keys have a successor and end soon. `last_used_at` may lag behind by a minute."""

    key_id: str
    name: str
    digest: bytes
    scopes: tuple[str, ...]
    trust: TrustTier
    view: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None = None
    last_used_at: float | None = None
    replaced: bool = False

    def is_usable(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def describe_state(self, now: float) -> KeyState:
        if self.revoked_at is not None:
            return "revoked"
        if not self.is_usable(now):
            return "expired"
        return "ending" if self.replaced else "active"


class KeyStore(Protocol):
    """The store port for keys. The rules of `core.stores` hold; watch `KEYS_TOPIC` for changes of all but `touch`."""

    async def list(self) -> Sequence[StoredKey]:
        """All keys by name and age, those that ended a while ago included."""
        ...

    async def add(self, new: NewKey, *, overlap: float | None = None) -> StoredKey:
        """Without `overlap`, the name must be new. With it, the key replaces those of the same name, which can be used
        for `overlap` seconds more. Raises Conflict; then nothing has changed.
        """
        ...

    async def revoke(self, name: str) -> Sequence[StoredKey]:
        """Revoke all keys of a name, or the one key with this id; those that were usable until now."""
        ...

    async def touch(self, used: Mapping[str, float]) -> None:
        """When keys were last used, by their ids. An earlier moment changes nothing."""
        ...


class UsedTokenStore(Protocol):
    """The store port for tokens that count once; the rules of `core.stores` hold.

    A node remembers what it saw itself. With the store, a token is refused at the other nodes too, and after a restart.
    """

    async def add(self, digest: bytes, seconds: float) -> bool:
        """Remember a token by its hash for so many seconds. False if it was remembered already; then nothing changes.

        Calls that come at the same time share one transaction. Tokens whose time is over are forgotten on the way.
        """
        ...


def replace_keys(
    new: NewKey, same_name: Sequence[StoredKey], usable_count: int, now: float, overlap: float | None
) -> list[StoredKey]:
    """The rows to write: the new key first, then those that it replaces. Raises Conflict."""
    usable = [key for key in same_name if key.is_usable(now)]
    if overlap is None and usable:
        raise Conflict(f"There is a key of '{new.name}' already. Replace it with: a2a-fabric keys rotate {new.name}")
    if overlap is not None and not usable:
        raise Conflict(f"There is no usable key of '{new.name}' to replace. Make one with: a2a-fabric keys create")
    if usable_count >= MAX_KEYS:
        raise Conflict(f"The store holds {MAX_KEYS} keys, which is the most. Revoke keys that are no longer used")
    created = StoredKey(
        key_id=new.key_id,
        name=new.name,
        digest=new.digest,
        scopes=new.scopes,
        trust=new.trust,
        view=new.view,
        created_at=now,
        expires_at=None if new.lifetime is None else now + new.lifetime,
    )
    ends_at = now + (overlap or 0.0)
    replaced = [
        msgspec.structs.replace(
            key, replaced=True, expires_at=ends_at if key.expires_at is None else min(key.expires_at, ends_at)
        )
        for key in usable
    ]
    return [created, *replaced]


def revoke_keys(matches: Sequence[StoredKey], now: float) -> list[StoredKey]:
    """The rows to write."""
    return [msgspec.structs.replace(key, revoked_at=now) for key in matches if key.is_usable(now)]
