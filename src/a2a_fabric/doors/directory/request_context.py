"""Facts about one request to the directory (caller, agent, last event id), and the events that may answer it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.trace import Trace


class DirectoryRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `agent_id` is the agent whose path was requested."""

    principal: Principal
    trace: Trace
    base_url: str = ""  # of this node, for this caller
    agent_id: str | None = None
    last_event_id: int | None = None  # the last event that a reconnecting client has received
    expects_reply: bool = True  # False for a notification
    delegation_chain: MaybeChain = msgspec.UNSET


class DirectoryStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. One of them, the first or the last, is the answer to the request."""

    event: str
    body: dict[str, Any]
    number: int | None = None
    is_answer: bool = False


@dataclass(frozen=True)
class DirectoryStream:
    """An answer made of events; its receiver closes it. Only a finite one can also be sent as one reply."""

    events: AsyncGenerator[DirectoryStreamEvent]
    is_finite: bool = True
    is_resumed: bool = False  # whether the next event may be long in coming
