"""Runtime: an agent on a platform that takes tasks and messages by REST.

A call is a task: created, followed by its events where the platform offers them, else polled,
and deleted when the caller leaves. A platform without tasks gets a message instead, and
its conversation is polled for the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import UNSET, Meta

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    ATTACHMENTS,
    Call,
    CallerEmitter,
    Emit,
    Input,
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
    UpstreamRefused,
    error_from_agent,
)
from a2a_fabric.core.message import EXTENSION_KEY, make_extension_part
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import (
    EVENT_KINDS,
    PART_KINDS,
    Event,
    Part,
    Question,
    Result,
    make_input_required,
    to_json_object,
)
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import HTTPReply, OutboundError, StreamedReply
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.prompt import result_from_messages
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, POLL_TIMEOUT, BackgroundCancels, poll_until
from a2a_fabric.runtimes.upstream import (
    PROBE_TIMEOUT,
    JSONAPIClient,
    check_probe_status,
    check_uri,
    decode_object_or_empty,
    decode_reply,
    error_from_outbound,
    is_success,
)

RUNNING_STATES = frozenset({"pending", "running", "submitted", "working", "queued", "in_progress"})
_MEDIA_KINDS = frozenset({"image", "audio", "video", "file"})
_LINK_PREFIXES = ("http://", "https://")
_MAX_ERROR_TEXT = 500
_CODES = {"INVALID_REQUEST": "BAD_INPUT"}


class RestTask(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a task that are used here; all others are ignored."""

    id: str | int
    status: str | dict[str, Any]
    output: Any = None
    result: Any = None
    error: Any = None
    parts: Any = None
    metadata: Any = None

    @property
    def state(self) -> str:
        """The state as text; some platforms send an object."""
        status = self.status.get("state", "") if isinstance(self.status, dict) else self.status
        return str(status).lower()

    @property
    def input_required(self) -> dict[str, Any] | None:
        details = self.metadata.get("input_required") if isinstance(self.metadata, dict) else None
        return details if isinstance(details, dict) and self.is_running else None

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING_STATES

    @property
    def is_done_or_asking(self) -> bool:
        """Whether waiting is over: the task has ended, or it asks a question."""
        return not self.is_running or self.input_required is not None


class RestAgentCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    name: str = ""
    description: str = ""
    version: str = ""
    capabilities: tuple[Any, ...] = ()
    metadata: dict[str, Any] = {}


def build_input(capability: Capability | None, call_input: Input) -> dict[str, Any]:
    """The task's text and arguments as one object, and its attachments as parts."""
    has_schema = capability is not None and capability.input_schema is not None
    if has_schema or call_input.arguments is not msgspec.UNSET:
        return {key: value for key, value in bind_arguments(capability, call_input).items() if key != ATTACHMENTS}
    return {**({"task": call_input.task} if call_input.task else {}), **call_input.context}


def build_message_parts(capability: Capability | None, call_input: Input) -> list[dict[str, Any]]:
    """The same as a message: text, then arguments, then attachments."""
    arguments = build_input(capability, call_input)
    text = arguments.pop("task", None) if isinstance(arguments.get("task"), str) else None
    parts = [{"type": "text", "content": text}] if text else []
    if arguments:
        parts.append({"type": "json", "content": arguments})
    return [*parts, *to_wire_parts(parts_from_input(call_input))] or [{"type": "text", "content": ""}]


def to_wire_parts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [_to_wire_part(part) for part in parts]


def _to_wire_part(part: Part) -> dict[str, Any]:
    meta = dict(part.meta)
    kind = str(meta.pop(EXTENSION_KEY, part.kind))
    if part.mime_type is not None:
        meta.setdefault("mimeType", part.mime_type)
    if part.name is not None:
        meta.setdefault("name", part.name)
    candidates = (part.url, part.blob, part.text)
    content = next((each for each in candidates if each is not None), part.data)
    return {"type": kind, "content": content, **({"metadata": meta} if meta else {})}


