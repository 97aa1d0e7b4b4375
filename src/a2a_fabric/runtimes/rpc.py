"""Runtime: an agent that takes tasks by JSON-RPC (`a2a/task`), as `a2a/register` registers them.

A call is an `a2a/task`; one that streams is an `a2a/stream`, if the agent has that method.
When a caller leaves, `a2a/cancel` is sent to the agent, whether it has that method or not."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urljoin

import msgspec
from msgspec import UNSET, Meta

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    ATTACHMENTS,
    Call,
    CallerEmitter,
    Emit,
    Input,
    add_notes,
    bind_arguments,
    derive_conversation_id,
    describe_unbound_attachments,
    make_propagation_headers,
)
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused, error_from_agent
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import EVENT_KINDS, Event, Question, Result, make_input_required, to_json_object
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import OutboundError, StreamedReply
from a2a_fabric.protocols.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, encode_request
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, BackgroundCancels
from a2a_fabric.runtimes.upstream import (
    check_uri,
    convert_parts,
    decode_object_or_empty,
    decode_reply,
    error_from_outbound,
    error_from_status,
    get_quickly,
    is_success,
    probe_agent,
    read_bounded,
    redact_url,
)

EXTRAS_KEY = "_fabric"  # in an output: the additional fields of another gateway
_CODES = {INVALID_PARAMS: "BAD_INPUT", -32002: "TIMEOUT"}
_MAX_ERROR_TEXT = 500


def build_input(capability: Capability | None, call_input: Input) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The agent's `input`, and notes on the parts of the call that were left out.

    The protocol has no schemas: for a capability without one, text and attachments
    are added to the arguments, under the names that Fabric's own doors use.
    """
    has_schema = capability is not None and capability.input_schema is not None
    if has_schema or call_input.arguments is not msgspec.UNSET:
        arguments = bind_arguments(capability, call_input)
        return arguments, describe_unbound_attachments(call_input, arguments, capability.name if capability else "it")
    extras: dict[str, Any] = {"task": call_input.task} if call_input.task else {}
    if call_input.attachments:
        extras[ATTACHMENTS] = msgspec.to_builtins(call_input.attachments)
    return {**extras, **call_input.context}, ()


def result_from_reply(reply: dict[str, Any], *, errors_in_output: bool) -> Result:
    """The result of a complete reply. Raises FabricError if the task has not succeeded."""
    if reply.get("error") is not None:
        raise error_from_rpc(reply["error"])
    outcome = reply.get("result", reply)
    if not isinstance(outcome, dict):
        raise UpstreamFailed("The agent's answer holds no result")
    status = str(outcome.get("status", "completed")).lower()
    output = to_json_object(outcome.get("output")) if "output" in outcome or "status" in outcome else outcome
    if status == "completed":
        return _result_from_output(output, errors_in_output=errors_in_output)
    if status == "input_required":
        return _build_question_result(output, str(outcome.get("taskId", "")))
    raise _error_from_status(status, output)


def _result_from_output(output: dict[str, Any], *, errors_in_output: bool) -> Result:
    """Many agents of this kind report failures as good outcomes with an `error` inside."""
    extras = output.pop(EXTRAS_KEY, None)
    error = output.get("error")
    if error and errors_in_output:
        raise UpstreamRefused(_read_error_text(error))
    notes = (f"The agent's output holds an error: {_read_error_text(error)}",) if error else ()
    if not isinstance(extras, dict):
        return Result(data=output, notes=notes)
    extra_notes = [note for note in extras.get("notes") or () if isinstance(note, str)]
    return Result(data=output, parts=convert_parts(extras.get("parts")), notes=(*notes, *extra_notes))


def _build_question_result(output: dict[str, Any], task_id: str) -> Result:
    input_required = output.get("input_required")
    try:
        questions = msgspec.convert(input_required["questions"], dict[str, Question])  # type: ignore[index]  # it may be anything
    except (msgspec.ValidationError, KeyError, TypeError) as exc:
        raise UpstreamFailed("The agent asks for input, but its questions cannot be read") from exc
    return make_input_required(questions, task_id)


