"""Runtime: an agent that serves `proto/agent.proto` over gRPC, in any language.

    {agent_id: adder, runtime: grpc, endpoint: {uri: "grpc://127.0.0.1:50051"}}

The deadline of the RPC is the call's, cancelling the call cancels the RPC, and the
trace is sent as metadata."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    Input,
    Principal,
    bind_arguments,
    derive_conversation_id,
    make_propagation_headers,
    parts_from_input,
)
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    error_from_agent,
)
from a2a_fabric.core.forwarding import IDENTITY_HEADER, CallSigner
from a2a_fabric.core.json_text import LONG, find_number_problem, find_problem_of_texts
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.result import (
    EVENT_KINDS,
    Answers,
    Event,
    Part,
    Question,
    Result,
    make_input_required,
    to_json_object,
)
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.grpc.channel import (
    GRPCConnection,
    GRPCEndpoint,
    error_from_rpc,
    is_unimplemented,
    is_unreachable,
    read_address,
)
from a2a_fabric.runtimes.proto import messages
from a2a_fabric.runtimes.proto.messages import DescribeRequest, HealthRequest, Outcome, StreamItem
from a2a_fabric.runtimes.remote_work import OutputLimit

T = TypeVar("T")
_MALFORMED = (msgspec.DecodeError, RecursionError)
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
_AUTH = ("principal_id", "agent_passport_id", "signature", "key_id", "delegate_id", "mandate_id", "cog_id")


def request_from_call(call: Call, arguments: dict[str, Any]) -> messages.CallRequest:
    """Raises BadInput for values that protobuf or JSON cannot hold."""
    try:
        return messages.CallRequest(
            trace=messages.Trace(
                trace_id=call.trace.trace_id,
                span_id=call.trace.span_id,
                parent_span_id=call.trace.parent_span_id or "",
            ),
            auth=_to_auth(call.auth),
            target=messages.Target(
                agent_id=call.target.agent_id, capability=call.target.capability, timeout_ms=call.target.timeout_ms
            ),
            input=_to_input(call.input, arguments),
            response=messages.ResponseForm(stream=call.response.stream, format=call.response.format),
            answers=_to_answers(call.answers) if call.answers else None,
            conversation_id=derive_conversation_id(call) or "",
            delegation_chain=call.delegation_chain or (),
            on_behalf_of=_to_auth(call.on_behalf_of) if call.on_behalf_of else None,
        )
    except _UNENCODABLE as exc:
        raise BadInput(f"The call cannot be sent by gRPC: {exc}"[:300]) from exc


def _to_auth(principal: Principal) -> messages.Auth:
    auth = messages.Auth(mode=principal.mode, trust=principal.trust, **{n: getattr(principal, n) for n in _AUTH})
    for name in ("cap", "scp"):
        if (scopes := getattr(principal, name)) is not None:
            getattr(auth, name).CopyFrom(messages.Scopes(names=scopes))
    return auth


def _to_input(call_input: Input, arguments: dict[str, Any]) -> messages.Input:
    return messages.Input(
        arguments_json=_encode_json(arguments),
        task=call_input.task,
        context_json=_encode_json(call_input.context),
        attachments=[_to_part(part) for part in parts_from_input(call_input)],
    )


def _to_part(part: Part) -> messages.Part:
    message = messages.Part(kind=part.kind, mime_type=part.mime_type, name=part.name)
    if part.meta:
        message.meta_json = _encode_json(part.meta)
    if part.text is not None:
        message.text = part.text
    elif part.url is not None:
        message.url = part.url
    elif part.blob is not None:
        message.blob = base64.b64decode(part.blob, validate=True)
    else:
        message.data_json = _encode_json(part.data)
    return message


def _to_answers(answers: Answers) -> messages.Answers:
    by_key = {
        key: messages.Answer(action=each.action, content_json=_encode_json(each.content))
        for key, each in answers.answers.items()
    }
    return messages.Answers(continuation=answers.continuation, answers=by_key)


def result_from_outcome(outcome: messages.Outcome) -> Result:
    """Raises the agent's error, or UpstreamFailed for an outcome that cannot be read."""
    match outcome.WhichOneof("outcome"):
        case "result":
            reply = outcome.result
            _check_texts([text for part in reply.parts for text in (part.data_json, part.meta_json)])
            data = to_json_object(_decode_json(reply.data_json, Any, "the result")) if reply.data_json else {}
            return Result(
                data=data, parts=tuple(_part_from_message(part) for part in reply.parts), notes=tuple(reply.notes)
            )
        case "error":
            raise _error_from_message(outcome.error)
        case "input_required":
            asked = outcome.input_required.questions.values()
            _check_texts([text for each in asked for text in (each.schema_json, each.params_json)])
            questions = {key: _question_from_message(each) for key, each in outcome.input_required.questions.items()}
            return make_input_required(questions, outcome.input_required.continuation)
    raise UpstreamFailed("The agent answered with neither a result nor an error")


