"""Runtime: an agent of document 002, which takes tasks by JSON-RPC at its endpoint.

What `a2a/register` registers is reached like this. A call is an `a2a/task`; one that
streams is an `a2a/stream`, if the agent knows it; and when a caller leaves, the agent
is told by `a2a/cancel`, whether it knows that or not.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urljoin

import msgspec
from msgspec import UNSET, Meta

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import noted
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.listener import Listener
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import new_id
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import OutboundError, StreamedReply
from a2a_fabric.runtimes import rpc_wire as wire
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.farewells import SECONDS, Farewells
from a2a_fabric.runtimes.http_exchange import bad_status, bounded, looked_at, ours, public
from a2a_fabric.runtimes.http_probe import probe_agent
from a2a_fabric.runtimes.json_api import checked_uri, decoded, is_good, object_or_empty
from a2a_fabric.runtimes.published import complete

_SLACK = 5.0  # seconds; a call's own deadline comes first
_EVENT_BYTES = 1024 * 1024
_ENDLESS = 1 << 62  # bytes of a stream: nothing of it is kept
_EVENTS = "text/event-stream"
_HOUSE = "a2a-fabric"
_WORDS = 300


class RPCEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the agent listens: requests go to `uri` exactly as it stands."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    headers: dict[str, str] = {}
    token: str | None = None  # sent as `Authorization: Bearer`
    health: str | None = None  # path or URL of a health check; the agent's own address if unset
    sender: str | None = None  # who asks; the caller's name if unset
    errors_in_output: bool = False  # whether a completed task with `output.error` counts as failed


class _NotSpoken(Exception):
    """The agent does not know the method."""


class RPCRuntime:
    def __init__(self, manifest: Manifest, endpoint: RPCEndpoint, context: RuntimeContext) -> None:
        accepted = {"content-type": "application/json", "accept": "application/json"}
        bearer = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        self._manifest = manifest
        self._endpoint = endpoint
        self._http = context.http  # belongs to whoever built us; we never close it
        self._headers = {**accepted, **bearer, **endpoint.headers}
        self._upstream = public(endpoint.uri)
        self._reply_bytes = context.reply_bytes
        self._farewells = Farewells(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        method, params, notes = self._asked(call)
        listener = Listener(emit)
        try:
            result = await self._answer(method, params, call, listener)
        except BaseException as error:
            if isinstance(error, FabricError):
                error.details.setdefault("upstream", self._upstream)
            if listener.has_left or not isinstance(error, FabricError):  # nobody waits for the agent any more
                self._farewells.say(self._post("a2a/cancel", {"taskId": params["taskId"]}, call, SECONDS))
            raise
        return noted(result, notes)

    def _asked(self, call: Call) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """The method, its parameters, and notes on what could not be sent."""
        if call.answers is not UNSET:
            answers = msgspec.to_builtins(call.answers.answers)
            return "a2a/answer", {"taskId": call.answers.continuation, "answers": answers}, ()
        given, notes = wire.input_for(self._manifest.capability(call.target.capability), call.input)
        params: dict[str, Any] = {
            "taskId": f"task_{new_id().replace('-', '')}",
            "action": call.target.capability,
            "sender": self._endpoint.sender or call.auth.principal_id or _HOUSE,
            "input": given,
        }
        if call.conversation_id:
            params["conversationId"] = agent_conversation_id(call)
        return "a2a/task", params, notes

    async def _answer(self, method: str, params: dict[str, Any], call: Call, emit: Emit) -> Result:
        timeout = call.target.timeout_ms / 1000 + _SLACK
        if call.response.stream and method == "a2a/task":
            try:
                return await self._streamed(params, call, timeout, emit)
            except _NotSpoken:
                pass  # it never ran, so it is asked once more in the plain way
        return self._understood(await self._post(method, params, call, timeout))

    async def _post(self, method: str, params: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        try:
            reply = await self._http.request(
                "POST",
                self._endpoint.uri,
                headers={**self._headers, **journey_headers(call)},
                body=_request(method, params),
                timeout=timeout,
                limit=self._reply_bytes,
            )
        except OutboundError as exc:
            raise ours(exc, timeout, self._upstream) from exc
        return self._json(reply.status, reply.body)

    def _json(self, status: int, body: bytes) -> dict[str, Any]:
        """A reply whatever its status, if it says something in the protocol's words."""
        if is_good(status):
            return decoded(body, dict[str, Any])
        told = object_or_empty(body)
        if isinstance(told.get("error"), dict):
            return told
        raise bad_status(status, str(told.get("error", ""))[:_WORDS])

    def _understood(self, reply: dict[str, Any]) -> Result:
        return wire.answered(reply, errors_in_output=self._endpoint.errors_in_output)

    async def _streamed(self, params: dict[str, Any], call: Call, timeout: float, emit: Emit) -> Result:
        """Raises _NotSpoken."""
        accept = {"accept": f"{_EVENTS}, application/json;q=0.5", **journey_headers(call)}
        try:
            async with self._http.stream(
                "POST",
                self._endpoint.uri,
                headers={**self._headers, **accept},
                body=_request("a2a/stream", params),
                timeout=timeout,
                limit=_ENDLESS,
            ) as reply:
                if reply.headers.get("content-type", "").lower().startswith(_EVENTS) and is_good(reply.status):
                    return await self._events(reply, emit)
                told = self._json(reply.status, await bounded(reply, self._reply_bytes))
        except OutboundError as exc:
            raise ours(exc, timeout, self._upstream) from exc
        if isinstance(error := told.get("error"), dict) and error.get("code") == wire.METHOD_NOT_FOUND:
            raise _NotSpoken
        return self._understood(told)

    async def _events(self, reply: StreamedReply, emit: Emit) -> Result:
        """Forward events in order of arrival, until the answer comes."""
        async for data in sse.data_of(reply.chunks(), limit=_EVENT_BYTES):
            told = decoded(data, dict[str, Any])
            body = told["params"] if isinstance(told.get("params"), dict) else told
            if "result" in told or "error" in told or "output" in body:
                return self._understood(told)
            if body.get("event") in EVENT_KINDS and isinstance(body.get("data"), dict):
                await emit(Event(body["event"], body["data"]))
        raise UpstreamInterrupted("The agent's stream ended before its answer")

    async def health(self) -> Status:
        """Most of these agents know nothing but POST, and say so."""
        uri, health = self._endpoint.uri, self._endpoint.health
        return await probe_agent(self._http, uri, None if health is None else urljoin(uri, health), self._headers)

    async def describe(self) -> Manifest:
        """The document has no way to ask an agent; but an address in a directory shows the agent's entry."""
        reply = await looked_at(self._http, self._endpoint.uri, self._headers)
        entry = object_or_empty(reply.body) if is_good(reply.status) else {}
        names = entry.get("capabilities")
        if not isinstance(names, list):
            return self._manifest
        capabilities = tuple(Capability(name=name) for name in names if isinstance(name, str) and name)
        name = entry.get("name")
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            capabilities=capabilities,
            display_name=name if isinstance(name, str) else "",
        )
        return complete(self._manifest, published)

    async def aclose(self) -> None:
        await self._farewells.aclose()


def _request(method: str, params: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": params["taskId"], "method": method, "params": params})


def build(manifest: Manifest, context: RuntimeContext) -> RPCRuntime:
    endpoint = decode_endpoint(manifest, RPCEndpoint)
    checked_uri(manifest, endpoint.uri)
    return RPCRuntime(manifest, endpoint, context)
