"""Runtime: an agent that takes a JSON POST and answers with JSON, or with server-sent events.

This module is the fast path for agents that follow the plain contract: the request is
`{"name": CAPABILITY, "arguments": {…}}` with the rest of the envelope beside it; the answer is
`{"ok": true, "result": {…}}` or `{"ok": false, "error": {…}}`. `parts` may stand beside the result, and a
result with `input_required` is a question. Anything else is taken as the result. A stream ends with the
event `final`, which holds the same. All other APIs go through `api`, with requests built from a template
(`templates`) or from an OpenAPI document (`openapi`). Replies that come later are polled for (`polling`)."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import (
    DELIVERED,
    Call,
    Emit,
    Principal,
    bind_arguments,
    derive_conversation_id,
    hide_private,
    make_propagation_headers,
)
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused, error_from_agent
from a2a_fabric.core.ports import Runtime, RuntimePlugin, load_module
from a2a_fabric.core.propagation import DELEGATION_HEADER, encode_chain_header, format_traceparent
from a2a_fabric.core.result import EVENT_KINDS, Event, Question, Result, make_input_required, to_json_object
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.headers import FixedHeaders, VaryingHeaders
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError, StreamedReply
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http.endpoint import ExpressionParser, HTTPEndpoint, read_endpoint
from a2a_fabric.runtimes.http.polling import ResultPoller
from a2a_fabric.runtimes.remote_work import StreamText
from a2a_fabric.runtimes.upstream import (
    convert_parts,
    decode_json,
    error_from_outbound,
    error_from_refusal,
    fetch_manifest,
    probe_agent,
    read_bounded,
    redact_url,
)

EVENT_BYTES = 1024 * 1024  # at least; the last event may be as large as a reply
_MAX_CACHED_PRINCIPALS = 100


class _Reply(msgspec.Struct):
    ok: bool | None = None
    result: Any = msgspec.UNSET
    error: Any = None
    parts: Any = None
    artifacts: Any = None
    notes: Any = None


class _StreamEvent(msgspec.Struct):
    event: str
    data: dict[str, Any] = {}


_reply_decoder = msgspec.json.Decoder(_Reply)
_decode_stream_event = msgspec.json.Decoder(_StreamEvent).decode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()


class EnvelopeEncoder:
    """Encodes calls as request bodies."""

    def __init__(self) -> None:
        self._principals: dict[int, tuple[Principal, msgspec.Raw]] = {}

    def encode(self, call: Call, arguments: dict[str, Any]) -> bytes:
        body = {
            "name": call.target.capability,
            "arguments": arguments,
            "trace": call.trace,
            "auth": self._encode_principal(call.auth),
            "target": call.target,
            "response": call.response,
            "delegation_chain": call.delegation_chain or (),
        }
        if call.answers or call.conversation_id or call.input.attachments or call.on_behalf_of:
            body |= _optional_fields(call, arguments)
        return _encoder.encode(body)

    def _encode_principal(self, principal: Principal) -> msgspec.Raw:
        """Encoded once per principal, because most calls come from a few principals."""
        cached = self._principals.get(id(principal))
        if cached is None or cached[0] is not principal:
            if len(self._principals) >= _MAX_CACHED_PRINCIPALS:
                self._principals.clear()
            encoded = msgspec.Raw(_encoder.encode(hide_private(principal)))
            cached = self._principals[id(principal)] = (principal, encoded)
        return cached[1]


def _optional_fields(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
    """The fields that few calls have. Without a schema, attachments are among the arguments."""
    attachments = call.input.attachments if "attachments" not in arguments else ()
    fields = {
        "attachments": attachments,
        "answers": call.answers,
        "conversation_id": derive_conversation_id(call),
        "on_behalf_of": call.on_behalf_of,
    }
    return {name: value for name, value in fields.items() if value}


def result_from_reply(reply: HTTPReply) -> Result:
    """Raises FabricError: the error that the agent reports, or one made from the HTTP status."""
    if not 200 <= reply.status < 300:  # redirects included: they are never followed
        raise error_from_reply(reply)
    body = reply.body
    try:
        answer = _reply_decoder.decode(body)
    except _DECODE_ERRORS:
        return Result(data=to_json_object(decode_json(body)))
    if answer.ok is False:
        raise error_from_report(answer.error)
    if answer.ok is None or answer.result is msgspec.UNSET:
        return _build_result(to_json_object(decode_json(body)), _Reply())
    return _build_result(to_json_object(answer.result), answer)


def error_from_reply(reply: HTTPReply) -> FabricError:
    """The agent's own report, else the status; a refusal (4xx) with the words of the reply."""
    try:
        report = _reply_decoder.decode(reply.body)
    except _DECODE_ERRORS:
        report = _Reply()
    if report.ok is False and report.error is not None:
        return error_from_report(report.error)
    return error_from_refusal(reply.status, reply.headers, reply.body)