def _error_from_message(error: messages.Error) -> FabricError:
    details = (
        _decode_json(error.details_json, dict[str, Any], "the details of its error") if error.details_json else None
    )
    return error_from_agent(error.code, error.message[:1000] or "The agent reported an error", details)


def _part_from_message(part: messages.Part) -> Part:
    content: dict[str, Any] = {}
    match part.WhichOneof("content"):
        case "text":
            content["text"] = part.text
        case "url":
            content["url"] = part.url
        case "blob":
            content["blob"] = base64.b64encode(part.blob).decode("ascii")
        case "data_json":
            content["data"] = _decode_json(part.data_json, Any, "a part")
        case _:
            content["text"] = ""
    meta = _decode_json(part.meta_json, dict[str, Any], "a part") if part.meta_json else {}
    mime_type = part.mime_type if part.HasField("mime_type") else None
    name = part.name if part.HasField("name") else None
    return _convert({"kind": part.kind, **content, "mime_type": mime_type, "name": name, "meta": meta}, Part, "a part")


def _question_from_message(message: messages.Question) -> Question:
    schema = _decode_json(message.schema_json, dict[str, Any], "a question") if message.schema_json else None
    params = _decode_json(message.params_json, dict[str, Any], "a question") if message.params_json else {}
    fields = {"kind": message.kind or "form", "message": message.message, "schema": schema, "params": params}
    return _convert(fields, Question, "a question")


def event_from_message(event: messages.Event) -> Event | None:
    """None for an unknown kind and for questions, which are part of the outcome."""
    if event.kind not in EVENT_KINDS or event.kind == "input_required":
        return None
    data = _decode_json(event.data_json, dict[str, Any], "an event") if event.data_json else {}
    return Event(event.kind, data)  # type: ignore[arg-type]  # checked against EVENT_KINDS


def manifest_from_description(description: messages.Description, manifest: Manifest) -> Manifest:
    """The manifest, completed by the agent's own description."""
    return Manifest(
        agent_id=manifest.agent_id,
        endpoint=manifest.endpoint,
        display_name=description.display_name,
        description=description.description,
        version=description.version,
        tags=tuple(description.tags),
        capabilities=tuple(_capability_from_message(each) for each in description.capabilities),
    )


def _capability_from_message(message: messages.Capability) -> Capability:
    fields: dict[str, Any] = {
        "name": message.name,
        "description": message.description,
        "streaming": message.streaming,
        "idempotent": message.idempotent if message.HasField("idempotent") else None,
        "max_timeout_ms": message.max_timeout_ms if message.HasField("max_timeout_ms") else None,
    }
    for name, text in (("input_schema", message.input_schema_json), ("output_schema", message.output_schema_json)):
        fields[name] = _decode_json(text, dict[str, Any], "a schema") if text else None
    if message.modalities:
        fields["modalities"] = list(message.modalities)
    return _convert(fields, Capability, f"capability '{message.name[:128]}'")


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _check_texts(texts: list[str]) -> None:
    """Raises UpstreamFailed."""
    if problem := find_problem_of_texts(texts):
        raise UpstreamFailed(f"The agent sent an answer that cannot be read: {problem}")


def _decode_json(text: str, kind: Any, subject: str) -> Any:
    """Raises UpstreamFailed."""
    if len(text) > LONG and (problem := find_number_problem(text.encode())):
        raise UpstreamFailed(f"The agent sent {subject} that cannot be read: {problem}")
    try:
        return msgspec.json.decode(text, type=kind)
    except _MALFORMED as exc:
        raise UpstreamFailed(f"The agent sent {subject} that cannot be read: {exc}"[:300]) from exc


