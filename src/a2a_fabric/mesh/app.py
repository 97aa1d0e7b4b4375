"""The ASGI application of a node's private listener, which only peers reach: calls and questions for agents that this
process holds, and requests of clients that another peer handed over.

Requests below `PEER_PREFIX` come from peers themselves. Every other request is one of a client: it goes to the doors as
if it had arrived here, with the address and certificate that the client showed to the first peer."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, NodeListing
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, InternalError, PayloadTooLarge
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.propagation import make_child_trace
from a2a_fabric.core.recording import CallOrigin, current_origin
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.spans import Span
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.edge import (
    HEAD_KEY,
    ClientDisconnected,
    RequestHead,
    head_from_scope,
    read_body,
    run_until_disconnect,
    send_reply,
)
from a2a_fabric.identity.peer import PEER_KEY, Peer
from a2a_fabric.mesh.client import PEER_PREFIX, RELAY_HEADER
from a2a_fabric.mesh.frames import (
    ErrorFrame,
    EventFrame,
    Frame,
    ResultFrame,
    decode_call,
    encode_frame,
    frame_from_error,
    frame_from_value,
)
from a2a_fabric.mesh.services import PeerServices, WritePiece, limit_request
from a2a_fabric.protocols.mcp.runtime_ports import (
    EMPTY_LISTING,
    OffersPromptsAndResources,
    PromptResourceProvider,
    PromptResourceQuery,
)

_log = logging.getLogger(__name__)
FRAMES_TYPE = b"application/vnd.msgpack"
_RELAY_HEADER_BYTES = RELAY_HEADER.encode()
RELAYED_KEY = "fabric.relayed"  # in the scope of a request that a peer handed over: it is handed on no further
_START_TIMEOUT = 30.0  # seconds for an agent whose resource is followed


class RelayFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a request arrived at the peer that handed it over."""

    peer: Peer
    scheme: str = "http"
    host: str | None = None


def encode_relay_facts(facts: RelayFacts) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(facts)).decode()


