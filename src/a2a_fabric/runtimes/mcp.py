"""Runtime: an MCP server, over stdio or Streamable HTTP, of either era. Every tool is a capability.

A `Keeper` holds one session that all calls share (`mcp_link`); stateless servers over HTTP
are called without it, by our own client (`mcp_direct`). A server may ask back during a call:
then the call's result is the question, and a call over a session is parked until the answer comes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
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
from a2a_fabric.core.content import left_behind, noted
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import in_metadata, journey_headers
from a2a_fabric.core.errors import BadInput, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.result import Result
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.outbound.tunnel import Address, Program, Tunnel
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.mcp_asked import Asked, owner_of, reporting
from a2a_fabric.runtimes.mcp_content import (
    RPCError,
    ToolReply,
    description_of,
    failure_of,
    refusal_of,
    result_of,
)
from a2a_fabric.runtimes.mcp_direct import DirectCaller, ToolRequest
from a2a_fabric.runtimes.mcp_endpoint import connecting, endpoint_of, era_of, place_of, restarts_of
from a2a_fabric.runtimes.mcp_http import Place, call_headers
from a2a_fabric.runtimes.mcp_keeper import Keeper
from a2a_fabric.runtimes.mcp_library import MCPLibrary
from a2a_fabric.runtimes.mcp_link import Link, Transport, asking
from a2a_fabric.runtimes.mcp_parking import PREFIX, Parking
from a2a_fabric.runtimes.mcp_questions import asked_by, asked_by_error, further_params, unknown_continuation
from a2a_fabric.runtimes.published import complete

_log = logging.getLogger(__name__)

_PAGES = 1000
_TOOLS = 20_000
_TOOLS_BYTES = 32 * 1024 * 1024  # of all pages together
_WAIT_SHARE = 0.8  # of a call's time, for a server that is still starting: then another agent may be asked
_ANY = TypeAdapter(dict[str, Any])

Outcome = ToolReply | RPCError | Result  # a result, if the server asks during its call


class MCPRuntime:
    keeps_time = True

    def __init__(
        self,
        manifest: Manifest,
        keeper: Keeper,
        place: Place | None,
        http: HTTPClient,
        tunnel: Tunnel,
        library: MCPLibrary,
        parking: Parking,
        *,
        may_ask: bool,
    ) -> None:
        self.tunnel = tunnel
        self.library = library
        self._manifest = manifest
        self._described = manifest
        self._keeper = keeper
        self._place = place
        self._http = http
        self._parking = parking
        self._may_ask = may_ask
        self._has_looked = False
        self._direct: DirectCaller | None = None
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}

    def __call__(self, call: Call, emit: Emit) -> Coroutine[Any, Any, Result]:
        return self._noting(call, emit) if call.input.attachments else self._called(call, emit)

    async def _noting(self, call: Call, emit: Emit) -> Result:
        """A tool has arguments and nothing else: what was attached and is not among them is noted."""
        result = await self._called(call, emit)
        tool, arguments = self._bound(call)
        return noted(result, left_behind(call.input, arguments, tool))

    async def _called(self, call: Call, emit: Emit) -> Result:
        """The shortest way is for plain calls of a stateless server that is known already; only it needs no timer."""
        direct, link = self._direct, self._keeper.current
        if direct is None or link is None or not self._has_looked or call.answers or call.response.stream:
            with Deadline(call.target.timeout_ms / 1000):
                return await self._answered(call, emit)
        ends_at = time.monotonic() + call.target.timeout_ms / 1000
        request = ToolRequest(*self._bound(call))
        reply = await direct.call(request, call, emit, self._header_maps)
        if not isinstance(reply, RPCError):
            return self._understood(reply, request.tool)
        self._dropped(link, reply)
        with Deadline(ends_at - time.monotonic()):
            return await self._again(reply, request, call, emit)

    async def _answered(self, call: Call, emit: Emit) -> Result:
        tool, arguments = await self._tool_call(call)
        if call.answers and call.answers.continuation.startswith(PREFIX):
            asked = self._parking.resume(call.answers, owner_of(call.auth), tool)
            return self._understood(await self._heard_out(asked, call, emit), tool)
        request = ToolRequest(tool, arguments, further_params(call.answers) if call.answers else {})
        return await self._again(await self._asked(request, call, emit), request, call, emit)

    async def _again(self, reply: Outcome, request: ToolRequest, call: Call, emit: Emit) -> Result:
        """Once more, where the first answer says that it did not get as far as the tool."""
        if isinstance(reply, RPCError) and reply.code == types.HEADER_MISMATCH:  # its schema changed since we looked
            await self.describe()
            reply = await self._asked(request, call, emit)
        if isinstance(reply, RPCError) and _is_unknown_session(reply):
            reply = await self._asked(request, call, emit)
        return self._understood(reply, request.tool)

    async def health(self) -> Status:
        """Asks a server that is there; a program that is not running is only looked for."""
        link = self._keeper.current
        if link is None:
            self._keeper.check_ready()
            if self._place is None:
                return "online"
            link = await self._keeper.link(10.0)
        reply = await self._requested(link, _ping(link))
        if isinstance(reply, RPCError):
            self._dropped(link, reply)
            error = failure_of(reply, self._manifest.agent_id, "", ())
            if not isinstance(error, UpstreamRefused | UpstreamFailed | BadInput):
                raise error
        self.library.refresh()
        return "online"

    async def describe(self) -> Manifest:
        """The manifest, with the server's tools as capabilities."""
        return await self._look(None)

    async def aclose(self) -> None:
        await self.library.aclose()
        await self._parking.aclose()
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
        capability = self._described.capability(call.target.capability)
        if (capability is None or capability.input_schema is None) and not self._has_looked:
            await self._look(_patience(call))
        return self._bound(call)

    def _bound(self, call: Call) -> tuple[str, dict[str, Any]]:
        name, given = call.target.capability, call.input
        capability = self._described.capability(name)
        if capability is not None and given.arguments is not msgspec.UNSET and not _is_without_a_schema(given):
            return capability.name, given.arguments
        if given.arguments is not msgspec.UNSET:
            given = msgspec.structs.replace(given, arguments=msgspec.UNSET)
        arguments = arguments_for(capability or Capability(name=name, input_schema={}), given)
        return (capability.name if capability is not None else name), arguments

    async def _asked(self, request: ToolRequest, call: Call, emit: Emit) -> Outcome:
        link = await self._keeper.link(_patience(call))
        reply: Outcome
        if self._place is not None and link.era == "stateless":
            direct = self._direct or self._directly(link, self._place)
            reply = await direct.call(request, call, emit, self._header_maps)
        else:
            reply = await self._over_session(link, request, call, emit)
        if isinstance(reply, RPCError):
            self._dropped(link, reply)
        return reply

    def _directly(self, link: Link, place: Place) -> DirectCaller:
        version = str(link.session.protocol_version)
        self._direct = DirectCaller(place, self._http, version, may_ask=self._may_ask)
        return self._direct

    async def _over_session(self, link: Link, request: ToolRequest, call: Call, emit: Emit) -> Outcome:
        if request.further and link.era != "stateless":  # it has become another server meanwhile
            raise unknown_continuation()
        asked, headers = Asked(owner_of(call.auth), request.tool), journey_headers(call)
        meta = {"traceparent": headers["traceparent"], **in_metadata(call.delegation_chain)}
        if call.response.stream and link.era == "stateless":
            meta[types.LOG_LEVEL_META_KEY] = "info"
        params = {"name": request.tool, "arguments": request.arguments, **request.further, "_meta": meta}
        wire = types.CallToolRequest(params=types.CallToolRequestParams.model_validate(params, by_name=False))
        on_progress = reporting(asked) if call.response.stream else None
        in_call, in_trace = asking.set(asked), call_headers.set(headers)
        try:
            asked.start(self._requested(link, wire, on_progress), ended=link.asked.pop)
            link.asked[asked] = None
        finally:
            asking.reset(in_call)
            call_headers.reset(in_trace)
        return await self._heard_out(asked, call, emit)

    async def _heard_out(self, asked: Asked, call: Call, emit: Emit) -> Outcome:
        raw = await self._parking.outcome(asked, emit if call.response.stream else ignore)
        return _converted(raw) if isinstance(raw, dict) else raw

    async def _requested(self, link: Link, request: Any, on_progress: Any = None) -> dict[str, Any] | RPCError:
        """The raw result. Cancelling tells the server and leaves the session as it was."""
        try:
            result: dict[str, Any] = await link.session.send_request(request, _ANY, progress_callback=on_progress)  # type: ignore[type-var]  # any JSON
        except MCPError as error:
            if link.is_over and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(link.why, agent_id=self._manifest.agent_id) from error
            return RPCError(error.code, error.message, error.data)
        except ValidationError as error:
            raise UpstreamFailed(f"The MCP server's answer does not follow the protocol: {_brief(error)}") from error
        return result

    def _dropped(self, link: Link, reply: RPCError) -> None:
        """A session that the server no longer knows is of no more use to anybody."""
        if _is_unknown_session(reply):
            self._direct = None
            self._keeper.drop(link, forget_era=reply.code == types.UNSUPPORTED_PROTOCOL_VERSION)

    def _understood(self, reply: Outcome, tool: str) -> Result:
        if isinstance(reply, Result):
            return reply
        if isinstance(reply, RPCError):
            if (asked := asked_by_error(reply)) is not None:
                return asked
            raise failure_of(reply, self._manifest.agent_id, tool, self._offered)
        if reply.result_type == "input_required":
            return asked_by(reply)
        if reply.is_error:
            raise refusal_of(reply, self._manifest.agent_id, tool, self._offered)
        return result_of(reply)

    async def _tools(self, link: Link) -> list[types.Tool]:
        """All pages. Raises FabricError."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        size = 0
        for _ in range(_PAGES):
            page = await self._page(link.session, cursor)
            tools += page.tools
            cursor = page.next_cursor
            size += sum(_size_of(tool) for tool in page.tools)
            if cursor is None or cursor in seen:
                break
            if len(tools) > _TOOLS or size > _TOOLS_BYTES:
                _log.warning("agent %s lists more tools than are taken; %d are", self._manifest.agent_id, len(tools))
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
            raise UpstreamFailed(f"The MCP server's list of tools cannot be read: {_brief(error)}") from error


def _size_of(tool: types.Tool) -> int:
    return len(msgspec.json.encode((tool.input_schema, tool.output_schema, tool.description)))


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


def _converted(raw: dict[str, Any]) -> ToolReply:
    try:
        return msgspec.convert(raw, ToolReply)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The MCP server's answer cannot be read: {exc}") from exc


def _brief(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"[:300]


def build(manifest: Manifest, context: RuntimeContext) -> MCPRuntime:
    """`context.options`: `environ` to inherit from; `changed` and `library_changed` to call when a server changes."""
    endpoint = endpoint_of(manifest)
    place = place_of(endpoint, context)
    connect = connecting(manifest.agent_id, endpoint, place, context)
    tell = _telling(manifest.agent_id, context)

    def changed() -> None:
        library.learn()
        tell()

    keeper = Keeper(
        manifest.agent_id,
        connect,
        restarts_of(endpoint),
        era=era_of(endpoint),
        start_timeout=endpoint.start_timeout,
        changed=changed,
        opened=lambda: library.learn(),
        updated=lambda uri: library.updated(uri),
        may_ask=endpoint.answer_timeout > 0,
    )
    parking = Parking(manifest.agent_id, endpoint.answer_timeout)
    library = MCPLibrary(manifest.agent_id, keeper, parking, context.options.get("library_changed", _nobody_hears))
    return MCPRuntime(
        manifest,
        keeper,
        place,
        context.http,
        _tunnel(place, connect),
        library,
        parking,
        may_ask=endpoint.answer_timeout > 0,
    )


def _tunnel(place: Place | None, connect: Callable[[], Transport]) -> Tunnel:
    def start() -> Any:
        return connect().open(asyncio.Event())

    if place is not None:
        return Address(uri=place.uri, headers=place.headers, reply_bytes=place.reply_bytes, open=start)
    return Program(open=start)


def _nobody_hears() -> None:
    pass


def _telling(agent_id: str, context: RuntimeContext) -> Callable[[], None]:
    tell: Callable[[str], None] | None = context.options.get("changed")
    return (lambda: tell(agent_id)) if tell is not None else (lambda: None)