def _convert(fields: dict[str, Any], kind: type[T], subject: str) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as exc:
        raise UpstreamFailed(f"The agent sent {subject} that cannot be read: {exc}"[:300]) from exc


_PROBE_TIMEOUT = 5.0
_ROUNDING = 0.002  # seconds; the library rounds a deadline up, and an agent never has more time than its caller
_STATUS: dict[str, Status] = {"online": "online", "degraded": "degraded", "offline": "offline"}


class GRPCRuntime:
    def __init__(
        self,
        manifest: Manifest,
        connection: GRPCConnection,
        upstream: str,
        reply_bytes: int,
        signer: CallSigner | None = None,
    ) -> None:
        self._signer = signer
        self._manifest = manifest
        self._connection = connection
        self._upstream = upstream
        self._reply_bytes = reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        arguments = bind_arguments(self._manifest.find_capability(call.target.capability), call.input)
        request, timeout = request_from_call(call, arguments), call.target.timeout_ms / 1000
        ends_at = time.monotonic() + timeout
        with self._translate_errors(timeout):
            stub = await self._connection.get_stub(timeout)
            options: dict[str, Any] = {
                "timeout": max(0.001, ends_at - time.monotonic() - _ROUNDING),
                "metadata": (*make_propagation_headers(call).items(), *self._connection.metadata),
            }
            if self._signer is not None:
                identity = self._signer.sign_content(call, request.input.arguments_json.encode())
                options["metadata"] = (*options["metadata"], (IDENTITY_HEADER, identity))
            if call.response.stream:
                return result_from_outcome(await self._read_stream(stub.stream(request, **options), emit))
            return result_from_outcome(await stub.call(request, **options))

    async def _read_stream(self, rpc: Any, emit: Emit) -> Outcome:
        output_limit = OutputLimit(self._reply_bytes)
        try:
            while (message := await rpc.read()) is not grpc.aio.EOF:
                item: StreamItem = message
                if item.HasField("outcome"):
                    return item.outcome
                event = event_from_message(item.event)
                if event is not None:
                    await emit(output_limit.check(event))
        finally:
            rpc.cancel()  # no effect if the RPC has ended
        raise UpstreamInterrupted("The agent's stream ended before its outcome")

    async def health(self) -> Status:
        with self._translate_errors(_PROBE_TIMEOUT):
            stub = await self._connection.get_stub(_PROBE_TIMEOUT)
            try:
                reply = await stub.health(HealthRequest(), timeout=_PROBE_TIMEOUT, metadata=self._connection.metadata)
            except grpc.aio.AioRpcError as exc:
                if is_unimplemented(exc):
                    return "online"  # the agent has no health method, but it answers
                raise
        return _STATUS.get(reply.status, "online")

    async def describe(self) -> Manifest:
        """The manifest with the agent's description; unchanged if the agent has none."""
        with self._translate_errors(_PROBE_TIMEOUT):
            stub = await self._connection.get_stub(_PROBE_TIMEOUT)
            try:
                description = await stub.describe(
                    DescribeRequest(), timeout=_PROBE_TIMEOUT, metadata=self._connection.metadata
                )
            except grpc.aio.AioRpcError as exc:
                if is_unimplemented(exc):
                    return self._manifest
                raise
            self._manifest = complete_manifest(self._manifest, manifest_from_description(description, self._manifest))
        return self._manifest

    async def aclose(self) -> None:
        await self._connection.aclose()

    @contextmanager
    def _translate_errors(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except FabricError as error:
            error.details.setdefault("upstream", self._upstream)
            raise
        except grpc.aio.AioRpcError as exc:
            if is_unreachable(exc):
                self._connection.mark_doubtful()
            raise error_from_rpc(exc, timeout, self._upstream) from exc
        except grpc.aio.UsageError as exc:
            raise AgentOffline(f"The connection is closed: {exc}", upstream=self._upstream) from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise UpstreamInterrupted("The connection was shut down", upstream=self._upstream) from exc


def build(manifest: Manifest, context: RuntimeContext) -> GRPCRuntime:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, GRPCEndpoint)
    address = read_address(manifest, endpoint)
    connection = GRPCConnection(address, endpoint, context.guard, context.base, context.reply_bytes)
    return GRPCRuntime(manifest, connection, address.authority, context.reply_bytes, context.signer)


plugin = RuntimePlugin(build=build)
