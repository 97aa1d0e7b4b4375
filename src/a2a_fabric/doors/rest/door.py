"""Puts the door together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute, Route

from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.doorkeeper import Doorkeeper
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.allowance import Allowance
from a2a_fabric.doors.rest.below import Below
from a2a_fabric.doors.rest.entrance import Entrance, Nowhere
from a2a_fabric.doors.rest.messages import Messages
from a2a_fabric.doors.rest.page import Described, MovedTo, Page
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.rpc import card
from a2a_fabric.doors.rest.rpc.entrance import RPCEntrance, StreamEntrance
from a2a_fabric.doors.rest.rpc.methods import Methods
from a2a_fabric.doors.rest.settings import RestDoorSettings
from a2a_fabric.doors.rest.tasks import Tasks
from a2a_fabric.doors.rest.visit import Endpoint

VERSION = "/v1"
_HOT = ("/messages", "/tasks")


def build(settings: RestDoorSettings, context: DoorContext) -> Door:
    identify = Doorkeeper(context.identify, settings.anonymous)
    place = Place(
        context=context,
        identify=identify,
        allowance=Allowance(settings.requests_per_minute),
        settings=settings,
    )
    agents = Agents(context, identify)
    tasks = Tasks(context, agents, settings.max_streams)
    messages = Messages(context.messages, context.post_office)
    endpoints = [*agents.endpoints(), *messages.endpoints(), *tasks.endpoints()]
    methods = Methods(context, agents, tasks)
    by_path = _by_path(endpoints)
    hot = {path: Entrance(place, by_path.pop(path)) for path in _HOT}
    return Door(
        hot={
            **{prefix + path: entrance for path, entrance in hot.items() for prefix in (VERSION, "")},
            **({card.PATH: card.OwnCard(place, agents)} if settings.rpc else {}),
        },
        routes=[
            *_pages(place, endpoints),
            *_rpc(place, methods),
            *_routes(place, by_path),
            Below(f"{VERSION}/", Nowhere(place)),
        ],
        lifetime=methods.lifetime,
    )


def _rpc(place: Place, methods: Methods) -> list[BaseRoute]:
    if not place.settings.rpc:
        return []
    return [
        Route("/", RPCEntrance(place, methods), methods=["POST"]),
        Route("/stream", StreamEntrance(place, methods), methods=["GET"]),
    ]


def _pages(place: Place, endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    described, page = Described(place, endpoints), Page()
    return [
        *(Route(prefix + "/openapi.json", described, methods=["GET"]) for prefix in (VERSION, "")),
        *(Route(prefix + "/docs", page, methods=["GET"]) for prefix in (VERSION, "")),
        Route("/mcp/docs", MovedTo("/docs"), methods=["GET"]),
        Route("/mcp/docs/json", MovedTo("/openapi.json"), methods=["GET"]),
    ]


def _by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {})[endpoint.verb] = endpoint
    return found


def _routes(place: Place, by_path: dict[str, dict[str, Endpoint]]) -> list[BaseRoute]:
    """Under the version everything is ours, and ids may hold slashes; without it other doors have addresses too."""
    ours: list[BaseRoute] = []
    shared: list[BaseRoute] = []
    for path in sorted(by_path, key=len, reverse=True):  # what is longer is meant first
        verbs = by_path[path]
        entrance = Entrance(place, verbs)
        ours.append(Route(VERSION + path.replace("_id}", "_id:path}"), entrance))
        shared.append(Route(path, entrance, methods=sorted(verbs)))
    return [*ours, *shared]


build.settings = RestDoorSettings  # type: ignore[attr-defined]  # how the composition root decodes our table
