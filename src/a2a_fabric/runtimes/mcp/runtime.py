"""Runtime: an MCP server, over stdio or Streamable HTTP, of either era. Every tool is a capability.

All calls share one session, which a supervisor keeps open (`sessions`). Stateless servers over
HTTP are called without a session, by our own client (`stateless`). When the server asks a question
during a call, the question is the call's result; a call over a session stays pending until the answer comes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from msgspec import Raw
from pydantic import ValidationError

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    bind_arguments,
    describe_unbound_attachments,
    ignore_event,
    make_propagation_headers,
)
from a2a_fabric.core.errors import BadInput, CapabilityNotFound, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.forwarding import CallSigner, sign_metadata
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import chain_to_metadata
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.protocols.mcp.content import can_show_apps
from a2a_fabric.protocols.mcp.runtime_ports import Tunnel
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.mcp.back_channel import McpBackChannel, lacks_back_channel
from a2a_fabric.runtimes.mcp.content import (
    ToolReply,
    UpstreamRpcError,
    error_from_rpc_error,
    error_from_tool_reply,
    manifest_from_server,
    read_plain_reply,
    result_from_tool_reply,
    summarize_validation_error,
)
from a2a_fabric.runtimes.mcp.dispatcher import current_request
from a2a_fabric.runtimes.mcp.endpoint import (
    build_http_target,
    build_restart_policy,
    make_transport_factory,
    read_endpoint,
)
from a2a_fabric.runtimes.mcp.prompts_resources import McpPromptResourceProvider
from a2a_fabric.runtimes.mcp.questions import (
    CONTINUATION_PREFIX,
    McpPendingQuestions,
    PendingMcpRequest,
    SessionReply,
    make_call_capabilities,
    make_progress_callback,
    params_from_answers,
    result_from_input_required,
    result_from_url_error,
)
from a2a_fabric.runtimes.mcp.sessions import Era, McpConnection
from a2a_fabric.runtimes.mcp.stateless import StatelessCaller, ToolRequest
from a2a_fabric.runtimes.mcp.supervisor import McpConnectionSupervisor
from a2a_fabric.runtimes.mcp.tasks import McpTaskFollower, check_task_id, find_created_task, make_task_request
from a2a_fabric.runtimes.mcp.transports import McpHttpTarget, call_headers
from a2a_fabric.runtimes.mcp.tunnels import build_tunnel

_log = logging.getLogger(__name__)

_MAX_PAGES = 1000
_MAX_TOOLS = 20_000
_MAX_TOOL_BYTES = 32 * 1024 * 1024  # of all pages
_START_SHARE = 0.8  # of a call's time, for a server that is still starting; the rest is for a fallback agent

ToolOutcome = ToolReply | UpstreamRpcError | Result  # a Result holds the server's questions


class McpRuntime:
    enforces_deadline: Literal[True] = True

    def __init__(
        self,
        manifest: Manifest,
        supervisor: McpConnectionSupervisor,
        target: McpHttpTarget | None,
        http: HTTPClient,
        tunnel: Tunnel | None,
        prompts_and_resources: McpPromptResourceProvider,
        pending_questions: McpPendingQuestions,
        back_channel: McpBackChannel,
        *,
        may_ask: bool,
        signer: CallSigner | None = None,
    ) -> None:
        self.tunnel = tunnel
        self.prompts_and_resources = prompts_and_resources
        self._manifest = manifest
        self._full_manifest = manifest
        self._supervisor = supervisor
        self._target = target
        self._http = http
        self._pending_questions = pending_questions
        self._back_channel = back_channel
        self._may_ask = may_ask
        self._signer = signer
        self._has_listed_tools = False
        self._stateless_caller: StatelessCaller | None = None
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._task_tools: frozenset[str] = frozenset()  # tools of 2025-11-25 that are only called as tasks
        self._task_numbers = itertools.count(1)
        self._task_follower = McpTaskFollower(manifest.agent_id, supervisor)

    def __call__(self, call: Call, emit: Emit) -> Coroutine[Any, Any, Result]:
        return self._call_with_notes(call, emit) if call.input.attachments else self._call_tool(call, emit)

    async def _call_with_notes(self, call: Call, emit: Emit) -> Result:
        """A tool takes only arguments: attachments that no argument holds are noted in the result."""
        result = await self._call_tool(call, emit)
        tool, arguments = self._bind_arguments(call)
        return add_notes(result, describe_unbound_attachments(call.input, arguments, tool))

    async def _call_tool(self, call: Call, emit: Emit) -> Result:
        """Plain calls of a known server take a fast path. Without a session, our client enforces their deadline."""
        caller, connection = self._stateless_caller, self._supervisor.current
        if connection is None or not self._has_listed_tools or call.answers or call.response.stream:
            with Deadline(call.target.timeout_ms / 1000):
                return await self._call_on_slow_path(call, emit)
        if caller is None:
            with Deadline(call.target.timeout_ms / 1000):
                return await self._call_directly(connection, call, emit)
        request = ToolRequest(*self._bind_arguments(call))
        if self._back_channel.is_needed(request.tool):
            with Deadline(call.target.timeout_ms / 1000):
                return await self._retry_once(await self._send_request(request, call, emit), request, call, emit)
        ends_at = time.monotonic() + call.target.timeout_ms / 1000
        reply = await caller.call(request, call, emit, self._header_maps)
        if isinstance(reply, ToolReply) and reply.task_id is None and not reply.is_error:
            if reply.result_type == "input_required":
                return result_from_input_required(reply)
            return result_from_tool_reply(reply, self._manifest.agent_id)
        with Deadline(ends_at - time.monotonic()):
            if not isinstance(reply, UpstreamRpcError) and reply.task_id is not None:
                task_id = check_task_id(reply.task_id)
                return self._result_from_reply(await self._follow_task(task_id, request.tool, call, emit), request.tool)
            if isinstance(reply, UpstreamRpcError):
                self._drop_unknown_session(connection, reply)
            return await self._retry_once(reply, request, call, emit)

    def _make_meta(self, call: Call, request: ToolRequest, headers: Mapping[str, str]) -> dict[str, Any]:
        return {
            "traceparent": headers["traceparent"],
            **chain_to_metadata(call.delegation_chain),
            **sign_metadata(self._signer, call, request.arguments, request.tool),
        }

    def _is_stateless(self, connection: McpConnection) -> bool:
        """Whether calls need no session."""
        return self._target is not None and connection.era == "stateless"

    async def _call_directly(self, connection: McpConnection, call: Call, emit: Emit) -> Result:
        """A plain call over the session. Its task waits for the reply until there is something to ask or to follow."""
        request = ToolRequest(*self._bind_arguments(call))
        if self._is_stateless(connection) or connection.transport.is_ending or request.tool in self._task_tools:
            return await self._call_on_slow_path(call, emit)
        headers = make_propagation_headers(call)
        meta = self._make_meta(call, request, headers)
        params = {"name": request.tool, "arguments": request.arguments, "_meta": meta}
        capabilities = make_call_capabilities(may_ask=self._may_ask, shows_apps=can_show_apps(call))
        reply = await connection.call_directly(request.tool, params, headers, capabilities, call.auth)
        outcome: ToolOutcome
        if isinstance(reply, PendingMcpRequest):
            outcome = await self._wait_for_outcome(reply, call, emit)
        elif isinstance(reply, Raw) and (plain_reply := read_plain_reply(reply)) is not None:
            if not plain_reply.is_error:
                return self._result_from_reply(plain_reply, request.tool)
            outcome = plain_reply
        else:
            checked = connection.read_reply("tools/call", reply)
            task_id = find_created_task(checked)
            if task_id is not None:
                outcome = await self._follow_task(task_id, request.tool, call, emit)
            else:
                outcome = _parse_tool_reply(checked) if isinstance(checked, dict) else checked
        if isinstance(outcome, UpstreamRpcError):
            self._drop_unknown_session(connection, outcome)
        return await self._retry_once(outcome, request, call, emit)

    async def _call_on_slow_path(self, call: Call, emit: Emit) -> Result:
        tool, arguments = await self._prepare_tool_call(call)
        if call.answers and call.answers.continuation.startswith(CONTINUATION_PREFIX):
            pending = self._pending_questions.resume(call.answers, call.auth, tool)
            return self._result_from_reply(await self._wait_for_outcome(pending, call, emit), tool)
        request = ToolRequest(tool, arguments, params_from_answers(call.answers) if call.answers else {})
        return await self._retry_once(await self._send_request(request, call, emit), request, call, emit)

    async def _retry_once(self, reply: ToolOutcome, request: ToolRequest, call: Call, emit: Emit) -> Result:
        """Send the request again if it did not reach the tool, or if the tool could not ask its question."""
        if isinstance(reply, UpstreamRpcError) and reply.code == types.HEADER_MISMATCH:  # the tool's schema has changed
            await self.describe()
            reply = await self._send_request(request, call, emit)
        if isinstance(reply, UpstreamRpcError) and _is_unknown_session(reply):
            reply = await self._send_request(request, call, emit)
        if not request.answer_params and lacks_back_channel(reply):
            session = await self._back_channel.open(request.tool, _start_timeout(call))
            if session is not None:
                reply = await self._call_over_session(session, request, call, emit)
        return self._result_from_reply(reply, request.tool)

    async def health(self) -> Status:
        """Ping a running server. A program that is not running is not started for this."""
        connection = self._supervisor.current
        if connection is None:
            self._supervisor.check_ready()
            if self._target is None:
                return "online"
            connection = await self._supervisor.get_connection(10.0)
        # The stateless era has no ping; `server/discover` is its cheapest request.
        method = "server/discover" if connection.era == "stateless" else "ping"
        reply = await connection.request(method, {})
        if isinstance(reply, UpstreamRpcError):
            self._drop_unknown_session(connection, reply)
            error = error_from_rpc_error(reply, self._manifest.agent_id, method, ())
            lacks_ping = connection.era == "handshake" and isinstance(error, CapabilityNotFound)  # but it has answered
            if not lacks_ping and not isinstance(error, UpstreamRefused | UpstreamFailed | BadInput):
                raise error
        self.prompts_and_resources.reload_if_stale()
        return "online"

    async def describe(self) -> Manifest:
        """The manifest, with the server's tools as capabilities."""
        return await self._refresh_tools(None)

    async def aclose(self) -> None:
        await self.prompts_and_resources.aclose()
        await self._pending_questions.aclose()
        await self._task_follower.aclose()
        await self._back_channel.aclose()
        await self._supervisor.aclose()

    async def _refresh_tools(self, timeout: float | None) -> Manifest:
        connection = await self._supervisor.get_connection(timeout)
        tools = await self._list_tools(connection)
        self._has_listed_tools = True
        self._header_maps = {
            tool.name: header_map for tool in tools if (header_map := x_mcp_header_map(tool.input_schema))
        }
        self._task_tools = _find_task_tools(connection, tools)
        published = manifest_from_server(
            self._manifest, tools, connection.session.server_info, connection.session.instructions
        )
        self._full_manifest = complete_manifest(self._manifest, published)
        return self._full_manifest

    @property
    def is_starting(self) -> bool:
        return self._target is None and self._supervisor.is_starting

    @property
    def _tool_names(self) -> list[str]:
        return [capability.name for capability in self._full_manifest.capabilities]

    async def _prepare_tool_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """The tool's own name and its arguments. The server's tools are listed first if the schema is unknown."""
        capability = self._full_manifest.find_capability(call.target.capability)
        if (capability is None or capability.input_schema is None) and not self._has_listed_tools:
            await self._refresh_tools(_start_timeout(call))
        return self._bind_arguments(call)

    def _bind_arguments(self, call: Call) -> tuple[str, dict[str, Any]]:
        name, call_input = call.target.capability, call.input
        capability = self._full_manifest.find_capability(name)
        arguments = call_input.arguments
        if arguments is not msgspec.UNSET:
            # If routing found no schema, it passed task and context as arguments, which no tool takes.
            if capability is not None and arguments.get("context") is not call_input.context:
                return capability.name, arguments
            call_input = msgspec.structs.replace(call_input, arguments=msgspec.UNSET)
        arguments = bind_arguments(capability or Capability(name=name, input_schema={}), call_input)
        return (capability.name if capability is not None else name), arguments

    async def _send_request(self, request: ToolRequest, call: Call, emit: Emit) -> ToolOutcome:
        connection = await self._back_channel.get_connection(request.tool, _start_timeout(call))
        reply: ToolOutcome
        if self._target is not None and self._is_stateless(connection):
            caller = self._stateless_caller or self._make_stateless_caller(connection, self._target)
            reply = await caller.call(request, call, emit, self._header_maps)
            if isinstance(reply, ToolReply) and reply.task_id is not None:
                reply = await self._follow_task(check_task_id(reply.task_id), request.tool, call, emit)
        else:
            reply = await self._call_over_session(connection, request, call, emit)
        if isinstance(reply, UpstreamRpcError):
            self._drop_unknown_session(connection, reply)
        return reply

    def _make_stateless_caller(self, connection: McpConnection, target: McpHttpTarget) -> StatelessCaller:
        version = str(connection.session.protocol_version)
        self._stateless_caller = StatelessCaller(
            target, self._http, version, may_ask=self._may_ask, signer=self._signer
        )
        return self._stateless_caller

    async def _call_over_session(
        self, connection: McpConnection, request: ToolRequest, call: Call, emit: Emit
    ) -> ToolOutcome:
        if request.answer_params and connection.era != "stateless":  # the server has changed its era since it asked
            raise unknown_continuation()
        pending, headers = PendingMcpRequest(call.auth, request.tool), make_propagation_headers(call)
        meta = self._make_meta(call, request, headers)
        if call.response.stream and connection.era == "stateless":
            meta[types.LOG_LEVEL_META_KEY] = "info"
        params = {"name": request.tool, "arguments": request.arguments, **request.answer_params, "_meta": meta}
        on_progress = make_progress_callback(pending) if call.response.stream else None
        if connection.era == "handshake" and request.tool in self._task_tools:
            params["task"] = make_task_request(call.target.timeout_ms / 1000)
        capabilities = make_call_capabilities(may_ask=self._may_ask, shows_apps=can_show_apps(call))
        work = self._call_and_follow(connection, params, pending, on_progress, capabilities)
        self._start(pending, work, headers, connection)
        return await self._wait_for_outcome(pending, call, emit)

    async def _follow_task(self, task_id: str, tool: str, call: Call, emit: Emit) -> ToolOutcome:
        """The outcome of a call that the server answered with a task."""
        pending = PendingMcpRequest(call.auth, tool)
        self._start(pending, self._task_follower.follow(task_id, pending), make_propagation_headers(call))
        return await self._wait_for_outcome(pending, call, emit)

    def _start(
        self,
        pending: PendingMcpRequest,
        work: Coroutine[Any, Any, SessionReply],
        headers: dict[str, str],
        connection: McpConnection | None = None,
    ) -> None:
        """Start the work of a request. Everything that is sent for it knows the request and the call's headers."""
        call_token, trace_token = current_request.set(pending), call_headers.set(headers)
        requests = connection.pending_requests if connection is not None else {}
        try:
            pending.start(work, on_end=requests.pop)
            requests[pending] = None
        finally:
            current_request.reset(call_token)
            call_headers.reset(trace_token)

    async def _call_and_follow(
        self,
        connection: McpConnection,
        params: dict[str, Any],
        pending: PendingMcpRequest,
        on_progress: ProgressFnT | None,
        capabilities: dict[str, Any],
    ) -> SessionReply:
        """The reply to `tools/call`, or that of the task that the server made of it."""
        if "task" not in params:
            reply = await connection.request("tools/call", params, on_progress=on_progress, capabilities=capabilities)
            task_id = find_created_task(reply)
            return reply if task_id is None else await self._task_follower.follow(task_id, pending)
        request_id = f"task-{next(self._task_numbers)}"
        if on_progress is not None:  # the server goes on to report progress by this token
            connection.progress_callbacks[request_id] = on_progress
        try:
            request = connection.request("tools/call", params, on_progress=on_progress, request_id=request_id)
            return await self._task_follower.create(request, pending)
        finally:
            connection.progress_callbacks.pop(request_id, None)

    async def _wait_for_outcome(self, pending: PendingMcpRequest, call: Call, emit: Emit) -> ToolOutcome:
        raw = await self._pending_questions.wait_for_outcome(pending, emit if call.response.stream else ignore_event)
        return _parse_tool_reply(raw) if isinstance(raw, dict) else raw

    def _drop_unknown_session(self, connection: McpConnection, reply: UpstreamRpcError) -> None:
        """Close a session that the server no longer knows."""
        if _is_unknown_session(reply):
            self._stateless_caller = None
            self._supervisor.drop(connection, forget_era=reply.code == types.UNSUPPORTED_PROTOCOL_VERSION)

    def _result_from_reply(self, reply: ToolOutcome, tool: str) -> Result:
        if isinstance(reply, Result):
            return reply
        if isinstance(reply, UpstreamRpcError):
            if (question_result := result_from_url_error(reply)) is not None:
                return question_result
            raise error_from_rpc_error(reply, self._manifest.agent_id, tool, self._tool_names)
        if reply.result_type == "input_required":
            return result_from_input_required(reply)
        if reply.is_error:
            raise error_from_tool_reply(reply, self._manifest.agent_id, tool, self._tool_names)
        return result_from_tool_reply(reply, self._manifest.agent_id)

    async def _list_tools(self, connection: McpConnection) -> list[types.Tool]:
        """The tools of all pages. Raises FabricError."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        seen_cursors: set[str] = set()
        size = 0
        for _ in range(_MAX_PAGES):
            page = await self._fetch_page(connection.session, cursor)
            tools += page.tools
            cursor = page.next_cursor
            size += sum(_measure_tool(tool) for tool in page.tools)
            if cursor is None or cursor in seen_cursors:
                break
            if len(tools) > _MAX_TOOLS or size > _MAX_TOOL_BYTES:
                _log.warning(
                    "Agent %s lists too many tools; the first %d are used", self._manifest.agent_id, len(tools)
                )
                break
            seen_cursors.add(cursor)
        return tools[:_MAX_TOOLS]

    async def _fetch_page(self, session: ClientSession, cursor: str | None) -> types.ListToolsResult:
        try:
            return await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:  # a server with prompts and resources only
                return types.ListToolsResult(tools=[])
            rpc_error = UpstreamRpcError(error.code, error.message, error.data)
            if _is_unknown_session(rpc_error) and (connection := self._supervisor.current) is not None:
                self._drop_unknown_session(connection, rpc_error)
            raise error_from_rpc_error(rpc_error, self._manifest.agent_id, "tools/list", ()) from error
        except ValidationError as error:
            raise UpstreamFailed(
                f"The MCP server's list of tools cannot be read: {summarize_validation_error(error)}"
            ) from error


def _find_task_tools(connection: McpConnection, tools: Sequence[types.Tool]) -> frozenset[str]:
    """The tools that a server of 2025-11-25 runs only as tasks."""
    capabilities = connection.session.server_capabilities
    if connection.era != "handshake" or capabilities is None or capabilities.tasks is None:
        return frozenset()
    return frozenset(tool.name for tool in tools if tool.execution and tool.execution.task_support == "required")


def _measure_tool(tool: types.Tool) -> int:
    return len(msgspec.json.encode((tool.input_schema, tool.output_schema, tool.description, tool.meta)))


def _start_timeout(call: Call) -> float:
    return _START_SHARE * call.target.timeout_ms / 1000


def _is_unknown_session(reply: UpstreamRpcError) -> bool:
    return reply.transport_problem == "gone" or reply.code == types.UNSUPPORTED_PROTOCOL_VERSION


def _parse_tool_reply(raw: dict[str, Any]) -> ToolReply:
    try:
        return msgspec.convert({**raw, "_meta": msgspec.Raw(msgspec.json.encode(raw.get("_meta")))}, ToolReply)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The MCP server's answer cannot be read: {exc}") from exc


def build(manifest: Manifest, context: RuntimeContext) -> McpRuntime:
    endpoint = read_endpoint(manifest)
    target = build_http_target(endpoint, context)
    make_transport = make_transport_factory(manifest.agent_id, endpoint, target, context)
    is_sse = endpoint.transport == "sse"  # a transport of the handshake era only
    era: Era | None = "handshake" if is_sse else None if endpoint.era == "auto" else endpoint.era

    def on_change() -> None:
        prompts_and_resources.reload()
        context.on_capabilities_changed(manifest.agent_id)

    supervisor = McpConnectionSupervisor(
        manifest.agent_id,
        make_transport,
        build_restart_policy(endpoint),
        era=era,
        start_timeout=endpoint.start_timeout,
        on_change=on_change,
        on_open=lambda: prompts_and_resources.reload(),
        on_resource_updated=lambda uri: prompts_and_resources.notify_updated(uri),
        may_ask=endpoint.answer_timeout > 0,
    )
    sessions = McpConnectionSupervisor(
        manifest.agent_id,
        make_transport,
        build_restart_policy(endpoint),
        era="handshake",
        start_timeout=endpoint.start_timeout,
        on_change=lambda: None,  # the other connection reports changes
        may_ask=endpoint.answer_timeout > 0,
    )
    back_channel = McpBackChannel(
        supervisor, sessions, is_program=target is None, is_allowed=era is None and endpoint.answer_timeout > 0
    )
    pending_questions = McpPendingQuestions(manifest.agent_id, endpoint.answer_timeout, owner_tag=context.owner_tag)
    prompts_and_resources = McpPromptResourceProvider(
        manifest.agent_id, supervisor, back_channel, pending_questions, context.on_prompts_resources_changed
    )
    return McpRuntime(
        manifest,
        supervisor,
        target,
        context.http,
        None if endpoint.shared else build_tunnel(None if is_sse else target, make_transport, context.signer),
        prompts_and_resources,
        pending_questions,
        back_channel,
        may_ask=endpoint.answer_timeout > 0,
        signer=context.signer,
    )


plugin = RuntimePlugin(build=build)
