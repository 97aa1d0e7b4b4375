"""Builds the directory door."""

from __future__ import annotations

from contextlib import aclosing

from starlette.routing import Route

from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.directory.discover import AgentDirectory
from a2a_fabric.doors.directory.events import DirectoryEvents
from a2a_fabric.doors.directory.http import (
    AGENTS_PATH,
    DirectoryAgentEndpoint,
    DirectoryDoorState,
    DirectoryHttpEndpoint,
    DirectoryRoute,
)
from a2a_fabric.doors.directory.methods import DirectoryMethods
from a2a_fabric.doors.directory.register import DirectoryRegistration
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings
from a2a_fabric.doors.directory.task_chain import TaskChains
from a2a_fabric.doors.directory.tasks import DirectoryTasks
from a2a_fabric.doors.edge import AnonymousPolicy


def build(settings: DirectoryDoorSettings, context: DoorContext) -> Door:
    directory = AgentDirectory(context, settings.direct)
    chains = TaskChains(context.jobs, directory)
    events = DirectoryEvents(context, directory, settings.max_subscribers)
    methods = DirectoryMethods(
        directory, DirectoryRegistration(context), DirectoryTasks(context, chains, settings.max_hops), events
    )
    state = DirectoryDoorState(
        context=context,
        methods=methods,
        identify=AnonymousPolicy(context.identify, settings.anonymous),
        body_bytes=context.body_bytes,
        keep_alive=settings.keep_alive,
        settings=settings,
    )
    routes_by_path = {
        "/a2a": DirectoryRoute(),
        AGENTS_PATH: DirectoryRoute(method_of_get="a2a/discover", accepts_post=False),
    }
    for name in methods.names:
        routes_by_path[f"/{name}"] = DirectoryRoute(
            method=name, method_of_get=name if methods.is_streaming(name) else None
        )
    return Door(
        hot={path: DirectoryHttpEndpoint(state, route) for path, route in routes_by_path.items()},
        routes=[Route(f"{AGENTS_PATH}/{{rest:path}}", DirectoryAgentEndpoint(state))],
        lifetime=aclosing(chains),
        stop=(events.stop,),
    )


plugin = DoorPlugin(settings=DirectoryDoorSettings, build=build)