class _AgentQuestion(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str = ""
    uri: str = ""
    site: str = ""
    trace_id: str = ""
    query: PromptResourceQuery | None = None
    question: str = ""
    owner: str = ""
    held: int = 0
    arguments: dict[str, Any] = {}


_MESH_ORIGIN = CallOrigin(door="mesh", protocol="mesh")
_question_decoder = msgspec.msgpack.Decoder(_AgentQuestion)
_Answer = Callable[["_Exchange", _AgentQuestion], Awaitable[Any]]


class PeerApp:
    def __init__(self, services: PeerServices) -> None:
        self._services = services
        self._answers: dict[str, _Answer] = {
            "/health": self._get_status,
            "/describe": self._describe,
            "/prompts-resources": self._list_prompts_resources,
            "/ask": self._ask_agent,
            "/subscribe": self._follow_resource,
            "/changed": self._note_change,
            "/metrics": self._render_metrics,
            "/agents": self._list_agents,
            "/trace": self._read_trace,
            "/admin": self._answer_admin,
            "/make-room": self._make_room,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        if path.startswith(PEER_PREFIX):
            await self._serve_peer(path[len(PEER_PREFIX) :], scope, receive, send)
        else:
            restored = _restore_scope(scope)
            if restored is None:
                await send_reply(send, 400, b'{"error": "Only requests that a peer hands over are served here"}', [])
            else:
                await self._services.doors(restored, receive, send)

    async def _serve_peer(self, path: str, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(ReplyWriter(send))
        try:
            body = await read_body(receive, head_from_scope(scope), limit_request(self._services.body_limit))
            await run_until_disconnect(scope, receive, lambda: self._answer(path, body, exchange))
        except PayloadTooLarge as error:
            await exchange.finish(frame_from_error(error))
        except ClientDisconnected:
            pass  # the peer's caller has left, and the work was cancelled

    def serve_call(self, body: bytes, write: WritePiece) -> Awaitable[None]:
        """Carry out a call of another node. `write` sends a piece of the reply, and says whether it is the last."""
        return self._answer("/call", body, _Exchange(write))

    async def _answer(self, path: str, body: bytes, exchange: _Exchange) -> None:
        try:
            if path == "/call":
                frame: Frame = ResultFrame(await self._carry_out(body, exchange))
            elif (answer := self._answers.get(path)) is not None:
                frame = frame_from_value(await answer(exchange, _question_decoder.decode(body)))
            else:
                raise BadInput(f"This node has nothing for peers at {path[:100]}. Its version may be older")
        except FabricError as error:
            frame = frame_from_error(error)
        except msgspec.DecodeError as exc:
            frame = frame_from_error(BadInput(f"A peer sent a request that cannot be read: {exc}"[:300]))
        except Exception:
            _log.exception("a request of a peer failed")
            frame = frame_from_error(InternalError())
        await exchange.finish(frame)

    async def _carry_out(self, body: bytes, exchange: _Exchange) -> Result:
        services = self._services
        mode, call = decode_call(body)
        call = services.bind_call(call)
        if mode == "answers":
            return await services.route_call(call, exchange.emit)
        if mode == "node":
            current_origin.set(_MESH_ORIGIN)
            # The call at this node is a span of its own.
            own_call = msgspec.structs.replace(call, trace=make_child_trace(call.trace))
            return await services.call(own_call, exchange.emit)
        return await services.call_agent(self._get_manifest(call.target.agent_id))(call, exchange.emit)

    async def _get_status(self, exchange: _Exchange, question: _AgentQuestion) -> str:
        return await (await self._load(question)).health()

    async def _describe(self, exchange: _Exchange, question: _AgentQuestion) -> Manifest:
        return await (await self._load(question)).describe()

    async def _list_prompts_resources(self, exchange: _Exchange, question: _AgentQuestion) -> Any:
        runtime = await self._load(question)
        if not isinstance(runtime, OffersPromptsAndResources):
            return EMPTY_LISTING
        return await runtime.prompts_and_resources.load()

    async def _ask_agent(self, exchange: _Exchange, question: _AgentQuestion) -> dict[str, Any]:
        if question.query is None:
            raise BadInput("The question to the agent is missing", field="query")
        return await (await self._find_provider(question)).ask(question.query, exchange.emit)

    async def _follow_resource(self, exchange: _Exchange, question: _AgentQuestion) -> None:
        """One frame when the subscription holds, one for each change; changes that come together are one."""
        changed, lost = asyncio.Event(), asyncio.Event()

        def on_lost() -> None:
            lost.set()
            changed.set()

        provider = await self._find_provider(question)
        unsubscribe = await provider.subscribe(question.uri, changed.set, on_lost, _START_TIMEOUT)
        try:
            await exchange.send(frame_from_value(None))
            while True:
                await changed.wait()
                if lost.is_set():
                    return
                changed.clear()
                await exchange.emit(_CHANGED)
        finally:
            unsubscribe()

    async def _note_change(self, exchange: _Exchange, question: _AgentQuestion) -> None:
        self._services.on_agent_changed(question.agent_id)

    async def _render_metrics(self, exchange: _Exchange, question: _AgentQuestion) -> bytes:
        return await self._services.render_metrics()

    async def _answer_admin(self, exchange: _Exchange, question: _AgentQuestion) -> Any:
        return await self._services.answer_admin(question.question, question.arguments)

    async def _make_room(self, exchange: _Exchange, question: _AgentQuestion) -> bool:
        return self._services.make_room(question.owner, question.held)

    async def _list_agents(self, exchange: _Exchange, question: _AgentQuestion) -> NodeListing:
        return self._services.list_agents(question.site)

    async def _read_trace(self, exchange: _Exchange, question: _AgentQuestion) -> Sequence[Span]:
        return await self._services.read_trace(question.trace_id)

    async def _load(self, question: _AgentQuestion) -> Runtime:
        return await self._services.load_runtime(self._get_manifest(question.agent_id))

    def _get_manifest(self, agent_id: str) -> Manifest:
        """Raises AgentOffline: catalogs of two peers differ for a moment when an agent joins or leaves."""
        manifest = self._services.find_agent(agent_id)
        if manifest is None:
            raise AgentOffline(f"Agent '{agent_id}' has left", agent_id=agent_id)
        return manifest

    async def _find_provider(self, question: _AgentQuestion) -> PromptResourceProvider:
        runtime = await self._load(question)
        if not isinstance(runtime, OffersPromptsAndResources):
            raise AgentOffline(f"Agent '{question.agent_id}' has no prompts or resources at present")
        return runtime.prompts_and_resources


_CHANGED = Event("status", {"status": "running", "message": "changed"})


class ReplyWriter:
    """Pieces of a reply as ASGI: in one piece if the first one is the last, else as a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    async def __call__(self, piece: bytes, is_last: bool) -> None:
        if is_last and not self._has_begun:
            await send_reply(self._send, 200, piece, [], FRAMES_TYPE)
            return
        if not self._has_begun:
            self._has_begun = True
            head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", FRAMES_TYPE)]}
            await self._send(head)
        await self._send({"type": "http.response.body", "body": piece, "more_body": not is_last})


class _Exchange:
    """The reply to a peer."""

    def __init__(self, write: WritePiece) -> None:
        self._write = write

    async def emit(self, event: Event) -> None:
        await self.send(EventFrame(event))

    async def send(self, frame: Frame) -> None:
        await self._write(encode_frame(frame), False)

    async def finish(self, frame: Frame) -> None:
        try:
            encoded = encode_frame(frame)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            _log.warning("an answer cannot be sent to a peer: %s", exc)
            encoded = encode_frame(ErrorFrame("UPSTREAM_ERROR", f"The agent's answer cannot be passed on: {exc}"[:300]))
        await self._write(encoded, True)


def _restore_scope(scope: Any) -> Any | None:
    """The request as it arrived at the first peer; None if no peer handed it over."""
    relayed = next((value for name, value in scope["headers"] if name == _RELAY_HEADER_BYTES), None)
    if relayed is None:
        return None
    try:
        facts = msgspec.msgpack.decode(base64.urlsafe_b64decode(relayed), type=RelayFacts)
    except (ValueError, msgspec.DecodeError):
        return None
    headers = [(name, value) for name, value in scope["headers"] if name not in (_RELAY_HEADER_BYTES, b"host")]
    if facts.host is not None:
        headers.append((b"host", facts.host.encode("latin-1")))
    return {
        **scope,
        "headers": headers,
        "scheme": facts.scheme,
        "client": (facts.peer.address, 0) if facts.peer.address else None,
        "state": {**scope.get("state", {}), PEER_KEY: facts.peer},
        HEAD_KEY: RequestHead(headers, peer=facts.peer),
        RELAYED_KEY: True,
    }
