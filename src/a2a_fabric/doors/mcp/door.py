"""Puts the MCP door together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.mcp.http import Entrance, Serving
from a2a_fabric.doors.mcp.manifests import ManifestNews
from a2a_fabric.doors.mcp.open_sessions import OpenSessions
from a2a_fabric.doors.mcp.rooms import Rooms
from a2a_fabric.doors.mcp.seats import Seats
from a2a_fabric.doors.mcp.shelf import AgentShelf, GatewayShelf
from a2a_fabric.doors.mcp.short import ShortWay
from a2a_fabric.doors.mcp.socket import SocketEndpoint
from a2a_fabric.doors.mcp.ways import Ways

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.room import Room


class MCPDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `mcp`."""

    tool_names: Annotated[
        Literal["safe", "dotted"],
        Meta(description="How tools are listed: `percy_reason`, or `fabric.tool.agent.percy.reason`. Both are called."),
    ] = "safe"
    max_listed: Annotated[
        int, Meta(ge=0, description="Above this number of tools only the gateway's own are listed; they find the rest.")
    ] = 60
    builtin_tools: Annotated[
        bool, Meta(description="List the built-in tools too; unlisted they are reached by fabric_tool_call.")
    ] = False
    max_sessions: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions of the handshake era at a time. For one more, the idlest session of the caller who "
            "has most is closed.",
        ),
    ] = 10_000
    sessions_per_agent: Annotated[
        int,
        Meta(
            ge=1,
            description="Conversations at a time with one agent that is an MCP server, where each needs its own (a "
            "program: its own process). For one more, one is closed as above.",
        ),
    ] = 64
    session_idle: Annotated[float, Meta(gt=0, description="Seconds until an idle session ends.")] = 1800.0
    session_unused: Annotated[
        float, Meta(gt=0, description="Seconds until a session ends in which nothing was asked since it was opened.")
    ] = 300.0


@dataclass(frozen=True, kw_only=True)
class MCPDoor(Door):
    """A door that also holds conversations over other things than HTTP: `await door.rooms.of_gateway()`."""

    rooms: Rooms


def build(settings: MCPDoorSettings, context: DoorContext) -> MCPDoor:
    gateway, operations = context.gateway, context.operations
    shelf = GatewayShelf(
        gateway,
        operations,
        style=settings.tool_names,
        max_listed=settings.max_listed,
        builtin_tools=settings.builtin_tools,
    )

    manifests = ManifestNews(gateway)
    sessions = OpenSessions("MCP sessions", settings.max_sessions, settings.session_idle, settings.session_unused)

    def furnish(room: type[Room], manifest: Manifest | None) -> Room:
        on_it = shelf if manifest is None else AgentShelf(gateway, operations, manifest)
        return room(context, on_it, manifests, sessions=sessions, idle=settings.session_idle)

    rooms = Rooms(gateway, furnish)
    context.libraries.listen(rooms.look)
    ways = Ways(context, rooms, idle=settings.session_idle, most=settings.sessions_per_agent)

    async def whole(scope: Any, principal: Principal) -> Serving:
        return await rooms.of_gateway()

    front, side = (
        Entrance(context, whole, ShortWay(context, shelf), Seats(settings.session_idle, open_session=sessions.find)),
        Entrance(context, ways.to_agent),
    )
    return MCPDoor(
        hot={"/mcp": front},
        sockets={"/mcp/ws": SocketEndpoint(context, rooms.of_gateway)},
        routes=[Route("/agents/{agent_id:path}/mcp", side)],
        lifetime=ways,
        stop=(front.stop, side.stop, ways.stop),
        rooms=rooms,
    )


build.settings = MCPDoorSettings  # type: ignore[attr-defined]  # how the composition root decodes our table
