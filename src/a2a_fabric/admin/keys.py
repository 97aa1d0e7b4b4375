"""Keys of callers: made, listed, rotated and revoked, with what a new one must satisfy.

The admin API does it at a running node; `a2a-fabric keys` also does it in a store, if no node runs."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.config import Config
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.keys import KeyStore, NewKey, StoredKey
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.core.scopes import SCOPE_KINDS, is_known_scope
from a2a_fabric.core.stores import call_store
from a2a_fabric.identity.shared_keys import hash_key, make_key
from a2a_fabric.registry.names import ALWAYS_RESERVED, find_lookalike

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_PREFIX = "key-"


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`lifetime` in seconds; None: until revoked."""

    name: str
    scopes: tuple[str, ...]
    trust: TrustTier = "local"
    view: str | None = None
    lifetime: float | None = None


class CallerKeys:
    """The keys in a store, under the rules of a node's configuration."""

    def __init__(self, store: KeyStore, config: Config) -> None:
        self._store = store
        self._config = config

    async def list_all(self) -> list[dict[str, Any]]:
        keys, now = await call_store(self._store.list), time.time()
        return [render_key(key, now) for key in keys]

    async def create(self, request: KeyRequest) -> dict[str, Any]:
        """The key and its facts. Raises BadInput, Conflict, StoreError."""
        check_key_request(request, self._config)
        stored = await call_store(self._store.list)
        check_key_lookalikes(request.name, self._config.auth.list_names(), stored)
        return await self._add(request)

    async def rotate(self, name: str, overlap: float, lifetime: float | None) -> dict[str, Any]:
        """The new key, with the rights of the old one, which counts for `overlap` seconds more; without a lifetime, it
        lives as long as the old one did. Raises Conflict, StoreError.
        """
        old = find_current_key(await call_store(self._store.list), name)
        old_lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        request = KeyRequest(
            name=name, scopes=old.scopes, trust=old.trust, view=old.view, lifetime=lifetime or old_lifetime
        )
        return await self._add(request, overlap)

    async def revoke(self, name: str) -> list[dict[str, Any]]:
        """All keys of a name, or the one with this id. Raises Conflict, StoreError."""
        revoked, now = await call_store(self._store.revoke, name), time.time()
        if not revoked:
            raise Conflict(
                f"There is no usable key '{name}'. It may have been revoked already: see a2a-fabric keys list --all"
            )
        return [render_key(key, now) for key in revoked]

    async def _add(self, request: KeyRequest, overlap: float | None = None) -> dict[str, Any]:
        secret = make_key()
        new = make_new_key(request.name, secret, request.scopes, request.trust, request.view, request.lifetime)
        added = await call_store(self._store.add, new, overlap=overlap)
        return {"key": secret, **render_key(added, added.created_at)}


def make_new_key(
    name: str, secret: str, scopes: tuple[str, ...], trust: TrustTier, view: str | None, lifetime: float | None
) -> NewKey:
    return NewKey(
        key_id=_ID_PREFIX + secrets.token_hex(6),
        name=name,
        digest=hash_key(secret),
        scopes=scopes,
        trust=trust,
        view=view,
        lifetime=lifetime,
    )


def find_current_key(keys: Sequence[StoredKey], name: str) -> StoredKey:
    """The newest usable key of a name. Raises Conflict."""
    usable = [key for key in keys if key.name == name and key.is_usable(time.time())]
    if not usable:
        raise Conflict(f"There is no usable key of '{name}'. Make one with: a2a-fabric keys create {name}")
    return max(usable, key=lambda key: (not key.replaced, key.created_at))


def check_key_request(request: KeyRequest, config: Config) -> None:
    """What can be said without the store. Raises BadInput."""
    check_key_name(request.name, {key.id for key in config.auth.keys})
    check_key_scopes(request.scopes)
    check_key_view(request.view, [view.name for view in config.views])


def check_key_name(name: str, configured: Collection[str]) -> None:
    """`configured` are the names that have a key in the configuration. Raises BadInput."""
    if not _NAME.fullmatch(name) or name.startswith(_ID_PREFIX):
        raise BadInput(
            f"'{name[:64]}' cannot be the name of a caller: use letters, digits, '.', '_' and '-', at most 64, not "
            f"beginning with '{_ID_PREFIX}'",
            field="name",
        )
    if find_lookalike(name, ALWAYS_RESERVED) is not None:
        raise BadInput(f"'{name}' is or looks like a name that the node uses itself. Choose another", field="name")
    if name in configured:
        raise BadInput(
            f"'{name}' has a key in the configuration (auth.keys). Choose another name, or remove that one",
            field="name",
        )


def check_key_lookalikes(name: str, callers: Iterable[str], stored: Iterable[StoredKey]) -> None:
    """Whether the name could be mistaken for that of another caller in logs, lists and policies. Raises BadInput."""
    now = time.time()
    others = (*callers, *(key.name for key in stored if key.is_usable(now)))
    other = find_lookalike(name, (each for each in others if each != name))
    if other is not None:
        raise BadInput(
            f"'{name}' looks like '{other}', which is another caller. Choose a name that differs in more than case, "
            "separators and similar letters",
            field="name",
        )


def check_key_scopes(scopes: Sequence[str]) -> None:
    """Raises BadInput."""
    if not scopes:
        raise BadInput("Say what the key may do with --scope: agent:ID, capability:NAME, …, or * for everything")
    for scope in scopes:
        if not is_known_scope(scope) or " " in scope:
            kinds = ", ".join(f"{kind}:NAME" for kind in SCOPE_KINDS)
            raise BadInput(f"'{scope[:64]}' is not a scope; use *, metrics, register, or {kinds}", field="scopes")


def check_key_view(view: str | None, names: Collection[str]) -> None:
    """Raises BadInput."""
    if view is not None and view not in names:
        raise BadInput(
            f"The configuration has no view '{view[:64]}'. Its views are: {', '.join(names) or 'none'}", field="view"
        )


def render_key(key: StoredKey, now: float) -> dict[str, Any]:
    """Everything but the hash."""
    return {
        "name": key.name,
        "key_id": key.key_id,
        "state": key.describe_state(now),
        "scopes": list(key.scopes),
        "trust": key.trust,
        "view": key.view,
        "created_at": format_timestamp(key.created_at),
        "expires_at": None if key.expires_at is None else format_timestamp(key.expires_at),
        "last_used_at": None if key.last_used_at is None else format_timestamp(key.last_used_at),
    }