def _error_from_status(status: str, output: dict[str, Any]) -> FabricError:
    error = output.get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        return error_from_agent(error["code"], _read_error_text(error), _details_or_none(error.get("details")))
    message = _read_error_text(error) if error else f"The agent's task ended as '{status[:32]}'"
    if status == "timeout":
        return error_from_agent("TIMEOUT", message, {"status": status})
    return UpstreamRefused(message, status=status[:32])


def error_from_rpc(error: Any) -> FabricError:
    """An error of JSON-RPC, or the plain text that some agents send instead."""
    if not isinstance(error, dict):
        return UpstreamRefused(_read_error_text(error))
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    code = data.get("code")
    if isinstance(code, str):  # another Fabric node sends its own error code
        return error_from_agent(
            code,
            str(data.get("detail") or error.get("message"))[:_MAX_ERROR_TEXT],
            _details_or_none(data.get("details")),
        )
    reason = data.get("reason")
    message = (
        f"{_read_error_text(error)}: {reason}"[:_MAX_ERROR_TEXT] if isinstance(reason, str) else _read_error_text(error)
    )
    number = error.get("code")
    fabric_code = _CODES.get(number) if isinstance(number, int) else None
    if reason == "timeout":
        fabric_code = "TIMEOUT"
    return error_from_agent(fabric_code, message) if fabric_code else UpstreamRefused(message, upstream_code=number)


def _read_error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_MAX_ERROR_TEXT] if message else "The agent reported an error without saying which"