def parts_from_wire(value: Any) -> tuple[Part, ...]:
    """Raises UpstreamFailed if it is not a list of parts."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) and "type" in each for each in value):
        raise UpstreamFailed("The agent's answer holds invalid parts")
    return tuple(map(_part_from_wire, value))


def _part_from_wire(value: dict[str, Any]) -> Part:
    kind, content = str(value["type"]), value.get("content")
    meta = value.get("metadata")
    meta = dict(meta) if isinstance(meta, dict) else {}
    if kind == "data":
        kind = "json"
    if kind not in PART_KINDS:
        return make_extension_part(kind, content, meta)
    mime_type = value.get("mimeType") or meta.pop("mimeType", None) or meta.pop("mime_type", None)
    name = value.get("name") or meta.pop("name", None)
    attributes: dict[str, Any] = {"mime_type": _text_or_none(mime_type), "name": _text_or_none(name), "meta": meta}
    if kind in ("text", *_MEDIA_KINDS) and isinstance(content, str):
        content_field = "text" if kind == "text" else "url" if content.startswith(_LINK_PREFIXES) else "blob"
        return Part(kind=kind, **{content_field: content}, **attributes)  # type: ignore[arg-type]  # one of ours
    return Part(kind="json" if kind in ("text", *_MEDIA_KINDS) else kind, data=content, **attributes)  # type: ignore[arg-type]


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def result_from_task(task: RestTask) -> Result:
    """Raises FabricError if the task has not succeeded."""
    if task.input_required is not None:
        return _build_question_result(task)
    if task.state != "completed":
        raise error_from_state(task.error, task.state[:32], "task")
    output = task.output if task.output is not None else task.result
    parts = parts_from_wire(task.parts)
    notes = task.metadata.get("notes", ()) if isinstance(task.metadata, dict) else ()
    note_texts = tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ()
    if output is None and parts:
        answer = result_from_messages(parts)
        return msgspec.structs.replace(answer, notes=note_texts)
    return Result(data=to_json_object(output), parts=parts, notes=note_texts)


def result_from_message(message: dict[str, Any]) -> Result:
    """The result from the agent's message."""
    return result_from_messages(parts_from_wire(message.get("parts")))


def _build_question_result(task: RestTask) -> Result:
    input_required = task.input_required or {}
    try:
        questions = msgspec.convert(input_required.get("questions"), dict[str, Question])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed("The agent asks for input, but its questions cannot be read") from exc
    return make_input_required(questions, str(task.id))


def error_from_state(error: Any, state: str, subject: str) -> FabricError:
    """The error for a task or a delivery that ended in this state."""
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        details = error.get("details")
        code = _CODES.get(error["code"]) or str(error["code"])
        return error_from_agent(code, _read_error_text(error), details if isinstance(details, dict) else None)
    message = _read_error_text(error) if error else f"The agent's {subject} ended as '{state}'"
    return UpstreamRefused(message, status=state)


def _read_error_text(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:_MAX_ERROR_TEXT]


def find_replies(messages: Sequence[Any], sent_id: str, agent: str) -> list[dict[str, Any]]:
    """The agent's replies to that message: those that refer to it, or that come after it."""
    objects = [each for each in messages if isinstance(each, dict)]
    ids = [each.get("id") for each in objects]
    after = objects[ids.index(sent_id) + 1 :] if sent_id in ids else objects
    direct_replies = [each for each in after if _read_in_reply_to(each) == sent_id]
    return direct_replies or [
        each for each in after if _read_in_reply_to(each) is None and _read_sender_id(each) == agent
    ]


def _read_in_reply_to(message: dict[str, Any]) -> Any:
    metadata = message.get("metadata")
    return metadata.get("in_reply_to") if isinstance(metadata, dict) else None


def _read_sender_id(message: dict[str, Any]) -> Any:
    sender = message.get("sender")
    return sender.get("id") if isinstance(sender, dict) else None


_TIMEOUT_SLACK = 5.0  # seconds; a call's own deadline comes first
_EVENT_BYTES = 16 * 1024 * 1024
_UNLIMITED = 1 << 62  # bytes of a stream, which is not buffered
_EVENT_STREAM = "text/event-stream"
_AGENTS_PATH = "/agents/"
_STATUS: dict[str, Status] = {"online": "online", "degraded": "degraded", "offline": "offline"}


class RestEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uri` is the API's address with the version, or the address on the agent's card."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    agent: str | None = None  # the agent's id on the platform; unset: the last part of the uri, or its id here
    transport: str = "http"
    headers: dict[str, str] = {}
    token: str | None = None  # sent as `Authorization: Bearer`
    mode: Literal["auto", "tasks", "messages"] = "auto"


class _TasksUnsupported(Exception):
    """The platform supports messages only."""


class RestRuntime:
    def __init__(self, manifest: Manifest, endpoint: RestEndpoint, context: RuntimeContext) -> None:
        base, agent = _split_uri(endpoint.uri)
        auth_headers = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        self._manifest = manifest
        self._agent = endpoint.agent or agent or manifest.agent_id
        self._api = JSONAPIClient(context.http, base, {**auth_headers, **endpoint.headers}, context.reply_bytes)
        self._mode = endpoint.mode
        self._cancels = BackgroundCancels(manifest.agent_id)
        self._reports_delivery = True

    async def __call__(self, call: Call, emit: Emit) -> Result:
        try:
            if self._mode == "messages":
                return await self._call_by_message(call)
            return await self._call_by_task(call, emit)
        except _TasksUnsupported:
            return await self._call_by_message(call)
        except FabricError as error:
            error.details.setdefault("upstream", self._api.upstream)
            raise

    async def _call_by_task(self, call: Call, emit: Emit) -> Result:
        """Raises _TasksUnsupported."""
        answers = call.answers
        chosen_id = f"task_{new_id().replace('-', '')}" if answers is UNSET else answers.continuation
        start_task = asyncio.ensure_future(self._start_task(chosen_id, call))
        listener = CallerEmitter(emit)
        try:
            task = await asyncio.shield(start_task)
            task_id = str(task.id)
            if not task.is_done_or_asking and call.response.stream:
                task = await self._follow_events(task, call, listener)
            if not task.is_done_or_asking:
                task = await poll_until(lambda: self._fetch_task(task_id, call), lambda seen: seen.is_done_or_asking)
        except BaseException as error:
            if listener.is_caller_gone or not isinstance(
                error, FabricError | _TasksUnsupported
            ):  # no caller waits for it any more
                self._cancels.start(self._withdraw(start_task, chosen_id, call))
            raise
        return result_from_task(task)

    async def _withdraw(self, start_task: asyncio.Future[RestTask], chosen_id: str, call: Call) -> None:
        """Cancel the task. If it is still being created, wait for its id first: platforms may choose another id."""
        try:
            task_id = str((await start_task).id)
        except (FabricError, _TasksUnsupported):
            task_id = chosen_id  # the task may exist nevertheless
        await self._delete(task_id, call)

    async def _start_task(self, task_id: str, call: Call) -> RestTask:
        if call.answers is not UNSET:
            answers_body = {"answers": msgspec.to_builtins(call.answers.answers)}
            return self._task_from_reply(await self._post(f"{_task_path(task_id)}/answers", answers_body, call))
        call_input = call.input
        parts = to_wire_parts(parts_from_input(call_input))
        body: dict[str, Any] = {
            "id": task_id,
            "agentId": self._agent,
            "capability": call.target.capability,
            "input": build_input(self._manifest.find_capability(call.target.capability), call_input),
            "timeoutMs": call.target.timeout_ms,
            **({"parts": parts} if parts else {}),
            **({"conversationId": derive_conversation_id(call)} if call.conversation_id else {}),
        }
        reply = await self._post("/tasks", body, call)
        if self._mode == "auto" and _is_unknown_path(reply):
            raise _TasksUnsupported
        return self._task_from_reply(reply)

    async def _follow_events(self, task: RestTask, call: Call, emit: Emit) -> RestTask:
        """Forward the task's events, if the platform has any. Returns its latest state."""
        timeout = call.target.timeout_ms / 1000 + _TIMEOUT_SLACK
        headers = {**self._api.headers, "accept": _EVENT_STREAM, **make_propagation_headers(call)}
        address = f"{self._api.uri}{_task_path(str(task.id))}/events"
        try:
            async with self._api.http.stream(
                "GET", address, headers=headers, timeout=timeout, limit=_UNLIMITED
            ) as reply:
                if is_success(reply.status) and reply.headers.get("content-type", "").lower().startswith(_EVENT_STREAM):
                    return await self._read_events(reply, task, emit)
        except OutboundError:
            pass  # the task can still be polled
        return task

    async def _read_events(self, reply: StreamedReply, task: RestTask, emit: Emit) -> RestTask:
        """Forward events until the task's outcome or its questions arrive."""
        async for data in sse.iter_event_data(reply.chunks(), limit=_EVENT_BYTES):
            event_object = decode_reply(data, dict[str, Any])
            kind, body = event_object.get("event"), event_object.get("data")
            if kind == "input_required":
                return task  # the questions are in the task
            if kind in EVENT_KINDS and isinstance(body, dict):
                if kind != "status":  # this node emits its own status events
                    await emit(Event(kind, body))
            elif "status" in event_object and "id" in event_object:
                return decode_reply(data, RestTask)
        return task

    async def _call_by_message(self, call: Call) -> Result:
        capability = self._manifest.find_capability(call.target.capability)
        conversation_id = derive_conversation_id(call) or f"conv_{new_id().replace('-', '')}"
        metadata = {"conversation_id": conversation_id, "capability": call.target.capability}
        body = {
            "id": f"msg_{new_id().replace('-', '')}",
            "parts": build_message_parts(capability, call.input),
            "metadata": metadata,
        }
        reply = await self._post(f"{_AGENTS_PATH}{quote(self._agent, safe='')}/messages", body, call)
        message = decode_reply(self._require_success(reply), dict[str, Any])
        if _is_from(message, self._agent):
            return result_from_message(message)
        sent_id = str(message.get("id") or body["id"])
        replies = await poll_until(lambda: self._poll_replies(conversation_id, sent_id, call), bool)
        return result_from_message(replies[0])

    async def _poll_replies(self, conversation_id: str, sent_id: str, call: Call) -> list[dict[str, Any]]:
        """Raises FabricError if the platform says that the message did not reach the agent."""
        replies = await self._fetch_replies(conversation_id, sent_id, call)
        if not replies and self._reports_delivery:
            await self._check_delivery(sent_id, call)
        return replies

    async def _check_delivery(self, sent_id: str, call: Call) -> None:
        """Fabric nodes show the delivery state in the message; other platforms are not polled again for it."""
        path = f"/messages/{quote(sent_id, safe='')}"
        reply = await self._api.get(path, timeout=POLL_TIMEOUT, headers=make_propagation_headers(call))
        message_metadata = decode_object_or_empty(reply.body).get("metadata") if is_success(reply.status) else None
        delivery = message_metadata.get("delivery") if isinstance(message_metadata, dict) else None
        if not isinstance(delivery, dict):
            self._reports_delivery = False
        elif delivery.get("status") in ("failed", "cancelled"):
            raise error_from_state(delivery.get("error"), delivery["status"], "message")

    async def _fetch_replies(self, conversation_id: str, sent_id: str, call: Call) -> list[dict[str, Any]]:
        path = f"/conversations/{quote(conversation_id, safe='')}/messages?limit=1000"
        reply = await self._api.get(path, timeout=POLL_TIMEOUT, headers=make_propagation_headers(call))
        page = decode_reply(self._require_success(reply), Any)
        messages = page.get("messages", ()) if isinstance(page, dict) else page
        return find_replies(messages if isinstance(messages, list) else (), sent_id, self._agent)

    async def _fetch_task(self, task_id: str, call: Call) -> RestTask:
        return self._task_from_reply(
            await self._api.get(_task_path(task_id), timeout=POLL_TIMEOUT, headers=make_propagation_headers(call))
        )

    async def _delete(self, task_id: str, call: Call) -> None:
        address = self._api.uri + _task_path(task_id)
        headers = {**self._api.headers, **make_propagation_headers(call)}
        try:
            await self._api.http.request(
                "DELETE", address, headers=headers, timeout=CANCEL_TIMEOUT, limit=self._api.reply_bytes
            )
        except OutboundError as exc:
            raise error_from_outbound(exc, CANCEL_TIMEOUT, self._api.upstream) from exc

    async def _post(self, path: str, body: Any, call: Call) -> HTTPReply:
        timeout = call.target.timeout_ms / 1000 + _TIMEOUT_SLACK
        return await self._api.post(path, body, timeout=timeout, headers=make_propagation_headers(call))

    def _task_from_reply(self, reply: HTTPReply) -> RestTask:
        """The task in a reply; some platforms wrap it in an object."""
        body = self._require_success(reply)
        wrapped_task = decode_object_or_empty(body).get("task")
        return decode_reply(msgspec.json.encode(wrapped_task) if isinstance(wrapped_task, dict) else body, RestTask)

    def _require_success(self, reply: HTTPReply) -> bytes:
        """The body of a successful reply. Raises FabricError with the platform's message for any other."""
        if is_success(reply.status):
            return reply.body
        error = decode_object_or_empty(reply.body).get("error")
        error_object = error if isinstance(error, dict) else {"message": error or ""}
        message = str(error_object.get("message", ""))[:500]
        details = error_object.get("details")
        details = details if isinstance(details, dict) else {}
        if reply.status in (400, 422):
            field_details = {name: details[name] for name in ("field", "issue") if name in details}
            raise error_from_agent(BadInput.code, message or "The platform refused the request", field_details)
        raise self._api.build_error(reply.status, message)

    async def health(self) -> Status:
        """The agent's status, if the platform has one."""
        reply = await self._api.get(_AGENTS_PATH + quote(self._agent, safe=""), timeout=PROBE_TIMEOUT)
        if reply.status == 404:
            raise AgentOffline(f"The platform has no agent '{self._agent}'", upstream=self._api.upstream)
        check_probe_status(reply.status, self._api.upstream)
        metadata = decode_object_or_empty(reply.body).get("metadata")
        agent_status = metadata.get("status") if isinstance(metadata, dict) else None
        return _STATUS.get(str(agent_status), "online")

    async def describe(self) -> Manifest:
        """The manifest from the agent's card. The card does not say whether the agent streams, so that is tried."""
        reply = await self._api.get(_AGENTS_PATH + quote(self._agent, safe=""), timeout=PROBE_TIMEOUT)
        if not is_success(reply.status):
            return self._manifest
        card = decode_reply(reply.body, RestAgentCard)
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            display_name=card.name,
            description=card.description,
            version=card.version,
            capabilities=tuple(_capabilities_from_card(card)),
        )
        return complete_manifest(self._manifest, published)

    async def aclose(self) -> None:
        await self._cancels.aclose()


def _capabilities_from_card(card: RestAgentCard) -> list[Capability]:
    names = [each.get("name") if isinstance(each, dict) else each for each in card.capabilities]
    return [Capability(name=name, streaming=True) for name in names if isinstance(name, str) and 0 < len(name) <= 256]


def _split_uri(uri: str) -> tuple[str, str | None]:
    """The API's address, and the agent's id if the URI has one."""
    path = urlsplit(uri).path
    base, separator, agent = path.rpartition(_AGENTS_PATH)
    if not separator or "/" in agent.strip("/"):
        return uri, None
    return uri[: uri.index(path)] + base, unquote(agent.strip("/")) or None


def _task_path(task_id: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}"


def _is_unknown_path(reply: HTTPReply) -> bool:
    """Whether the path is unknown; a reply about an unknown agent or task has a body that says so."""
    if reply.status in (405, 501):
        return True
    return reply.status == 404 and not isinstance(decode_object_or_empty(reply.body).get("error"), dict)


def _is_from(message: dict[str, Any], agent: str) -> bool:
    sender = message.get("sender")
    return isinstance(sender, dict) and sender.get("id") == agent and sender.get("type") == "agent"


def build(manifest: Manifest, context: RuntimeContext) -> RestRuntime:
    endpoint = decode_endpoint(manifest, RestEndpoint)
    check_uri(manifest, endpoint.uri)
    return RestRuntime(manifest, endpoint, context)


plugin = RuntimePlugin(build=build)