def error_from_report(error: Any) -> FabricError:
    """An error as an agent reports it: an object with a code, or a sentence."""
    if not isinstance(error, dict):
        return UpstreamRefused(str(error)[:500] if error else "The agent reported an error without saying which")
    details = error.get("details")
    message = str(error.get("message", "The agent reported an error"))[:500]
    return error_from_agent(str(error.get("code", "")), message, details if isinstance(details, dict) else None)


def _build_result(data: dict[str, Any], extras: _Reply) -> Result:
    """The answer with its parts, which most answers do not have."""
    if "input_required" in data and (question_result := _build_question_result(data["input_required"])) is not None:
        return question_result
    if extras.parts is None and extras.artifacts is None and extras.notes is None:
        return Result(data=data)
    if isinstance(extras.artifacts, list) and extras.artifacts:
        data = {"artifacts": extras.artifacts, **data}
    notes = tuple(str(note)[:500] for note in extras.notes[:100]) if isinstance(extras.notes, list) else ()
    return Result(data=data, parts=convert_parts(extras.parts), notes=notes)


def _build_question_result(input_required: Any) -> Result | None:
    """A question, if it has the continuation that an answer needs."""
    if not isinstance(input_required, dict) or not isinstance(input_required.get("continuation"), str):
        return None
    message = str(input_required.get("message") or "The agent needs more information")[:2000]
    try:
        questions = msgspec.convert(input_required.get("questions") or {}, dict[str, Question])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent's questions cannot be read: {exc}"[:300]) from exc
    return make_input_required(
        questions or {"answer": Question(kind="form", message=message)}, input_required["continuation"]
    )


async def relay_events(reply: StreamedReply, emit: Emit, limit: int) -> Result:
    """Forward events in order of arrival until `final`; a stream of text alone is an answer too."""
    relay = _EventRelay(emit, limit)
    try:
        while relay.result is None and await reply.deliver(relay.take):
            await relay.drain()
    finally:
        relay.close()
    return relay.result or relay.finish()


class _EventRelay:
    """Emits the events of a stream. While the caller takes each at once, the task of the call is not woken for them."""

    def __init__(self, emit: Emit, limit: int) -> None:
        self.result: Result | None = None  # of `final`
        self._emit = emit
        self._text = StreamText(limit)
        self._parser = sse.SSEParser(max(EVENT_BYTES, limit))
        self._rest: Iterator[bytes] = iter(())  # of the latest chunk: events that wait for the one under way
        self._under_way: Awaitable[None] | None = None  # an event that the caller does not take at once

    def take(self, chunk: bytes | None) -> bool:
        """False if the next chunk has to wait: for `drain`, or because the stream is over.

        None: go on with the latest chunk. One function for all of it, because each event comes here.
        """
        rest = self._rest if chunk is None else iter(self._parser.feed(chunk))
        for data in rest:
            try:
                stream_event = _decode_stream_event(data)
            except _DECODE_ERRORS as exc:
                raise _not_json(exc) from exc
            kind, event_data = stream_event.event, stream_event.data
            if kind == "final":
                self.result = _result_from_final(event_data, self._text)
                return False
            if kind in EVENT_KINDS:
                if "trace" in event_data:
                    del event_data["trace"]
                if kind == "token":
                    text = event_data.get("text", "")
                    self._text.add(text if isinstance(text, str) else str(text))
                sent = self._emit(Event(kind, event_data))  # type: ignore[arg-type]  # checked against EVENT_KINDS
                if sent is not DELIVERED:
                    self._under_way, self._rest = sent, rest
                    return False
        return True

    async def drain(self) -> None:
        while self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            await under_way
            self.take(None)

    def close(self) -> None:
        if isinstance(self._under_way, Coroutine):
            self._under_way.close()  # the call was cancelled before it was awaited

    def finish(self) -> Result:
        """The stream is over, and its last event may lack the blank line."""
        for data in self._parser.flush():
            try:
                stream_event = _decode_stream_event(data)
            except _DECODE_ERRORS as exc:
                raise _not_json(exc) from exc
            if stream_event.event == "final":
                return _result_from_final(stream_event.data, self._text)
        raise UpstreamInterrupted("The agent's stream ended before its final event")


