"""Which context of the agent belongs to which conversation of ours: the latest ones, for as long as this node runs."""

from __future__ import annotations

from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import agent_conversation_id

_KEPT = 10_000


class Conversations:
    def __init__(self, kept: int = _KEPT) -> None:
        self._contexts: dict[str, str] = {}
        self._kept = kept

    def context_of(self, call: Call) -> str:
        key = agent_conversation_id(call)
        return self._contexts.get(key, "") if key is not None else ""

    def remember(self, call: Call, context_id: str) -> None:
        key = agent_conversation_id(call)
        if key is None or not context_id:
            return
        self._contexts.pop(key, None)
        self._contexts[key] = context_id  # the newest is last
        if len(self._contexts) > self._kept:
            del self._contexts[next(iter(self._contexts))]
