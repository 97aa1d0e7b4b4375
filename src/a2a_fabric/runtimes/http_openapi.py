"""An API that describes itself by an OpenAPI document: each of its operations is a capability.

The document is fetched or read when it is first needed, and looked at again now and then.
Requests go to the `uri` of the manifest if there is one, else to the servers that the document names.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urljoin

from a2a_fabric.core.agent import Manifest, Status, fold
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import parts_of
from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, CapabilityNotFound, FabricError, UpstreamFailed
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.outbound.url import parse_url
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http_api import Request
from a2a_fabric.runtimes.http_endpoint import HTTPEndpoint, is_address
from a2a_fabric.runtimes.http_exchange import public
from a2a_fabric.runtimes.http_openapi_document import Document, fetched, found, read
from a2a_fabric.runtimes.http_openapi_operations import Given, Operation, operations_of
from a2a_fabric.runtimes.http_openapi_request import request_for
from a2a_fabric.runtimes.http_probe import probe_page, probe_resource
from a2a_fabric.runtimes.http_template import filled, pairs_of, values_of
from a2a_fabric.runtimes.published import complete

_FRESH_SECONDS = 300.0


class OpenAPI:
    streams = False

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> None:
        """Raises BadInput."""
        self._manifest = manifest
        self._endpoint = endpoint
        self._context = context
        self._document: Document | None = None
        self._operations: dict[str, Operation] = {}
        self._seen_at = 0.0
        self._loading = asyncio.Lock()
        if isinstance(endpoint.openapi, str) and not is_address(endpoint.openapi) and context.guard is not None:
            raise BadInput("Agents that register themselves name their `openapi` document by its address")

    async def request(self, call: Call) -> Request:
        await self._loaded()
        operation = self._operation(call.target.capability)
        given = self._manifest.capability(call.target.capability)
        capability = given if given is not None and given.input_schema is not None else operation.capability
        arguments = arguments_for(capability, call.input)
        query = filled(self._endpoint.query, values_of(call, arguments))
        return request_for(
            operation,
            self._base(operation),
            arguments,
            parts_of(call.input),
            headers=self._endpoint.headers,
            query=list(pairs_of(query)),
        )

    async def described(self) -> Manifest:
        document = await self._loaded(fresh=_FRESH_SECONDS)
        for operation in list(self._operations.values())[:1]:
            self._base(operation)  # what is wrong with its address is said now
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
        return complete(self._manifest, published)

    async def place(self) -> str:
        await self._loaded()
        for operation in self._operations.values():
            return self._base(operation)
        return self._endpoint.uri or str(self._endpoint.openapi)

    async def probe(self) -> Status:
        """Its document is asked for, where that is at an address; else the API's base, which need not be a page."""
        place = await self.place()
        source = self._document.source if self._document is not None else None
        if source is None:
            return await probe_resource(self._context.http, place, self._endpoint.headers)
        return await probe_page(self._context.http, source, self._headers_for(source))

    async def _loaded(self, fresh: float | None = None) -> Document:
        """Within `fresh` seconds it is not asked for again; without, never.

        Raises AgentOffline, whatever went wrong: no operation was called yet.
        """
        async with self._loading:
            known = self._document
            if known is not None and (fresh is None or time.monotonic() - self._seen_at < fresh):
                return known
            try:
                document = await self._read(known)
            except (AgentOffline, AgentBusy):
                raise
            except FabricError as exc:
                raise AgentOffline(exc.sentence, **exc.details) from exc
            self._document, self._seen_at = document, time.monotonic()
            return document

    async def _read(self, known: Document | None) -> Document:
        document = await self._fetched(known)
        if document is not known:
            operations = await asyncio.to_thread(operations_of, document.value, self._given())
            if not operations:
                raise UpstreamFailed("The OpenAPI document holds no operation that `include` and `exclude` let in")
            self._operations = operations
        return document

    async def _fetched(self, known: Document | None) -> Document:
        where, headers = self._endpoint.openapi, self._endpoint.headers
        if isinstance(where, str):
            if not is_address(where):
                return await read(self._context.base / where, known)
            return await fetched(self._context.http, where, self._headers_for(where), known)
        if known is not None and known.source is not None:
            return await fetched(self._context.http, known.source, headers, known)
        return await found(self._context.http, self._endpoint.uri or "", headers)

    def _headers_for(self, where: str) -> dict[str, str]:
        """Credentials are for the API, and for its document if that is at the same place."""
        uri = self._endpoint.uri
        return self._endpoint.headers if uri is None or _origin(uri) == _origin(where) else {}

    def _given(self) -> Given:
        return Given(
            include=tuple(self._endpoint.include),
            exclude=tuple(self._endpoint.exclude),
            headers=frozenset(name.lower() for name in self._endpoint.headers),
            query=frozenset(self._endpoint.query),
        )

    def _operation(self, name: str) -> Operation:
        operation = self._operations.get(fold(name))
        if operation is None:
            offered = [each.capability.name for each in self._operations.values()]
            raise CapabilityNotFound(self._manifest.agent_id, name, offered)
        return operation

    def _base(self, operation: Operation) -> str:
        """Raises AgentOffline if the document does not say where, or leads our credentials somewhere else."""
        if self._endpoint.uri is not None and isinstance(self._endpoint.openapi, str):
            return self._endpoint.uri
        source = self._document.source if self._document is not None else None
        base = urljoin(source, operation.server or "/") if source is not None else operation.server or ""
        if not is_address(base):
            raise AgentOffline("The OpenAPI document does not say where the API is: name its address as `uri`")
        if source is not None and self._endpoint.headers and _origin(base) != _origin(source):
            raise AgentOffline(
                f"The OpenAPI document leads to {public(base)}, which is another origin than its own; the headers of "
                "this agent would go there: if that is right, name that address as `uri`, and the document as `openapi`"
            )
        return base.partition("?")[0]


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parsed = parse_url(url)
    except ConnectFailed:
        return None
    return parsed.scheme, parsed.host, parsed.port
