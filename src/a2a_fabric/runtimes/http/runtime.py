"""Runtime: an agent that takes a JSON POST and answers with JSON, or with server-sent events.

This module is the fast path for agents that follow the plain contract (`contract`). All other
APIs go through `api`, with requests built from a template (`templates`) or from an OpenAPI
document (`openapi`). Replies that come later are polled for (`polling`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import bind_arguments
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import make_propagation_headers
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.lazy_import import load_module
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http.contract import EnvelopeEncoder, error_from_reply, relay_events, result_from_reply
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint, read_endpoint
from a2a_fabric.runtimes.http.expressions import ExpressionParser
from a2a_fabric.runtimes.http.polling import ResultPoller
from a2a_fabric.runtimes.probe import probe_agent
from a2a_fabric.runtimes.upstream import error_from_outbound, fetch_manifest, read_bounded, redact_url


class HTTPRuntime:
    enforces_deadline: Literal[True] = True

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, client: HTTPClient, reply_bytes: int) -> None:
        self._manifest = manifest
        self._method = endpoint.method
        self._uri = endpoint.uri or ""
        self._health = endpoint.health
        self._client = client  # belongs to the node, which closes it
        self._reply_bytes = reply_bytes
        self._upstream = redact_url(self._uri)
        self._headers = {"content-type": "application/json", "accept": "application/json", **endpoint.headers}
        self._envelope_encoder = EnvelopeEncoder()
        self._poller = ResultPoller(manifest.agent_id, client, None, reply_bytes, ExpressionParser())

    async def __call__(self, call: Call, emit: Emit) -> Result:
        body = self._envelope_encoder.encode(call, self._bind_arguments(call))
        headers = make_propagation_headers(call, self._headers)
        timeout = call.target.timeout_ms / 1000
        try:
            if call.response.stream:
                with Deadline(timeout):  # also while an event waits for a slow reader
                    return await self._call_streaming(headers, body, timeout, emit)
            reply = await self._client.request(
                self._method, self._uri, headers=headers, body=body, timeout=timeout, limit=self._reply_bytes
            )
            if reply.status == 202:
                with Deadline(timeout):
                    reply = await self._wait_for_result(reply, headers, emit)
            return result_from_reply(reply.status, reply.body)
        except FabricError as exc:
            exc.details.setdefault("upstream", self._upstream)
            raise
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, self._upstream) from exc

    def _bind_arguments(self, call: Call) -> dict[str, Any]:
        arguments = call.input.arguments
        if arguments is msgspec.UNSET:  # there was no schema at routing, or the call was not routed
            return bind_arguments(self._manifest.find_capability(call.target.capability), call.input)
        return arguments

    async def _wait_for_result(self, reply: HTTPReply, headers: dict[str, str], emit: Emit) -> HTTPReply:
        poll_url = self._poller.find_poll_url(reply, self._uri)
        return reply if poll_url is None else await self._poller.wait_for_result(reply, poll_url, headers, emit)

    async def _call_streaming(self, headers: dict[str, str], body: bytes, timeout: float, emit: Emit) -> Result:
        headers["accept"] = "text/event-stream, application/json;q=0.5"
        async with self._client.stream(
            self._method, self._uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as streamed:
            if streamed.headers.get("content-type", "").lower().startswith("text/event-stream"):
                if not 200 <= streamed.status < 300:
                    raise error_from_reply(streamed.status, b"")
                return await relay_events(streamed, emit, self._reply_bytes)
            reply_body = await read_bounded(streamed, self._reply_bytes)
            reply = HTTPReply(streamed.status, streamed.headers, reply_body)
        if reply.status == 202:
            reply = await self._wait_for_result(reply, headers, emit)
        return result_from_reply(reply.status, reply.body)

    async def health(self) -> Status:
        return await probe_agent(self._client, self._uri, self._health, self._headers)

    async def describe(self) -> Manifest:
        """The reply to a GET at the agent's address, if that is a manifest."""
        return await fetch_manifest(self._client, self._uri, self._headers, self._manifest)

    async def aclose(self) -> None:
        await self._poller.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    if endpoint.is_plain:
        return HTTPRuntime(manifest, endpoint, context.http, context.reply_bytes)
    runtime: Runtime = load_module("a2a_fabric.runtimes.http.api_factory").runtime_for(manifest, endpoint, context)
    return runtime


plugin = RuntimePlugin(build=build)
