"""The wire models of the REST door, and its content parts to core parts and back.

Requests are decoded into these structs, replies are made of them, and the OpenAPI document is generated from them:
the class names are the names of its schemas. A part of an unknown type is kept as it came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.core.agent import LINE_PATTERN
from a2a_fabric.core.call import is_base64
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.message import EXTENSION_KEY, make_extension_part
from a2a_fabric.core.result import PART_KINDS
from a2a_fabric.core.result import Part as CorePart

Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE_PATTERN)]
PartyType = Literal["client", "agent"]
TaskStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
Timestamp = Annotated[str, Meta(description="ISO 8601, in UTC.", examples=["2025-05-25T14:25:00Z"])]
Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[Name | None, Meta(description="`nextCursor` of the page before.")]
After = Annotated[
    Annotated[int, Meta(ge=0, lt=10**15)] | None, Meta(description="Begin after this event, as Last-Event-ID does.")
]


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a message: the caller, an agent of the caller's, or a sender that the operator allows."""

    id: Name
    type: PartyType = "client"


class Recipient(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver. An agent is called with the message; a client finds it in its inbox."""

    id: Name
    type: PartyType = "agent"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`type` is text, image, audio, video, file, json, function_call, function_result, or one of your own with a
    prefix (`mycompany.custom_type`), which is kept and passed on. Media are base64 or a URL.
    """

    type: Annotated[Name, Meta(examples=["text", "image", "json", "mycompany.custom_type"])]
    content: Any
    metadata: dict[str, Any] = {}
    mime_type: Annotated[str | None, Meta(description="May also stand in `metadata`.")] = None
    name: Annotated[str | None, Meta(description="May also stand in `metadata`.")] = None


class ShownPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    content: Any
    metadata: dict[str, Any] = {}


Parts = Annotated[tuple[Part, ...], Meta(min_length=1, max_length=1000)]
MessageMetadata = Annotated[
    dict[str, Any],
    Meta(
        description="Anything; passed on. Some keys say something to the gateway: conversation_id, in_reply_to, "
        "capability (of the agent), ttl_seconds, timeout_ms, priority."
    ),
]


class NewAgentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the agent of this path."""

    parts: Parts
    id: Annotated[Name | None, Meta(description="Your own; sent twice it is the same message.")] = None
    timestamp: str | None = None
    sender: Sender | None = None
    recipient: Recipient | None = None
    metadata: MessageMetadata = {}


class NewMessage(NewAgentMessage, frozen=True, kw_only=True):
    recipient: Recipient


class MessageDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a message that the gateway reads."""

    conversation_id: Name | None = None
    in_reply_to: Name | None = None
    capability: Name | None = None
    ttl_seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    timeout_ms: Annotated[int, Meta(ge=1, lt=10**12)] | None = None
    priority: Literal["low", "normal", "high", "urgent"] = "normal"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(examples=["msg_123456789"])]
    timestamp: Timestamp
    sender: Sender
    recipient: Recipient | None
    parts: tuple[ShownPart, ...]
    metadata: Annotated[dict[str, Any], Meta(description="With conversation_id; of a message to an agent, delivery.")]


class Messages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    messages: tuple[Message, ...]
    next_cursor: str | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message from the caller's inbox. It is delivered again unless `entry` is acknowledged in time."""

    entry: int
    attempt: int
    message: Message


class Inbox(msgspec.Struct, frozen=True, kw_only=True):
    deliveries: tuple[Delivery, ...]


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    entries: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**62)], ...], Meta(max_length=1000)]


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    text: Annotated[str, Meta(min_length=1, max_length=1_000_000, description="The request, in plain words.")]
    conversation_id: Annotated[
        Name | None, Meta(description="Requests with the same id are one conversation: a switch holds in it.")
    ] = None


class AskRequest(RouteRequest, frozen=True, kw_only=True, rename="camel"):
    input: Annotated[dict[str, Any], Meta(description="Arguments and background, as JSON.")] = {}
    timeout_ms: Annotated[int, Meta(ge=1, lt=10**12)] | None = None


class RouteCandidate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str
    capability: str | None
    score: int
    why: Sequence[str]


class RequestPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a request for several agents."""

    id: str
    text: str
    agent_id: str
    capability: str | None
    reason: str
    depends_on: Sequence[str] = ()


class RouteReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`agentId` is null if no agent fits; then the candidates are the nearest agents."""

    agent_id: str | None
    capability: str | None
    reason: str
    candidates: tuple[RouteCandidate, ...]
    parts: tuple[RequestPart, ...] = ()


class AskReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who answered, why, and the answer. With `taskId` the work goes on as a task."""

    agent_id: str | None
    capability: str | None
    reason: str
    conversation_id: str | None
    task_id: str | None
    parts: tuple[ShownPart, ...]
    output: dict[str, Any]


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    type: Annotated[str, Meta(examples=["api_key"])]


class AgentCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    description: str
    version: str
    capabilities: tuple[str, ...]
    endpoint: Annotated[str, Meta(description="Of this node: messages go to `{endpoint}/messages`.")]
    auth: Auth
    metadata: dict[str, Any] = {}


class AgentCards(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agents: tuple[AgentCard, ...]
    next_cursor: str | None = None


class NewTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Work for an agent that runs in the background."""

    agent_id: Name
    input: Annotated[dict[str, Any], Meta(description="The arguments; words as `task`, files as `attachments`.")] = {}
    parts: Annotated[tuple[Part, ...], Meta(max_length=1000)] = ()
    id: Annotated[Name | None, Meta(description="Your own; sent twice it is the same task.")] = None
    capability: Annotated[Name | None, Meta(description="Unset: chosen by the words; `metadata` says which.")] = None
    conversation_id: Name | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, lt=10**12)] | None = None
    ttl_seconds: Annotated[
        Annotated[float, Meta(gt=0, lt=1e10)] | None, Meta(description="If not begun by then it fails.")
    ] = None
    priority: Literal["low", "normal", "high", "urgent"] = "normal"
    metadata: dict[str, Any] = {}


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    code: Annotated[str, Meta(examples=["TIMEOUT"])]
    message: str
    details: dict[str, Any] = {}


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    id: Annotated[str, Meta(examples=["task_123456789"])]
    agent_id: str
    status: TaskStatus
    input: dict[str, Any]
    created_at: Timestamp
    updated_at: Timestamp
    output: Annotated[dict[str, Any] | UnsetType, Meta(description="Of a completed task.")] = UNSET
    parts: Annotated[tuple[ShownPart, ...], Meta(description="What JSON alone cannot hold of the output.")] = ()
    error: TaskError | None = None
    metadata: dict[str, Any] = {}


class TaskState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    id: str
    status: TaskStatus
    updated_at: Timestamp
    error: TaskError | None = None
    metadata: dict[str, Any] = {}


class Tasks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    tasks: tuple[Task, ...]
    next_cursor: str | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to the agent's questions in `metadata.input_required`, each under the key of its question."""

    answers: Annotated[dict[str, Any], Meta(min_length=1)]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    code: Annotated[str, Meta(examples=["INVALID_REQUEST"])]
    message: str
    details: Annotated[dict[str, Any], Meta(examples=[{"field": "location", "issue": "required"}])]


class Error(msgspec.Struct, frozen=True, kw_only=True):
    error: Fault


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = 100
    cursor: Cursor = None


class AgentsQuery(PageQuery, frozen=True, kw_only=True):
    limit: Limit = 1000
    capability: Name | None = None
    tag: Name | None = None


class TasksQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    limit: Annotated[int, Meta(ge=1, le=100, description="How many at most.")] = 20
    cursor: Cursor = None
    status: TaskStatus | None = None
    agent_id: Name | None = None


class ReplyQuery(msgspec.Struct, frozen=True, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=300, description="Seconds to wait for it.")] = 0.0


class InboxQuery(ReplyQuery, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=100, description="How many at most.")] = 10
    hold: Annotated[float, Meta(ge=1, le=3600, description="Seconds until what is not acknowledged comes again.")] = (
        30.0
    )


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: After = None


SCHEMAS: Sequence[type[msgspec.Struct]] = (
    AgentCard, AgentCards, NewMessage, NewAgentMessage, Message, Messages, Inbox, Acknowledgement, NewTask, Task,
    TaskState, Tasks, Answers, Error,
)  # fmt: skip


