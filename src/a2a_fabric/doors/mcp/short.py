"""The short way for `tools/call` and `tools/list` of the stateless era: decoded once, encoded once, no SDK between.

It takes only what it is sure of, and answers as the SDK would; everything else goes
to the SDK, which knows what is wrong with it. The part of a request that says what
the client can do is the same every time: the SDK looks at it once.
"""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw, field

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import META_KEY
from a2a_fabric.core.events import Event
from a2a_fabric.core.nesting import SHALLOW, is_too_deep
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Questions
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.http import Head, Shortcut
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.calling import ToolCall, UnknownTool
from a2a_fabric.doors.mcp.jsonrpc import Message, RPCError
from a2a_fabric.doors.mcp.narration import LOG_LEVEL, LOG_LEVELS, Narration
from a2a_fabric.doors.mcp.questions import Responses, abilities_of, answers_of, input_required
from a2a_fabric.doors.mcp.shelf import Shelf
from a2a_fabric.doors.mcp.visit import DirectVisit
from a2a_fabric.outbound.deadlines import Deadlines

VERSION = "2026-07-28"
_VERSION = VERSION.encode()
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

_HEADERS_OF_CALL = {b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
_HEADERS_OF_LIST = {b"mcp-protocol-version", b"mcp-method"}
_ENVELOPES_KEPT = 10_000
_SHALLOW = SHALLOW - 8  # the arguments are not the outermost object
_LISTS_KEPT = 256
_PING_AFTER = 15.0
_LEVELS: tuple[str, ...] = get_args(LOG_LEVELS)
_JSON = b"content-type: application/json\r\n"
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class Meta(msgspec.Struct):
    version: str = field(name="io.modelcontextprotocol/protocolVersion")
    capabilities: Raw = field(name="io.modelcontextprotocol/clientCapabilities")
    client: Raw = field(name="io.modelcontextprotocol/clientInfo", default=Raw(b""))
    log_level: LOG_LEVELS | None = field(name="io.modelcontextprotocol/logLevel", default=None)
    progress_token: str | int | None = field(name="progressToken", default=None)
    traceparent: str | None = None
    delegation_chain: tuple[str, ...] | None = field(name=META_KEY, default=None)

    @property
    def envelope(self) -> bytes:
        """What a client says of itself, in its own bytes."""
        return b"%b\0%b" % (self.capabilities, self.client)

    @property
    def wants_logs(self) -> bool:
        return self.log_level is not None and _LEVELS.index(self.log_level) <= _LEVELS.index(LOG_LEVEL)


class CallParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: Meta = field(name="_meta")
    name: str
    arguments: Raw = Raw(b"{}")
    input_responses: Responses | None = field(name="inputResponses", default=None)
    request_state: str | None = field(name="requestState", default=None)


class SessionMeta(msgspec.Struct, frozen=True):
    traceparent: str | None = None
    delegation_chain: tuple[str, ...] | None = field(name=META_KEY, default=None)
    progress_token: Raw = field(name="progressToken", default=Raw(b""))


class SessionParams(msgspec.Struct, forbid_unknown_fields=True):
    """Of the handshake era, where the session says the rest."""

    name: str
    arguments: Raw = Raw(b"{}")
    meta: SessionMeta = field(name="_meta", default=SessionMeta())


class ListParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: Meta = field(name="_meta")


class Request(msgspec.Struct):
    """What the short way is sure of."""

    id: str | int
    params: CallParams | ListParams


class _Call(Request):
    """A whole message, read in one go."""

    params: CallParams
    jsonrpc: Literal["2.0"]
    method: Literal["tools/call"]


class ShortWay:
    def __init__(self, context: DoorContext, shelf: Shelf) -> None:
        self._context = context
        self._shelf = shelf
        about = shelf.about
        named = {"name": about.name, "version": about.version, "title": about.title}
        self._about = {SERVER_INFO: Raw(_encode(named))}
        self._whole_calls = msgspec.json.Decoder(_Call)
        self._calls = msgspec.json.Decoder(CallParams)
        self._lists = msgspec.json.Decoder(ListParams)
        self._in_session = msgspec.json.Decoder(SessionParams)
        self._sound: set[bytes] = set()
        self._encoded: dict[int, tuple[Any, bytes]] = {}
        self._silent: Deadlines | None = None

    def knows(self, scope: Any, head: Head, body: bytes) -> Request | None:
        """A call of a kind that was found sound before: nearly all are, and are read only once."""
        name = _called_in(head, scope)
        if not name:
            return None
        try:
            call = self._whole_calls.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        params = call.params
        if params.meta.envelope not in self._sound or not self._is_plain_call(params, name):
            return None
        # Of the rest only the arguments and answers are ever walked through; short ones cannot be deep.
        is_short = len(params.arguments) <= _SHALLOW and params.input_responses is None
        return call if is_short or not is_too_deep(body) else None  # the long way says what is wrong

    def understands(self, scope: Any, head: Head, message: Message) -> Request | None:
        """None for what the SDK should look at."""
        method = message.method
        if head.raw(b"mcp-protocol-version") != _VERSION:
            return None
        if head.get(b"mcp-method") != method or not message.is_request:
            return None
        params: CallParams | ListParams
        try:
            if method == "tools/call":
                params = self._calls.decode(message.params)
                is_plain = self._is_plain_call(params, _called_in(head, scope))
            elif method == "tools/list":
                params = self._lists.decode(message.params)
                is_plain = params.meta.version == VERSION and _is_plain(scope["headers"], head, _HEADERS_OF_LIST)
            else:
                return None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        return Request(message.id, params) if is_plain else None  # type: ignore[arg-type]  # a request's id is no null

    def _is_plain_call(self, params: CallParams, name: str) -> bool:
        if params.name != name or params.meta.version != VERSION or not self._shelf.is_plain(name):
            return False
        return bytes(params.arguments)[:1] in (b"{", b"n")  # an object, or null

    def understands_in_session(self, head: Head, message: Message) -> SessionParams | None:
        """None for what the SDK should look at: whoever wants progress gets a stream."""
        try:
            params = self._in_session.decode(message.params)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        is_plain = not params.meta.progress_token and bytes(params.arguments)[:1] == b"{"
        return params if is_plain and _fits_both(head) else None

    def is_sound(self, request: Request) -> bool:
        """Whether the SDK has taken such an envelope before."""
        return request.params.meta.envelope in self._sound

    def found_sound(self, request: Request) -> None:
        if len(self._sound) < _ENVELOPES_KEPT:
            self._sound.add(request.params.meta.envelope)

    async def answer(self, request: Request, visit: DirectVisit, send: Send, shortcut: Shortcut | None) -> None:
        reply = _Reply(request.id, send, shortcut, self._silent or self._silences())
        params, meta = request.params, request.params.meta
        trace = visit.traced(meta.traceparent)
        if isinstance(params, ListParams):
            started = time.perf_counter()
            await reply.result(self._listed(visit.principal))
            seconds = time.perf_counter() - started
            self._context.log(trace, "tools/list", code=None, message=None, seconds=seconds, status=200)
            return
        chain = meta.delegation_chain
        call = ToolCall(self._context, self._shelf, visit, params.name, trace, partial(_takes_tasks, meta), chain)
        arguments = params.arguments if bytes(params.arguments) != b"null" else Raw(b"{}")
        answers = answers_of(params.input_responses, params.request_state)
        hears = meta.progress_token is not None or meta.log_level is not None
        with reply:
            try:
                told = await call.run(arguments, _narrator(meta, call, reply) if hears else None, answers)
            except UnknownTool as exc:
                await reply.error(RPCError(jsonrpc.INVALID_PARAMS, str(exc), exc.data))
                return
            if isinstance(told, Questions):
                can_be_asked = abilities_of(meta.capabilities).cover(told)
                told = input_required(told, call.trace) if can_be_asked else call.unanswerable(told, arguments)
            told["_meta"].update(self._about)
            result = _encode(told)
            if not reply.at_once(result):
                await reply.result(result)

    async def answer_in_session(
        self, request_id: str | int, params: SessionParams, visit: DirectVisit, send: Send, shortcut: Shortcut
    ) -> Questions | None:
        """What the agent wants to know, if it does and nothing has been said yet: then the SDK goes on."""
        reply = _Reply(request_id, send, shortcut, self._silences())
        meta = params.meta
        trace, chain = visit.traced(meta.traceparent), meta.delegation_chain
        call = ToolCall(self._context, self._shelf, visit, params.name, trace, chain=chain)
        with reply:
            try:
                told = await call.run(params.arguments, None)
            except UnknownTool as exc:
                await reply.error(RPCError(jsonrpc.INVALID_PARAMS, str(exc), exc.data, status=200))
                return None
            if isinstance(told, Questions):
                if not reply.is_open:
                    return told
                told = call.unanswerable(told, params.arguments)
            told.pop("resultType", None)
            await reply.result(_encode(told))
        return None

    def _silences(self) -> Deadlines:
        if self._silent is None:
            self._silent = Deadlines(asyncio.get_running_loop())
        return self._silent

    def _listed(self, principal: Principal) -> bytes:
        tools = self._shelf.tools(principal)
        known = self._encoded.get(id(tools))
        if known is None:
            if len(self._encoded) >= _LISTS_KEPT:
                self._encoded.clear()
            told = {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": self._about}
            known = self._encoded[id(tools)] = (tools, _encode(told))  # the list is kept, so its id stays its own
        return known[1]


class _Reply:
    """One answer: JSON, or a stream once something happened before it or it takes long."""

    def __init__(self, request_id: str | int, send: Send, shortcut: Shortcut | None, silences: Deadlines) -> None:
        self._id = _encode(request_id)
        self._send = send
        self._shortcut = shortcut
        self.is_open = False
        self._silences = silences
        self.timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        """Proxies close silent connections."""
        self._silences.start(self, _PING_AFTER)

    def __exit__(self, *exc: object) -> None:
        self._silences.stop(self)
        if self._ping is not None:
            self._ping.cancel()

    def at_once(self, result: bytes) -> bool:
        """Whether the result could go without waiting."""
        if self.is_open or self._shortcut is None:
            return False
        self._shortcut.reply(200, _JSON, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result))
        return True

    async def result(self, result: bytes) -> None:
        await self._close(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result), 200)

    async def error(self, error: RPCError) -> None:
        await self._close(jsonrpc.failure(error, msgspec.Raw(self._id)), error.status)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        body = _encode({"jsonrpc": "2.0", "method": method, "params": params})
        await self._write(_frame(body), more=True)

    async def _close(self, body: bytes, status: int) -> None:
        if self.is_open:
            await self._write(_frame(body), more=False)
        elif self._shortcut is not None:
            self._shortcut.reply(status, _JSON, body)
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_open:
            self.is_open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def expire(self) -> None:
        self._silences.stop(self)
        self._ping = asyncio.ensure_future(self._still_here())

    async def _still_here(self) -> None:
        await self._write(b": ping\r\n\r\n", more=True)
        self._silences.start(self, _PING_AFTER)


