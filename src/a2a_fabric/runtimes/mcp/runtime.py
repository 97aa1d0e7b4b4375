"""Runtime: an MCP server, over stdio or Streamable HTTP, of either era. Every tool is a capability.

All calls share one session, which a supervisor keeps open (`sessions`). Stateless servers over
HTTP are called without a session, by our own client (`stateless`). When the server asks a question
during a call, the question is the call's result; a call over a session stays pending until the answer comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call, Input
from a2a_fabric.core.content import add_notes, bind_arguments, describe_unbound_attachments
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import chain_to_metadata, make_propagation_headers
from a2a_fabric.core.errors import BadInput, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.pipeline import Emit, ignore_event
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.core.result import Result
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel, StdioTunnel, Tunnel
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.mcp.content import (
    ToolReply,
    UpstreamRpcError,
    error_from_rpc_error,
    error_from_tool_reply,
    manifest_from_server,
    result_from_tool_reply,
    summarize_validation_error,
)
from a2a_fabric.runtimes.mcp.endpoint import (
    build_http_target,
    build_restart_policy,
    configured_era,
    make_transport_factory,
    read_endpoint,
)
from a2a_fabric.runtimes.mcp.http import McpHttpTarget, call_headers
from a2a_fabric.runtimes.mcp.pending import (
    CONTINUATION_PREFIX,
    McpPendingQuestions,
    PendingMcpRequest,
    make_progress_callback,
)
from a2a_fabric.runtimes.mcp.prompts_resources import McpPromptResourceProvider
from a2a_fabric.runtimes.mcp.questions import (
    params_from_answers,
    result_from_input_required,
    result_from_url_error,
)
from a2a_fabric.runtimes.mcp.sessions import McpConnection, McpConnectionSupervisor, McpTransport, current_request
from a2a_fabric.runtimes.mcp.stateless import StatelessCaller, ToolRequest

_log = logging.getLogger(__name__)

_MAX_PAGES = 1000
_MAX_TOOLS = 20_000
_MAX_TOOL_BYTES = 32 * 1024 * 1024  # of all pages
_START_SHARE = 0.8  # of a call's time, for a server that is still starting; the rest is for a fallback agent
_ANY_OBJECT = TypeAdapter(dict[str, Any])

ToolOutcome = ToolReply | UpstreamRpcError | Result  # a Result holds the server's questions


class McpRuntime:
    enforces_deadline: Literal[True] = True

    def __init__(
        self,
        manifest: Manifest,
        supervisor: McpConnectionSupervisor,
        target: McpHttpTarget | None,
        http: HTTPClient,
        tunnel: Tunnel,
        prompts_and_resources: McpPromptResourceProvider,
        pending_questions: McpPendingQuestions,
        *,
        may_ask: bool,
    ) -> None:
        self.tunnel = tunnel
        self.prompts_and_resources = prompts_and_resources
        self._manifest = manifest
        self._full_manifest = manifest
        self._supervisor = supervisor
        self._target = target
        self._http = http
        self._pending_questions = pending_questions
        self._may_ask = may_ask
        self._has_listed_tools = False
        self._stateless_caller: StatelessCaller | None = None
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}

    def __call__(self, call: Call, emit: Emit) -> Coroutine[Any, Any, Result]:
        return self._call_with_notes(call, emit) if call.input.attachments else self._call_tool(call, emit)

    async def _call_with_notes(self, call: Call, emit: Emit) -> Result:
        """A tool takes only arguments: attachments that no argument holds are noted in the result."""
        result = await self._call_tool(call, emit)
        tool, arguments = self._bind_arguments(call)
        return add_notes(result, describe_unbound_attachments(call.input, arguments, tool))

    async def _call_tool(self, call: Call, emit: Emit) -> Result:
        """Plain calls of a known stateless server take the fast path: our HTTP client enforces their deadline."""
        caller, connection = self._stateless_caller, self._supervisor.current
        if caller is None or connection is None or not self._has_listed_tools or call.answers or call.response.stream:
            with Deadline(call.target.timeout_ms / 1000):
                return await self._call_on_slow_path(call, emit)
        ends_at = time.monotonic() + call.target.timeout_ms / 1000
        request = ToolRequest(*self._bind_arguments(call))
        reply = await caller.call(request, call, emit, self._header_maps)
        if not isinstance(reply, UpstreamRpcError):
            return self._result_from_reply(reply, request.tool)
        self._drop_unknown_session(connection, reply)
        with Deadline(ends_at - time.monotonic()):
            return await self._retry_once(reply, request, call, emit)

    async def _call_on_slow_path(self, call: Call, emit: Emit) -> Result:
        tool, arguments = await self._prepare_tool_call(call)
        if call.answers and call.answers.continuation.startswith(CONTINUATION_PREFIX):
            pending = self._pending_questions.resume(call.answers, call.auth, tool)
            return self._result_from_reply(await self._wait_for_outcome(pending, call, emit), tool)
        request = ToolRequest(tool, arguments, params_from_answers(call.answers) if call.answers else {})
        return await self._retry_once(await self._send_request(request, call, emit), request, call, emit)

    async def _retry_once(self, reply: ToolOutcome, request: ToolRequest, call: Call, emit: Emit) -> Result:
        """Send the request again if the answer shows that it did not reach the tool."""
        if isinstance(reply, UpstreamRpcError) and reply.code == types.HEADER_MISMATCH:  # the tool's schema has changed
            await self.describe()
            reply = await self._send_request(request, call, emit)
        if isinstance(reply, UpstreamRpcError) and _is_unknown_session(reply):
            reply = await self._send_request(request, call, emit)
        return self._result_from_reply(reply, request.tool)

    async def health(self) -> Status:
        """Ping a running server. A program that is not running is not started for this."""
        connection = self._supervisor.current
        if connection is None:
            self._supervisor.check_ready()
            if self._target is None:
                return "online"
            connection = await self._supervisor.get_connection(10.0)
        reply = await self._request_over_session(connection, _make_ping(connection))
        if isinstance(reply, UpstreamRpcError):
            self._drop_unknown_session(connection, reply)
            error = error_from_rpc_error(reply, self._manifest.agent_id, "", ())
            if not isinstance(error, UpstreamRefused | UpstreamFailed | BadInput):
                raise error
        self.prompts_and_resources.reload_if_stale()
        return "online"

    async def describe(self) -> Manifest:
        """The manifest, with the server's tools as capabilities."""
        return await self._refresh_tools(None)

    async def aclose(self) -> None:
        await self.prompts_and_resources.aclose()
        await self._pending_questions.aclose()
        await self._supervisor.aclose()

    async def _refresh_tools(self, timeout: float | None) -> Manifest:
        connection = await self._supervisor.get_connection(timeout)
        tools = await self._list_tools(connection)
        self._has_listed_tools = True
        self._header_maps = {
            tool.name: header_map for tool in tools if (header_map := x_mcp_header_map(tool.input_schema))
        }
        published = manifest_from_server(
            self._manifest, tools, connection.session.server_info, connection.session.instructions
        )
        self._full_manifest = complete_manifest(self._manifest, published)
        return self._full_manifest

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
        if (
            capability is not None
            and call_input.arguments is not msgspec.UNSET
            and not _was_bound_without_schema(call_input)
        ):
            return capability.name, call_input.arguments
        if call_input.arguments is not msgspec.UNSET:
            call_input = msgspec.structs.replace(call_input, arguments=msgspec.UNSET)
        arguments = bind_arguments(capability or Capability(name=name, input_schema={}), call_input)
        return (capability.name if capability is not None else name), arguments

    async def _send_request(self, request: ToolRequest, call: Call, emit: Emit) -> ToolOutcome:
        connection = await self._supervisor.get_connection(_start_timeout(call))
        reply: ToolOutcome
        if self._target is not None and connection.era == "stateless":
            caller = self._stateless_caller or self._make_stateless_caller(connection, self._target)
            reply = await caller.call(request, call, emit, self._header_maps)
        else:
            reply = await self._call_over_session(connection, request, call, emit)
        if isinstance(reply, UpstreamRpcError):
            self._drop_unknown_session(connection, reply)
        return reply

    def _make_stateless_caller(self, connection: McpConnection, target: McpHttpTarget) -> StatelessCaller:
        version = str(connection.session.protocol_version)
        self._stateless_caller = StatelessCaller(target, self._http, version, may_ask=self._may_ask)
        return self._stateless_caller

    async def _call_over_session(
        self, connection: McpConnection, request: ToolRequest, call: Call, emit: Emit
    ) -> ToolOutcome:
        if request.answer_params and connection.era != "stateless":  # the server has changed its era since it asked
            raise unknown_continuation()
        pending, headers = (
            PendingMcpRequest(call.auth, request.tool),
            make_propagation_headers(call),
        )
        meta = {"traceparent": headers["traceparent"], **chain_to_metadata(call.delegation_chain)}
        if call.response.stream and connection.era == "stateless":
            meta[types.LOG_LEVEL_META_KEY] = "info"
        params = {"name": request.tool, "arguments": request.arguments, **request.answer_params, "_meta": meta}
        tool_request = types.CallToolRequest(params=types.CallToolRequestParams.model_validate(params, by_name=False))
        on_progress = make_progress_callback(pending) if call.response.stream else None
        call_token, trace_token = current_request.set(pending), call_headers.set(headers)
        try:
            pending.start(
                self._request_over_session(connection, tool_request, on_progress),
                on_end=connection.pending_requests.pop,
            )
            connection.pending_requests[pending] = None
        finally:
            current_request.reset(call_token)
            call_headers.reset(trace_token)
        return await self._wait_for_outcome(pending, call, emit)

    async def _wait_for_outcome(self, pending: PendingMcpRequest, call: Call, emit: Emit) -> ToolOutcome:
        raw = await self._pending_questions.wait_for_outcome(pending, emit if call.response.stream else ignore_event)
        return _parse_tool_reply(raw) if isinstance(raw, dict) else raw

    async def _request_over_session(
        self, connection: McpConnection, request: Any, on_progress: Any = None
    ) -> dict[str, Any] | UpstreamRpcError:
        """The raw result. Cancelling notifies the server; the session stays open."""
        try:
            result: dict[str, Any] = await connection.session.send_request(
                request, _ANY_OBJECT, progress_callback=on_progress
            )  # type: ignore[type-var]  # any JSON
        except MCPError as error:
            if connection.is_closed and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(connection.failure_reason, agent_id=self._manifest.agent_id) from error
            return UpstreamRpcError(error.code, error.message, error.data)
        except ValidationError as error:
            raise UpstreamFailed(
                f"The MCP server's answer does not follow the protocol: {summarize_validation_error(error)}"
            ) from error
        return result

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
        return result_from_tool_reply(reply)

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


