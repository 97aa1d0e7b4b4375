"""Somebody else's HTTP API as an agent: asked in its own way, its reply read in its own way.

How it wants to be asked is an `Interface`: templates of the manifest, or its OpenAPI
document. How its replies are read is a `Reading`. Time is kept by whoever calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import noted
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import OutboundError, Reply, StreamedReply
from a2a_fabric.runtimes import http_contract, http_media
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http_contract import EVENT_BYTES, Words
from a2a_fabric.runtimes.http_endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http_exchange import bad_status, bounded, json_of, ours, public
from a2a_fabric.runtimes.http_expression import Expressions
from a2a_fabric.runtimes.http_polling import Polling
from a2a_fabric.runtimes.http_probe import health_address, probe_page

_ACCEPT = "application/json, */*;q=0.8"
_ACCEPT_EVENTS = "text/event-stream, application/json;q=0.5"
_CALLERS_MISTAKE = (400, 422)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out; `notes` say what of the call could not go with it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None
    notes: tuple[str, ...] = ()
    is_ours: bool = False  # in the plain contract, so that the reply may be
    wants_json: bool = False  # nothing else can be the answer


class Interface(Protocol):
    """How one API wants to be asked."""

    streams: bool  # whether it may be asked for events that nobody described

    async def request(self, call: Call) -> Request:
        """Raises FabricError, BadInput for what cannot be put into a request."""
        ...

    async def described(self) -> Manifest:
        """The manifest, with what the API publishes. Raises FabricError."""
        ...

    async def place(self) -> str:
        """An address of the API. Raises FabricError."""
        ...

    async def probe(self) -> Status:
        """Whether it is there, without asking it to work. Raises FabricError."""
        ...


class Reading:
    """How one API's replies are read."""

    def __init__(self, endpoint: HTTPEndpoint, expressions: Expressions) -> None:
        self._reply = expressions.read(endpoint.reply)
        self._token = expressions.read(endpoint.token)
        self._error = expressions.read(endpoint.error)

    @property
    def has_tokens(self) -> bool:
        return self._token is not None

    def result(self, reply: Reply, request: Request) -> Result:
        """Raises FabricError."""
        if not 200 <= reply.status < 300:
            raise self._refusal(reply, request.is_ours)
        if self._error is not None and (why := self._error.look(_json_or_none(reply.body))):
            raise UpstreamRefused(_sentence(why))
        if self._reply is not None:
            return Result(data=as_object(self._reply.find(json_of(reply.body))))
        kind = http_media.media_type(reply)
        if request.is_ours and (not kind or http_media.is_json(kind)):
            return http_contract.result_of(reply.status, reply.body)
        if request.wants_json and reply.body:
            return Result(data=as_object(json_of(reply.body)))
        return http_media.result_of(reply)

    def _refusal(self, reply: Reply, is_ours: bool) -> FabricError:
        if is_ours and self._error is None:
            theirs = http_contract.refusal(reply.status, reply.body)
            if "status" not in theirs.details:  # it told us in our own words
                return theirs
        found = self._error.look(_json_or_none(reply.body)) if self._error is not None else None
        why = _sentence(found) if found else http_media.excerpt(reply)
        if reply.status in _CALLERS_MISTAKE:
            return BadInput(f"The agent answered HTTP {reply.status}{': ' if why else ''}{why}", status=reply.status)
        return bad_status(reply.status, why)

    async def events(self, reply: StreamedReply, emit: Emit, limit: int) -> Result:
        """Another API's stream: each event holds some text where the manifest says; its end is the end."""
        words = Words(limit)
        async for data in sse.data_of(reply.chunks(), limit=EVENT_BYTES):
            if data.strip() == b"[DONE]":
                break
            event = json_of(data)
            if self._error is not None and (why := self._error.look(event)):
                raise UpstreamRefused(_sentence(why))
            text = self._token.look(event) if self._token is not None else None
            if isinstance(text, str) and text:
                words.add(text)
                await emit(Event("token", {"text": text}))
        return Result(data={"answer": words.text})


class APIRuntime:
    def __init__(
        self, endpoint: HTTPEndpoint, interface: Interface, reading: Reading, polling: Polling, context: RuntimeContext
    ) -> None:
        self._endpoint = endpoint
        self._interface = interface
        self._reading = reading
        self._polling = polling
        self._http = context.http  # belongs to the node
        self._reply_bytes = context.reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        request = await self._interface.request(call)
        headers = {"accept": _ACCEPT, **request.headers, **journey_headers(call)}
        timeout, upstream = call.target.timeout_ms / 1000, public(request.url)
        try:
            if call.response.stream and (self._reading.has_tokens or self._interface.streams):
                headers["accept"] = _ACCEPT_EVENTS
                return noted(await self._streamed(request, headers, timeout, emit), request.notes)
            reply = await self._http.request(
                request.method,
                request.url,
                headers=headers,
                body=request.body,
                timeout=timeout,
                limit=self._reply_bytes,
            )
            return noted(await self._answer(reply, request, headers, emit), request.notes)
        except FabricError as exc:
            exc.details.setdefault("upstream", upstream)
            raise
        except OutboundError as exc:
            raise ours(exc, timeout, upstream) from exc

    async def _answer(self, reply: Reply, request: Request, headers: Mapping[str, str], emit: Emit) -> Result:
        place = self._polling.place(reply, request.url)
        if place is not None:
            reply = await self._polling.finished(reply, place, headers, emit)
        return self._reading.result(reply, request)

    async def _streamed(self, request: Request, headers: Mapping[str, str], timeout: float, emit: Emit) -> Result:
        async with self._http.stream(
            request.method, request.url, headers=headers, body=request.body, timeout=timeout, limit=2**62
        ) as streamed:
            is_stream = streamed.headers.get("content-type", "").lower().startswith("text/event-stream")
            if is_stream and 200 <= streamed.status < 300:
                if self._reading.has_tokens:
                    return await self._reading.events(streamed, emit, self._reply_bytes)
                return await http_contract.events(streamed, emit, self._reply_bytes)
            whole = await bounded(streamed, self._reply_bytes)
            reply = Reply(streamed.status, streamed.headers, whole)
        return await self._answer(reply, request, headers, emit)

    async def health(self) -> Status:
        endpoint = self._endpoint
        if endpoint.health is not None:
            address = health_address(await self._interface.place(), endpoint.health)
            return await probe_page(self._http, address, endpoint.headers)
        return await self._interface.probe()

    async def describe(self) -> Manifest:
        return await self._interface.described()

    async def aclose(self) -> None:
        await self._polling.aclose()


def _json_or_none(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _sentence(why: Any) -> str:
    return http_media.reason_in(why)[:500] or "The agent reported an error"
