"""Prompts and resources of an MCP server: listed from memory, requested over the session that all calls share.

The lists are loaded when the session opens, when the server reports a change, and after
health checks, always in a task of their own, so a slow server blocks no caller. A list that cannot
be loaded stays as it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import chain_to_headers, chain_to_metadata
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.pipeline import Emit, ignore_event
from a2a_fabric.core.question import Question
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import format_traceparent
from a2a_fabric.protocols.mcp.frames import RESOURCE_NOT_FOUND
from a2a_fabric.protocols.mcp.questions import AnswerCapabilities
from a2a_fabric.protocols.mcp.runtime_ports import EMPTY_LISTING, Entries, PromptResourceListing, PromptResourceQuery
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, error_from_rpc_error
from a2a_fabric.runtimes.mcp.http import call_headers
from a2a_fabric.runtimes.mcp.pending import (
    CONTINUATION_PREFIX,
    McpPendingQuestions,
    PendingMcpRequest,
    SessionReply,
    make_progress_callback,
)
from a2a_fabric.runtimes.mcp.questions import answers_from_params, to_input_required
from a2a_fabric.runtimes.mcp.sessions import McpConnection, McpConnectionSupervisor, current_request
from a2a_fabric.runtimes.mcp.subscriptions import McpResourceSubscriptions

_log = logging.getLogger(__name__)

MAX_ENTRIES = 1000  # of each kind
MAX_ENTRY_BYTES = 64 * 1024
MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_PAGES = 200
_LIST_TIMEOUT = 30.0  # seconds for all lists
_FRESH_SECONDS = 5.0  # seconds in which a health check does not load the lists again
_ANY_OBJECT = TypeAdapter(dict[str, Any])


class McpPromptResourceProvider:
    """The prompts and resources of one server. `on_change` is called when their lists have changed."""

    def __init__(
        self,
        agent_id: str,
        supervisor: McpConnectionSupervisor,
        pending_questions: McpPendingQuestions,
        on_change: Callable[[], None],
    ) -> None:
        self.listing = EMPTY_LISTING
        self._pending_questions = pending_questions
        self._subscriptions = McpResourceSubscriptions(agent_id, supervisor)
        self._agent_id = agent_id
        self._supervisor = supervisor
        self._on_change = on_change
        self._reload_task: asyncio.Task[None] | None = None
        self._is_reload_due = False
        self._reloaded_at = float("-inf")
        self._is_closed = False

    def reload(self) -> None:
        """Load the lists soon; once more if they are being loaded now."""
        self._is_reload_due = True
        if self._reload_task is None and not self._is_closed:
            self._reload_task = asyncio.ensure_future(self._reload())

    def reload_if_stale(self) -> None:
        """Load the lists, unless they were loaded just now."""
        if self._reload_task is None and asyncio.get_running_loop().time() - self._reloaded_at > _FRESH_SECONDS:
            self.reload()

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        with Deadline(query.timeout):
            reply = await self._request_or_resume(query, emit)
            if (
                isinstance(reply, UpstreamRpcError) and reply.transport_problem == "gone"
            ):  # the server no longer knows the session
                reply = await self._request_or_resume(query, emit)
        if isinstance(reply, UpstreamRpcError):
            raise self._error_from_reply(reply, query)
        return reply

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        return await self._subscriptions.subscribe(uri, on_change, on_lost, start_timeout)

    def notify_updated(self, uri: str) -> None:
        """The server reports that a resource has changed."""
        self._subscriptions.notify(uri)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._subscriptions.aclose()
        if self._reload_task is not None:
            self._reload_task.cancel()
            await asyncio.wait([self._reload_task])

    async def _reload(self) -> None:
        try:
            while self._is_reload_due:
                self._is_reload_due = False
                async with asyncio.timeout(_LIST_TIMEOUT):
                    await self._reload_lists()
        except TimeoutError:
            _log.warning("%s: listing its prompts and resources took more than %g s", self._agent_id, _LIST_TIMEOUT)
        except Exception:
            _log.exception("%s: listing its prompts and resources failed", self._agent_id)
        finally:
            self._reload_task = None
            self._reloaded_at = asyncio.get_running_loop().time()

    async def _reload_lists(self) -> None:
        connection = self._supervisor.current
        server_capabilities = connection.session.server_capabilities if connection is not None else None
        if connection is None or server_capabilities is None:
            return
        has_prompts, has_resources = server_capabilities.prompts is not None, server_capabilities.resources is not None
        previous = self.listing
        current = PromptResourceListing(
            prompts=await self._list_entries(connection, types.ListPromptsRequest, previous.prompts)
            if has_prompts
            else (),
            resources=await self._list_entries(connection, types.ListResourcesRequest, previous.resources)
            if has_resources
            else (),
            templates=await self._list_entries(connection, types.ListResourceTemplatesRequest, previous.templates)
            if has_resources
            else (),
        )
        if current != previous:
            self.listing = current
            self._on_change()

    async def _list_entries(self, connection: McpConnection, request: Any, previous: Entries) -> Entries:
        """The entries of all pages, within bounds; the previous ones if they cannot be loaded."""
        try:
            return _limit_entries(await self._fetch_entries(connection.session, request), self._agent_id)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return ()
            _log.info("%s: %s: %s", self._agent_id, _read_method_name(request), error)
        except ValidationError:
            _log.warning(
                "%s: the answer to %s does not follow the protocol", self._agent_id, _read_method_name(request)
            )
        return previous

    async def _fetch_entries(self, session: ClientSession, request: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        seen_cursors: set[str] = set()
        for _ in range(_MAX_PAGES):
            page_request = request(params=types.PaginatedRequestParams(cursor=cursor))
            page: dict[str, Any] = await session.send_request(page_request, _ANY_OBJECT)  # type: ignore[type-var]  # any JSON
            entries += page[_RESULT_KEYS[_read_method_name(request)]]
            cursor = page.get("nextCursor")
            if cursor is None or cursor in seen_cursors or len(entries) >= MAX_ENTRIES:
                break
            seen_cursors.add(cursor)
        return entries

    async def _request_or_resume(self, query: PromptResourceQuery, emit: Emit | None) -> SessionReply:
        """The server's reply, or its questions, while the request waits for the answers."""
        state = query.params.get("requestState")
        if isinstance(state, str) and state.startswith(CONTINUATION_PREFIX):
            pending = self._pending_questions.resume(
                answers_from_params(query.params, state), query.principal, _make_request_key(query)
            )
        else:
            connection = await self._supervisor.get_connection(query.start_timeout)
            if query.method == "completion/complete":
                return await self._complete(connection, query)
            pending = self._start_request(connection, query, stream=emit is not None)
        outcome = await self._pending_questions.wait_for_outcome(
            pending, emit or ignore_event, partial(_can_answer, query.client_capabilities)
        )
        if isinstance(outcome, Result):
            return to_input_required(outcome.asked) if outcome.asked is not None else {}
        return outcome

    def _start_request(
        self, connection: McpConnection, query: PromptResourceQuery, *, stream: bool
    ) -> PendingMcpRequest:
        pending = PendingMcpRequest(query.principal, _make_request_key(query))
        request_token = current_request.set(pending)
        try:
            pending.start(
                self._send_query(connection, query, pending if stream else None), on_end=connection.pending_requests.pop
            )
            connection.pending_requests[pending] = None
        finally:
            current_request.reset(request_token)
        return pending

    async def _complete(self, connection: McpConnection, query: PromptResourceQuery) -> SessionReply:
        server_capabilities = connection.session.server_capabilities
        if server_capabilities is None or server_capabilities.completions is None:
            return {"completion": {"values": []}}
        with connection.decline_questions():
            return await self._send_query(connection, query, None)

    async def _send_query(
        self, connection: McpConnection, query: PromptResourceQuery, pending: PendingMcpRequest | None
    ) -> SessionReply:
        trace_token = call_headers.set(
            {"traceparent": format_traceparent(query.trace), **chain_to_headers(query.delegation_chain)}
        )
        try:
            return await _send_stamped(connection, query, pending)
        except MCPError as error:
            if connection.is_closed and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(connection.failure_reason, agent_id=self._agent_id) from error
            reply = UpstreamRpcError(error.code, error.message, error.data)
            if reply.transport_problem == "gone":
                self._supervisor.drop(connection)
            return reply
        except ValidationError as error:
            raise UpstreamFailed("The MCP server's answer does not follow the protocol") from error
        finally:
            call_headers.reset(trace_token)

    def _error_from_reply(self, reply: UpstreamRpcError, query: PromptResourceQuery) -> FabricError:
        if reply.code == RESOURCE_NOT_FOUND and reply.transport_problem is None:
            return BadInput(reply.message[:500] or "Unknown resource", upstream_code=RESOURCE_NOT_FOUND)
        return error_from_rpc_error(reply, self._agent_id, query.method, ())