def _details_or_none(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


_TIMEOUT_SLACK = 5.0  # seconds; a call's own deadline comes first
_EVENT_BYTES = 1024 * 1024
_UNLIMITED = 1 << 62  # bytes of a stream, which is not buffered
_EVENT_STREAM = "text/event-stream"
_DEFAULT_SENDER = "a2a-fabric"
_MAX_STATUS_TEXT = 300


class RPCEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's address: requests go to `uri` unchanged."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    headers: dict[str, str] = {}
    token: str | None = None  # sent as `Authorization: Bearer`
    health: str | None = None  # path or URL of a health check; the agent's own address if unset
    sender: str | None = None  # the sender's name; unset: the caller's name
    errors_in_output: bool = False  # whether a completed task with `output.error` counts as failed


class _MethodUnknown(Exception):
    """The agent does not have the method."""


class RPCRuntime:
    def __init__(self, manifest: Manifest, endpoint: RPCEndpoint, context: RuntimeContext) -> None:
        json_headers = {"content-type": "application/json", "accept": "application/json"}
        auth_headers = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        self._manifest = manifest
        self._endpoint = endpoint
        self._http = context.http  # belongs to the node, which closes it
        self._headers = {**json_headers, **auth_headers, **endpoint.headers}
        self._upstream = redact_url(endpoint.uri)
        self._reply_bytes = context.reply_bytes
        self._cancels = BackgroundCancels(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        method, params, notes = self._build_request(call)
        listener = CallerEmitter(emit)
        try:
            result = await self._call(method, params, call, listener)
        except BaseException as error:
            if isinstance(error, FabricError):
                error.details.setdefault("upstream", self._upstream)
            if listener.is_caller_gone or not isinstance(error, FabricError):  # no caller waits for the agent any more
                self._cancels.start(self._post("a2a/cancel", {"taskId": params["taskId"]}, call, CANCEL_TIMEOUT))
            raise
        return add_notes(result, notes)

    def _build_request(self, call: Call) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """The method, its parameters, and notes on what could not be sent."""
        if call.answers is not UNSET:
            answers = msgspec.to_builtins(call.answers.answers)
            return "a2a/answer", {"taskId": call.answers.continuation, "answers": answers}, ()
        task_input, notes = build_input(self._manifest.find_capability(call.target.capability), call.input)
        params: dict[str, Any] = {
            "taskId": f"task_{new_id().replace('-', '')}",
            "action": call.target.capability,
            "sender": self._endpoint.sender or call.auth.principal_id or _DEFAULT_SENDER,
            "input": task_input,
        }
        if call.conversation_id:
            params["conversationId"] = derive_conversation_id(call)
        return "a2a/task", params, notes

    async def _call(self, method: str, params: dict[str, Any], call: Call, emit: Emit) -> Result:
        timeout = call.target.timeout_ms / 1000 + _TIMEOUT_SLACK
        if call.response.stream and method == "a2a/task":
            try:
                return await self._call_streaming(params, call, timeout, emit)
            except _MethodUnknown:
                pass  # the task did not run, so it is sent again without streaming
        return self._result_from_reply(await self._post(method, params, call, timeout))

    async def _post(self, method: str, params: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        try:
            reply = await self._http.request(
                "POST",
                self._endpoint.uri,
                headers={**self._headers, **make_propagation_headers(call)},
                body=encode_request(params["taskId"], method, params),
                timeout=timeout,
                limit=self._reply_bytes,
            )
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, self._upstream) from exc
        return self._decode_reply(reply.status, reply.body)

    def _decode_reply(self, status: int, body: bytes) -> dict[str, Any]:
        """A reply of any HTTP status, if it is a JSON-RPC message."""
        if is_success(status):
            return decode_reply(body, dict[str, Any])
        reply = decode_object_or_empty(body)
        if isinstance(reply.get("error"), dict):
            return reply
        raise error_from_status(status, str(reply.get("error", ""))[:_MAX_STATUS_TEXT])

    def _result_from_reply(self, reply: dict[str, Any]) -> Result:
        return result_from_reply(reply, errors_in_output=self._endpoint.errors_in_output)

    async def _call_streaming(self, params: dict[str, Any], call: Call, timeout: float, emit: Emit) -> Result:
        """Raises _MethodUnknown."""
        extra_headers = {"accept": f"{_EVENT_STREAM}, application/json;q=0.5", **make_propagation_headers(call)}
        try:
            async with self._http.stream(
                "POST",
                self._endpoint.uri,
                headers={**self._headers, **extra_headers},
                body=encode_request(params["taskId"], "a2a/stream", params),
                timeout=timeout,
                limit=_UNLIMITED,
            ) as reply:
                if reply.headers.get("content-type", "").lower().startswith(_EVENT_STREAM) and is_success(reply.status):
                    return await self._read_events(reply, emit)
                reply_object = self._decode_reply(reply.status, await read_bounded(reply, self._reply_bytes))
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, self._upstream) from exc
        if isinstance(error := reply_object.get("error"), dict) and error.get("code") == METHOD_NOT_FOUND:
            raise _MethodUnknown
        return self._result_from_reply(reply_object)

    async def _read_events(self, reply: StreamedReply, emit: Emit) -> Result:
        """Forward events in order of arrival, until the answer comes."""
        async for data in sse.iter_event_data(reply.chunks(), limit=_EVENT_BYTES):
            event_object = decode_reply(data, dict[str, Any])
            body = event_object["params"] if isinstance(event_object.get("params"), dict) else event_object
            if "result" in event_object or "error" in event_object or "output" in body:
                return self._result_from_reply(event_object)
            if body.get("event") in EVENT_KINDS and isinstance(body.get("data"), dict):
                await emit(Event(body["event"], body["data"]))
        raise UpstreamInterrupted("The agent's stream ended before its answer")

    async def health(self) -> Status:
        """Most of these agents support only POST and say so, which counts as an answer."""
        uri, health = self._endpoint.uri, self._endpoint.health
        return await probe_agent(self._http, uri, None if health is None else urljoin(uri, health), self._headers)

    async def describe(self) -> Manifest:
        """The protocol has no description request, but an address in a directory shows the agent's entry."""
        reply = await get_quickly(self._http, self._endpoint.uri, self._headers)
        entry = decode_object_or_empty(reply.body) if is_success(reply.status) else {}
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
        return complete_manifest(self._manifest, published)

    async def aclose(self) -> None:
        await self._cancels.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> RPCRuntime:
    endpoint = decode_endpoint(manifest, RPCEndpoint)
    check_uri(manifest, endpoint.uri)
    return RPCRuntime(manifest, endpoint, context)


plugin = RuntimePlugin(build=build)
