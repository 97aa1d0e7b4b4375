"""The discovery door: catalog, server cards and search over HTTP, with cache headers; its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import (
    BadInput,
    FabricError,
)
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.doors.api_docs import DoorDescription
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.discovery import catalog, search
from a2a_fabric.doors.discovery.api_docs import describe
from a2a_fabric.doors.discovery.catalog import CatalogDocument, CatalogDocuments, CatalogNode, encode_document
from a2a_fabric.doors.discovery.search import RegistrySearch
from a2a_fabric.doors.edge import (
    AnonymousPolicy,
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    HeaderList,
    HttpReply,
    RequestCycle,
    find_http_status,
)


class DiscoveryDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `discovery`."""

    publisher: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z0-9.-]+$", max_length=253)] | None,
        Meta(description="The domain in the identifiers of catalog entries. Unset: the domain of the node's address."),
    ] = None
    host_name: Annotated[str, Meta(min_length=1, description="The node's display name in the catalog.")] = "A2A Fabric"
    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers without credentials search, with this trust tier: `public` shows the agents of "
            "that tier to every client. Unset: as `auth.anonymous` says."
        ),
    ] = None
    cache_seconds: Annotated[int, Meta(ge=0, description="How long clients may keep the catalog and the cards.")] = 60
    max_agents: Annotated[
        int,
        Meta(ge=1, description="Agents in one document. A larger catalog is split into documents of so many agents."),
    ] = 1000


_BODY_BYTES = 64 * 1024
_NO_STORE = (b"cache-control", b"no-store")
_VARY = (b"vary", b"Authorization, X-API-Key")

# By HTTP status: the codes that agent registries have.
_CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}

PageHandler = Callable[["_DiscoveryCycle"], Awaitable[HttpReply]]


class _DiscoveryCycle(RequestCycle):
    body: bytes

    def __init__(self, edge: DoorEdge, handler: PageHandler, methods: Sequence[str], *asgi: Any) -> None:
        super().__init__(edge, *asgi)
        self._handler = handler
        self.allowed_methods = methods
        self.reads_body = self.method == "POST"
        self.operation = self.scope["path"]

    async def answer(self, body: bytes) -> HttpReply:
        self.body = body
        return await self._handler(self)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        """The envelope of the Fabric door, and the fields that agent registries have instead."""
        assert isinstance(error, FabricError)  # noqa: S101  # this door has no errors of its own
        status = find_http_status(error)
        body = {
            "ok": False,
            "trace": self.trace,
            "result": None,
            "error": error.message,
            "error_code": error.code,
            "error_details": error.details,
            "errorCode": _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL"),
            "message": error.message,
        }
        self.reply_headers = (_NO_STORE,)
        return ErrorReply(status, msgspec.json.encode(body), error.code, error.message)


class DiscoveryHttpEndpoints:
    def __init__(self, context: DoorContext, settings: DiscoveryDoorSettings) -> None:
        self._context = context
        self._settings = settings
        self._documents = CatalogDocuments(context.gateway, settings.host_name, settings.max_agents)
        identify = AnonymousPolicy(context, settings.anonymous)
        self._edge = DoorEdge(context=context, identify=identify, body_limit=BodyLimit(_BODY_BYTES))

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
        number = None if part is None else int(part)
        document = await self._documents.get(cycle.principal, self._build_node(cycle), number)
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
        node = self._build_node(cycle)
        find_manifest = partial(self._context.gateway.registry.get_for, cycle.principal)
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
        result = await self._context.operations.run("fabric.agent.search", present, cycle.principal, cycle.trace)
        return result.data

    def _build_node(self, cycle: _DiscoveryCycle) -> CatalogNode:
        return catalog.build_node(cycle.base_url, self._settings.publisher, self._context.door_kinds)

    def _build_cacheable_reply(self, cycle: _DiscoveryCycle, document: CatalogDocument, media_type: str) -> HttpReply:
        """A reply that every caller gets may be kept by shared caches and read by pages of other sites."""
        registry = self._context.gateway.registry
        has_own_catalog = registry.catalog_for(cycle.principal) is not registry.catalog
        is_public = cycle.principal.mode == "none" and not has_own_catalog
        scope = "public" if is_public else "private"
        headers: HeaderList = [(b"cache-control", f"{scope}, max-age={self._settings.cache_seconds}".encode()), _VARY]
        if is_public:
            headers.append((b"access-control-allow-origin", b"*"))
        return HttpReply(body=document.body, headers=headers, media_type=media_type.encode(), etag=document.etag)


def build(settings: DiscoveryDoorSettings, context: DoorContext) -> Door:
    def describe_door() -> DoorDescription:
        (operation,) = context.operations.list_named("fabric.agent.search")
        return describe(operation.input_schema, has_mcp="mcp" in context.door_kinds)

    return Door(routes=DiscoveryHttpEndpoints(context, settings).build_routes(), describe=describe_door)


plugin = DoorPlugin(settings=DiscoveryDoorSettings, build=build)
