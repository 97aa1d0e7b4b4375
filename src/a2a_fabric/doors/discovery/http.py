"""The HTTP endpoints of the discovery door: catalog, server cards and search, with authentication and cache headers."""

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
from a2a_fabric.core.pipeline import ignore_event
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.discovery import catalog, search
from a2a_fabric.doors.discovery.catalog import CatalogDocument, CatalogDocuments, CatalogNode, encode_document
from a2a_fabric.doors.discovery.search import RegistrySearch
from a2a_fabric.doors.discovery.settings import DiscoveryDoorSettings
from a2a_fabric.doors.edge import AnonymousPolicy, ClientDisconnected, RequestHead, may_be_json, read_body
from a2a_fabric.operations import OperationRequest

_log = logging.getLogger(__name__)

_BODY_BYTES = 64 * 1024
_JSON = "application/json"
_VARY = "Authorization, X-API-Key"


class _UnsupportedContentType(BadInput):
    """A body that says it is no JSON."""


# First match wins: the status, and the word that registries have for it.
_ERROR_TABLE: tuple[tuple[tuple[type[FabricError], ...], int, str], ...] = (
    ((Unauthenticated, AuthInvalid, AuthExpired), 401, "UNAUTHENTICATED"),
    ((Forbidden,), 403, "PERMISSION_DENIED"),
    ((AgentNotFound,), 404, "NOT_FOUND"),
    ((PayloadTooLarge,), 413, "INVALID_ARGUMENT"),
    ((_UnsupportedContentType,), 415, "INVALID_ARGUMENT"),
    ((BadInput,), 400, "INVALID_ARGUMENT"),
)

PageHandler = Callable[[WebRequest, Principal, Trace], Awaitable[Response]]


