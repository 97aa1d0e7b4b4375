"""Builds the Fabric door and the endpoints beside `/mcp/call`: health, lists, registration, monitoring, metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, FabricError, StoreError, UnknownOperation
from a2a_fabric.core.node_health import is_well
from a2a_fabric.core.policy import check_metrics
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.core.result import Result, format_timestamp
from a2a_fabric.doors.context import Door, DoorContext, Receive, Send
from a2a_fabric.doors.edge import CycleEndpoint, HttpReply, check_json
from a2a_fabric.doors.fabric.api_docs import describe
from a2a_fabric.doors.fabric.http import (
    ErrorFormat,
    FabricCallCycle,
    FabricCycle,
    FabricDoorState,
    encode_error,
    encode_reply,
)
from a2a_fabric.doors.fabric.websocket import FabricWebSocketEndpoint
from a2a_fabric.operations.agents import RegisterArguments
from a2a_fabric.operations.operation import ADMIN_PREFIX
from a2a_fabric.version import PROTOCOL_VERSION, __version__

# Errors that are a 200 with `ok: false` at `/mcp/call`.
_HTTP_STATUS: dict[type[FabricError], int] = {AgentNotFound: 404, Conflict: 409, StoreError: 503}
_HEALTH_PATH, _METRICS_PATHS, _REGISTER_PATH = "/health", ("/metrics", "/mcp/metrics"), "/mcp/register_agent"
_ADMIN_PATH = "/admin/v1/"
_UNLOGGED_PATHS = frozenset({_HEALTH_PATH, *_METRICS_PATHS})  # unless they fail
_OPERATION_PATHS = {
    "/mcp/health": "fabric.health",
    "/mcp/list_agents": "fabric.agent.list",
    "/mcp/list_tools": "fabric.tool.list",
    "/mcp/list_topics": "fabric.message.topics",
}
_REGISTER_FIELDS = frozenset(RegisterArguments.__struct_fields__)
# Registering hands out no credentials: callers keep the ones that they have.
_EMPTY_SECRETS = {"secret": None, "redis_user": None, "redis_password": None}
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

PageHandler = Callable[["FabricPageCycle"], Awaitable[HttpReply]]


class FabricPageCycle(FabricCycle):
    body: bytes

    def __init__(self, state: FabricDoorState, handler: PageHandler, method: str, *asgi: Any) -> None:
        super().__init__(state, *asgi)
        self._handler = handler
        self.allowed_methods = (method,)
        self.operation = self.scope["path"]
        self.is_call = self.operation in _UNLOGGED_PATHS

    def identify(self) -> Principal:
        return Principal() if self.operation == _HEALTH_PATH else super().identify()

    async def answer(self, body: bytes) -> HttpReply:
        check_json(body)
        self.body = body
        return await self._handler(self)

    def find_status(self, error: FabricError) -> int:
        status = super().find_status(error)
        if status != 200:
            return status
        return next((status for kind, status in _HTTP_STATUS.items() if isinstance(error, kind)), 400)

    def encode_error(self, error: FabricError) -> bytes:
        with_detail = self.operation == _REGISTER_PATH
        return encode_error(error, self.trace, self._choose_error_format(), with_detail=with_detail)

    def decode_body(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise BadInput(f"The body is not a JSON object: {exc}"[:300]) from exc

    async def run_operation(self, name: str, arguments: dict[str, Any]) -> Result:
        return await self.edge.context.operations.run(name, arguments, self.principal, self.trace)

    def build_reply(self, result: Result) -> HttpReply:
        return HttpReply(body=encode_reply(result, self.trace, flatten=True))


class FabricHttpEndpoints:
    def __init__(self, state: FabricDoorState) -> None:
        self._state = state
        self._context = state.context

    def build_routes(self) -> list[Route]:
        pages: dict[str, PageHandler] = {
            _HEALTH_PATH: self._get_health,
            **{path: _build_operation_handler(name) for path, name in _OPERATION_PATHS.items()},
            "/mcp/agent/{agent_id:path}": self._get_agent,
            "/monitoring/status": self._get_monitoring_status,
            "/monitoring/health": self._get_monitoring_health,
        }
        if self._context.metrics is not None:
            pages |= dict.fromkeys(_METRICS_PATHS, self._get_metrics)
        return [
            *(Route(path, self._build_endpoint(handler, "GET")) for path, handler in pages.items()),
            Route(_REGISTER_PATH, self._build_endpoint(self._register_agent, "POST")),
            Route(f"{_ADMIN_PATH}{{name}}", self._build_endpoint(self._administer, "POST")),
        ]

    def _build_endpoint(self, handler: PageHandler, method: str) -> CycleEndpoint:
        return CycleEndpoint(lambda *asgi: FabricPageCycle(self._state, handler, method, *asgi))

    async def _get_health(self, cycle: FabricPageCycle) -> HttpReply:
        """Always 200 while the process answers: a node without its store still serves calls. `status` says the rest."""
        checks = await self._context.gateway.node_health.check_all()
        return _json_reply(
            {
                "status": "ok" if is_well(checks) else "degraded",
                "version": PROTOCOL_VERSION,
                "timestamp": format_timestamp(time.time()),
                "checks": {name: result.status for name, result in checks.items()},
            }
        )

    async def _get_agent(self, cycle: FabricPageCycle) -> HttpReply:
        result = await cycle.run_operation(
            "fabric.agent.describe", {"agent_id": cycle.scope["path_params"]["agent_id"]}
        )
        return cycle.build_reply(Result(data={**result.data["agent"], "agent": result.data["agent"]}))

    async def _register_agent(self, cycle: FabricPageCycle) -> HttpReply:
        """Fields that the operation does not know are left out and named; the keys of an older platform are empty."""
        fields = cycle.decode_body()
        arguments = {key: value for key, value in fields.items() if key in _REGISTER_FIELDS and value is not None}
        result = await cycle.run_operation("fabric.agent.register", arguments)
        ignored = sorted(fields.keys() - _REGISTER_FIELDS)
        return cycle.build_reply(
            Result(data={**result.data, **_EMPTY_SECRETS, **({"ignored": ignored} if ignored else {})})
        )

    async def _administer(self, cycle: FabricPageCycle) -> HttpReply:
        """An operation for operators. Those that only read leave no line in the log: the console asks all the time."""
        name = ADMIN_PREFIX + cycle.scope["path_params"]["name"]
        operations = {each.name: each for each in self._context.operations.list_named(ADMIN_PREFIX)}
        if name not in operations:
            raise UnknownOperation(name, operations)
        result = await cycle.run_operation(name, cycle.decode_body() if cycle.body.strip() else {})
        cycle.is_call = operations[name].read_only
        return HttpReply(
            body=encode_reply(result, cycle.trace, flatten=False), headers=[(b"cache-control", b"no-store")]
        )

    async def _get_monitoring_status(self, cycle: FabricPageCycle) -> HttpReply:
        page = (await cycle.run_operation("fabric.agent.list", {})).data
        agents = [{**agent, "endpoint": agent["endpoint"]["uri"]} for agent in page["agents"]]  # as clients expect it
        more = {name: page[name] for name in ("next_cursor",) if name in page}  # for fabric.agent.list
        tools = (await cycle.run_operation("fabric.tool.list", {"provider": "builtin"})).data["tools"]
        base_url = cycle.base_url
        return _json_reply(
            {
                "schema_version": "1.0",
                "timestamp": format_timestamp(time.time()),
                "fabric_version": __version__,
                "services": {
                    "agents": {
                        "count": page["total"],
                        **more,
                        "available": [a for a in agents if a["status"] in ("online", "unknown")],
                        "all": agents,
                    },
                    "tools": {
                        "count": len(tools),
                        "available": [t for t in tools if t["enabled"]],
                        "all": tools,
                    },
                },
                "endpoints": {
                    "mcp": f"{base_url}/mcp/call",
                    "health": f"{base_url}/health",
                    "monitoring": f"{base_url}/monitoring/status",
                    "metrics": f"{base_url}/metrics",
                },
            }
        )

    async def _get_monitoring_health(self, cycle: FabricPageCycle) -> HttpReply:
        health = (await cycle.run_operation("fabric.health", {})).data
        is_healthy = health["status"] == "ok" and not health["runtimes"]["offline"]
        database = health["checks"]["store"]["status"]
        checks = {"database": database, "agents": health["runtimes"]}
        status = "healthy" if is_healthy else "degraded"
        return _json_reply(
            {
                "status": status,
                "timestamp": format_timestamp(time.time()),
                "checks": checks,
                "metadata": {"problems": health["problems"]},
            }
        )

    async def _get_metrics(self, cycle: FabricPageCycle) -> HttpReply:
        assert self._context.metrics is not None  # noqa: S101
        check_metrics(cycle.principal)
        return HttpReply(body=await self._context.metrics(), media_type=_METRICS_TYPE)


def _build_operation_handler(name: str) -> PageHandler:
    async def handler(cycle: FabricPageCycle) -> HttpReply:
        """Arguments are in the query, or in a JSON body that some clients send with a GET."""
        query = cycle.scope.get("query_string", b"").decode("latin-1")
        arguments: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        if cycle.body.strip():
            arguments |= cycle.decode_body()
        present = {key: value for key, value in arguments.items() if value is not None}
        return cycle.build_reply(await cycle.run_operation(name, present))

    return handler


def _json_reply(body: dict[str, Any]) -> HttpReply:
    return HttpReply(body=msgspec.json.encode(body))


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
        body_limit=context.body_limit,
        keep_alive=settings.keep_alive,
        error_format=settings.error_format,
    )
    endpoints = FabricHttpEndpoints(state)

    def answer_call(scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        return FabricCallCycle(state, scope, receive, send).run()

    return Door(
        hot={"/mcp/call": answer_call},
        sockets={"/mcp/call": FabricWebSocketEndpoint(context)},
        routes=endpoints.build_routes(),
        describe=lambda: describe(
            context.operations, _OPERATION_PATHS, () if context.metrics is None else _METRICS_PATHS
        ),
    )


plugin = DoorPlugin(settings=FabricDoorSettings, build=build)
