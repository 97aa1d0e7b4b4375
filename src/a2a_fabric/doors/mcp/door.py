"""Builds the MCP door: its settings, its routes and its lifetime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import OPERATOR_PRINCIPAL
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.mcp.api_docs import describe
from a2a_fabric.doors.mcp.fast_path import FastPath
from a2a_fabric.doors.mcp.http import McpHttpEndpoint, McpRequestServer, McpWebSocketEndpoint
from a2a_fabric.doors.mcp.light_sessions import LightSessions
from a2a_fabric.doors.mcp.light_streams import LightStreams
from a2a_fabric.doors.mcp.proxy.selector import ProxySelector
from a2a_fabric.doors.mcp.saved_sessions import SavedSessions
from a2a_fabric.doors.mcp.servers import GATEWAY_KEY, ManifestSubscriptions, McpServers
from a2a_fabric.doors.mcp.sessions import FastSessions, OpenSessions
from a2a_fabric.doors.mcp.sse import MESSAGES_PATH, SseEndpoints
from a2a_fabric.doors.mcp.tool_list import HiddenToolsLog, ToolListSettings
from a2a_fabric.doors.mcp.tools import AgentToolCatalog, GatewayToolCatalog, ToolCatalog

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer


class McpDoorSettings(ToolListSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `mcp`."""

    tool_names: Annotated[
        Literal["safe", "dotted"],
        Meta(
            description="How tools are listed: `percy_reason`, or `fabric.tool.agent.percy.reason`. Clients can call "
            "both names."
        ),
    ] = "safe"
    max_sessions: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions of the handshake era at a time. When a client opens one more, the node closes the "
            "idlest session of the caller that has most. One caller has at most `limits.share_per_caller`.",
        ),
    ] = 10_000
    sessions_per_agent: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions at a time with one agent that is an MCP server, if each client needs its own "
            "session there (for a program: its own process). When a client opens one more, the node "
            "closes one as above.",
        ),
    ] = 64
    session_idle: Annotated[float, Meta(gt=0, description="Seconds until an idle session ends.")] = 1800.0
    session_unused: Annotated[
        float, Meta(gt=0, description="Seconds until a session ends that was opened and never used.")
    ] = 300.0


class McpDoor(Door, frozen=True, kw_only=True):
    """A door that also serves stdio, through `await door.servers.get_gateway_server()`."""

    servers: McpServers


def build(settings: McpDoorSettings, context: DoorContext) -> McpDoor:
    gateway, operations = context.gateway, context.operations
    catalog = GatewayToolCatalog(
        gateway,
        operations,
        settings,
        lambda capability: context.jobs.job_after_of_capability(capability) is not None,
        name_style=settings.tool_names,
    )

    gateway.notice_sources.append(lambda principal: filter(None, [catalog.describe_hidden(principal)]))
    hidden_tools_log = HiddenToolsLog(partial(catalog.describe_hidden, OPERATOR_PRINCIPAL))
    gateway.registry.add_listener(hidden_tools_log.on_catalog_change)
    manifest_subscriptions = ManifestSubscriptions(gateway)
    sessions = OpenSessions(
        "MCP sessions",
        settings.max_sessions,
        settings.session_idle,
        settings.session_unused,
        share=context.caller_share,
        counts=context.counts,
        make_room_elsewhere=context.make_room_elsewhere,
    )

    def build_catalog(manifest: Manifest | None) -> ToolCatalog:
        return catalog if manifest is None else AgentToolCatalog(gateway, operations, manifest)

    def build_server(server_type: type[McpServer], manifest: Manifest | None) -> McpServer:
        server_catalog = build_catalog(manifest)
        return server_type(
            context, server_catalog, manifest_subscriptions, sessions=sessions, idle_timeout=settings.session_idle
        )

    light_streams = LightStreams()
    servers = McpServers(gateway, build_server, light_streams)
    context.resource_providers.add_listener(servers.on_prompts_changed)

    def build_fast_path(manifest: Manifest | None) -> FastPath:
        fast_sessions = FastSessions(settings.session_idle, find_open_session=sessions.find)
        path_catalog = build_catalog(manifest)
        server_key = GATEWAY_KEY if manifest is None else manifest.agent_id
        light_sessions = LightSessions(context, path_catalog, sessions, fast_sessions, light_streams, server_key)
        return FastPath(context, path_catalog, fast_sessions, light_sessions)

    selector = ProxySelector(
        context,
        servers,
        sessions.find,
        build_fast_path,
        idle_timeout=settings.session_idle,
        unused_timeout=settings.session_unused,
        max_sessions=settings.sessions_per_agent,
    )
    gateway_fast_path = build_fast_path(None)

    async def find_gateway_server(scope: Any, principal: Principal) -> McpRequestServer:
        return await servers.get_gateway_server()

    gateway_endpoint, agent_endpoint = (
        McpHttpEndpoint(context, sessions, find_gateway_server, lambda scope, principal: gateway_fast_path),
        McpHttpEndpoint(context, sessions, selector.find_server, selector.find_fast_path, selector.serve_direct),
    )
    agent_route = Route("/agents/{agent_id:path}/mcp", agent_endpoint)
    sse = SseEndpoints(context, sessions, servers.get_gateway_server)
    saved_sessions = SavedSessions(context.session_file, sessions)

    naming: list[asyncio.Future[None]] = []

    async def prepare() -> None:
        """Naming the tools of many agents takes a while, so it begins now, and not with the first request."""
        await servers.prepare()
        naming.append(asyncio.ensure_future(catalog.refresh(OPERATOR_PRINCIPAL)))

    @asynccontextmanager
    async def run_lifetime() -> AsyncIterator[None]:
        async with selector:
            await saved_sessions.restore()
            yield
            await cancel_and_wait(*naming)
            await saved_sessions.save(await servers.collect_events())

    return McpDoor(
        hot={"/mcp": gateway_endpoint},
        sockets={"/mcp/ws": McpWebSocketEndpoint(context, servers.get_gateway_server)},
        routes=[
            Route("/sse", sse.stream),
            Route(MESSAGES_PATH, sse.messages),
            agent_route,
        ],
        hot_routes=[agent_route],
        lifetime=run_lifetime(),
        prepare=prepare,
        stop=(gateway_endpoint.stop, agent_endpoint.stop, sse.stop, selector.stop, hidden_tools_log.stop),
        make_room=sessions.make_room,
        sessions={"mcp": lambda: len(sessions)},
        describe=partial(describe, MESSAGES_PATH),
        servers=servers,
    )


plugin = DoorPlugin(settings=McpDoorSettings, build=build)
