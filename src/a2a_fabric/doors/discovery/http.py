"""The HTTP endpoints of the discovery door: catalog, server cards and search, with cache headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.routing import Route

from a2a_fabric.core.errors import (
    AgentNotFound,
    AuthExpired,
    AuthInvalid,
    BadInput,
    CallerError,
    FabricError,
    Forbidden,
    PayloadTooLarge,
    RateLimited,
    StoreUnavailable,
    Unauthenticated,
)
from a2a_fabric.core.pipeline import ignore_event
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.discovery import catalog, search
from a2a_fabric.doors.discovery.catalog import CatalogDocument, CatalogDocuments, CatalogNode, encode_document
from a2a_fabric.doors.discovery.search import RegistrySearch
from a2a_fabric.doors.discovery.settings import DiscoveryDoorSettings
from a2a_fabric.doors.edge import (
    AnonymousPolicy,
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    HeaderList,
    HttpReply,
    RefusedRequest,
    RequestCycle,
)
from a2a_fabric.operations import OperationRequest

_BODY_BYTES = 64 * 1024
_NO_STORE = (b"cache-control", b"no-store")
_VARY = (b"vary", b"Authorization, X-API-Key")

# The first match wins: the status, and the code that agent registries have for it.
_ERROR_TABLE: tuple[tuple[tuple[type[FabricError], ...], int, str], ...] = (
    ((Unauthenticated, AuthInvalid, AuthExpired), 401, "UNAUTHENTICATED"),
    ((Forbidden,), 403, "PERMISSION_DENIED"),
    ((AgentNotFound,), 404, "NOT_FOUND"),
    ((PayloadTooLarge,), 413, "INVALID_ARGUMENT"),
    ((RateLimited,), 429, "RESOURCE_EXHAUSTED"),
    ((CallerError,), 400, "INVALID_ARGUMENT"),
    ((StoreUnavailable,), 503, "UNAVAILABLE"),
    ((FabricError,), 500, "INTERNAL"),
)

PageHandler = Callable[["_DiscoveryCycle"], Awaitable[HttpReply]]


class _DiscoveryCycle(RequestCycle):
    body: bytes

    def __init__(
        self,
        edge: DoorEdge,
        handler: PageHandler,
        methods: Sequence[str],
        scope: Any,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(edge, scope, receive, send)
        self._handler = handler
        self.allowed_methods = methods
        self.reads_body = self.method == "POST"
        self.operation = scope["path"]

    async def answer(self, body: bytes) -> HttpReply:
        self.body = body
        return await self._handler(self)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        """The envelope of the Fabric door, and the fields that agent registries have instead."""
        assert isinstance(error, FabricError)  # noqa: S101  # this door has no errors of its own
        _, status, registry_code = next(row for row in _ERROR_TABLE if isinstance(error, row[0]))
        body = {
            "ok": False,
            "trace": self.trace,
            "result": None,
            "error": error.message,
            "error_code": error.code,
            "error_details": error.details,
            "errorCode": registry_code,
            "message": error.message,
        }
        self.reply_headers = (_NO_STORE,)
        status = error.status if isinstance(error, RefusedRequest) else status
        return ErrorReply(status, msgspec.json.encode(body), error.code, error.message)


class DiscoveryHttpEndpoints:
    def __init__(self, context: DoorContext, settings: DiscoveryDoorSettings) -> None:
        self._context = context
        self._settings = settings
        self._documents = CatalogDocuments(context.gateway, settings.host_name, settings.max_agents)
        identify = AnonymousPolicy(context.identify, settings.anonymous)
        self._edge = DoorEdge(context=context, identify=identify, body_bytes=_BODY_BYTES)

    def build_routes(self) -> list[Route]:
        routes = [
            Route("/.well-known/ai-catalog.json", self._build_endpoint(self._get_catalog)),
            Route("/search", self._build_endpoint(self._run_search, ("GET", "POST"))),
        ]
        if "mcp" in self._context.door_kinds:
            routes += [
                Route("/mcp/server-card", self._build_endpoint(self._get_gateway_card)),
                Route("/agents/{agent_id:path}/mcp/server-card", self._build_endpoint(self._get_agent_card)),
            ]
        return routes

    def _build_endpoint(self, handler: PageHandler, methods: Sequence[str] = ("GET",)) -> CycleEndpoint:
        return CycleEndpoint(lambda *asgi: _DiscoveryCycle(self._edge, handler, methods, *asgi))

    async def _get_catalog(self, cycle: _DiscoveryCycle) -> HttpReply:
        part = cycle.query.get("part", [None])[-1]
        if part is not None and not (part.isascii() and part.isdigit() and len(part) < 10):
            raise BadInput("part is the number of a part", field="part")
        document = self._documents.get(cycle.principal, self._build_node(cycle), None if part is None else int(part))
        if document is None:
            raise BadInput(f"This catalog has no part {part}", field="part")
        return self._build_cacheable_reply(cycle, document, catalog.CATALOG_TYPE)

    async def _get_gateway_card(self, cycle: _DiscoveryCycle) -> HttpReply:
        card = catalog.build_server_card(self._build_node(cycle), None, needs_key=cycle.principal.mode != "none")
        return self._build_cacheable_reply(cycle, encode_document(card), catalog.MCP_CARD_TYPE)

    async def _get_agent_card(self, cycle: _DiscoveryCycle) -> HttpReply:
        agent_id = cycle.scope["path_params"]["agent_id"]
        manifest = self._context.gateway.registry.find_agent_for(cycle.principal, agent_id)
        card = catalog.build_server_card(self._build_node(cycle), manifest, needs_key=cycle.principal.mode != "none")
        return self._build_cacheable_reply(cycle, encode_document(card), catalog.MCP_CARD_TYPE)

    async def _run_search(self, cycle: _DiscoveryCycle) -> HttpReply:
        node, find_manifest = self._build_node(cycle), self._context.gateway.registry.visible_to(cycle.principal).get
        is_post = cycle.method == "POST"
        query = search.parse_body(cycle.body) if is_post else search.parse_query(cycle.query)
        arguments = query.build_arguments(node) if isinstance(query, RegistrySearch) else query
        search_result = search.EMPTY_RESULT if arguments is None else await self._find_agents(arguments, cycle)
        rendered = (
            query.render_results(search_result, node, find_manifest)
            if isinstance(query, RegistrySearch)
            else search.add_links(search_result, node, find_manifest)
        )
        if is_post:
            return HttpReply(body=msgspec.json.encode(rendered), headers=[_NO_STORE])
        document = encode_document(rendered)
        return HttpReply(
            body=document.body, headers=[(b"cache-control", b"private, no-cache"), _VARY], etag=document.etag
        )

    async def _find_agents(self, arguments: dict[str, Any], cycle: _DiscoveryCycle) -> dict[str, Any]:
        present = {name: value for name, value in arguments.items() if value is not None}
        raw = msgspec.Raw(msgspec.json.encode(present))
        prepared = self._context.operations.prepare("fabric.agent.search", raw, cycle.principal)
        result = await prepared.run(OperationRequest(trace=cycle.trace, principal=cycle.principal), ignore_event)
        return result.data

    def _build_node(self, cycle: _DiscoveryCycle) -> CatalogNode:
        return catalog.build_node(cycle.base_url, self._settings.publisher, self._context.door_kinds)

    def _build_cacheable_reply(self, cycle: _DiscoveryCycle, document: CatalogDocument, media_type: str) -> HttpReply:
        """A reply that every caller gets may be kept by shared caches and read by pages of other sites."""
        is_public = cycle.principal.mode == "none"
        scope = "public" if is_public else "private"
        headers: HeaderList = [(b"cache-control", f"{scope}, max-age={self._settings.cache_seconds}".encode()), _VARY]
        if is_public:
            headers.append((b"access-control-allow-origin", b"*"))
        return HttpReply(body=document.body, headers=headers, media_type=media_type.encode(), etag=document.etag)
