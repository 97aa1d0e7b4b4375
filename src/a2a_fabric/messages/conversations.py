"""Conversations: derived ids, not-found errors, and the signals that wake followers in this process.

Ids are derived from keys, so that sending the same message twice stores it once."""

from __future__ import annotations

import hashlib

from a2a_fabric.core.errors import CallerError, register_error_code
from a2a_fabric.core.message import new_conversation_id
from a2a_fabric.core.tasks import TopicSignals

_MAX_ID_SHOWN = 64


@register_error_code
class MessageNotFound(CallerError):
    code = "MESSAGE_NOT_FOUND"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message '{message_id[:_MAX_ID_SHOWN]}' not found", message_id=message_id[:_MAX_ID_SHOWN])


@register_error_code
class ConversationNotFound(CallerError):
    code = "CONVERSATION_NOT_FOUND"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Conversation '{conversation_id[:_MAX_ID_SHOWN]}' not found",
            conversation_id=conversation_id[:_MAX_ID_SHOWN],
        )


def derive_conversation_id(owner: str, key: str | None) -> str:
    """A new id, or with a key always the same one, so that a message that is sent twice has one conversation."""
    return new_conversation_id() if key is None else f"conv_{_digest(owner, key)}"


def derive_delivery_id(message_id: str) -> str:
    """The id of the job that delivers a message."""
    return f"task_{_digest(message_id)}"


def _digest(*values: str) -> str:
    return hashlib.sha256("\0".join(values).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class ConversationSignals(TopicSignals):
    """Wakes the followers of a conversation in this process; the topics are conversation ids."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    def stop(self) -> None:
        """The node stops: requests that only wait end now."""
        self.is_stopped = True
        self.post_all()
