"""Facts about one request to the directory (caller, route, last event id), and the stream of events that may answer it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.trace import Trace


class DirectoryRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `agent_id` is whose address was asked, `after` the last event that a returning reader has."""

    principal: Principal
    trace: Trace
    base_url: str = ""  # of our own addresses, as this caller reaches them
    agent_id: str | None = None
    last_event_id: int | None = None
    expects_reply: bool = True  # False for a notification: nobody hears the answer
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # the nodes that it came over


class DirectoryStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. One of them is the answer to the request, whichever comes first or last."""

    event: str
    body: dict[str, Any]
    number: int | None = None
    is_answer: bool = False


@dataclass(frozen=True)
class DirectoryStream:
    """An answer in many pieces. Whoever takes it closes it. One that never `ends` makes sense only as events."""

    events: AsyncGenerator[DirectoryStreamEvent]
    is_finite: bool = True
