"""The fast path for plain `tools/call` and `tools/list` requests: decoded once, encoded once, without the SDK.

Invariants:
- A request is taken only if every part of it is understood and valid. Every other request goes to the SDK, which
  reports what is wrong with it; so this module reports no protocol errors of its own.
- An answer is what the SDK would have sent, apart from the order of keys.
- The envelope in which a client describes itself is the same in every request. Its bytes are trusted if they are
  certainly valid, or after the SDK has accepted them once (`trust`); they are compared, never parsed again, on the way
  to a call.
- A body is decoded once and a result encoded once. Arguments stay raw bytes until the operation decodes them.
- No task is made for a call: our own server cancels the task of the request itself when the client disconnects.
- Nothing is awaited between the end of the call and its reply, if the reply has not become a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, field

from a2a_fabric.core.call import Call, Emit, Principal, ignore_event
from a2a_fabric.core.errors import FabricError, OutOfScope
from a2a_fabric.core.json_text import SHORT, find_json_problem
from a2a_fabric.core.propagation import (
    DELEGATION_META_KEY,
    MANDATE_META_KEY,
    PASSPORT_META_KEY,
    Trace,
    new_trace,
    trace_from_traceparent,
)
from a2a_fabric.core.result import Event, Questions
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.edge import RequestHead, Shortcut
from a2a_fabric.doors.mcp.light_sessions import LightSessions, is_plain_client, render_discovery
from a2a_fabric.doors.mcp.request import DirectRequestContext, McpReply, McpRequestContext
from a2a_fabric.doors.mcp.results import LogLevel, McpEventWriter, encode_plain_result, render_input_required
from a2a_fabric.doors.mcp.sessions import FastSessions
from a2a_fabric.doors.mcp.tool_calls import ToolCall, UnknownTool, has_issued_token, needs_tasks
from a2a_fabric.doors.mcp.tool_list import is_cursor
from a2a_fabric.doors.mcp.tools import ListingClient, ToolCatalog
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION
from a2a_fabric.protocols.mcp.content import SHOWS_APPS
from a2a_fabric.protocols.mcp.questions import ClientResponses, answers_from_responses, parse_capabilities
from a2a_fabric.protocols.mcp.wire import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    SERVER_INFO_KEY,
    SESSION_HEADER_BYTES,
    STATELESS_VERSION,
    TASKS_EXTENSION,
    VERSION_HEADER_BYTES,
    McpMessage,
    McpProtocolError,
    decode_or_none,
)

_UI_EXTENSION_BYTES = f'"{UI_EXTENSION}"'.encode()
_STATELESS_VERSION_BYTES = STATELESS_VERSION.encode()
_LIST_HEADERS = {VERSION_HEADER_BYTES, b"mcp-method"}
_CALL_HEADERS = {*_LIST_HEADERS, b"mcp-name"}
_MAX_TRUSTED = 10_000
_MAX_ENVELOPE = 4096  # bytes; the SDK checks each request of a client that says more of itself
_NULL = b"null"
_OBJECT_OR_NULL = (b"{", b"n")  # first bytes of arguments
_CALLED_TOOL = "mcp: called"  # what `_find_tool_name` has found, in what is derived from a head
_SHORT_ARGUMENTS = SHORT - 8  # they are not the outermost object
_LONG_BODY = 4096  # bytes; a longer one is looked at before anything is decoded
_encode = msgspec.json.Encoder().encode


class StatelessMeta(msgspec.Struct):
    version: str = field(name=PROTOCOL_VERSION_KEY)
    capabilities: Raw = field(name=CLIENT_CAPABILITIES_KEY)
    client: Raw = field(name=CLIENT_INFO_KEY, default=Raw(b""))
    log_level: LogLevel | None = field(name=LOG_LEVEL_KEY, default=None)
    progress_token: str | int | None = field(name="progressToken", default=None)
    traceparent: str | None = None
    delegation_chain: tuple[str, ...] | None = field(name=DELEGATION_META_KEY, default=None)
    passport: Raw | None = field(name=PASSPORT_META_KEY, default=None)
    mandate: Raw | None = field(name=MANDATE_META_KEY, default=None)

    @property
    def envelope(self) -> bytes:
        """The client's description of itself, as the bytes it sent."""
        return b"%b\0%b" % (self.capabilities, self.client)


class StatelessCallParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: StatelessMeta = field(name="_meta")
    name: str
    arguments: Raw = Raw(b"{}")
    input_responses: ClientResponses | None = field(name="inputResponses", default=None)
    request_state: str | None = field(name="requestState", default=None)


class HandshakeMeta(msgspec.Struct, frozen=True):
    traceparent: str | None = None
    delegation_chain: tuple[str, ...] | None = field(name=DELEGATION_META_KEY, default=None)
    progress_token: Raw = field(name="progressToken", default=Raw(b""))
    passport: Raw | None = field(name=PASSPORT_META_KEY, default=None)
    mandate: Raw | None = field(name=MANDATE_META_KEY, default=None)

    @property
    def is_plain(self) -> bool:
        """Whether the message has no token for progress, and no credentials of its own."""
        return not self.progress_token and self.passport is None and self.mandate is None


class HandshakeCallParams(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of the handshake era, where the session holds the rest."""

    name: str
    arguments: Raw = Raw(b"{}")
    meta: HandshakeMeta = field(name="_meta", default=HandshakeMeta())


class HandshakeListParams(msgspec.Struct, forbid_unknown_fields=True):
    cursor: str | None = None
    meta: HandshakeMeta = field(name="_meta", default=HandshakeMeta())


class ListToolsParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: StatelessMeta = field(name="_meta")
    cursor: str | None = None


class _NamedCall(msgspec.Struct):
    name: str


class _ClientName(msgspec.Struct):
    name: str = ""


class ServerDiscoverParams(msgspec.Struct, forbid_unknown_fields=True):
    meta: StatelessMeta = field(name="_meta")


class FastRequest(msgspec.Struct):
    """A request that the fast path understands."""

    id: str | int
    params: StatelessCallParams | ListToolsParams | ServerDiscoverParams


class _WholeCall(FastRequest):
    """A whole message, decoded in one pass."""

    params: StatelessCallParams
    jsonrpc: Literal["2.0"]
    method: Literal["tools/call"]


class SessionCall(msgspec.Struct):
    """A whole `tools/call` of the handshake era, decoded in one pass."""

    id: str | int
    params: HandshakeCallParams
    jsonrpc: Literal["2.0"]
    method: Literal["tools/call"]


class FastPath:
    """The fast path to the tools of one catalog; `sessions` are those in which it may be taken."""

    def __init__(
        self, context: DoorContext, catalog: ToolCatalog, sessions: FastSessions, light_sessions: LightSessions
    ) -> None:
        self.sessions = sessions
        self.light_sessions = light_sessions
        self._context = context
        self._catalog = catalog
        info = catalog.server_info
        server_info = {"name": info.name, "version": info.version, "title": info.title}
        self._result_meta = {SERVER_INFO_KEY: Raw(_encode(server_info))}
        members = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": self._result_meta}
        self._list_members = b"," + _encode(members)[1:-1]
        self._plain_members = b"," + _encode(self._result_meta)[1:-1]
        self._whole_call_decoder = msgspec.json.Decoder(_WholeCall)
        self._call_decoder = msgspec.json.Decoder(StatelessCallParams)
        self._list_decoder = msgspec.json.Decoder(ListToolsParams)
        self._discover_decoder = msgspec.json.Decoder(ServerDiscoverParams)
        self._whole_session_call_decoder = msgspec.json.Decoder(SessionCall)
        self._session_decoder = msgspec.json.Decoder(HandshakeCallParams)
        self._session_list_decoder = msgspec.json.Decoder(HandshakeListParams)
        self._trusted: set[bytes] = set()
        self._ping_timers: DeadlineSweep | None = None

    def parse_trusted(
        self, scope: Any, head: RequestHead, body: bytes, principal: Principal
    ) -> tuple[FastRequest, Call | None] | None:
        """A request to call a tool whose envelope is trusted already. Nearly all are, and are decoded only once.

        With it comes the call itself, if the request is a plain one: without answers, a wish for events, or a chain.
        """
        name = head.derived.get(_CALLED_TOOL)
        if name is None:
            name = _find_tool_name(head, scope)
        if not name:
            return None
        if len(body) > _LONG_BODY and find_json_problem(body):
            return None  # the slow path reports the error
        try:
            request = self._whole_call_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        params = request.params
        meta, arguments = params.meta, params.arguments
        plain_calls = self._catalog.find_plain_calls(name, principal)
        if (
            meta.envelope not in self._trusted
            or params.name != name
            or meta.version != STATELESS_VERSION
            or meta.passport is not None
            or meta.mandate is not None
            or not (plain_calls is not None or self._catalog.has_no_header_params(name))
            or bytes(arguments)[:1] not in _OBJECT_OR_NULL
        ):
            return None
        # Only arguments and answers are walked through later; short ones cannot be nested too deep.
        if (len(arguments) > _SHORT_ARGUMENTS or params.input_responses is not None) and (
            len(body) <= _LONG_BODY and find_json_problem(body)
        ):
            return None
        if (
            plain_calls is None
            or head.has_journey
            or meta.progress_token is not None
            or meta.log_level is not None
            or meta.delegation_chain is not None
            or params.input_responses is not None
            or params.request_state is not None
        ):
            return request, None
        trace = (trace_from_traceparent(meta.traceparent) if meta.traceparent else None) or new_trace()
        original = SHOWS_APPS if _can_show_apps(meta) else UNSET
        return request, plain_calls.build(arguments, trace, UNSET, original)

    def parse(self, scope: Any, head: RequestHead, message: McpMessage) -> FastRequest | None:
        """None for a request that must go to the SDK."""
        method = message.method
        if head.get_raw(VERSION_HEADER_BYTES) != _STATELESS_VERSION_BYTES:
            return None
        if head.get(b"mcp-method") != method or not message.is_request:
            return None
        params: StatelessCallParams | ListToolsParams | ServerDiscoverParams
        try:
            if method == "tools/call":
                params = self._call_decoder.decode(message.params)
                is_plain = self._is_plain_call(params, _find_tool_name(head, scope))
            elif method in ("tools/list", "server/discover"):
                decoder = self._list_decoder if method == "tools/list" else self._discover_decoder
                params = decoder.decode(message.params)
                is_plain = (
                    params.meta.version == STATELESS_VERSION
                    and params.meta.passport is None
                    and params.meta.mandate is None
                    and _has_plain_headers(scope["headers"], head, _LIST_HEADERS)
                    and (isinstance(params, ServerDiscoverParams) or _is_plain_cursor(params.cursor))
                )
            else:
                return None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        return FastRequest(message.id, params) if is_plain else None  # type: ignore[arg-type]  # a request's id is not null

    def _is_plain_call(self, params: StatelessCallParams, name: str) -> bool:
        if (
            params.name != name
            or params.meta.version != STATELESS_VERSION
            or params.meta.passport is not None
            or params.meta.mandate is not None
            or not self._catalog.has_no_header_params(name)
        ):
            return False
        return bytes(params.arguments)[:1] in _OBJECT_OR_NULL

    def parse_session_call(self, scope: Any, head: RequestHead, body: bytes) -> SessionCall | None:
        """A plain call in a session, decoded only once. None for a request that has to be looked at more closely."""
        if (
            SESSION_HEADER_BYTES not in head
            or scope["method"] != "POST"
            or not fits_both(head)
            or find_json_problem(body)
        ):
            return None
        try:
            call = self._whole_session_call_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        return call if _is_plain_session_call(call.params) else None

    def parse_in_session(
        self, head: RequestHead, message: McpMessage
    ) -> HandshakeCallParams | HandshakeListParams | None:
        """None for a request that must go to the SDK, such as one that wants progress and so gets a stream."""
        try:
            if message.method == "tools/list":
                list_params = self._session_list_decoder.decode(message.params or b"{}")
                is_plain = list_params.meta.is_plain and _is_plain_cursor(list_params.cursor)
                return list_params if is_plain and fits_both(head) else None
            params = self._session_decoder.decode(message.params)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        return params if _is_plain_session_call(params) and fits_both(head) else None

    def check_scope(self, message: McpMessage, principal: Principal) -> None:
        """For a call that the SDK answers: its replies have no status for a missing scope. Raises OutOfScope."""
        params = decode_or_none(message.params, _NamedCall)
        if params is not None and message.method == "tools/call" and has_issued_token(principal):
            try:
                self._catalog.prepare(params.name, Raw(b"{}"), principal)
            except OutOfScope:
                raise
            except FabricError:
                pass  # the call itself reports it

    def is_trusted(self, request: FastRequest) -> bool:
        """Whether this envelope is certainly valid, or the SDK has accepted it before."""
        meta = request.params.meta
        if meta.envelope not in self._trusted and is_plain_client(meta.capabilities, meta.client):
            self.trust(request)
        return meta.envelope in self._trusted

    def trust(self, request: FastRequest) -> None:
        envelope = request.params.meta.envelope
        if len(self._trusted) < _MAX_TRUSTED and len(envelope) <= _MAX_ENVELOPE:
            self._trusted.add(envelope)

    async def answer(
        self, request: FastRequest, request_context: DirectRequestContext, send: Send, shortcut: Shortcut | None
    ) -> None:
        params, meta = request.params, request.params.meta
        trace = request_context.trace_from_header(meta.traceparent)
        reply = McpReply(request.id, send, self._ping_timers or self._get_ping_timers(), shortcut, trace)
        if isinstance(params, ServerDiscoverParams):
            await self._send_discovery(reply, request_context, trace)
            return
        if isinstance(params, ListToolsParams):
            request_context.client_name = (wire.decode_or_none(meta.client, _ClientName) or _ClientName()).name
            await self._send_tool_list(reply, request_context, trace, params.cursor, self._list_members)
            return
        if not self._catalog.has_job_tools and await self._lacks_tasks(params, request_context.principal):
            await reply.send_error(wire.make_undeclared_error(TASKS_EXTENSION))
            return
        chain = meta.delegation_chain
        request_context.can_show_apps = _can_show_apps(meta)
        call = ToolCall(
            self._context, self._catalog, request_context, params.name, trace, partial(_accepts_tasks, meta), chain
        )
        arguments = params.arguments
        if len(arguments) == len(_NULL) and bytes(arguments) == _NULL:
            arguments = Raw(b"{}")
        has_answers = params.input_responses or params.request_state is not None
        answers = answers_from_responses(params.input_responses, params.request_state) if has_answers else UNSET
        wants_events = meta.progress_token is not None or meta.log_level is not None
        with reply:
            try:
                response = await call.run(
                    arguments, _make_emitter(meta, call, reply) if wants_events else None, answers
                )
            except UnknownTool as exc:
                await reply.send_error(McpProtocolError(jsonrpc.INVALID_PARAMS, str(exc), exc.data))
                return
            result = self._encode_response(call, response, params)
            if not reply.try_send_result(result):
                await reply.send_result(result)

    async def answer_plainly(self, request: FastRequest, call: Call, send: Send, shortcut: Shortcut) -> None:
        """As `answer`, for a plain request, of which `parse_trusted` has made a call: fewer steps to the same reply."""
        params: Any = request.params
        reply = McpReply(request.id, send, self._ping_timers or self._get_ping_timers(), shortcut, call.trace)
        started = time.perf_counter()
        with reply:
            try:
                result = await self._context.gateway.call(call, ignore_event)
                encoded = encode_plain_result(result, call.trace, self._plain_members)
                if encoded is None:
                    tool_call = self._describe_plain_call(call, params, started)
                    encoded = self._encode_response(tool_call, tool_call.render(result), params)
            except Exception as exc:
                tool_call = self._describe_plain_call(call, params, started)
                encoded = self._encode_response(tool_call, tool_call.render_failure(exc), params)
            if not reply.try_send_result(encoded):
                await reply.send_result(encoded)

    async def _lacks_tasks(self, params: StatelessCallParams, principal: Principal) -> bool:
        """Whether the call always becomes a job, and the client could not learn how it ends."""
        if _accepts_tasks(params.meta):
            return False
        if not self._catalog.is_current:
            await self._catalog.refresh(principal)
        return needs_tasks(self._context, self._catalog, params.name, principal, params.arguments)

    def _describe_plain_call(self, call: Call, params: StatelessCallParams, started: float) -> ToolCall:
        """For what few plain calls need: questions, a task, more than JSON, an error."""
        request_context = McpRequestContext(call.auth, call.trace)
        accepts_tasks = partial(_accepts_tasks, params.meta)
        tool_call = ToolCall(self._context, self._catalog, request_context, params.name, call.trace, accepts_tasks)
        tool_call.started = started
        return tool_call

    def _encode_response(
        self, call: ToolCall, response: dict[str, Any] | Questions, params: StatelessCallParams
    ) -> bytes:
        if isinstance(response, Questions):
            can_answer = parse_capabilities(params.meta.capabilities).can_answer(response)
            response = (
                render_input_required(response, call.trace)
                if can_answer
                else call.render_unanswerable(response, params.arguments)
            )
        response["_meta"].update(self._result_meta)
        return _encode(response)

    async def answer_in_session(
        self,
        request_id: str | int,
        params: HandshakeCallParams | HandshakeListParams,
        request_context: DirectRequestContext,
        send: Send,
        shortcut: Shortcut,
        pop_cancellation: Callable[[str | int], bool],
    ) -> Questions | None:
        """The agent's questions, if it asks and nothing has been sent yet; then the SDK asks the client.

        `pop_cancellation` tells whether the client cancelled the request by a notification.
        """
        trace = request_context.trace_from_header(params.meta.traceparent)
        reply = McpReply(request_id, send, self._ping_timers or self._get_ping_timers(), shortcut, trace)
        try:
            if isinstance(params, HandshakeCallParams):
                return await self._answer_call_in_session(reply, params, request_context, trace)
            await self._send_tool_list(reply, request_context, trace, params.cursor, b"")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if shortcut.client_disconnected or not pop_cancellation(request_id) or task is None:
                raise
            task.uncancel()
            await reply.send_cancelled()
        return None

    async def _answer_call_in_session(
        self, reply: McpReply, params: HandshakeCallParams, request_context: DirectRequestContext, trace: Trace
    ) -> Questions | None:
        chain = params.meta.delegation_chain
        call = ToolCall(self._context, self._catalog, request_context, params.name, trace, meta_chain=chain)
        with reply:
            try:
                response = await call.run(params.arguments, None)
            except UnknownTool as exc:
                await reply.send_error(McpProtocolError(jsonrpc.INVALID_PARAMS, str(exc), exc.data, status=200))
                return None
            if isinstance(response, Questions):
                if not reply.is_streaming:
                    return response
                response = call.render_unanswerable(response, params.arguments)
            response.pop("resultType", None)
            result = _encode(response)
            if not reply.try_send_result(result):
                await reply.send_result(result)
        return None

    def _get_ping_timers(self) -> DeadlineSweep:
        if self._ping_timers is None:
            self._ping_timers = DeadlineSweep(asyncio.get_running_loop())
        return self._ping_timers

    async def _send_discovery(self, reply: McpReply, request_context: DirectRequestContext, trace: Trace) -> None:
        started = time.perf_counter()
        await self._catalog.refresh(request_context.principal)
        members = render_discovery(self._catalog, request_context.principal)[:-1]
        await reply.send_result(b'%b,"_meta":%b}' % (members, _encode(self._result_meta)))
        seconds = time.perf_counter() - started
        self._context.log(trace, "server/discover", code=None, message=None, seconds=seconds, status=200)

    async def _send_tool_list(
        self, reply: McpReply, request_context: DirectRequestContext, trace: Trace, cursor: str | None, rest: bytes
    ) -> None:
        """`rest` are the members of the result beside the tools."""
        started = time.perf_counter()
        await self._context.gateway.registry.wait_for_lists(request_context.principal)
        client = ListingClient(request_context.client_name, request_context.wants_all_tools)
        tools = await self._catalog.list_tools(request_context.principal, client)
        await reply.send_result(b"{%b%b}" % (tools.encode_page(cursor), rest))
        seconds = time.perf_counter() - started
        self._context.log(trace, "tools/list", code=None, message=None, seconds=seconds, status=200)


def _make_emitter(meta: StatelessMeta, call: ToolCall, reply: McpReply) -> Emit | None:
    """Sends the events of the call to the client, if the client asked for them."""
    writer = McpEventWriter(meta.progress_token, meta.log_level)
    if not writer.has_recipient:
        return None

    async def emit(event: Event) -> None:
        for method, params in writer.to_notifications(event, call.trace):
            await reply.send_notification(method, params)

    return emit


def _is_plain_cursor(cursor: str | None) -> bool:
    return cursor is None or is_cursor(cursor)


def _is_plain_session_call(params: HandshakeCallParams) -> bool:
    return params.meta.is_plain and bytes(params.arguments)[:1] == b"{"


def _can_show_apps(meta: StatelessMeta) -> bool:
    return len(meta.capabilities) > len(_UI_EXTENSION_BYTES) and _UI_EXTENSION_BYTES in bytes(meta.capabilities)


def _accepts_tasks(meta: StatelessMeta) -> bool:
    return parse_capabilities(meta.capabilities).accepts_tasks


def _find_tool_name(head: RequestHead, scope: Any) -> str:
    """The tool that the headers of a plain call name, or an empty string; found once per set of headers."""
    name = head.derived.get(_CALLED_TOOL)
    if name is None:
        is_call = head.get_raw(b"mcp-method") == b"tools/call" and _has_plain_headers(
            scope["headers"], head, _CALL_HEADERS
        )
        name = head.derived[_CALLED_TOOL] = (head.get(b"mcp-name") or "") if is_call else ""
    return name


def _has_plain_headers(headers: list[tuple[bytes, bytes]], head: RequestHead, expected: set[bytes]) -> bool:
    """Whether there are exactly these MCP headers, the body is JSON, and the client accepts both forms of reply."""
    mcp_headers = [name for name, _ in headers if name.startswith(b"mcp-")]
    if (
        len(mcp_headers) != len(expected)
        or set(mcp_headers) != expected
        or head.get_raw(VERSION_HEADER_BYTES) != _STATELESS_VERSION_BYTES
    ):
        return False
    return _accepts_both_formats(head.get(b"content-type") or "", head.get(b"accept") or "")


def fits_both(head: RequestHead) -> bool:
    """`_accepts_both_formats`, found once per set of headers."""
    fits = head.derived.get("mcp: takes both")
    if fits is None:
        takes = _accepts_both_formats(head.get(b"content-type") or "", head.get(b"accept") or "")
        fits = head.derived["mcp: takes both"] = "yes" if takes else ""
    return fits == "yes"


@lru_cache(maxsize=256)
def _accepts_both_formats(content_type: str, accept: str) -> bool:
    is_json = content_type.partition(";")[0].strip() == "application/json"
    return is_json and "application/json" in accept and "text/event-stream" in accept
