"""What an ACP server says, as far as we read it. Unknown fields are skipped; a missing one has a default.

Messages that go to the server are built in `content`, as plain objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

UNDER_WAY = frozenset({"created", "in-progress", "cancelling"})


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    content_type: str | None = None  # text/plain, where it says nothing
    content: str | None = None
    content_encoding: str | None = None
    content_url: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None  # of kind `citation` or `trajectory`


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = ""
    parts: list[MessagePart] = []


class AwaitRequest(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "message"
    message: Message = Message()


class Error(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    message: str = ""
    data: Any = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    session_id: str | None = None
    await_request: AwaitRequest | None = None
    output: list[Message] = []
    error: Error | None = None

    @property
    def is_at_rest(self) -> bool:
        """Done, or waiting for somebody; also in a state that nobody knows."""
        return self.status not in UNDER_WAY


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    run: Run | None = None
    message: Message | None = None
    part: MessagePart | None = None
    error: Error | None = None
    generic: Any = None


class RunEvents(msgspec.Struct, frozen=True, kw_only=True):
    events: list[RunEvent] = []


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    tags: list[str] | None = None
    documentation: str | None = None


class RemoteAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's manifest, as the server publishes it."""

    name: str
    description: str | None = None
    metadata: Metadata | None = None
    input_content_types: list[str] | None = None
    output_content_types: list[str] | None = None


class RemoteAgents(msgspec.Struct, frozen=True, kw_only=True):
    agents: list[RemoteAgent] = []
