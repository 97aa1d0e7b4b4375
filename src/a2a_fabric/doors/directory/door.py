"""Builds the directory door; declares its settings."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.directory.agents import AgentDirectory, DirectoryRegistration
from a2a_fabric.doors.directory.api_docs import describe
from a2a_fabric.doors.directory.events import DirectoryEvents
from a2a_fabric.doors.directory.http import (
    AGENTS_PATH,
    DirectoryAgentEndpoint,
    DirectoryDoorState,
    DirectoryHttpEndpoint,
    DirectoryMethods,
    DirectoryRoute,
)
from a2a_fabric.doors.directory.task_chains import TaskChains
from a2a_fabric.doors.directory.tasks import DirectoryTasks
from a2a_fabric.doors.edge import AnonymousPolicy


class DirectoryDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `directory`."""

    direct: Annotated[
        tuple[str, ...],
        Meta(
            description="Agents, by id or `*` for all, that are shown with their own address instead of one of this "
            "node. Only agents of the runtime `rpc`."
        ),
    ] = ()
    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers of this door in without credentials, with this trust tier. Unset: as "
            "`auth.anonymous` says. Only callers of tier `local` and `org` may register agents."
        ),
    ] = None
    path_wins: Annotated[
        bool,
        Meta(
            description="At addresses such as /a2a/discover, the address decides and not the method in the body: for "
            "clients that always send a2a/register."
        ),
    ] = False
    max_batch: Annotated[int, Meta(ge=1, description="Requests in one batch.")] = 50
    max_hops: Annotated[int, Meta(ge=1, le=1000, description="Actions in the chain of one task.")] = 16
    max_subscribers: Annotated[int, Meta(ge=0, description="Open streams of a2a/events at a time.")] = 1000
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0


def build(settings: DirectoryDoorSettings, context: DoorContext) -> Door:
    directory = AgentDirectory(context, settings.direct)
    chains = TaskChains(context.jobs, directory)
    events = DirectoryEvents(context, directory, settings.max_subscribers)
    methods = DirectoryMethods(
        directory, DirectoryRegistration(context), DirectoryTasks(context, directory, chains, settings.max_hops), events
    )
    state = DirectoryDoorState(
        context=context,
        methods=methods,
        identify=AnonymousPolicy(context, settings.anonymous),
        body_limit=context.body_limit,
        keep_alive=settings.keep_alive,
        max_batch=settings.max_batch,
        path_wins=settings.path_wins,
    )
    routes_by_path = {
        "/a2a": DirectoryRoute(),
        AGENTS_PATH: DirectoryRoute(method_of_get="a2a/discover", accepts_post=False),
    }
    for name, method in methods.by_name.items():
        routes_by_path[f"/{name}"] = DirectoryRoute(method=name, method_of_get=name if method.is_streaming else None)
    return Door(
        hot={path: DirectoryHttpEndpoint(state, route) for path, route in routes_by_path.items()},
        routes=[Route(f"{AGENTS_PATH}/{{rest:path}}", DirectoryAgentEndpoint(state))],
        lifetime=aclosing(chains),
        stop=(events.stop,),
        describe=partial(describe, methods.by_name),
    )


plugin = DoorPlugin(settings=DirectoryDoorSettings, build=build)
