"""Builds the REST door: routes, hot paths and the optional RPC endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute, Route

from a2a_fabric.core.plugin import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy
from a2a_fabric.doors.rest.agents import RestAgents
from a2a_fabric.doors.rest.docs_page import DocsPageEndpoint, OpenApiEndpoint, RedirectEndpoint
from a2a_fabric.doors.rest.http import NotFoundEndpoint, PrefixRoute, RestDoorState, RestHttpEndpoint
from a2a_fabric.doors.rest.messages import RestMessages
from a2a_fabric.doors.rest.rate_limit import RequestRateLimit
from a2a_fabric.doors.rest.request_context import RestEndpointSpec
from a2a_fabric.doors.rest.rpc import card
from a2a_fabric.doors.rest.rpc.http import RpcHttpEndpoint, RpcStreamEndpoint
from a2a_fabric.doors.rest.rpc.methods import RpcMethods
from a2a_fabric.doors.rest.settings import RestDoorSettings
from a2a_fabric.doors.rest.tasks import RestTasks

VERSION_PREFIX = "/v1"
_HOT_PATHS = ("/messages", "/tasks")


def build(settings: RestDoorSettings, context: DoorContext) -> Door:
    anonymous_policy = AnonymousPolicy(context.identify, settings.anonymous)
    state = RestDoorState(
        context=context,
        identify=anonymous_policy,
        rate_limit=RequestRateLimit(settings.requests_per_minute),
        settings=settings,
    )
    agents = RestAgents(context, anonymous_policy)
    tasks = RestTasks(context, agents, settings.max_streams)
    messages = RestMessages(context.messages, context.inboxes)
    endpoints = [*agents.list_endpoints(), *messages.list_endpoints(), *tasks.list_endpoints()]
    methods = RpcMethods(context, agents, tasks)
    endpoints_by_path = _group_by_path(endpoints)
    hot = {path: RestHttpEndpoint(state, endpoints_by_path.pop(path)) for path in _HOT_PATHS}
    return Door(
        hot={
            **{prefix + path: http_endpoint for path, http_endpoint in hot.items() for prefix in (VERSION_PREFIX, "")},
            **({card.CARD_PATH: card.NodeCardEndpoint(state, agents)} if settings.rpc else {}),
        },
        routes=[
            *_build_docs_routes(state, endpoints),
            *_build_rpc_routes(state, methods),
            *_build_routes(state, endpoints_by_path),
            PrefixRoute(f"{VERSION_PREFIX}/", NotFoundEndpoint(state)),
        ],
        lifetime=methods.lifetime,
    )


def _build_rpc_routes(state: RestDoorState, methods: RpcMethods) -> list[BaseRoute]:
    if not state.settings.rpc:
        return []
    return [
        Route("/", RpcHttpEndpoint(state, methods), methods=["POST"]),
        Route("/stream", RpcStreamEndpoint(state, methods), methods=["GET"]),
    ]


def _build_docs_routes(state: RestDoorState, endpoints: Sequence[RestEndpointSpec]) -> list[BaseRoute]:
    openapi_endpoint, docs_endpoint = OpenApiEndpoint(state, endpoints), DocsPageEndpoint()
    return [
        *(Route(prefix + "/openapi.json", openapi_endpoint, methods=["GET"]) for prefix in (VERSION_PREFIX, "")),
        *(Route(prefix + "/docs", docs_endpoint, methods=["GET"]) for prefix in (VERSION_PREFIX, "")),
        Route("/mcp/docs", RedirectEndpoint("/docs"), methods=["GET"]),
        Route("/mcp/docs/json", RedirectEndpoint("/openapi.json"), methods=["GET"]),
    ]


def _group_by_path(endpoints: Iterable[RestEndpointSpec]) -> dict[str, dict[str, RestEndpointSpec]]:
    grouped: dict[str, dict[str, RestEndpointSpec]] = {}
    for endpoint in endpoints:
        grouped.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return grouped


def _build_routes(state: RestDoorState, endpoints_by_path: dict[str, dict[str, RestEndpointSpec]]) -> list[BaseRoute]:
    """Under the version everything is ours, and ids may hold slashes; without it other doors have addresses too."""
    versioned: list[BaseRoute] = []
    unversioned: list[BaseRoute] = []
    for path in sorted(endpoints_by_path, key=len, reverse=True):  # what is longer is meant first
        endpoints = endpoints_by_path[path]
        http_endpoint = RestHttpEndpoint(state, endpoints)
        versioned.append(Route(VERSION_PREFIX + path.replace("_id}", "_id:path}"), http_endpoint))
        unversioned.append(Route(path, http_endpoint, methods=sorted(endpoints)))
    return [*versioned, *unversioned]


plugin = DoorPlugin(settings=RestDoorSettings, build=build)
