"""The HTTP endpoints beside `/mcp/call`: health, lists, one agent, registration, monitoring, metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, FabricError, InternalError, StoreError
from a2a_fabric.core.pipeline import ignore_event
from a2a_fabric.core.policy import check_metrics
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import ClientDisconnected, RequestHead, check_json_depth, may_be_json, read_body
from a2a_fabric.doors.fabric import envelope
from a2a_fabric.operations import OperationRequest
from a2a_fabric.operations.agents import RegisterArguments
from a2a_fabric.version import PROTOCOL_VERSION, __version__

_log = logging.getLogger(__name__)
# What on `/mcp/call` is a 200 with `ok: false`.
_HTTP_STATUS: dict[type[FabricError], int] = {AgentNotFound: 404, Conflict: 409, StoreError: 503}
_REGISTER_PATH = "/mcp/register_agent"
_REGISTER_FIELDS = frozenset(RegisterArguments.__struct_fields__)
# Nothing that could be used to log in is given away by registering: callers keep the credentials that they have.
_EMPTY_SECRETS = {"secret": None, "redis_user": None, "redis_password": None}
_STORE_SOURCE = "registered agents"  # the source whose trouble is the store's
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _UnsupportedContentType(BadInput):
    """A body that says it is no JSON."""


PageHandler = Callable[[WebRequest, Trace], Awaitable[Response]]


class FabricHttpEndpoints:
    def __init__(self, context: DoorContext, error_format: envelope.ErrorFormat) -> None:
        self._context = context
        self._error_format: envelope.ErrorFormat = error_format

    def build_routes(self) -> list[Route]:
        routes = [
            Route("/health", self._wrap_page(self._get_health), methods=["GET"]),
            Route(
                "/mcp/health", self._wrap_authenticated(self._build_operation_handler("fabric.health")), methods=["GET"]
            ),
            Route(
                "/mcp/list_agents",
                self._wrap_authenticated(self._build_operation_handler("fabric.agent.list")),
                methods=["GET"],
            ),
            Route(
                "/mcp/list_tools",
                self._wrap_authenticated(self._build_operation_handler("fabric.tool.list")),
                methods=["GET"],
            ),
            Route(
                "/mcp/list_topics",
                self._wrap_authenticated(self._build_operation_handler("fabric.message.topics")),
                methods=["GET"],
            ),
            Route("/mcp/agent/{agent_id:path}", self._wrap_authenticated(self._get_agent), methods=["GET"]),
            Route(_REGISTER_PATH, self._wrap_authenticated(self._register_agent), methods=["POST"]),
            Route("/monitoring/status", self._wrap_authenticated(self._get_monitoring_status), methods=["GET"]),
            Route("/monitoring/health", self._wrap_authenticated(self._get_monitoring_health), methods=["GET"]),
        ]
        if self._context.metrics is not None:
            routes += [
                Route(path, self._wrap_authenticated(self._get_metrics), methods=["GET"])
                for path in ("/metrics", "/mcp/metrics")
            ]
        return routes

    def _wrap_authenticated(self, handler: PageHandler) -> Callable[[WebRequest], Awaitable[Response]]:
        async def authenticate(request: WebRequest, trace: Trace) -> Response:
            request.state.principal = self._context.identify(RequestHead(request.scope["headers"]).credentials)
            return await handler(request, trace)

        return self._wrap_page(authenticate)

    def _wrap_page(self, handler: PageHandler) -> Callable[[WebRequest], Awaitable[Response]]:
        async def endpoint(request: WebRequest) -> Response:
            head = RequestHead(request.scope["headers"])
            trace = head.trace or new_trace()
            started_at = time.perf_counter()
            error: FabricError | None = None
            try:
                response = await handler(request, trace)
            except FabricError as exc:
                error, response = exc, self._build_error_response(exc, trace, head, path=request.url.path)
                exc.__traceback__ = None  # else it and this frame refer to each other
            except ClientDisconnected:
                return Response(status_code=499)
            except TimeoutError:
                error = BadInput("The request body did not arrive in time")
                response = self._build_error_response(error, trace, head, status=408)
            except Exception:
                current_trace.set(trace)
                _log.exception("a page failed")
                error = InternalError()
                response = self._build_error_response(error, trace, head)
            if error is not None or request.url.path not in ("/health", "/metrics", "/mcp/metrics"):
                code, message = (error.code, error.message) if error else (None, None)
                seconds = time.perf_counter() - started_at
                path = request.url.path
                self._context.log(trace, path, code=code, message=message, seconds=seconds, status=response.status_code)
            return response

        return endpoint

    def _build_error_response(
        self, error: FabricError, trace: Trace, head: RequestHead, status: int = 0, path: str = ""
    ) -> Response:
        error_format = self._error_format
        if head.error_format in ("string", "object"):
            error_format = head.error_format  # type: ignore[assignment]  # one of the two
        status = status or (415 if isinstance(error, _UnsupportedContentType) else envelope.find_http_status(error))
        if status == 200:
            status = next((code for kind, code in _HTTP_STATUS.items() if isinstance(error, kind)), 400)
        response = Response(
            envelope.encode_error(error, trace, error_format, with_detail=path == _REGISTER_PATH),
            status,
            media_type="application/json",
        )
        if status == 401:
            response.headers["www-authenticate"] = 'Bearer realm="fabric"'
        return response

    async def _get_health(self, request: WebRequest, trace: Trace) -> Response:
        registry = self._context.gateway.registry
        return _build_json_response(
            {
                "status": "ok",
                "version": PROTOCOL_VERSION,
                "timestamp": _format_current_time(),
                "checks": {"registry": "degraded" if registry.errors else "ok"},
            }
        )

    def _build_operation_handler(self, name: str) -> PageHandler:
        async def handler(request: WebRequest, trace: Trace) -> Response:
            return await self._run_operation(name, await self._read_filters(request), request, trace)

        return handler

    async def _get_agent(self, request: WebRequest, trace: Trace) -> Response:
        result = await self._get_result(
            "fabric.agent.describe", {"agent_id": request.path_params["agent_id"]}, request, trace
        )
        flattened = Result(data={**result.data["agent"], "agent": result.data["agent"]})
        return Response(envelope.encode_reply(flattened, trace, flatten=True), media_type="application/json")

    async def _register_agent(self, request: WebRequest, trace: Trace) -> Response:
        """What the operation does not know is left out and named; the keys of an older platform are there, empty."""
        fields = await self._read_object(request)
        arguments = {key: value for key, value in fields.items() if key in _REGISTER_FIELDS and value is not None}
        result = await self._get_result("fabric.agent.register", arguments, request, trace)
        ignored = sorted(fields.keys() - _REGISTER_FIELDS)
        completed = Result(data={**result.data, **_EMPTY_SECRETS, **({"ignored": ignored} if ignored else {})})
        return Response(envelope.encode_reply(completed, trace, flatten=True), media_type="application/json")

    async def _read_object(self, request: WebRequest) -> dict[str, Any]:
        body = await self._receive_body(request)
        if not may_be_json(RequestHead(request.scope["headers"]).get(b"content-type")):
            raise _UnsupportedContentType("The content type must be application/json")
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise BadInput(f"The body is not a JSON object: {exc}"[:300]) from exc

    async def _receive_body(self, request: WebRequest) -> bytes:
        head = RequestHead(request.scope["headers"])
        body = await read_body(request.receive, head, self._context.body_bytes)
        check_json_depth(body)
        return body

    async def _read_filters(self, request: WebRequest) -> dict[str, Any]:
        """From the query, or from a JSON body that some clients put into a GET."""
        filters: dict[str, Any] = dict(request.query_params)
        body = await self._receive_body(request)
        if body.strip():
            try:
                filters |= msgspec.json.decode(body, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError) as exc:
                raise BadInput(f"The body is not a JSON object of filters: {exc}"[:300]) from exc
        return {key: value for key, value in filters.items() if value is not None}

    async def _run_operation(self, name: str, arguments: dict[str, Any], request: WebRequest, trace: Trace) -> Response:
        result = await self._get_result(name, arguments, request, trace)
        return Response(envelope.encode_reply(result, trace, flatten=True), media_type="application/json")

    async def _get_result(self, name: str, arguments: dict[str, Any], request: WebRequest, trace: Trace) -> Result:
        principal = request.state.principal
        prepared = self._context.operations.prepare(name, msgspec.Raw(msgspec.json.encode(arguments)), principal)
        return await prepared.run(OperationRequest(trace=trace, principal=principal), ignore_event)

    async def _get_monitoring_status(self, request: WebRequest, trace: Trace) -> Response:
        listed = (await self._get_result("fabric.agent.list", {}, request, trace)).data["agents"]
        agents = [{**agent, "endpoint": agent["endpoint"]["uri"]} for agent in listed]  # text, to the published client
        tools = (await self._get_result("fabric.tool.list", {"provider": "builtin"}, request, trace)).data["tools"]
        base_url = str(request.base_url).rstrip("/")
        return _build_json_response(
            {
                "schema_version": "1.0",
                "timestamp": _format_current_time(),
                "fabric_version": __version__,
                "services": {
                    "agents": {
                        "count": len(agents),
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

    async def _get_monitoring_health(self, request: WebRequest, trace: Trace) -> Response:
        health = (await self._get_result("fabric.health", {}, request, trace)).data
        is_healthy = health["registry"] == "ok" and not health["runtimes"]["offline"]
        database = "down" if _STORE_SOURCE in health["problems"] else "ok"
        checks = {"database": database, "agents": health["runtimes"]}
        status = "healthy" if is_healthy else "degraded"
        return _build_json_response(
            {
                "status": status,
                "timestamp": _format_current_time(),
                "checks": checks,
                "metadata": {"problems": health["problems"]},
            }
        )

    async def _get_metrics(self, request: WebRequest, trace: Trace) -> Response:
        assert self._context.metrics is not None  # noqa: S101
        check_metrics(request.state.principal)
        return Response(self._context.metrics(), media_type=_METRICS_TYPE)


def _build_json_response(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _format_current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
