"""Keys of callers: what a new one must satisfy, and how one is shown. Used by `a2a-fabric keys` and by operators."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.keys import NewKey, StoredKey
from a2a_fabric.core.policy import SCOPE_KINDS, is_known_scope
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.identity.shared_keys import hash_key
from a2a_fabric.registry.names import ALWAYS_RESERVED, find_lookalike

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_PREFIX = "key-"


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
