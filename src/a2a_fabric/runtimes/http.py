"""Runtime: an agent that takes a JSON POST and answers with JSON, or with server-sent events.

The plain contract is `{"name": CAPABILITY, "arguments": {…}}` in, `{"ok": true,
"result": {…}}` or `{"ok": false, "error": {…}}` out; the rest of the envelope
stands beside them. Any other JSON API is reached by a template (see
`http_template`). A capability that streams is asked for `text/event-stream`.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    ErrorTable,
    FabricError,
    UpstreamInterrupted,
    UpstreamRefused,
    reported_by_agent,
    translated,
)
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.core.trace import traceparent
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.http_template import Template
from a2a_fabric.runtimes.published import complete

# First match wins. Only the first is sure never to have reached the agent.
_ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    Interrupted: UpstreamInterrupted,
    OutboundError: UpstreamInterrupted,
}

_EVENT_BYTES = 1024 * 1024
_ASK_SECONDS = 5.0  # for health and description; the caller's own deadline may be shorter
_MANIFEST_BYTES = 1024 * 1024
_PRINCIPALS_KEPT = 100
_PUBLISHED = ("capabilities", "display_name", "description", "version", "tags")


class HTTPEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the agent listens and how it wants to be spoken to."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    headers: dict[str, str] = {}
    health: str | None = None  # path or URL of a health check; `/health` beside the agent if unset
    method: str = "POST"
    request: Any = None  # a template of the body, for other people's APIs
    reply: str | None = None  # JSON pointer to the answer in the reply
    token: str | None = None  # JSON pointer to the text in one event of a stream


class Unreachable(AgentOffline):
    """A proxy before the agent got no answer from it: the agent may have run."""

    never_ran = False


class _Reply(msgspec.Struct):
    """What the plain contract answers; anything else is taken as the result itself."""

    ok: bool | None = None
    result: Any = msgspec.UNSET
    error: Any = None


class Words:
    """The text of a stream so far, up to a limit: an agent that never stops is stopped."""

    def __init__(self, limit: int) -> None:
        self._parts: list[str] = []
        self._left = limit

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._left -= len(text)
        if self._left < 0:
            raise UpstreamRefused("The agent's stream is larger than this node takes")

    @property
    def text(self) -> str:
        return "".join(self._parts)


class _Line(msgspec.Struct):
    event: str
    data: dict[str, Any] = {}


class HTTPRuntime:
    keeps_time = True

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, client: HTTPClient, reply_bytes: int) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._client = client  # belongs to whoever built us; we never close it
        self._reply_bytes = reply_bytes
        self._upstream = _public(endpoint.uri)
        self._headers = {"content-type": "application/json", "accept": "application/json", **endpoint.headers}
        self._template = Template(endpoint.request, endpoint.reply, endpoint.token)
        self._encoder = msgspec.json.Encoder()
        self._replies = msgspec.json.Decoder(_Reply)
        self._lines = msgspec.json.Decoder(_Line)
        self._principals: dict[int, tuple[Principal, msgspec.Raw]] = {}

    async def __call__(self, call: Call, emit: Emit) -> Result:
        body = self._encoder.encode(self._body(call))
        headers = {**self._headers, "traceparent": traceparent(call.trace)}
        timeout = call.target.timeout_ms / 1000
        try:
            if call.response.stream:
                with Deadline(timeout):  # also while a slow reader holds an event up
                    return await self._streamed(headers, body, timeout, emit)
            reply = await self._client.request(
                self._endpoint.method,
                self._endpoint.uri,
                headers=headers,
                body=body,
                timeout=timeout,
                limit=self._reply_bytes,
            )
            return self._understood(reply.status, reply.body)
        except FabricError as exc:
            exc.details.setdefault("upstream", self._upstream)
            raise
        except OutboundError as exc:
            raise self._ours(exc, timeout) from exc

    def _ours(self, exc: OutboundError, timeout: float) -> FabricError:
        """What went wrong, in our words and with the place where."""
        if isinstance(exc, DeadlineExceeded):
            return CallTimeout(timeout, upstream=self._upstream)
        kind = next(ours for theirs, ours in _ERRORS.items() if isinstance(exc, theirs))
        return kind(str(exc)[:500], upstream=self._upstream)

    def _body(self, call: Call) -> Any:
        arguments = call.input.arguments
        if arguments is msgspec.UNSET:  # nobody routed this call
            arguments = arguments_for(self._manifest.capability(call.target.capability), call.input)
        if self._template.request is not None:
            return self._template.body(call, arguments)
        return {
            "name": call.target.capability,
            "arguments": arguments,
            "trace": call.trace,
            "auth": self._spoken(call.auth),
            "target": call.target,
            "response": call.response,
        }

    def _spoken(self, principal: Principal) -> msgspec.Raw:
        """Encoded once: nearly always the same few call."""
        known = self._principals.get(id(principal))
        if known is None or known[0] is not principal:
            if len(self._principals) >= _PRINCIPALS_KEPT:
                self._principals.clear()
            known = self._principals[id(principal)] = (principal, msgspec.Raw(self._encoder.encode(principal)))
        return known[1]

    def _understood(self, status: int, body: bytes) -> Result:
        if not 200 <= status < 300:  # redirects included: they are never followed
            raise self._bad_status(status, body)
        if self._template.reply is not None:
            return Result(data=as_object(self._template.answer(_json(body))))
        try:
            reply = self._replies.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return Result(data=as_object(_json(body)))
        if reply.ok is False:
            raise _reported(reply.error)
        if reply.ok is None or reply.result is msgspec.UNSET:
            return Result(data=as_object(_json(body)))
        return Result(data=as_object(reply.result))

    def _bad_status(self, status: int, body: bytes) -> FabricError:
        try:
            reply = self._replies.decode(body)
        except (msgspec.DecodeError, RecursionError):
            reply = _Reply()
        if reply.ok is False and reply.error is not None:
            return _reported(reply.error)
        if status in (502, 503, 504):
            kind = AgentOffline if status == 503 else Unreachable
            return kind(f"The agent's server answered {status}", status=status)
        return UpstreamRefused(f"The agent answered HTTP {status}", status=status)

    async def _streamed(self, headers: dict[str, str], body: bytes, timeout: float, emit: Emit) -> Result:
        headers["accept"] = "text/event-stream, application/json;q=0.5"
        async with self._client.stream(
            self._endpoint.method, self._endpoint.uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as reply:
            if not reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return self._understood(reply.status, await _bounded(reply, self._reply_bytes))
            if not 200 <= reply.status < 300:
                raise self._bad_status(reply.status, b"")
            if self._template.token is not None:
                return await self._foreign_events(reply, emit)
            return await self._events(reply, emit)

    async def _events(self, reply: StreamedReply, emit: Emit) -> Result:
        """Forward events in order of arrival until `final`; words alone make an answer too."""
        words = Words(self._reply_bytes)
        async for data in sse.data_of(reply.chunks(), limit=_EVENT_BYTES):
            try:
                line = self._lines.decode(data)
            except (msgspec.DecodeError, RecursionError) as exc:
                raise UpstreamInterrupted(f"The agent sent an event that is not JSON: {exc}"[:300]) from exc
            if line.event == "final":
                return _final(line.data, words)
            if line.event in EVENT_KINDS:
                line.data.pop("trace", None)
                if line.event == "token":
                    words.add(str(line.data.get("text", "")))
                await emit(Event(line.event, line.data))  # type: ignore[arg-type]  # checked against EVENT_KINDS
        raise UpstreamInterrupted("The agent's stream ended before its final event")

    async def _foreign_events(self, reply: StreamedReply, emit: Emit) -> Result:
        """Another API's stream: each event holds some text at the template's pointer; its end is the end."""
        words = Words(self._reply_bytes)
        async for data in sse.data_of(reply.chunks(), limit=_EVENT_BYTES):
            if data.strip() == b"[DONE]":
                break
            text = self._template.text(_json(data))
            if text:
                words.add(text)
                await emit(Event("token", {"text": text}))
        return Result(data={"answer": words.text})

    async def health(self) -> Status:
        """Any answer below 500 is a sign of life."""
        with translated(_ERRORS, upstream=self._upstream):
            reply = await self._client.request(
                "GET", self._health_uri(), headers=self._headers, timeout=_ASK_SECONDS, limit=_MANIFEST_BYTES
            )
        return "degraded" if reply.status >= 500 else "online"

    def _health_uri(self) -> str:
        wanted = self._endpoint.health or "/health"
        if wanted.startswith(("http://", "https://")):
            return wanted
        parts = urlsplit(self._endpoint.uri)
        return f"{parts.scheme}://{parts.netloc}/{wanted.lstrip('/')}"

    async def describe(self) -> Manifest:
        """What the agent answers to a GET at its own address, if that is a manifest."""
        with translated(_ERRORS, upstream=self._upstream):
            reply = await self._client.request(
                "GET", self._endpoint.uri, headers=self._headers, timeout=_ASK_SECONDS, limit=_MANIFEST_BYTES
            )
        published = _json(reply.body) if reply.status == 200 and reply.body else None
        theirs = _manifest(self._manifest.agent_id, published)
        return self._manifest if theirs is None else complete(self._manifest, theirs)

    async def aclose(self) -> None:
        """Nothing of our own to release."""


def _public(uri: str) -> str:
    """The address as it may be shown in an error: without credentials and query."""
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _manifest(agent_id: str, published: Any) -> Manifest | None:
    """What an agent publishes at its own address, as far as it is a manifest."""
    if not isinstance(published, dict):
        return None
    known = {name: published[name] for name in _PUBLISHED if name in published}
    try:
        return msgspec.convert({**known, "agent_id": agent_id, "endpoint": {}}, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Agent '{agent_id}' publishes a bad manifest: {exc}") from exc


async def _bounded(reply: StreamedReply, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in reply.chunks():
        size += len(chunk)
        if size > limit:
            raise ReplyTooLarge(f"the reply is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _final(data: dict[str, Any], words: Words) -> Result:
    if data.get("ok") is False:
        raise _reported(data.get("error"))
    data.pop("trace", None)
    result = as_object(data["result"] if "result" in data else {k: v for k, v in data.items() if k != "ok"})
    if not result and words.text:
        return Result(data={"answer": words.text})
    return Result(data=result)


def _reported(error: Any) -> FabricError:
    """An error as an agent reports it: an object with a code, or a sentence."""
    if not isinstance(error, dict):
        return UpstreamRefused(str(error)[:500] if error else "The agent reported an error without saying which")
    details = error.get("details")
    message = str(error.get("message", "The agent reported an error"))[:500]
    return reported_by_agent(str(error.get("code", "")), message, details if isinstance(details, dict) else None)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise UpstreamRefused(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def build(manifest: Manifest, context: RuntimeContext) -> HTTPRuntime:
    endpoint = decode_endpoint(manifest, HTTPEndpoint)
    if "@" in urlsplit(endpoint.uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put credentials into `headers`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    return HTTPRuntime(manifest, endpoint, context.http, context.reply_bytes)
