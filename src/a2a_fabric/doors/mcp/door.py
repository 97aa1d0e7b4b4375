"""Builds the MCP door: its settings, its routes and its lifetime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.mcp.fast_path import FastPath
from a2a_fabric.doors.mcp.http import McpHttpEndpoint, McpRequestServer
from a2a_fabric.doors.mcp.proxy.selector import ProxySelector
from a2a_fabric.doors.mcp.servers import ManifestSubscriptions, McpServers
from a2a_fabric.doors.mcp.sessions import FastSessions, OpenSessions
from a2a_fabric.doors.mcp.tools import AgentToolCatalog, GatewayToolCatalog
from a2a_fabric.doors.mcp.websocket import McpWebSocketEndpoint

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer


class McpDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `mcp`."""

    tool_names: Annotated[
        Literal["safe", "dotted"],
        Meta(
            description="How tools are listed: `percy_reason`, or `fabric.tool.agent.percy.reason`. Clients can call "
            "both names."
        ),
    ] = "safe"
    max_listed: Annotated[
        int,
        Meta(
            ge=0,
            description="If there are more tools than this, only the gateway's own are listed; clients find the rest "
            "with these.",
        ),
    ] = 60
    builtin_tools: Annotated[
        bool,
        Meta(
            description="List the built-in tools too. If they are not listed, clients call them with fabric_tool_call."
        ),
    ] = False
    max_sessions: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions of the handshake era at a time. When a client opens one more, the node closes the "
            "idlest session of the caller that has most.",
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


@dataclass(frozen=True, kw_only=True)
class McpDoor(Door):
    """A door that also serves stdio, through `await door.servers.get_gateway_server()`."""

    servers: McpServers


def build(settings: McpDoorSettings, context: DoorContext) -> McpDoor:
    gateway, operations = context.gateway, context.operations
    catalog = GatewayToolCatalog(
        gateway,
        operations,
        name_style=settings.tool_names,
        max_listed=settings.max_listed,
        builtin_tools=settings.builtin_tools,
    )

    manifest_subscriptions = ManifestSubscriptions(gateway)
    sessions = OpenSessions("MCP sessions", settings.max_sessions, settings.session_idle, settings.session_unused)

    def build_server(server_type: type[McpServer], manifest: Manifest | None) -> McpServer:
        server_catalog = catalog if manifest is None else AgentToolCatalog(gateway, operations, manifest)
        return server_type(
            context, server_catalog, manifest_subscriptions, sessions=sessions, idle_timeout=settings.session_idle
        )

    servers = McpServers(gateway, build_server)
    context.resource_providers.add_listener(servers.schedule_notify)
    selector = ProxySelector(
        context, servers, idle_timeout=settings.session_idle, max_sessions=settings.sessions_per_agent
    )

    async def find_gateway_server(scope: Any, principal: Principal) -> McpRequestServer:
        return await servers.get_gateway_server()

    gateway_endpoint, agent_endpoint = (
        McpHttpEndpoint(
            context,
            find_gateway_server,
            FastPath(context, catalog),
            FastSessions(settings.session_idle, find_open_session=sessions.find),
        ),
        McpHttpEndpoint(context, selector.find_server),
    )
    return McpDoor(
        hot={"/mcp": gateway_endpoint},
        sockets={"/mcp/ws": McpWebSocketEndpoint(context, servers.get_gateway_server)},
        routes=[Route("/agents/{agent_id:path}/mcp", agent_endpoint)],
        lifetime=selector,
        stop=(gateway_endpoint.stop, agent_endpoint.stop, selector.stop),
        servers=servers,
    )


plugin = DoorPlugin(settings=McpDoorSettings, build=build)
