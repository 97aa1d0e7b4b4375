"""The short way for `tools/call` and `tools/list` of the stateless era: decoded once, encoded once, no SDK between.

It takes only what it is sure of, and answers as the SDK would; everything else goes
to the SDK, which knows what is wrong with it. The part of a request that says what
the client can do is the same every time: the SDK looks at it once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, get_args

import msgspec
from msgspec import Raw, field

from a2a_fabric.core.call import Principal
from a2a_fabric.core.events import Event
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.http import Head, Shortcut
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.calling import ToolCall, UnknownTool
from a2a_fabric.doors.mcp.jsonrpc import Message, RPCError
from a2a_fabric.doors.mcp.narration import LOG_LEVEL, LOG_LEVELS, Narration
from a2a_fabric.doors.mcp.shelf import Shelf
from a2a_fabric.doors.mcp.visit import DirectVisit

VERSION = "2026-07-28"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

_HEADERS_OF_CALL = {b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
_HEADERS_OF_LIST = {b"mcp-protocol-version", b"mcp-method"}
_ENVELOPES_KEPT = 10_000
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

    @property
    def envelope(self) -> bytes:
        """What a client says of itself, in its own bytes."""
        return b"%b\0%b" % (bytes(self.capabilities), bytes(self.client))

    @property
    def wants_logs(self) -> bool:
        return self.log_level is not None and _LEVELS.index(self.log_level) <= _LEVELS.index(LOG_LEVEL)


class CallParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: Meta = field(name="_meta")
    name: str
    arguments: Raw = Raw(b"{}")


class ListParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: Meta = field(name="_meta")


class Request(msgspec.Struct):
    """What the short way is sure of."""

    id: str | int
    params: CallParams | ListParams


class ShortWay:
    def __init__(self, context: DoorContext, shelf: Shelf) -> None:
        self._context = context
        self._shelf = shelf
        about = shelf.about
        self._about = {SERVER_INFO: {"name": about.name, "version": about.version, "title": about.title}}
        self._calls = msgspec.json.Decoder(CallParams)
        self._lists = msgspec.json.Decoder(ListParams)
        self._sound: set[bytes] = set()
        self._encoded: dict[int, tuple[Any, bytes]] = {}

    def understands(self, scope: Any, head: Head, message: Message) -> Request | None:
        """None for what the SDK should look at."""
        method = message.method
        if head.get(b"mcp-protocol-version") != VERSION or head.get(b"mcp-method") != method or not message.is_request:
            return None
        params: CallParams | ListParams
        try:
            if method == "tools/call":
                params = self._calls.decode(message.params)
                is_object = bytes(params.arguments)[:1] in (b"{", b"n")  # n is for null
                if not is_object or params.name != head.get(b"mcp-name") or not self._shelf.is_plain(params.name):
                    return None
            elif method == "tools/list":
                params = self._lists.decode(message.params)
            else:
                return None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        expected = _HEADERS_OF_CALL if method == "tools/call" else _HEADERS_OF_LIST
        if params.meta.version != VERSION or not _is_plain(scope["headers"], head, expected):
            return None
        return Request(message.id, params)  # type: ignore[arg-type]  # a request's id is no null

    def is_sound(self, request: Request) -> bool:
        """Whether the SDK has taken such an envelope before."""
        return request.params.meta.envelope in self._sound

    def found_sound(self, request: Request) -> None:
        if len(self._sound) < _ENVELOPES_KEPT:
            self._sound.add(request.params.meta.envelope)

    async def answer(self, request: Request, visit: DirectVisit, send: Send, shortcut: Shortcut | None) -> None:
        reply = _Reply(request.id, send, shortcut)
        if isinstance(request.params, ListParams):
            started = time.perf_counter()
            await reply.result(self._listed(visit.principal))
            seconds, trace = time.perf_counter() - started, visit.trace(_carrier(request.params.meta))
            self._context.log(trace, "tools/list", code=None, message=None, seconds=seconds, status=200)
            return
        with reply:
            try:
                await reply.result(await self._called(request.params, visit, reply))
            except UnknownTool as exc:
                await reply.error(RPCError(jsonrpc.INVALID_PARAMS, str(exc), exc.data))

    async def _called(self, params: CallParams, visit: DirectVisit, reply: _Reply) -> bytes:
        meta = params.meta
        call = ToolCall(self._context, self._shelf, visit, params.name, visit.trace(_carrier(meta)))
        arguments = params.arguments if bytes(params.arguments) != b"null" else Raw(b"{}")
        if meta.progress_token is None and not meta.wants_logs:
            told = await call.run(arguments, None)
        else:
            narration = Narration(meta.progress_token, logs=meta.wants_logs)

            async def emit(event: Event) -> None:
                for method, note in narration.tell(event, call.trace):
                    await reply.notify(method, note)

            told = await call.run(arguments, emit)
        told["_meta"].update(self._about)
        return _encode(told)

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

    def __init__(self, request_id: str | int, send: Send, shortcut: Shortcut | None) -> None:
        self._id = _encode(request_id)
        self._send = send
        self._shortcut = shortcut
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._wait()

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def result(self, result: bytes) -> None:
        await self._close(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result), 200)

    async def error(self, error: RPCError) -> None:
        await self._close(jsonrpc.failure(error, msgspec.Raw(self._id)), error.status)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        body = _encode({"jsonrpc": "2.0", "method": method, "params": params})
        await self._write(_frame(body), more=True)

    async def _close(self, body: bytes, status: int) -> None:
        if self._is_open:
            await self._write(_frame(body), more=False)
        elif self._shortcut is not None:
            self._shortcut.reply(status, _JSON, body)
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self._is_open:
            self._is_open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def _wait(self) -> None:
        """Proxies close silent connections."""
        self._timer = asyncio.get_running_loop().call_later(_PING_AFTER, self._start_ping)

    def _start_ping(self) -> None:
        self._ping = asyncio.ensure_future(self._still_here())

    async def _still_here(self) -> None:
        await self._write(b": ping\r\n\r\n", more=True)
        self._wait()


def _carrier(meta: Meta) -> dict[str, str] | None:
    return {"traceparent": meta.traceparent} if meta.traceparent else None


def _frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body


def _is_plain(headers: list[tuple[bytes, bytes]], head: Head, expected: set[bytes]) -> bool:
    """Each of MCP's headers once and no further one; a body of JSON; a client that takes both forms of an answer."""
    ours = [name for name, _ in headers if name.startswith(b"mcp-")]
    kind, accept = head.get(b"content-type") or "", head.get(b"accept") or ""
    return (
        len(ours) == len(expected)
        and expected.issuperset(ours)
        and len(set(ours)) == len(ours)
        and kind.startswith("application/json")
        and "application/json" in accept
        and "text/event-stream" in accept
    )
