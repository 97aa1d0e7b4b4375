"""Replies of an ACP server, as far as they are read. Unknown fields are skipped; missing ones have a default.

Messages to the server are built in `content`, as plain objects."""

from __future__ import annotations

from typing import Any

import msgspec

RUNNING_STATUSES = frozenset({"created", "in-progress", "cancelling"})


class ACPMessagePart(msgspec.Struct, frozen=True, kw_only=True):
    content_type: str | None = None  # unset: text/plain
    content: str | None = None
    content_encoding: str | None = None
    content_url: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None  # of kind `citation` or `trajectory`


class ACPMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = ""
    parts: list[ACPMessagePart] = []


class ACPAwaitRequest(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "message"
    message: ACPMessage = ACPMessage()


class ACPError(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    message: str = ""
    data: Any = None


class ACPRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    session_id: str | None = None
    await_request: ACPAwaitRequest | None = None
    output: list[ACPMessage] = []
    error: ACPError | None = None

    @property
    def is_stopped(self) -> bool:
        """Ended, waiting for input, or in an unknown state."""
        return self.status not in RUNNING_STATUSES


class ACPRunEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    run: ACPRun | None = None
    message: ACPMessage | None = None
    part: ACPMessagePart | None = None
    error: ACPError | None = None
    generic: Any = None


class ACPRunEvents(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ACPRunEvent] = []


class ACPMetadata(msgspec.Struct, frozen=True, kw_only=True):
    tags: list[str] | None = None


class ACPAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's manifest, as the server publishes it."""

    name: str
    description: str | None = None
    metadata: ACPMetadata | None = None
    input_content_types: list[str] | None = None
    output_content_types: list[str] | None = None


class ACPAgents(msgspec.Struct, frozen=True, kw_only=True):
    agents: list[ACPAgent] = []