_RESULT_KEYS = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def _read_method_name(request: Any) -> str:
    return str(request.model_fields["method"].default)


def _limit_entries(entries: Iterable[dict[str, Any]], agent_id: str) -> Entries:
    accepted: list[dict[str, Any]] = []
    remaining_bytes = MAX_LIST_BYTES
    for entry in entries:
        size = len(msgspec.json.encode(entry))
        if len(accepted) == MAX_ENTRIES or size > remaining_bytes:
            _log.warning(
                "%s: it lists more than %d entries or %d bytes; the rest was dropped",
                agent_id,
                MAX_ENTRIES,
                MAX_LIST_BYTES,
            )
            break
        if size <= MAX_ENTRY_BYTES:
            accepted.append(entry)
            remaining_bytes -= size
    return tuple(accepted)


def _make_request_key(query: PromptResourceQuery) -> str:
    """The same for the first request and its repetition with answers."""
    return f"{query.method} {query.params.get('name') or query.params.get('uri')}"


def _can_answer(capabilities: Mapping[str, Any], questions: Mapping[str, Question]) -> bool:
    client = msgspec.convert(capabilities, AnswerCapabilities)
    return all(map(client.can_answer_one, questions.values()))


def _build_meta(query: PromptResourceQuery) -> dict[str, Any]:
    return {"traceparent": format_traceparent(query.trace), **chain_to_metadata(query.delegation_chain)}


async def _send_stamped(
    connection: McpConnection, query: PromptResourceQuery, pending: PendingMcpRequest | None
) -> dict[str, Any]:
    """Send the query as the session would, but with the capabilities of the client that asks.

    A stateless server may need them. The SDK has no public way for this: its session declares its own capabilities.
    """
    session, version = connection.session, str(connection.session.protocol_version)
    params = {**query.params, "_meta": _build_meta(query)}
    if connection.era != "stateless":
        params = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
    data, options = {"method": query.method, "params": params}, CallOptions()
    session._stamp(data, options)
    if connection.era == "stateless":
        data["params"]["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = query.client_capabilities  # type: ignore[index]  # `_stamp` set it
    if pending is not None:
        options["on_progress"] = make_progress_callback(pending)
        if connection.era == "stateless":
            data["params"]["_meta"][types.LOG_LEVEL_META_KEY] = "info"  # type: ignore[index]  # `_stamp` set it
    raw = await session._dispatcher.send_raw_request(query.method, params, options)
    methods.validate_server_result(query.method, version, raw)
    return raw