def _narrator(meta: Meta, call: ToolCall, reply: _Reply) -> Emit | None:
    """Who tells the client what happens on the way, if it wants to know."""
    if meta.progress_token is None and not meta.wants_logs:
        return None
    narration = Narration(meta.progress_token, logs=meta.wants_logs)

    async def emit(event: Event) -> None:
        for method, note in narration.tell(event, call.trace):
            await reply.notify(method, note)

    return emit


def _takes_tasks(meta: Meta) -> bool:
    return abilities_of(meta.capabilities).has_tasks


def _frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body


def _called_in(head: Head, scope: Any) -> str:
    """The tool that a plain head of a call names, or nothing; worked out once for a head."""
    name = head.concluded.get("mcp: called")
    if name is None:
        is_call = head.raw(b"mcp-method") == b"tools/call" and _is_plain(scope["headers"], head, _HEADERS_OF_CALL)
        name = head.concluded["mcp: called"] = (head.get(b"mcp-name") or "") if is_call else ""
    return name


def _is_plain(headers: list[tuple[bytes, bytes]], head: Head, expected: set[bytes]) -> bool:
    """Each of MCP's headers once and no further one; a body of JSON; a client that takes both forms of an answer."""
    ours = [name for name, _ in headers if name.startswith(b"mcp-")]
    if len(ours) != len(expected) or set(ours) != expected or head.raw(b"mcp-protocol-version") != _VERSION:
        return False
    return _takes_both(head.get(b"content-type") or "", head.get(b"accept") or "")


def _fits_both(head: Head) -> bool:
    """`_takes_both`, worked out once for a head."""
    fits = head.concluded.get("mcp: takes both")
    if fits is None:
        takes = _takes_both(head.get(b"content-type") or "", head.get(b"accept") or "")
        fits = head.concluded["mcp: takes both"] = "yes" if takes else ""
    return fits == "yes"


@lru_cache(maxsize=256)
def _takes_both(kind: str, accept: str) -> bool:
    is_json = kind.partition(";")[0].strip() == "application/json"
    return is_json and "application/json" in accept and "text/event-stream" in accept
