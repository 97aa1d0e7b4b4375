"""The pages beside `/mcp/call`: health, lists, one agent, monitoring, metrics."""

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

from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, FabricError, InternalError
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.policy import check_metrics
from a2a_fabric.core.result import Result
from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.fabric import wire
from a2a_fabric.doors.http import ClientGone, Head, check_depth, may_be_json, read_body
from a2a_fabric.operations import Request
from a2a_fabric.operations.registering import RegisterArguments
from a2a_fabric.version import PROTOCOL_VERSION, __version__

_log = logging.getLogger(__name__)
# What on `/mcp/call` is a 200 with `ok: false`.
_STATUS: dict[type[FabricError], int] = {AgentNotFound: 404, Conflict: 409, StoreError: 503}
_REGISTER = "/mcp/register_agent"
_REGISTERING = frozenset(RegisterArguments.__struct_fields__)
# Nothing that could be used to log in is given away by registering: callers keep the credentials that they have.
_NO_SECRETS = {"secret": None, "redis_user": None, "redis_password": None}
_KEPT = "registered agents"  # the source whose trouble is the store's
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _WrongType(BadInput):
    """A body that says it is no JSON."""


Page = Callable[[WebRequest, Trace], Awaitable[Response]]


class Pages:
    def __init__(self, context: DoorContext, error_format: wire.ErrorFormat) -> None:
        self._context = context
        self._error_format: wire.ErrorFormat = error_format

    def routes(self) -> list[Route]:
        routes = [
            Route("/health", self._open(self._health), methods=["GET"]),
            Route("/mcp/health", self._guarded(self._operation("fabric.health")), methods=["GET"]),
            Route("/mcp/list_agents", self._guarded(self._operation("fabric.agent.list")), methods=["GET"]),
            Route("/mcp/list_tools", self._guarded(self._operation("fabric.tool.list")), methods=["GET"]),
            Route("/mcp/list_topics", self._guarded(self._operation("fabric.message.topics")), methods=["GET"]),
            Route("/mcp/agent/{agent_id:path}", self._guarded(self._agent), methods=["GET"]),
            Route(_REGISTER, self._guarded(self._register), methods=["POST"]),
            Route("/monitoring/status", self._guarded(self._status), methods=["GET"]),
            Route("/monitoring/health", self._guarded(self._checks), methods=["GET"]),
        ]
        if self._context.metrics is not None:
            routes += [
                Route(path, self._guarded(self._metrics), methods=["GET"]) for path in ("/metrics", "/mcp/metrics")
            ]
        return routes

    def _guarded(self, page: Page) -> Callable[[WebRequest], Awaitable[Response]]:
        async def checked(request: WebRequest, trace: Trace) -> Response:
            request.state.principal = self._context.identify(Head(request.scope["headers"]).credentials)
            return await page(request, trace)

        return self._open(checked)

    def _open(self, page: Page) -> Callable[[WebRequest], Awaitable[Response]]:
        async def endpoint(request: WebRequest) -> Response:
            head = Head(request.scope["headers"])
            trace = head.trace or new_trace()
            started = time.perf_counter()
            error: FabricError | None = None
            try:
                response = await page(request, trace)
            except FabricError as exc:
                error, response = exc, self._failed(exc, trace, head, path=request.url.path)
                exc.__traceback__ = None  # else it and this frame refer to each other
            except ClientGone:
                return Response(status_code=499)
            except TimeoutError:
                error = BadInput("The request body did not arrive in time")
                response = self._failed(error, trace, head, status=408)
            except Exception:
                current_trace.set(trace)
                _log.exception("a page failed")
                error = InternalError()
                response = self._failed(error, trace, head)
            if error is not None or request.url.path not in ("/health", "/metrics", "/mcp/metrics"):
                code, message = (error.code, error.message) if error else (None, None)
                seconds = time.perf_counter() - started
                path = request.url.path
                self._context.log(trace, path, code=code, message=message, seconds=seconds, status=response.status_code)
            return response

        return endpoint

    def _failed(self, error: FabricError, trace: Trace, head: Head, status: int = 0, path: str = "") -> Response:
        form = self._error_format
        if head.error_format in ("string", "object"):
            form = head.error_format  # type: ignore[assignment]  # one of the two
        status = status or (415 if isinstance(error, _WrongType) else wire.http_status(error))
        if status == 200:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
        response = Response(
            wire.failure(error, trace, form, detail=path == _REGISTER), status, media_type="application/json"
        )
        if status == 401:
            response.headers["www-authenticate"] = 'Bearer realm="fabric"'
        return response

    async def _health(self, request: WebRequest, trace: Trace) -> Response:
        registry = self._context.gateway.registry
        return _json(
            {
                "status": "ok",
                "version": PROTOCOL_VERSION,
                "timestamp": _now(),
                "checks": {"registry": "degraded" if registry.errors else "ok"},
            }
        )

    def _operation(self, name: str) -> Page:
        async def page(request: WebRequest, trace: Trace) -> Response:
            return await self._run(name, await self._filters(request), request, trace)

        return page

    async def _agent(self, request: WebRequest, trace: Trace) -> Response:
        result = await self._result(
            "fabric.agent.describe", {"agent_id": request.path_params["agent_id"]}, request, trace
        )
        described = Result(data={**result.data["agent"], "agent": result.data["agent"]})
        return Response(wire.reply(described, trace, beside=True), media_type="application/json")

    async def _register(self, request: WebRequest, trace: Trace) -> Response:
        """What the operation does not know is left out and named; the keys of an older platform are there, empty."""
        given = await self._object(request)
        known = {key: value for key, value in given.items() if key in _REGISTERING and value is not None}
        result = await self._result("fabric.agent.register", known, request, trace)
        ignored = sorted(given.keys() - _REGISTERING)
        told = Result(data={**result.data, **_NO_SECRETS, **({"ignored": ignored} if ignored else {})})
        return Response(wire.reply(told, trace, beside=True), media_type="application/json")

    async def _object(self, request: WebRequest) -> dict[str, Any]:
        body = await self._body(request)
        if not may_be_json(Head(request.scope["headers"]).get(b"content-type")):
            raise _WrongType("The content type must be application/json")
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise BadInput(f"The body is not a JSON object: {exc}"[:300]) from exc

    async def _body(self, request: WebRequest) -> bytes:
        head = Head(request.scope["headers"])
        body = await read_body(request.receive, head, self._context.body_bytes)
        check_depth(body)
        return body

    async def _filters(self, request: WebRequest) -> dict[str, Any]:
        """From the query, or from a JSON body that some clients put into a GET."""
        filters: dict[str, Any] = dict(request.query_params)
        body = await self._body(request)
        if body.strip():
            try:
                filters |= msgspec.json.decode(body, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError) as exc:
                raise BadInput(f"The body is not a JSON object of filters: {exc}"[:300]) from exc
        return {key: value for key, value in filters.items() if value is not None}

    async def _run(self, name: str, arguments: dict[str, Any], request: WebRequest, trace: Trace) -> Response:
        result = await self._result(name, arguments, request, trace)
        return Response(wire.reply(result, trace, beside=True), media_type="application/json")

    async def _result(self, name: str, arguments: dict[str, Any], request: WebRequest, trace: Trace) -> Result:
        principal = request.state.principal
        prepared = self._context.operations.prepare(name, msgspec.Raw(msgspec.json.encode(arguments)), principal)
        return await prepared.run(Request(trace=trace, principal=principal), ignore)

    async def _status(self, request: WebRequest, trace: Trace) -> Response:
        listed = (await self._result("fabric.agent.list", {}, request, trace)).data["agents"]
        agents = [{**agent, "endpoint": agent["endpoint"]["uri"]} for agent in listed]  # text, to the published client
        tools = (await self._result("fabric.tool.list", {"provider": "builtin"}, request, trace)).data["tools"]
        base = str(request.base_url).rstrip("/")
        return _json(
            {
                "schema_version": "1.0",
                "timestamp": _now(),
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
                    "mcp": f"{base}/mcp/call",
                    "health": f"{base}/health",
                    "monitoring": f"{base}/monitoring/status",
                    "metrics": f"{base}/metrics",
                },
            }
        )

    async def _checks(self, request: WebRequest, trace: Trace) -> Response:
        health = (await self._result("fabric.health", {}, request, trace)).data
        good = health["registry"] == "ok" and not health["runtimes"]["offline"]
        database = "down" if _KEPT in health["problems"] else "ok"
        checks = {"database": database, "agents": health["runtimes"]}
        word = "healthy" if good else "degraded"
        return _json(
            {"status": word, "timestamp": _now(), "checks": checks, "metadata": {"problems": health["problems"]}}
        )

    async def _metrics(self, request: WebRequest, trace: Trace) -> Response:
        assert self._context.metrics is not None  # noqa: S101
        check_metrics(request.state.principal)
        return Response(self._context.metrics(), media_type=_METRICS_TYPE)


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
