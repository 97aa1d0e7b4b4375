"""Puts the directory together."""

from __future__ import annotations

from contextlib import aclosing

from starlette.routing import Route

from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.directory.entrance import Entrance
from a2a_fabric.doors.directory.entries import Entries
from a2a_fabric.doors.directory.joining import Joining
from a2a_fabric.doors.directory.journey import Journeys
from a2a_fabric.doors.directory.methods import Methods
from a2a_fabric.doors.directory.news import News
from a2a_fabric.doors.directory.pages import AGENTS, AgentAddresses
from a2a_fabric.doors.directory.place import Address, Place
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings
from a2a_fabric.doors.directory.tasks import Tasks
from a2a_fabric.doors.doorkeeper import Doorkeeper


def build(settings: DirectoryDoorSettings, context: DoorContext) -> Door:
    entries = Entries(context, settings.direct)
    journeys = Journeys(context.jobs, entries)
    news = News(context, entries, settings.max_subscribers)
    methods = Methods(entries, Joining(context), Tasks(context, journeys, settings.max_hops), news)
    place = Place(
        context=context,
        methods=methods,
        identify=Doorkeeper(context.identify, settings.anonymous),
        settings=settings,
    )
    addresses = {"/a2a": Address(), AGENTS: Address(page="a2a/discover", takes_posts=False)}
    for name in methods.names:
        addresses[f"/{name}"] = Address(method=name, page=name if methods.streams(name) else None)
    return Door(
        hot={path: Entrance(place, address) for path, address in addresses.items()},
        routes=[Route(f"{AGENTS}/{{rest:path}}", AgentAddresses(place))],
        lifetime=aclosing(journeys),
        stop=(news.stop,),
    )


build.settings = DirectoryDoorSettings  # type: ignore[attr-defined]  # how the composition root decodes our table
