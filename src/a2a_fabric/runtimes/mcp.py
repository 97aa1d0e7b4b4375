"""Runtime: an MCP server, over stdio or Streamable HTTP, of either era. Every tool is a capability.

A `Keeper` holds one session that all calls share (`mcp_link`); stateless servers over HTTP
are called without it, by our own client (`mcp_direct`). Sampling, elicitation and roots are
not offered to servers here: whoever needs them talks to the server through `/agents/ID/mcp`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call, Input
from a2a_fabric.core.errors import BadInput, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import traceparent
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.outbound.tunnel import Address, Program, Tunnel
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.mcp_asked import Asked
from a2a_fabric.runtimes.mcp_content import (
    RPCError,
    ToolReply,
    description_of,
    failure_of,
    progress_event,
    question_of,
    refusal_of,
    result_of,
)
from a2a_fabric.runtimes.mcp_direct import DirectCaller
from a2a_fabric.runtimes.mcp_endpoint import connecting, endpoint_of, era_of, place_of, restarts_of
from a2a_fabric.runtimes.mcp_http import Place, trace_header
from a2a_fabric.runtimes.mcp_keeper import Keeper
from a2a_fabric.runtimes.mcp_link import Link, Transport, asking
from a2a_fabric.runtimes.published import complete

_PAGES = 1000
_TOOLS = 20_000
_WAIT_SHARE = 0.8  # of a call's time, for a server that is still starting: then another agent may be asked
_ANY = TypeAdapter(dict[str, Any])


class MCPRuntime:
    def __init__(
        self, manifest: Manifest, keeper: Keeper, place: Place | None, http: HTTPClient, tunnel: Tunnel
    ) -> None:
        self.tunnel = tunnel
        self._manifest = manifest
        self._described = manifest
        self._keeper = keeper
        self._place = place
        self._http = http
        self._has_looked = False
        self._direct: DirectCaller | None = None
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}

    async def __call__(self, call: Call, emit: Emit) -> Result:
        tool, arguments = await self._tool_call(call)
        reply = await self._asked(tool, arguments, call, emit)
        if isinstance(reply, RPCError) and reply.code == types.HEADER_MISMATCH:  # its schema changed since we looked
            await self.describe()
            reply = await self._asked(tool, arguments, call, emit)
        if isinstance(reply, RPCError) and _is_unknown_session(reply):  # it did not get as far as the tool
            reply = await self._asked(tool, arguments, call, emit)
        if isinstance(reply, RPCError):
            raise failure_of(reply, self._manifest.agent_id, tool, self._offered)
        return await self._understood(reply, tool, emit)

    async def health(self) -> Status:
        """Asks a server that is there; a program that is not running is only looked for."""
        link = self._keeper.current
        if link is None:
            self._keeper.check_ready()
            if self._place is None:
                return "online"
            link = await self._keeper.link(10.0)
        reply = await self._requested(link, _ping(link), "")
        if isinstance(reply, RPCError):
            self._dropped(link, reply)
            error = failure_of(reply, self._manifest.agent_id, "", ())
            if not isinstance(error, UpstreamRefused | BadInput):
                raise error
        return "online"

    async def describe(self) -> Manifest:
        """The manifest, with the server's tools as capabilities."""
        return await self._look(None)

    async def aclose(self) -> None:
        await self._keeper.aclose()

    async def _look(self, patience: float | None) -> Manifest:
        link = await self._keeper.link(patience)
        tools = await self._tools(link)
        self._has_looked = True
        self._header_maps = {tool.name: found for tool in tools if (found := x_mcp_header_map(tool.input_schema))}
        published = description_of(self._manifest, tools, link.session.server_info, link.session.instructions)
        self._described = complete(self._manifest, published)
        return self._described

    @property
    def _offered(self) -> list[str]:
        return [capability.name for capability in self._described.capabilities]

    async def _tool_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """The tool's own name and its arguments; a declaration without a schema is filled in by asking once."""
        name, given = call.target.capability, call.input
        capability = self._described.capability(name)
        if (capability is None or capability.input_schema is None) and not self._has_looked:
            await self._look(_patience(call))
            capability = self._described.capability(name)
        if capability is None or _is_without_a_schema(given):
            given = msgspec.structs.replace(given, arguments=msgspec.UNSET)
        arguments = arguments_for(capability or Capability(name=name, input_schema={}), given)
        return (capability.name if capability is not None else name), arguments

    async def _asked(self, tool: str, arguments: dict[str, Any], call: Call, emit: Emit) -> ToolReply | RPCError:
        link = await self._keeper.link(_patience(call))
        if self._place is not None and link.era == "stateless":
            direct = self._direct or self._directly(link, self._place)
            reply = await direct.call(tool, arguments, call, emit, self._header_maps)
        else:
            reply = await self._over_session(link, tool, arguments, call, emit)
        if isinstance(reply, RPCError):
            self._dropped(link, reply)
        return reply

    def _directly(self, link: Link, place: Place) -> DirectCaller:
        self._direct = DirectCaller(place, self._http, str(link.session.protocol_version))
        return self._direct

    async def _over_session(
        self, link: Link, tool: str, arguments: dict[str, Any], call: Call, emit: Emit
    ) -> ToolReply | RPCError:
        asked, header = Asked(), traceparent(call.trace)
        meta: dict[str, Any] = {"traceparent": header}
        if call.response.stream and link.era == "stateless":
            meta[types.LOG_LEVEL_META_KEY] = "info"
        params = types.CallToolRequestParams(name=tool, arguments=arguments, _meta=meta)  # type: ignore[arg-type]  # any JSON
        request = types.CallToolRequest(params=params)
        in_call, in_trace = asking.set(asked), trace_header.set(header)
        link.asked.add(asked)
        try:
            if call.response.stream:
                raw = await asked.answered(self._requested(link, request, tool, _reporting(asked)), emit)
            else:
                raw = await self._requested(link, request, tool)
        finally:
            link.asked.discard(asked)
            asking.reset(in_call)
            trace_header.reset(in_trace)
        return raw if isinstance(raw, RPCError) else _converted(raw)

    async def _requested(
        self, link: Link, request: Any, tool: str, on_progress: Any = None
    ) -> dict[str, Any] | RPCError:
        """The raw result. Cancelling tells the server and leaves the session as it was."""
        try:
            result: dict[str, Any] = await link.session.send_request(request, _ANY, progress_callback=on_progress)  # type: ignore[type-var]  # any JSON
        except MCPError as error:
            if link.is_over and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(link.why, agent_id=self._manifest.agent_id) from error
            return RPCError(error.code, error.message, error.data)
        except ValidationError as error:
            raise UpstreamRefused(f"The MCP server's answer does not follow the protocol: {_brief(error)}") from error
        return result

    def _dropped(self, link: Link, reply: RPCError) -> None:
        """A session that the server no longer knows is of no more use to anybody."""
        if _is_unknown_session(reply):
            self._direct = None
            self._keeper.drop(link, forget_era=reply.code == types.UNSUPPORTED_PROTOCOL_VERSION)

    async def _understood(self, reply: ToolReply, tool: str, emit: Emit) -> Result:
        if reply.result_type == "input_required":
            event, error = question_of(reply)
            await emit(event)
            raise error
        if reply.is_error:
            raise refusal_of(reply, self._manifest.agent_id, tool, self._offered)
        return result_of(reply)

    async def _tools(self, link: Link) -> list[types.Tool]:
        """All pages. Raises FabricError."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_PAGES):
            page = await self._page(link.session, cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(tools) > _TOOLS:
                break
            seen.add(cursor)
        return tools[:_TOOLS]

    async def _page(self, session: ClientSession, cursor: str | None) -> types.ListToolsResult:
        try:
            return await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:  # a server of prompts and resources only
                return types.ListToolsResult(tools=[])
            told = RPCError(error.code, error.message, error.data)
            if _is_unknown_session(told) and (link := self._keeper.current) is not None:
                self._dropped(link, told)
            raise failure_of(told, self._manifest.agent_id, "tools/list", ()) from error
        except ValidationError as error:
            raise UpstreamRefused(f"The MCP server's list of tools cannot be read: {_brief(error)}") from error


def _patience(call: Call) -> float:
    return _WAIT_SHARE * call.target.timeout_ms / 1000


def _is_without_a_schema(given: Input) -> bool:
    """Whether routing, finding no schema in the catalog, passed on task and context as they are; no tool takes that."""
    arguments = given.arguments
    return arguments is not msgspec.UNSET and arguments.get("context") is given.context


def _is_unknown_session(reply: RPCError) -> bool:
    return reply.trouble == "gone" or reply.code == types.UNSUPPORTED_PROTOCOL_VERSION


def _ping(link: Link) -> types.PingRequest | types.DiscoverRequest:
    """The stateless era has no ping; its cheapest question is who is there."""
    if link.era == "stateless":
        return types.DiscoverRequest(params=types.RequestParams())
    return types.PingRequest()


def _reporting(asked: Asked) -> Callable[[float, float | None, str | None], Any]:
    async def report(done: float, total: float | None, message: str | None) -> None:
        asked.hear(progress_event(done, total, message))

    return report


def _converted(raw: dict[str, Any]) -> ToolReply:
    try:
        return msgspec.convert(raw, ToolReply)
    except msgspec.ValidationError as exc:
        raise UpstreamRefused(f"The MCP server's answer cannot be read: {exc}") from exc


def _brief(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"[:300]


def build(manifest: Manifest, context: RuntimeContext) -> MCPRuntime:
    """`context.options`: `environ` to inherit from, `changed` to call when a server's tools change."""
    endpoint = endpoint_of(manifest)
    place = place_of(endpoint, context)
    connect = connecting(manifest.agent_id, endpoint, place, context)
    keeper = Keeper(
        manifest.agent_id,
        connect,
        restarts_of(endpoint),
        era=era_of(endpoint),
        start_timeout=endpoint.start_timeout,
        changed=_telling(manifest.agent_id, context),
    )
    return MCPRuntime(manifest, keeper, place, context.http, _tunnel(place, connect))


def _tunnel(place: Place | None, connect: Callable[[], Transport]) -> Tunnel:
    if place is not None:
        return Address(uri=place.uri, headers=place.headers, reply_bytes=place.reply_bytes)
    return Program(open=lambda: connect().open(asyncio.Event()))


def _telling(agent_id: str, context: RuntimeContext) -> Callable[[], None]:
    tell: Callable[[str], None] | None = context.options.get("changed")
    return (lambda: tell(agent_id)) if tell is not None else (lambda: None)
