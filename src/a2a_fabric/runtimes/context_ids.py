"""The context ids that agents gave to our conversations, kept in memory for the most recent conversations."""

from __future__ import annotations

from a2a_fabric.core.call import Call, derive_conversation_id

_MAX_CONTEXTS = 10_000


class ContextIds:
    def __init__(self, max_contexts: int = _MAX_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        self._contexts: dict[str, str] = {}  # the most recently used one is last

    def find(self, call: Call) -> str:
        """Empty if the conversation has no context id yet."""
        key = derive_conversation_id(call)
        return self._contexts.get(key, "") if key is not None else ""

    def remember(self, call: Call, context_id: str) -> None:
        key = derive_conversation_id(call)
        if key is None or not context_id:
            return
        self._contexts.pop(key, None)
        self._contexts[key] = context_id
        if len(self._contexts) > self._max_contexts:
            del self._contexts[next(iter(self._contexts))]

    def forget(self, call: Call) -> None:
        key = derive_conversation_id(call)
        if key is not None:
            self._contexts.pop(key, None)
