"""Builds the discovery door."""

from __future__ import annotations

from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.discovery.http import DiscoveryHttpEndpoints
from a2a_fabric.doors.discovery.settings import DiscoveryDoorSettings


def build(settings: DiscoveryDoorSettings, context: DoorContext) -> Door:
    return Door(routes=DiscoveryHttpEndpoints(context, settings).build_routes())


plugin = DoorPlugin(settings=DiscoveryDoorSettings, build=build)
