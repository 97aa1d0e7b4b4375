"""What is asked for is not there, or is somebody else's: a caller cannot tell which."""

from __future__ import annotations

from a2a_fabric.core.errors import CallerError, rebuilt_by_code

_SHOWN = 64


@rebuilt_by_code
class MessageNotFound(CallerError):
    code = "MESSAGE_NOT_FOUND"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message '{message_id[:_SHOWN]}' not found", message_id=message_id[:_SHOWN])


@rebuilt_by_code
class ConversationNotFound(CallerError):
    code = "CONVERSATION_NOT_FOUND"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Conversation '{conversation_id[:_SHOWN]}' not found", conversation_id=conversation_id[:_SHOWN]
        )