def _measure_tool(tool: types.Tool) -> int:
    return len(msgspec.json.encode((tool.input_schema, tool.output_schema, tool.description)))


def _start_timeout(call: Call) -> float:
    return _START_SHARE * call.target.timeout_ms / 1000


def _was_bound_without_schema(call_input: Input) -> bool:
    """Whether routing found no schema and passed task and context as arguments, which no tool takes."""
    arguments = call_input.arguments
    return arguments is not msgspec.UNSET and arguments.get("context") is call_input.context


def _is_unknown_session(reply: UpstreamRpcError) -> bool:
    return reply.transport_problem == "gone" or reply.code == types.UNSUPPORTED_PROTOCOL_VERSION


def _make_ping(connection: McpConnection) -> types.PingRequest | types.DiscoverRequest:
    """The stateless era has no ping; `server/discover` is its cheapest request."""
    if connection.era == "stateless":
        return types.DiscoverRequest(params=types.RequestParams())
    return types.PingRequest()


def _parse_tool_reply(raw: dict[str, Any]) -> ToolReply:
    try:
        return msgspec.convert(raw, ToolReply)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The MCP server's answer cannot be read: {exc}") from exc


def build(manifest: Manifest, context: RuntimeContext) -> McpRuntime:
    endpoint = read_endpoint(manifest)
    target = build_http_target(endpoint, context)
    make_transport = make_transport_factory(manifest.agent_id, endpoint, target, context)

    def on_change() -> None:
        prompts_and_resources.reload()
        context.on_capabilities_changed(manifest.agent_id)

    supervisor = McpConnectionSupervisor(
        manifest.agent_id,
        make_transport,
        build_restart_policy(endpoint),
        era=configured_era(endpoint),
        start_timeout=endpoint.start_timeout,
        on_change=on_change,
        on_open=lambda: prompts_and_resources.reload(),
        on_resource_updated=lambda uri: prompts_and_resources.notify_updated(uri),
        may_ask=endpoint.answer_timeout > 0,
    )
    pending_questions = McpPendingQuestions(manifest.agent_id, endpoint.answer_timeout)
    prompts_and_resources = McpPromptResourceProvider(
        manifest.agent_id, supervisor, pending_questions, context.on_prompts_resources_changed
    )
    return McpRuntime(
        manifest,
        supervisor,
        target,
        context.http,
        _build_tunnel(target, make_transport),
        prompts_and_resources,
        pending_questions,
        may_ask=endpoint.answer_timeout > 0,
    )


def _build_tunnel(target: McpHttpTarget | None, make_transport: Callable[[], McpTransport]) -> Tunnel:
    def start() -> Any:
        return make_transport().open(asyncio.Event())

    if target is not None:
        return HTTPTunnel(uri=target.uri, headers=target.headers, reply_bytes=target.reply_bytes, open=start)
    return StdioTunnel(open=start)


plugin = RuntimePlugin(build=build)
