"""Which of the agent's contexts belongs to which conversation of ours; those not used for long are forgotten."""

from __future__ import annotations

from a2a_fabric.core.call import Call

_MOST = 10_000

Whose = tuple[str, str | None, str]


class Conversations:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._contexts: dict[Whose, str] = {}  # the one used last stands at the end

    def context_of(self, call: Call) -> str | None:
        """The agent's name for the conversation, if it has one already."""
        return self._contexts.get(whose) if (whose := _whose(call)) else None

    def keep(self, call: Call, context_id: str) -> None:
        if (whose := _whose(call)) and context_id:
            self._contexts.pop(whose, None)
            self._contexts[whose] = context_id
            if len(self._contexts) > self._most:
                del self._contexts[next(iter(self._contexts))]

    def forget(self, call: Call) -> None:
        if whose := _whose(call):
            self._contexts.pop(whose, None)


def _whose(call: Call) -> Whose | None:
    """A conversation belongs to its caller: the same name from somebody else is another one."""
    if not call.conversation_id:
        return None
    return call.auth.mode, call.auth.principal_id, call.conversation_id
