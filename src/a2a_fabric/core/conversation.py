"""Conversation ids as agents receive them: each id is bound to the caller who chose it.

Two callers may choose the same id, by chance or on purpose, and an agent keeps its
memory under the id that it is sent. So every runtime sends an id that is derived from the
caller and the caller's own id. This needs no secret and no state: the same caller gets the
same id on every node and after every restart, and no caller can name an id that is bound to
another caller. The caller's own id stays readable after the first dot."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from a2a_fabric.core.call import Call
from a2a_fabric.core.job import owner_from_principal

MAX_LENGTH = 256  # of an id, at most nodes and platforms
_PREFIX_LENGTH = 32  # hexadecimal digits, 128 bits


def derive_conversation_id(call: Call) -> str | None:
    """The id that the agent gets for the call's conversation; None if the call belongs to none."""
    return bind_to_caller(call, call.conversation_id) if call.conversation_id else None


def bind_to_caller(call: Call, name: str) -> str:
    """The same for the same name from the same caller only. A node that calls for others is one caller for each."""
    caller = owner_from_principal(call.auth)
    if call.on_behalf_of:
        caller = f"{caller} for {owner_from_principal(call.on_behalf_of)}"
    bound_id = f"{_caller_prefix(caller)}.{name}"
    return bound_id if len(bound_id) <= MAX_LENGTH else _digest(bound_id)


@lru_cache(maxsize=4096)
def _caller_prefix(caller: str) -> str:
    return _digest(caller)[:_PREFIX_LENGTH]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