class DiscoveryHttpEndpoints:
    def __init__(self, context: DoorContext, settings: DiscoveryDoorSettings) -> None:
        self._context = context
        self._settings = settings
        self._documents = CatalogDocuments(context.gateway, settings.host_name, settings.max_agents)
        self._identify = AnonymousPolicy(context.identify, settings.anonymous)

    def build_routes(self) -> list[Route]:
        routes = [
            Route("/.well-known/ai-catalog.json", self._wrap_page(self._get_catalog), methods=["GET"]),
            Route("/search", self._wrap_page(self._run_search), methods=["GET", "POST"]),
        ]
        if "mcp" in self._context.door_kinds:
            routes += [
                Route("/mcp/server-card", self._wrap_page(self._get_gateway_card), methods=["GET"]),
                Route(
                    "/agents/{agent_id:path}/mcp/server-card", self._wrap_page(self._get_agent_card), methods=["GET"]
                ),
            ]
        return routes

    async def _get_catalog(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        part = request.query_params.get("part")
        if part is not None and not (part.isascii() and part.isdigit() and len(part) < 10):
            raise BadInput("part is the number of a part", field="part")
        catalog_document = self._documents.get(
            principal, self._build_node(request), None if part is None else int(part)
        )
        if catalog_document is None:
            raise BadInput(f"This catalog has no part {part}", field="part")
        return self._build_cacheable_response(request, catalog_document, catalog.CATALOG_TYPE, principal)

    async def _get_gateway_card(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        card = catalog.build_server_card(self._build_node(request), None, needs_key=principal.mode != "none")
        return self._build_cacheable_response(request, encode_document(card), catalog.MCP_CARD_TYPE, principal)

    async def _get_agent_card(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        manifest = self._context.gateway.registry.find_agent_for(principal, request.path_params["agent_id"])
        card = catalog.build_server_card(self._build_node(request), manifest, needs_key=principal.mode != "none")
        return self._build_cacheable_response(request, encode_document(card), catalog.MCP_CARD_TYPE, principal)

    async def _run_search(self, request: WebRequest, principal: Principal, trace: Trace) -> Response:
        node, find_manifest = self._build_node(request), self._context.gateway.registry.visible_to(principal).get
        query: dict[str, Any] | RegistrySearch
        if request.method == "POST":
            head = RequestHead(request.scope["headers"])
            body = await read_body(request.receive, head, _BODY_BYTES)
            if not may_be_json(head.get(b"content-type")):
                raise _UnsupportedContentType("The content type must be application/json")
            query = search.parse_body(body)
        else:
            query = search.parse_query(request.query_params)
        arguments = query.build_arguments(node) if isinstance(query, RegistrySearch) else query
        search_result = (
            search.EMPTY_RESULT if arguments is None else await self._find_agents(arguments, principal, trace)
        )
        rendered = (
            query.render_results(search_result, node, find_manifest)
            if isinstance(query, RegistrySearch)
            else search.add_links(search_result, node, find_manifest)
        )
        if request.method == "POST":
            return Response(msgspec.json.encode(rendered), media_type=_JSON, headers={"cache-control": "no-store"})
        return _build_conditional_response(
            request, encode_document(rendered), _JSON, {"cache-control": "private, no-cache", "vary": _VARY}
        )

    async def _find_agents(self, arguments: dict[str, Any], principal: Principal, trace: Trace) -> dict[str, Any]:
        present = {name: value for name, value in arguments.items() if value is not None}
        raw = msgspec.Raw(msgspec.json.encode(present))
        prepared = self._context.operations.prepare("fabric.agent.search", raw, principal)
        result = await prepared.run(OperationRequest(trace=trace, principal=principal), ignore_event)
        return result.data

    def _build_node(self, request: WebRequest) -> CatalogNode:
        base_url = self._context.public_url or str(request.base_url)
        return catalog.build_node(base_url.rstrip("/"), self._settings.publisher, self._context.door_kinds)

    def _build_cacheable_response(
        self, request: WebRequest, catalog_document: CatalogDocument, media_type: str, principal: Principal
    ) -> Response:
        """What everybody sees anybody may keep; pages of other sites may read it too."""
        is_open = principal.mode == "none"
        cache_control = f"{'public' if is_open else 'private'}, max-age={self._settings.cache_seconds}"
        headers = {"cache-control": cache_control, "vary": _VARY}
        if is_open:
            headers["access-control-allow-origin"] = "*"
        return _build_conditional_response(request, catalog_document, media_type, headers)

    def _wrap_page(self, handler: PageHandler) -> Callable[[WebRequest], Awaitable[Response]]:
        async def endpoint(request: WebRequest) -> Response:
            head = RequestHead(request.scope["headers"])
            trace = head.trace or new_trace()
            started_at = time.perf_counter()
            error: FabricError | None = None
            try:
                response = await handler(request, self._identify(head.credentials), trace)
            except ClientDisconnected:
                return Response(status_code=499)
            except FabricError as exc:
                error, response = exc, _build_error_response(exc, trace)
                exc.__traceback__ = None  # else it and this frame refer to each other
            except TimeoutError:
                error = BadInput("The request body did not arrive in time")
                response = _build_error_response(error, trace, status=408)
            except Exception:
                current_trace.set(trace)
                _log.exception("a page of the discovery door failed")
                error = InternalError()
                response = _build_error_response(error, trace)
            code, message = (error.code, error.message) if error else (None, None)
            seconds, path = time.perf_counter() - started_at, request.url.path
            self._context.log(trace, path, code=code, message=message, seconds=seconds, status=response.status_code)
            return response

        return endpoint


def _build_conditional_response(
    request: WebRequest, catalog_document: CatalogDocument, media_type: str, headers: dict[str, str]
) -> Response:
    headers = {**headers, "etag": catalog_document.etag}
    etags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if catalog_document.etag in etags or "*" in etags:
        return Response(status_code=304, headers=headers)
    return Response(catalog_document.body, media_type=media_type, headers=headers)


def _build_error_response(error: FabricError, trace: Trace, status: int = 0) -> Response:
    """The envelope of the other doors, and what registries have instead."""
    table_row = next((row for row in _ERROR_TABLE if isinstance(error, row[0])), ((), 500, "INTERNAL"))
    body = {
        "ok": False,
        "trace": trace,
        "result": None,
        "error": error.message,
        "error_code": error.code,
        "error_details": error.details,
        "errorCode": table_row[2],
        "message": error.message,
    }
    status = status or table_row[1]
    headers = {"cache-control": "no-store", **({"www-authenticate": 'Bearer realm="fabric"'} if status == 401 else {})}
    return Response(msgspec.json.encode(body), status, headers, media_type=_JSON)
