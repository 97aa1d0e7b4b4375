"""Builds the Fabric door; declares its settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.fabric.endpoints import FabricHttpEndpoints
from a2a_fabric.doors.fabric.envelope import ErrorFormat
from a2a_fabric.doors.fabric.http import FabricCallEndpoint
from a2a_fabric.doors.fabric.websocket import FabricWebSocketEndpoint


class FabricDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `fabric`."""

    error_format: Annotated[
        ErrorFormat,
        Meta(description="Form of `error`: a sentence, or an object. Callers choose with X-Fabric-Error-Format."),
    ] = "string"
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0


def build(settings: FabricDoorSettings, context: DoorContext) -> Door:
    call = FabricCallEndpoint(context, settings.error_format, settings.keep_alive)
    return Door(
        hot={"/mcp/call": call},
        sockets={"/mcp/call": FabricWebSocketEndpoint(context)},
        routes=FabricHttpEndpoints(context, settings.error_format).build_routes(),
    )


plugin = DoorPlugin(settings=FabricDoorSettings, build=build)