_MEDIA_KINDS = frozenset({"image", "audio", "video", "file"})
_URL_PREFIXES = ("http://", "https://")
_MIME_KEYS = ("mimeType", "mime_type", "contentType", "content_type")
_NAME_KEYS = ("name", "filename", "fileName")
_ALIASES = {"data": "json"}  # the name in the client library of the platform


def parts_from_wire(parts: Iterable[Part]) -> tuple[CorePart, ...]:
    """Raises BadInput, which names the part."""
    return tuple([_part_from_wire(part, number) for number, part in enumerate(parts)])


def _part_from_wire(part: Part, number: int) -> CorePart:
    if part.type == "text" and not part.metadata and isinstance(part.content, str):
        return CorePart(kind="text", text=part.content, mime_type=part.mime_type, name=part.name)
    field_path = f"parts[{number}].content"
    kind = _ALIASES.get(part.type, part.type)
    if kind not in PART_KINDS:
        return make_extension_part(part.type, part.content, part.metadata)
    attributes: dict[str, Any] = {
        "mime_type": part.mime_type or _find_text(part.metadata, _MIME_KEYS),
        "name": part.name or _find_text(part.metadata, _NAME_KEYS),
        "meta": {key: value for key, value in part.metadata.items() if key != EXTENSION_KEY},
    }
    if kind == "text":
        return CorePart(kind="text", text=_require_text(part.content, field_path), **attributes)
    if kind in _MEDIA_KINDS:
        return _media_from_content(kind, part.content, field_path, attributes)
    if kind == "function_call" and not isinstance(part.content, dict):
        raise BadInput(
            f"{field_path} is not an object. A function call is one.", field=field_path, issue="not an object"
        )
    return CorePart(kind=kind, data=part.content, **attributes)  # type: ignore[arg-type]  # a known kind


def _media_from_content(kind: Any, content: Any, field_path: str, attributes: dict[str, Any]) -> CorePart:
    """Media are base64 or a URL. Some clients send them as an object with `data` or `url`."""
    if isinstance(content, dict):
        attributes["mime_type"] = attributes["mime_type"] or _find_text(content, _MIME_KEYS)
        attributes["name"] = attributes["name"] or _find_text(content, _NAME_KEYS)
        content = content.get("url") or content.get("data")
    text = _require_text(content, field_path)
    if text.startswith(_URL_PREFIXES):
        return CorePart(kind=kind, url=text, **attributes)
    if text.startswith("data:"):
        media, is_encoded, text = _split_data_url(text)
        attributes["mime_type"] = attributes["mime_type"] or media
        text = text if is_encoded else ""
    if not text or not is_base64(text):
        raise BadInput(f"{field_path} is neither base64 nor a URL", field=field_path, issue="neither base64 nor a URL")
    return CorePart(kind=kind, blob=text, **attributes)


def _split_data_url(text: str) -> tuple[str | None, bool, str]:
    head, _, body = text.removeprefix("data:").partition(",")
    media, _, encoding = head.rpartition(";")
    return media.partition(";")[0] or None, encoding == "base64", unquote_to_bytes(body).decode("ascii", "replace")


def _require_text(content: Any, field_path: str) -> str:
    if not isinstance(content, str):
        raise BadInput(f"{field_path} is not text", field=field_path, issue="not text")
    return content


def _find_text(fields: dict[str, Any], names: Iterable[str]) -> str | None:
    if not fields:
        return None
    return next((fields[name] for name in names if isinstance(fields.get(name), str)), None)


def parts_to_wire(parts: Iterable[CorePart]) -> tuple[ShownPart, ...]:
    return tuple(map(_part_to_wire, parts))


def _part_to_wire(part: CorePart) -> ShownPart:
    meta = dict(part.meta)
    if (extension_type := meta.pop(EXTENSION_KEY, None)) is not None:
        return ShownPart(type=str(extension_type), content=part.data, metadata=meta)
    if part.mime_type is not None and _find_text(meta, _MIME_KEYS) is None:
        meta["mimeType"] = part.mime_type
    if part.name is not None and _find_text(meta, _NAME_KEYS) is None:
        meta["name"] = part.name
    return ShownPart(type=part.kind, content=get_content(part), metadata=meta)


def get_content(part: CorePart) -> Any:
    for content in (part.url, part.blob, part.text):
        if content is not None:
            return content
    return part.data
