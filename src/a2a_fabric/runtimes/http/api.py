"""Runtime: any other HTTP API as an agent.

An `APIAdapter` builds its requests, from templates in the manifest or from its OpenAPI document.
A `ReplyReader` turns its replies into results. The caller keeps the deadline. The module is imported only
when an agent is used that does not follow the plain contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit, add_notes, make_propagation_headers
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.result import Event, Result, to_json_object
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import HTTPReply, OutboundError, StreamedReply
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http import media
from a2a_fabric.runtimes.http.endpoint import ExpressionParser, HTTPEndpoint
from a2a_fabric.runtimes.http.openapi.adapter import OpenAPIAdapter
from a2a_fabric.runtimes.http.polling import ResultPoller
from a2a_fabric.runtimes.http.runtime import EVENT_BYTES, error_from_reply, relay_events, result_from_reply
from a2a_fabric.runtimes.http.templates import APIAdapter, APIRequest, TemplateAdapter
from a2a_fabric.runtimes.remote_work import StreamText
from a2a_fabric.runtimes.upstream import (
    build_health_url,
    decode_json,
    error_from_outbound,
    error_from_status,
    find_reason,
    probe_page,
    read_bounded,
    read_retry_after,
    redact_url,
)

_ACCEPT = "application/json, */*;q=0.8"
_ACCEPT_EVENTS = "text/event-stream, application/json;q=0.5"
_CALLER_ERROR_STATUSES = (400, 422)


class ReplyReader:
    """Reads the replies of one API."""

    def __init__(self, endpoint: HTTPEndpoint, expressions: ExpressionParser) -> None:
        self._reply_expression = expressions.parse(endpoint.reply)
        self._token_expression = expressions.parse(endpoint.token)
        self._error_expression = expressions.parse(endpoint.error)

    @property
    def has_tokens(self) -> bool:
        return self._token_expression is not None

    def read_result(self, reply: HTTPReply, request: APIRequest) -> Result:
        """Raises FabricError."""
        if not 200 <= reply.status < 300:
            raise self._error_from_reply(reply, request.follows_contract)
        if self._error_expression is not None and (
            error_value := self._error_expression.find_or_none(_decode_json_or_none(reply.body))
        ):
            raise UpstreamRefused(_to_sentence(error_value))
        if self._reply_expression is not None:
            return Result(data=to_json_object(self._reply_expression.find(decode_json(reply.body))))
        kind = media.read_media_type(reply)
        if request.follows_contract and (not kind or media.is_json_type(kind)):
            return result_from_reply(reply)
        if request.expects_json and reply.body:
            return Result(data=to_json_object(decode_json(reply.body)))
        return media.result_from_media(reply)

    def _error_from_reply(self, reply: HTTPReply, follows_contract: bool) -> FabricError:
        if follows_contract and self._error_expression is None:
            contract_error = error_from_reply(reply)
            if "status" not in contract_error.details:  # the reply is an error of the plain contract
                return contract_error
        error_value = (
            self._error_expression.find_or_none(_decode_json_or_none(reply.body))
            if self._error_expression is not None
            else None
        )
        reason = _to_sentence(error_value) if error_value else media.read_excerpt(reply)
        if reply.status in _CALLER_ERROR_STATUSES:
            return BadInput(
                f"The agent answered HTTP {reply.status}{': ' if reason else ''}{reason}", status=reply.status
            )
        return error_from_status(reply.status, reason, retry_after=read_retry_after(reply.headers))

    async def read_events(self, reply: StreamedReply, emit: Emit, limit: int) -> Result:
        """The stream of an API: each event holds text where the manifest says; the answer ends with the stream."""
        stream_text = StreamText(limit)
        async for data in sse.iter_event_data(reply.chunks(), limit=EVENT_BYTES):
            if data.strip() == b"[DONE]":
                break
            event = decode_json(data)
            if self._error_expression is not None and (error_value := self._error_expression.find_or_none(event)):
                raise UpstreamRefused(_to_sentence(error_value))
            text = self._token_expression.find_or_none(event) if self._token_expression is not None else None
            if isinstance(text, str) and text:
                stream_text.add(text)
                await emit(Event("token", {"text": text}))
        return Result(data={"answer": stream_text.text})


class APIRuntime:
    def __init__(
        self,
        endpoint: HTTPEndpoint,
        adapter: APIAdapter,
        reader: ReplyReader,
        poller: ResultPoller,
        context: RuntimeContext,
    ) -> None:
        self._endpoint = endpoint
        self._adapter = adapter
        self._reader = reader
        self._poller = poller
        self._http = context.http  # belongs to the node
        self._reply_bytes = context.reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        request = await self._adapter.build_request(call)
        headers = {"accept": _ACCEPT, **request.headers, **make_propagation_headers(call)}
        timeout, upstream = call.target.timeout_ms / 1000, redact_url(request.url)
        try:
            if call.response.stream and (self._reader.has_tokens or self._adapter.streams):
                headers["accept"] = _ACCEPT_EVENTS
                return add_notes(await self._call_streaming(request, headers, timeout, emit), request.notes)
            reply = await self._http.request(
                request.method,
                request.url,
                headers=headers,
                body=request.body,
                timeout=timeout,
                limit=self._reply_bytes,
            )
            return add_notes(await self._read_answer(reply, request, headers, emit), request.notes)
        except FabricError as exc:
            exc.details.setdefault("upstream", upstream)
            raise
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, upstream) from exc

    async def _read_answer(
        self, reply: HTTPReply, request: APIRequest, headers: Mapping[str, str], emit: Emit
    ) -> Result:
        poll_url = self._poller.find_poll_url(reply, request.url)
        if poll_url is not None:
            reply = await self._poller.wait_for_result(reply, poll_url, headers, emit)
        return self._reader.read_result(reply, request)

    async def _call_streaming(
        self, request: APIRequest, headers: Mapping[str, str], timeout: float, emit: Emit
    ) -> Result:
        async with self._http.stream(
            request.method, request.url, headers=headers, body=request.body, timeout=timeout, limit=2**62
        ) as streamed:
            is_stream = streamed.headers.get("content-type", "").lower().startswith("text/event-stream")
            if is_stream and 200 <= streamed.status < 300:
                if self._reader.has_tokens:
                    return await self._reader.read_events(streamed, emit, self._reply_bytes)
                return await relay_events(streamed, emit, self._reply_bytes)
            body = await read_bounded(streamed, self._reply_bytes)
            reply = HTTPReply(streamed.status, streamed.headers, body)
        return await self._read_answer(reply, request, headers, emit)

    async def health(self) -> Status:
        endpoint = self._endpoint
        if endpoint.health is not None:
            address = build_health_url(await self._adapter.get_address(), endpoint.health)
            return await probe_page(self._http, address, endpoint.headers)
        return await self._adapter.probe()

    async def describe(self) -> Manifest:
        return await self._adapter.describe()

    async def aclose(self) -> None:
        await self._poller.aclose()


def _decode_json_or_none(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _to_sentence(value: Any) -> str:
    return find_reason(value)[:500] or "The agent reported an error"


def build_api_runtime(manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> APIRuntime:
    expressions = ExpressionParser(pointers_only=context.guard is not None)
    return APIRuntime(
        endpoint,
        OpenAPIAdapter(manifest, endpoint, context)
        if endpoint.openapi
        else TemplateAdapter(manifest, endpoint, context.http),
        ReplyReader(endpoint, expressions),
        ResultPoller(manifest.agent_id, context.http, endpoint.poll, context.reply_bytes, expressions),
        context,
    )
