"""The port between a node and what serves its peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, NodeListing
from a2a_fabric.core.call import Call, Handler
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.spans import Span
from a2a_fabric.doors.context import ASGIApp

# Sends a piece of a reply, and whether it is the last one.
WritePiece = Callable[[bytes, bool], Awaitable[None]]
# Carries out the call in a body; see `PeerApp.serve_call`.
ServeCall = Callable[[bytes, WritePiece], Awaitable[None]]


_ENVELOPE_BYTES = 1024 * 1024  # of a call beside what the caller sent: its principal, its trace


def limit_request(limit: BodyLimit) -> int:
    """The largest request of a peer. A call has the caller's task twice: as it was sent, and among the arguments."""
    return 2 * limit.bytes + _ENVELOPE_BYTES


async def _read_nothing(trace_id: str) -> Sequence[Span]:
    """This node keeps no history."""
    return ()


async def refuse_admin(question: str, arguments: dict[str, Any]) -> Any:
    raise BadInput("Only processes of the same node are told what its operator sees")


def refuse_room(owner: str, held: int) -> bool:
    raise BadInput("Only processes of the same node share a limit of sessions")


class PeerServices(msgspec.Struct, frozen=True, kw_only=True):
    """What a node does for its peers.

    `load_runtime` raises FabricError. `call_agent` finds the handler of one agent. `route_call` routes a call that the
    peer has identified, authorized and counted; `call` is a call with all steps. `bind_call` gives a call the rules of
    this process. `doors` serve requests of clients that a peer handed over. For workers of this node are `answer_admin`
    and `make_room`, which closes a session for a caller who has so many.
    """

    find_agent: Callable[[str], Manifest | None]
    load_runtime: Callable[[Manifest], Awaitable[Runtime]]
    call_agent: Callable[[Manifest], Handler]
    route_call: Handler
    call: Handler
    bind_call: Callable[[Call], Call]
    on_agent_changed: Callable[[str], None]
    render_metrics: Callable[[], Awaitable[bytes]]
    doors: ASGIApp
    body_limit: BodyLimit
    read_trace: Callable[[str], Awaitable[Sequence[Span]]] = _read_nothing
    answer_admin: Callable[[str, dict[str, Any]], Awaitable[Any]] = refuse_admin
    make_room: Callable[[str, int], bool] = refuse_room
    list_agents: Callable[[str], NodeListing] = lambda site: NodeListing(agents=())  # for a node of this site
