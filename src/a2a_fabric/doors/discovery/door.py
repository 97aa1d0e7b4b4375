"""Puts the discovery door together."""

from __future__ import annotations

from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.discovery.pages import Pages
from a2a_fabric.doors.discovery.settings import DiscoveryDoorSettings


def build(settings: DiscoveryDoorSettings, context: DoorContext) -> Door:
    return Door(routes=Pages(context, settings).routes())


build.settings = DiscoveryDoorSettings  # type: ignore[attr-defined]  # how the composition root decodes our table
