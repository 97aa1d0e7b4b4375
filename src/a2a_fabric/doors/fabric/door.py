"""Builds the Fabric door; declares its settings."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.edge import CycleEndpoint
from a2a_fabric.doors.fabric.endpoints import FabricHttpEndpoints
from a2a_fabric.doors.fabric.envelope import ErrorFormat
from a2a_fabric.doors.fabric.http import FabricCallCycle, FabricDoorState
from a2a_fabric.doors.fabric.websocket import FabricWebSocketEndpoint


class FabricDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `fabric`."""

    error_format: Annotated[
        ErrorFormat,
        Meta(
            description="Form of `error` in replies: a sentence, or an object. A caller can choose with the header "
            "X-Fabric-Error-Format."
        ),
    ] = "string"
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0


def build(settings: FabricDoorSettings, context: DoorContext) -> Door:
    state = FabricDoorState(
        context=context,
        identify=context.identify,
        body_bytes=context.body_bytes,
        keep_alive=settings.keep_alive,
        error_format=settings.error_format,
    )
    return Door(
        hot={"/mcp/call": CycleEndpoint(partial(FabricCallCycle, state))},
        sockets={"/mcp/call": FabricWebSocketEndpoint(context)},
        routes=FabricHttpEndpoints(state).build_routes(),
    )


plugin = DoorPlugin(settings=FabricDoorSettings, build=build)
