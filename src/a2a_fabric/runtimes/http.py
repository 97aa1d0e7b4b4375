"""Runtime: an agent that takes a JSON POST and answers with JSON, or with server-sent events.

Here is the shortest way, for agents that speak the plain contract (`http_contract`). All
other APIs go through `http_api`, asked by a template (`http_template`) or as their
OpenAPI document says (`http_openapi`). What answers later is waited for (`http_polling`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.modules import load
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.outbound.port import HTTPClient, OutboundError, Reply
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http_contract import Envelopes, events, refusal, result_of
from a2a_fabric.runtimes.http_endpoint import HTTPEndpoint, endpoint_of
from a2a_fabric.runtimes.http_exchange import bounded, described_at, ours, public
from a2a_fabric.runtimes.http_expression import Expressions
from a2a_fabric.runtimes.http_polling import Polling
from a2a_fabric.runtimes.http_probe import probe_agent


class HTTPRuntime:
    keeps_time = True

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, client: HTTPClient, reply_bytes: int) -> None:
        self._manifest = manifest
        self._method = endpoint.method
        self._uri = endpoint.uri or ""
        self._health = endpoint.health
        self._client = client  # belongs to whoever built us; we never close it
        self._reply_bytes = reply_bytes
        self._upstream = public(self._uri)
        self._headers = {"content-type": "application/json", "accept": "application/json", **endpoint.headers}
        self._envelopes = Envelopes()
        self._polling = Polling(manifest.agent_id, client, None, reply_bytes, Expressions())

    async def __call__(self, call: Call, emit: Emit) -> Result:
        body = self._envelopes.encoded(call, self._arguments(call))
        headers = journey_headers(call, self._headers)
        timeout = call.target.timeout_ms / 1000
        try:
            if call.response.stream:
                with Deadline(timeout):  # also while a slow reader holds an event up
                    return await self._streamed(headers, body, timeout, emit)
            reply = await self._client.request(
                self._method, self._uri, headers=headers, body=body, timeout=timeout, limit=self._reply_bytes
            )
            if reply.status == 202:
                with Deadline(timeout):
                    reply = await self._waited_for(reply, headers, emit)
            return result_of(reply.status, reply.body)
        except FabricError as exc:
            exc.details.setdefault("upstream", self._upstream)
            raise
        except OutboundError as exc:
            raise ours(exc, timeout, self._upstream) from exc

    def _arguments(self, call: Call) -> dict[str, Any]:
        arguments = call.input.arguments
        if arguments is msgspec.UNSET:  # routing knew no schema, or nobody routed this call
            return arguments_for(self._manifest.capability(call.target.capability), call.input)
        return arguments

    async def _waited_for(self, reply: Reply, headers: dict[str, str], emit: Emit) -> Reply:
        place = self._polling.place(reply, self._uri)
        return reply if place is None else await self._polling.finished(reply, place, headers, emit)

    async def _streamed(self, headers: dict[str, str], body: bytes, timeout: float, emit: Emit) -> Result:
        headers["accept"] = "text/event-stream, application/json;q=0.5"
        async with self._client.stream(
            self._method, self._uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as streamed:
            if streamed.headers.get("content-type", "").lower().startswith("text/event-stream"):
                if not 200 <= streamed.status < 300:
                    raise refusal(streamed.status, b"")
                return await events(streamed, emit, self._reply_bytes)
            whole = await bounded(streamed, self._reply_bytes)
            reply = Reply(streamed.status, streamed.headers, whole)
        if reply.status == 202:
            reply = await self._waited_for(reply, headers, emit)
        return result_of(reply.status, reply.body)

    async def health(self) -> Status:
        return await probe_agent(self._client, self._uri, self._health, self._headers)

    async def describe(self) -> Manifest:
        """What the agent answers to a GET at its own address, if that is a manifest."""
        return await described_at(self._client, self._uri, self._headers, self._manifest)

    async def aclose(self) -> None:
        await self._polling.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises BadInput for a bad endpoint."""
    endpoint = endpoint_of(manifest)
    if endpoint.is_plain:
        return HTTPRuntime(manifest, endpoint, context.http, context.reply_bytes)
    runtime: Runtime = load("a2a_fabric.runtimes.http_interface").runtime_for(manifest, endpoint, context)
    return runtime