def _not_json(exc: Exception) -> UpstreamInterrupted:
    return UpstreamInterrupted(f"The agent sent an event that is not JSON: {exc}"[:300])


def _result_from_final(data: dict[str, Any], stream_text: StreamText) -> Result:
    if data.get("ok") is False:
        raise error_from_report(data.get("error"))
    data.pop("trace", None)
    if "result" not in data:
        answer = {name: value for name, value in data.items() if name != "ok"}
        return _build_result(answer or ({"answer": stream_text.text} if stream_text.text else {}), _Reply())
    extras = _Reply(parts=data.get("parts"), artifacts=data.get("artifacts"), notes=data.get("notes"))
    answer = to_json_object(data["result"])
    return _build_result(answer or ({"answer": stream_text.text} if stream_text.text else {}), extras)


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
        # The node has a runtime for each agent, and most are only probed; what calls need is made by the first one.
        self._call_headers: FixedHeaders | None = None
        self._envelope_encoder = EnvelopeEncoder()
        self._poller: ResultPoller | None = None

    async def __call__(self, call: Call, emit: Emit) -> Result:
        body = self._envelope_encoder.encode(call, self._bind_arguments(call))
        headers: Mapping[str, str]
        if call.delegation_chain:
            varied = format_traceparent(call.trace), encode_chain_header(call.delegation_chain)
            if self._call_headers is None:
                self._call_headers = FixedHeaders(self._headers, ("traceparent", DELEGATION_HEADER))
            headers = VaryingHeaders(self._call_headers, varied)
        else:
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
            return result_from_reply(reply)
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

    async def _wait_for_result(self, reply: HTTPReply, headers: Mapping[str, str], emit: Emit) -> HTTPReply:
        if self._poller is None:
            agent_id, limit = self._manifest.agent_id, self._reply_bytes
            self._poller = ResultPoller(agent_id, self._client, None, limit, ExpressionParser())
        poll_url = self._poller.find_poll_url(reply, self._uri)
        return reply if poll_url is None else await self._poller.wait_for_result(reply, poll_url, headers, emit)

    async def _call_streaming(self, headers: Mapping[str, str], body: bytes, timeout: float, emit: Emit) -> Result:
        headers = {**headers, "accept": "text/event-stream, application/json;q=0.5"}
        async with self._client.stream(
            self._method, self._uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as streamed:
            if sse.is_event_stream(streamed.headers):
                if not 200 <= streamed.status < 300:
                    raise error_from_reply(HTTPReply(streamed.status, streamed.headers, b""))
                return await relay_events(streamed, emit, self._reply_bytes)
            reply_body = await read_bounded(streamed, self._reply_bytes)
            reply = HTTPReply(streamed.status, streamed.headers, reply_body)
        if reply.status == 202:
            reply = await self._wait_for_result(reply, headers, emit)
        return result_from_reply(reply)

    async def health(self) -> Status:
        return await probe_agent(self._client, self._uri, self._health, self._headers)

    async def describe(self) -> Manifest:
        """The reply to a GET at the agent's address, if that is a manifest."""
        return await fetch_manifest(self._client, self._uri, self._headers, self._manifest)

    async def aclose(self) -> None:
        if self._poller is not None:
            await self._poller.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    if endpoint.is_plain:
        return HTTPRuntime(manifest, endpoint, context.http, context.reply_bytes)
    runtime: Runtime = load_module("a2a_fabric.runtimes.http.api").build_api_runtime(manifest, endpoint, context)
    return runtime


plugin = RuntimePlugin(build=build)
