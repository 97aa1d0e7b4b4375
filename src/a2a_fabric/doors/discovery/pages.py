"""The pages of the door: the catalog, the server cards, the search; who may see what, and what may be kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AgentNotFound,
    AuthExpired,
    AuthInvalid,
    BadInput,
    FabricError,
    Forbidden,
    InternalError,
    PayloadTooLarge,
    Unauthenticated,
)
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.discovery import asking, entries
from a2a_fabric.doors.discovery.asking import RegistrySearch
from a2a_fabric.doors.discovery.documents import Document, Documents, document
from a2a_fabric.doors.discovery.entries import Address
from a2a_fabric.doors.discovery.settings import DiscoveryDoorSettings
from a2a_fabric.doors.doorkeeper import Doorkeeper
from a2a_fabric.doors.http import ClientGone, Head, may_be_json, read_body
from a2a_fabric.operations import Request

_log = logging.getLogger(__name__)

_BODY_BYTES = 64 * 1024
_JSON = "application/json"
_VARY = "Authorization, X-API-Key"


class _WrongType(BadInput):
    """A body that says it is no JSON."""


# First match wins: the status, and the word that registries have for it.
_FAULTS: tuple[tuple[tuple[type[FabricError], ...], int, str], ...] = (
    ((Unauthenticated, AuthInvalid, AuthExpired), 401, "UNAUTHENTICATED"),
    ((Forbidden,), 403, "PERMISSION_DENIED"),
    ((AgentNotFound,), 404, "NOT_FOUND"),
    ((PayloadTooLarge,), 413, "INVALID_ARGUMENT"),
    ((_WrongType,), 415, "INVALID_ARGUMENT"),
    ((BadInput,), 400, "INVALID_ARGUMENT"),
)

Page = Callable[[WebRequest, Principal, Trace], Awaitable[Response]]


class Pages:
    def __init__(self, context: DoorContext, settings: DiscoveryDoorSettings) -> None:
        self._context = context
        self._settings = settings
        self._documents = Documents(context.gateway, settings.host_name, settings.max_agents)
        self._identify = Doorkeeper(context.identify, settings.anonymous)

    def routes(self) -> list[Route]:
        routes = [
            Route("/.well-known/ai-catalog.json", self._page(self._catalog), methods=["GET"]),
            Route("/search", self._page(self._search), methods=["GET", "POST"]),
        ]
        if "mcp" in self._context.kinds:
            routes += [
                Route("/mcp/server-card", self._page(self._own_card), methods=["GET"]),
                Route("/agents/{agent_id:path}/mcp/server-card", self._page(self._card), methods=["GET"]),
            ]
        return routes

    async def _catalog(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        part = request.query_params.get("part")
        if part is not None and not (part.isascii() and part.isdigit() and len(part) < 10):
            raise BadInput("part is the number of a part", field="part")
        found = self._documents.get(principal, self._address(request), None if part is None else int(part))
        if found is None:
            raise BadInput(f"This catalog has no part {part}", field="part")
        return self._kept(request, found, entries.CATALOG, principal)

    async def _own_card(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        card = entries.server_card(self._address(request), None, with_key=principal.mode != "none")
        return self._kept(request, document(card), entries.MCP_CARD, principal)

    async def _card(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        manifest = self._context.gateway.registry.agent_for(principal, request.path_params["agent_id"])
        card = entries.server_card(self._address(request), manifest, with_key=principal.mode != "none")
        return self._kept(request, document(card), entries.MCP_CARD, principal)

    async def _search(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        address, get = self._address(request), self._context.gateway.registry.seen_by(principal).get
        asked: dict[str, Any] | RegistrySearch
        if request.method == "POST":
            head = Head(request.scope["headers"])
            body = await read_body(request.receive, head, _BODY_BYTES)
            if not may_be_json(head.get(b"content-type")):
                raise _WrongType("The content type must be application/json")
            asked = asking.from_body(body)
        else:
            asked = asking.from_query(request.query_params)
        arguments = asked.arguments(address) if isinstance(asked, RegistrySearch) else asked
        found = asking.NOTHING if arguments is None else await self._found(arguments, principal, trace)
        told = (
            asked.told(found, address, get) if isinstance(asked, RegistrySearch) else asking.linked(found, address, get)
        )
        if request.method == "POST":
            return Response(msgspec.json.encode(told), media_type=_JSON, headers={"cache-control": "no-store"})
        return _conditional(request, document(told), _JSON, {"cache-control": "private, no-cache", "vary": _VARY})

    async def _found(self, arguments: dict[str, Any], principal: Principal, trace: Trace) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if value is not None}
        raw = msgspec.Raw(msgspec.json.encode(given))
        prepared = self._context.operations.prepare("fabric.agent.search", raw, principal)
        result = await prepared.run(Request(trace=trace, principal=principal), ignore)
        return result.data

    def _address(self, request: WebRequest) -> Address:
        base = self._context.public_url or str(request.base_url)
        return entries.address_of(base.rstrip("/"), self._settings.publisher, self._context.kinds)

    def _kept(self, request: WebRequest, found: Document, kind: str, principal: Principal) -> Response:
        """What everybody sees anybody may keep; pages of other sites may read it too."""
        is_open = principal.mode == "none"
        kept = f"{'public' if is_open else 'private'}, max-age={self._settings.cache_seconds}"
        headers = {"cache-control": kept, "vary": _VARY}
        if is_open:
            headers["access-control-allow-origin"] = "*"
        return _conditional(request, found, kind, headers)

    def _page(self, page: Page) -> Callable[[WebRequest], Awaitable[Response]]:
        async def endpoint(request: WebRequest) -> Response:
            head = Head(request.scope["headers"])
            trace = head.trace or new_trace()
            started = time.perf_counter()
            error: FabricError | None = None
            try:
                response = await page(request, self._identify(head.credentials), trace)
            except ClientGone:
                return Response(status_code=499)
            except FabricError as exc:
                error, response = exc, _refused(exc, trace)
                exc.__traceback__ = None  # else it and this frame refer to each other
            except TimeoutError:
                error = BadInput("The request body did not arrive in time")
                response = _refused(error, trace, status=408)
            except Exception:
                current_trace.set(trace)
                _log.exception("a page of the discovery door failed")
                error = InternalError()
                response = _refused(error, trace)
            code, message = (error.code, error.message) if error else (None, None)
            seconds, path = time.perf_counter() - started, request.url.path
            self._context.log(trace, path, code=code, message=message, seconds=seconds, status=response.status_code)
            return response

        return endpoint


def _conditional(request: WebRequest, found: Document, kind: str, headers: dict[str, str]) -> Response:
    headers = {**headers, "etag": found.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=kind, headers=headers)


def _refused(error: FabricError, trace: Trace, status: int = 0) -> Response:
    """The envelope of the other doors, and what registries have instead."""
    found = next((row for row in _FAULTS if isinstance(error, row[0])), ((), 500, "INTERNAL"))
    body = {
        "ok": False,
        "trace": trace,
        "result": None,
        "error": error.message,
        "error_code": error.code,
        "error_details": error.details,
        "errorCode": found[2],
        "message": error.message,
    }
    status = status or found[1]
    headers = {"cache-control": "no-store", **({"www-authenticate": 'Bearer realm="fabric"'} if status == 401 else {})}
    return Response(msgspec.json.encode(body), status, headers, media_type=_JSON)
