"""Which context of the agent belongs to which conversation of ours: the latest ones, for as long as this node runs."""

from __future__ import annotations

from a2a_fabric.core.call import Call

_KEPT = 10_000

Key = tuple[str, str | None, str]


class Conversations:
    def __init__(self, kept: int = _KEPT) -> None:
        self._contexts: dict[Key, str] = {}
        self._kept = kept

    def context_of(self, call: Call) -> str:
        key = _key(call)
        return self._contexts.get(key, "") if key is not None else ""

    def remember(self, call: Call, context_id: str) -> None:
        key = _key(call)
        if key is None or not context_id:
            return
        self._contexts.pop(key, None)
        self._contexts[key] = context_id  # the newest is last
        if len(self._contexts) > self._kept:
            del self._contexts[next(iter(self._contexts))]


def _key(call: Call) -> Key | None:
    """Nobody gets into somebody else's by calling it the same."""
    if not call.conversation_id:
        return None
    return call.auth.mode, call.auth.principal_id, call.conversation_id
