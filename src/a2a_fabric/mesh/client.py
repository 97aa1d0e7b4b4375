"""Asks a peer: calls with their events, questions about an agent, and requests that are handed over as they came.

The transport is any `HTTPClient`: a Unix socket between workers of one machine, NATS or HTTP between nodes. Closing the
reply cancels the peer's work; a reader that is slow slows the agent down, because frames are read one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, TypeVar

import msgspec

from a2a_fabric.core.agent import Manifest, NodeListing, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline, CallTimeout, FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import Span
from a2a_fabric.doors.edge import REFUSED_HEADER
from a2a_fabric.mesh.frames import (
    CallMode,
    ErrorFrame,
    EventFrame,
    Frame,
    FrameReader,
    ResultFrame,
    ValueFrame,
    encode_call,
    error_from_frame,
)
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    OutboundError,
    StreamedReply,
)
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceListing, PromptResourceQuery

T = TypeVar("T")

PEER_PREFIX = "/.peer"  # only the private listeners of a node serve paths below it
RELAY_HEADER = "x-fabric-relayed"  # on a request that was handed over: who sent it, and how it arrived
GRACE = 1.0  # seconds beyond a call's own time, so that the peer's time-out error arrives
_QUESTION_TIMEOUT = 30.0
STREAM_BYTES = 2**62  # a stream is bounded by its time, and each frame by the size of a reply
FRAMES_HEADERS = {"content-type": "application/vnd.msgpack"}
_encode = msgspec.msgpack.Encoder().encode


class PeerClient:
    """One peer. `name` is for messages; the client does not own `http`."""

    def __init__(self, name: str, base_url: str, http: HTTPClient, reply_bytes: int) -> None:
        self.name = name
        self._base_url = base_url
        self._http = http
        self._reply_bytes = reply_bytes

    async def call(self, call: Call, emit: Emit, mode: CallMode) -> Result:
        """Raises FabricError: the peer's own, or the failure to reach it. Cancelling it cancels the peer's work."""
        timeout = call.target.timeout_ms / 1000
        async for frame in self._exchange("/call", encode_call(call, mode), timeout + GRACE):
            if isinstance(frame, EventFrame):
                await emit(frame.event)
            elif isinstance(frame, ResultFrame):
                return frame.result
        raise self._build_interrupted()

    async def get_status(self, agent_id: str) -> Status:
        return await self._ask("/health", {"agent_id": agent_id}, Status)  # type: ignore[arg-type]  # a Literal

    async def describe(self, agent_id: str) -> Manifest:
        return await self._ask("/describe", {"agent_id": agent_id}, Manifest)

    async def list_agents(self, site: str) -> NodeListing:
        """What the peer offers to a node of this site."""
        return await self._ask("/agents", {"site": site}, NodeListing)

    async def read_trace(self, trace_id: str) -> list[Span]:
        """What the peer recorded of a trace."""
        return await self._ask("/trace", {"trace_id": trace_id}, list[Span])

    async def list_prompts_resources(self, agent_id: str) -> PromptResourceListing:
        return await self._ask("/prompts-resources", {"agent_id": agent_id}, PromptResourceListing)

    async def ask_agent(self, agent_id: str, query: PromptResourceQuery, emit: Emit | None) -> dict[str, Any]:
        body = _encode({"agent_id": agent_id, "query": query})
        async for frame in self._exchange("/ask", body, query.timeout + query.start_timeout + GRACE):
            if isinstance(frame, EventFrame) and emit is not None:
                await emit(frame.event)
            elif isinstance(frame, ValueFrame):
                return _decode(frame, dict[str, Any])
        raise self._build_interrupted()

    async def follow_resource(self, agent_id: str, uri: str, on_event: Callable[[bool], None]) -> None:
        """Call `on_event(False)` once the subscription holds, then `on_event(True)` at each change, until it ends."""
        async for frame in self._exchange("/subscribe", _encode({"agent_id": agent_id, "uri": uri}), inf):
            on_event(isinstance(frame, EventFrame))

    async def notify_changed(self, agent_id: str) -> None:
        """The agent offers something else now."""
        await self._ask("/changed", {"agent_id": agent_id}, type(None))

    async def ask_admin(self, question: str, arguments: dict[str, Any]) -> Any:
        """What that process of the node tells its operator (`admin/processes.py`)."""
        answer: Any = await self._ask("/admin", {"question": question, "arguments": arguments}, Any)
        return answer

    async def make_room(self, owner: str, held: int) -> bool:
        """Whether the peer has closed a session for this caller, who has `held`."""
        return await self._ask("/make-room", {"owner": owner, "held": held}, bool)

    async def read_metrics(self) -> bytes:
        return await self._ask("/metrics", {}, bytes)

    def relay(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Hand a request over. The block gets the peer's reply; raises OutboundError."""
        return self._http.stream(
            method, self._base_url + target, headers=headers, body=body or None, timeout=timeout, limit=STREAM_BYTES
        )

    async def _ask(self, path: str, question: dict[str, Any], kind: type[T]) -> T:
        async for frame in self._exchange(path, _encode(question), _QUESTION_TIMEOUT):
            if isinstance(frame, ValueFrame):
                return _decode(frame, kind)
        raise self._build_interrupted()

    async def _exchange(self, path: str, body: bytes, timeout: float) -> AsyncIterator[Frame]:
        """The frames of the reply as they come. Raises the error in one, or the failure to reach the peer."""
        reader = FrameReader(self._reply_bytes)
        url = f"{self._base_url}{PEER_PREFIX}{path}"
        try:
            async with self._http.stream(
                "POST", url, headers=FRAMES_HEADERS, body=body, timeout=timeout, limit=STREAM_BYTES
            ) as reply:
                if REFUSED_HEADER in reply.headers:
                    raise AgentOffline(f"{self.name} takes no requests now")
                if reply.status == 503:
                    raise UpstreamInterrupted(f"{self.name} was stopped before it had answered")
                if reply.status != 200:
                    raise UpstreamFailed(f"{self.name} answered with HTTP {reply.status}")
                while piece := await reply.next_chunk():
                    for frame in reader.feed(piece):
                        if isinstance(frame, ErrorFrame):
                            raise error_from_frame(frame)
                        yield frame
        except OutboundError as exc:
            raise self._translate(exc, timeout) from exc

    def _translate(self, error: OutboundError, timeout: float) -> FabricError:
        if isinstance(error, ConnectFailed):
            return AgentOffline(f"{self.name}, which holds the agent, cannot be reached: {error}")
        if isinstance(error, DeadlineExceeded):
            return CallTimeout(timeout)
        return UpstreamInterrupted(f"The connection to {self.name} broke before the answer was complete: {error}")

    def _build_interrupted(self) -> UpstreamInterrupted:
        return UpstreamInterrupted(f"{self.name} ended its reply without an answer")


def _decode(frame: ValueFrame, kind: type[T]) -> T:
    """Raises UpstreamFailed."""
    try:
        return msgspec.msgpack.decode(frame.value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"A peer's answer cannot be read: {exc}"[:300]) from exc
