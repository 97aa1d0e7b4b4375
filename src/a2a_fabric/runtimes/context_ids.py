"""The context ids that agents gave to our conversations, kept in memory for the most recent conversations."""

from __future__ import annotations

from a2a_fabric.core.call import Call, derive_conversation_id

_MAX_A2A_CONTEXTS = 10_000


class A2AContextIds:
    def __init__(self, max_contexts: int = _MAX_A2A_CONTEXTS) -> None:
        self._contexts: dict[str, str] = {}
        self._max_contexts = max_contexts

    def find(self, call: Call) -> str:
        key = derive_conversation_id(call)
        return self._contexts.get(key, "") if key is not None else ""

    def remember(self, call: Call, context_id: str) -> None:
        key = derive_conversation_id(call)
        if key is None or not context_id:
            return
        self._contexts.pop(key, None)
        self._contexts[key] = context_id  # the newest is last
        if len(self._contexts) > self._max_contexts:
            del self._contexts[next(iter(self._contexts))]


_MAX_ZERO_CONTEXTS = 10_000


class AgentZeroContextIds:
    def __init__(self, max_contexts: int = _MAX_ZERO_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        self._contexts: dict[str, str] = {}  # the one used last stands at the end

    def find(self, call: Call) -> str | None:
        """The agent's name for the conversation, if it has one already."""
        key = derive_conversation_id(call)
        return self._contexts.get(key) if key else None

    def remember(self, call: Call, context_id: str) -> None:
        if (key := derive_conversation_id(call)) and context_id:
            self._contexts.pop(key, None)
            self._contexts[key] = context_id
            if len(self._contexts) > self._max_contexts:
                del self._contexts[next(iter(self._contexts))]

    def forget(self, call: Call) -> None:
        if key := derive_conversation_id(call):
            self._contexts.pop(key, None)
