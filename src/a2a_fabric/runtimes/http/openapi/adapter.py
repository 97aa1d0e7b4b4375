"""An API described by an OpenAPI document: each of its operations is a capability.

The document is loaded on first use and checked again every few minutes. Requests go to the
manifest's `uri` if there is one, else to the servers that the document names."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urljoin

from a2a_fabric.core.agent import Manifest, Status, normalize_name
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import bind_arguments, parts_from_input
from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, CapabilityNotFound, FabricError, UpstreamFailed
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.outbound.url import parse_url
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.http.api import APIRequest
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint, is_http_url
from a2a_fabric.runtimes.http.openapi.document import OpenAPIDocument, discover_document, fetch_document, read_document
from a2a_fabric.runtimes.http.openapi.operations import OpenAPIOperation, OperationSelection, read_operations
from a2a_fabric.runtimes.http.openapi.request import build_operation_request
from a2a_fabric.runtimes.http.templates import build_template_values, fill_template, iterate_query_pairs
from a2a_fabric.runtimes.probe import probe_page, probe_resource
from a2a_fabric.runtimes.upstream import redact_url

_FRESH_SECONDS = 300.0


class OpenAPIAdapter:
    streams = False

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> None:
        """Raises BadInput."""
        self._manifest = manifest
        self._endpoint = endpoint
        self._context = context
        self._document: OpenAPIDocument | None = None
        self._operations: dict[str, OpenAPIOperation] = {}
        self._loaded_at = 0.0
        self._load_lock = asyncio.Lock()
        if isinstance(endpoint.openapi, str) and not is_http_url(endpoint.openapi) and context.guard is not None:
            raise BadInput("Agents that register themselves name their `openapi` document by its address")

    async def build_request(self, call: Call) -> APIRequest:
        await self._load()
        operation = self._find_operation(call.target.capability)
        declared = self._manifest.find_capability(call.target.capability)
        capability = declared if declared is not None and declared.input_schema is not None else operation.capability
        arguments = bind_arguments(capability, call.input)
        query = fill_template(self._endpoint.query, build_template_values(call, arguments))
        return build_operation_request(
            operation,
            self._base_url(operation),
            arguments,
            parts_from_input(call.input),
            headers=self._endpoint.headers,
            query=list(iterate_query_pairs(query)),
        )

    async def describe(self) -> Manifest:
        document = await self._load(max_age=_FRESH_SECONDS)
        for operation in list(self._operations.values())[:1]:
            self._base_url(operation)  # raises now if the address is wrong
        info: Any = document.value.get("info")
        info = info if isinstance(info, dict) else {}
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint=self._manifest.endpoint,
            capabilities=tuple(operation.capability for operation in self._operations.values()),
            display_name=str(info.get("title") or "")[:200],
            description=str(info.get("summary") or info.get("description") or "").strip().partition("\n\n")[0][:1000],
            version=str(info.get("version") or "")[:100],
        )
        return complete_manifest(self._manifest, published)

    async def get_address(self) -> str:
        await self._load()
        for operation in self._operations.values():
            return self._base_url(operation)
        return self._endpoint.uri or str(self._endpoint.openapi)

    async def probe(self) -> Status:
        """Request the document if it has an address; else the API's base, which may answer with any status."""
        address = await self.get_address()
        source = self._document.source if self._document is not None else None
        if source is None:
            return await probe_resource(self._context.http, address, self._endpoint.headers)
        return await probe_page(self._context.http, source, self._headers_for(source))

    async def _load(self, max_age: float | None = None) -> OpenAPIDocument:
        """The document is checked again after `fresh` seconds; without `fresh`, never.

        Raises AgentOffline for every failure, because no operation was called yet.
        """
        async with self._load_lock:
            previous = self._document
            if previous is not None and (max_age is None or time.monotonic() - self._loaded_at < max_age):
                return previous
            try:
                document = await self._load_document(previous)
            except (AgentOffline, AgentBusy):
                raise
            except FabricError as exc:
                raise AgentOffline(exc.full_message, **exc.details) from exc
            self._document, self._loaded_at = document, time.monotonic()
            return document

    async def _load_document(self, previous: OpenAPIDocument | None) -> OpenAPIDocument:
        document = await self._fetch(previous)
        if document is not previous:
            operations = await asyncio.to_thread(read_operations, document.value, self._build_selection())
            if not operations:
                raise UpstreamFailed("The OpenAPI document holds no operation that `include` and `exclude` let in")
            self._operations = operations
        return document

    async def _fetch(self, previous: OpenAPIDocument | None) -> OpenAPIDocument:
        location, headers = self._endpoint.openapi, self._endpoint.headers
        if isinstance(location, str):
            if not is_http_url(location):
                return await read_document(self._context.base / location, previous)
            return await fetch_document(self._context.http, location, self._headers_for(location), previous)
        if previous is not None and previous.source is not None:
            return await fetch_document(self._context.http, previous.source, headers, previous)
        return await discover_document(self._context.http, self._endpoint.uri or "", headers)

    def _headers_for(self, location: str) -> dict[str, str]:
        """Credentials are sent to the API, and to its document if that has the same origin."""
        uri = self._endpoint.uri
        return self._endpoint.headers if uri is None or _parse_origin(uri) == _parse_origin(location) else {}

    def _build_selection(self) -> OperationSelection:
        return OperationSelection(
            include=tuple(self._endpoint.include),
            exclude=tuple(self._endpoint.exclude),
            headers=frozenset(name.lower() for name in self._endpoint.headers),
            query=frozenset(self._endpoint.query),
        )

    def _find_operation(self, name: str) -> OpenAPIOperation:
        operation = self._operations.get(normalize_name(name))
        if operation is None:
            operation_names = [each.capability.name for each in self._operations.values()]
            raise CapabilityNotFound(self._manifest.agent_id, name, operation_names)
        return operation

    def _base_url(self, operation: OpenAPIOperation) -> str:
        """Raises AgentOffline if the document names no address, or credentials would go to another origin."""
        if self._endpoint.uri is not None and isinstance(self._endpoint.openapi, str):
            return self._endpoint.uri
        source = self._document.source if self._document is not None else None
        base = urljoin(source, operation.server or "/") if source is not None else operation.server or ""
        if not is_http_url(base):
            raise AgentOffline("The OpenAPI document does not say where the API is: name its address as `uri`")
        if source is not None and self._endpoint.headers and _parse_origin(base) != _parse_origin(source):
            raise AgentOffline(
                f"The OpenAPI document leads to {redact_url(base)}, another origin than its own, and the headers of "
                "this agent would go there. If that is right, name that address as `uri`, and the document as `openapi`"
            )
        return base.partition("?")[0]


def _parse_origin(url: str) -> tuple[str, str, int] | None:
    try:
        parsed = parse_url(url)
    except ConnectFailed:
        return None
    return parsed.scheme, parsed.host, parsed.port
