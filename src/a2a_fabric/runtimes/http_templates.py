"""An API that the manifest describes: where the values of a call go in its address, its query and its body."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import not_carried, parts_of
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.runtimes.http_api import Request
from a2a_fabric.runtimes.http_contract import Envelopes
from a2a_fabric.runtimes.http_endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http_exchange import described_at
from a2a_fabric.runtimes.http_probe import probe_agent, probe_resource
from a2a_fabric.runtimes.http_template import Values, address, filled, pairs_of, values_of, with_query

_ATTACHMENTS = re.compile(r"\$\{?attachments")


class Templates:
    streams = True  # those who take our body may send our events

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, http: HTTPClient) -> None:
        self._manifest = manifest
        self._http = http
        self._endpoint = endpoint
        self._uri = endpoint.uri or ""
        self._method = endpoint.method.upper()
        self._envelopes = Envelopes()
        self._carries_attachments = bool(_ATTACHMENTS.search(msgspec.json.encode(endpoint.request).decode()))

    async def request(self, call: Call) -> Request:
        arguments = call.input.arguments
        if arguments is msgspec.UNSET:
            arguments = arguments_for(self._manifest.capability(call.target.capability), call.input)
        values = values_of(call, arguments)
        body = self._body(call, values)
        typed = {} if body is None else {"content-type": "application/json"}
        is_ours = self._endpoint.request is None and body is not None
        return Request(
            method=self._method,
            url=with_query(address(self._uri, values), list(pairs_of(self._query(values)))),
            headers={**typed, **self._endpoint.headers},
            body=body,
            notes=() if is_ours or self._carries_attachments else not_carried(parts_of(call.input), "this API"),
            is_ours=is_ours,
        )

    def _body(self, call: Call, values: Values) -> bytes | None:
        if not self._endpoint.has_body:
            return None
        if self._endpoint.request is None:
            return self._envelopes.encoded(call, values["arguments"])
        return msgspec.json.encode(filled(self._endpoint.request, values))

    def _query(self, values: Values) -> dict[str, Any]:
        """As described; else a GET takes all that its address does not, for it has no other place."""
        if self._endpoint.query or self._endpoint.has_body:
            described: dict[str, Any] = filled(self._endpoint.query, values)
            return described
        arguments = {
            name: value for name, value in values["arguments"].items() if name not in ("context", "attachments")
        }
        free = values["arguments"].get("context")
        named = {**(free if isinstance(free, dict) else {}), **arguments}
        return {
            name: value for name, value in named.items() if value != "" and f"${{arguments.{name}}}" not in self._uri
        }

    async def described(self) -> Manifest:
        """Agents that take our body may publish a manifest; other people's APIs publish nothing that we would know."""
        if self._endpoint.request is not None or not self._endpoint.has_body or "${" in self._uri:
            return self._manifest
        return await described_at(self._http, self._uri, self._endpoint.headers, self._manifest)

    async def place(self) -> str:
        return self._uri

    async def probe(self) -> Status:
        headers = self._endpoint.headers
        if "${" in self._uri:  # the values of a call make the address whole
            return await probe_resource(self._http, self._uri.partition("${")[0].rpartition("/")[0] + "/", headers)
        if not self._endpoint.has_body:  # the probe's own method would be a call
            return await probe_resource(self._http, self._uri, headers)
        return await probe_agent(self._http, self._uri, None, headers)
