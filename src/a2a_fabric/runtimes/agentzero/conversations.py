"""Which of the agent's contexts belongs to which conversation of ours; those not used for long are forgotten."""

from __future__ import annotations

from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import agent_conversation_id

_MOST = 10_000


class Conversations:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._contexts: dict[str, str] = {}  # the one used last stands at the end

    def context_of(self, call: Call) -> str | None:
        """The agent's name for the conversation, if it has one already."""
        key = agent_conversation_id(call)
        return self._contexts.get(key) if key else None

    def keep(self, call: Call, context_id: str) -> None:
        if (key := agent_conversation_id(call)) and context_id:
            self._contexts.pop(key, None)
            self._contexts[key] = context_id
            if len(self._contexts) > self._most:
                del self._contexts[next(iter(self._contexts))]

    def forget(self, call: Call) -> None:
        if key := agent_conversation_id(call):
            self._contexts.pop(key, None)
