"""Builds the REST door: routes, hot paths and the optional RPC endpoints; declares its settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.routing import BaseRoute, Route

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy, CycleEndpoint, DoorEdge, RequestRateLimit
from a2a_fabric.doors.rest.agents import RestAgents, node_card_endpoint
from a2a_fabric.doors.rest.doors_document import doors_openapi_endpoint
from a2a_fabric.doors.rest.http import NotFoundCycle, PrefixRoute, RestHttpEndpoint, RestRoute
from a2a_fabric.doors.rest.messages import RestMessages
from a2a_fabric.doors.rest.openapi import (
    admin_openapi_endpoint,
    docs_endpoint,
    openapi_endpoint,
    redirect_endpoint,
)
from a2a_fabric.doors.rest.requests import RestRequests
from a2a_fabric.doors.rest.rpc.api_docs import describe
from a2a_fabric.doors.rest.rpc.http import build_rpc_routes
from a2a_fabric.doors.rest.rpc.methods import RpcMethods
from a2a_fabric.doors.rest.tasks import RestTasks
from a2a_fabric.protocols.a2a.card import OLD_CARD_PATH


class RestDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `rest`."""

    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers of this door in without credentials, with this trust tier. Unset: as "
            "`auth.anonymous` says."
        ),
    ] = None
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Requests per minute of each caller. Further requests get 429. null: no limit."),
    ] = 6000
    body_bytes: Annotated[
        int, Meta(ge=1024, description="Largest request body at this door, where media travel as base64.")
    ] = 16 * 1024 * 1024
    max_streams: Annotated[int, Meta(ge=0, description="Open event streams of tasks at a time.")] = 1000
    keep_alive: Annotated[float, Meta(gt=0, lt=30, description="Seconds between the heartbeats on a quiet stream.")] = (
        15.0
    )
    rpc: Annotated[
        bool, Meta(description="Serve JSON-RPC clients of agent platforms at `POST /` and `GET /stream`.")
    ] = True


VERSION_PREFIX = "/v1"
_HOT_PATHS = ("/messages", "/tasks")


def build(settings: RestDoorSettings, context: DoorContext) -> Door:
    anonymous_policy = AnonymousPolicy(context, settings.anonymous)
    state = DoorEdge(
        context=context,
        identify=anonymous_policy,
        body_limit=BodyLimit(settings.body_bytes),
        rate_limit=RequestRateLimit(settings.requests_per_minute, counts=context.counts),
        keep_alive=settings.keep_alive,
    )
    agents = RestAgents(context, anonymous_policy)
    tasks = RestTasks(context, settings.max_streams)
    messages = RestMessages(context.messages, context.inboxes)
    requests = RestRequests(context)
    endpoints = [endpoint for group in (agents, messages, tasks, requests) for endpoint in group.list_endpoints()]
    methods = RpcMethods(context, agents, tasks)
    endpoints_by_path = _group_by_path(endpoints)
    hot = {path: RestHttpEndpoint(state, endpoints_by_path.pop(path)) for path in _HOT_PATHS}
    return Door(
        hot={
            **{prefix + path: http_endpoint for path, http_endpoint in hot.items() for prefix in (VERSION_PREFIX, "")},
            **({OLD_CARD_PATH: node_card_endpoint(state, agents)} if settings.rpc else {}),
        },
        routes=[
            *_build_docs_routes(state, endpoints),
            *(build_rpc_routes(state, methods) if settings.rpc else ()),
            *_build_routes(state, endpoints_by_path),
            PrefixRoute(f"{VERSION_PREFIX}/", CycleEndpoint(partial(NotFoundCycle, state))),
        ],
        lifetime=methods.lifetime,
        describe=partial(describe, methods.table) if settings.rpc else None,
    )


def _build_docs_routes(state: DoorEdge, endpoints: Sequence[RestRoute]) -> list[BaseRoute]:
    openapi, docs = openapi_endpoint(state, endpoints), docs_endpoint(state)
    return [
        *(Route(prefix + "/openapi.json", openapi) for prefix in (VERSION_PREFIX, "")),
        *(Route(prefix + "/docs", docs) for prefix in (VERSION_PREFIX, "")),
        *(
            [Route("/admin/openapi.json", admin_openapi_endpoint(state))]
            if "fabric" in state.context.door_kinds
            else []
        ),
        Route("/doors/openapi.json", doors_openapi_endpoint(state)),
        Route("/mcp/docs", redirect_endpoint(state, "/docs")),
        Route("/mcp/docs/json", redirect_endpoint(state, "/openapi.json")),
    ]


def _group_by_path(endpoints: Iterable[RestRoute]) -> dict[str, dict[str, RestRoute]]:
    grouped: dict[str, dict[str, RestRoute]] = {}
    for endpoint in endpoints:
        grouped.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return grouped


def _build_routes(state: DoorEdge, endpoints_by_path: dict[str, dict[str, RestRoute]]) -> list[BaseRoute]:
    """Below the version prefix all paths belong to this door and ids may hold slashes; other doors share the rest."""
    versioned: list[BaseRoute] = []
    unversioned: list[BaseRoute] = []
    for path in sorted(endpoints_by_path, key=len, reverse=True):  # the longest path matches first
        endpoints = endpoints_by_path[path]
        http_endpoint = RestHttpEndpoint(state, endpoints)
        versioned.append(Route(VERSION_PREFIX + path.replace("_id}", "_id:path}"), http_endpoint))
        unversioned.append(Route(path, http_endpoint, methods=sorted(endpoints)))
    return [*versioned, *unversioned]


plugin = DoorPlugin(settings=RestDoorSettings, build=build)
