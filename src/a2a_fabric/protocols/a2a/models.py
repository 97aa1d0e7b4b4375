"""The objects of A2A (parts, states, messages, tasks, updates, push configurations), independent of their dialect.

There are three dialects: 1.0, 0.3, and the JSON form of the 0.3 protos. This module also reads and writes the two
smallest objects in each of them; `decode` and `render` do so with the others. A property that a dialect has no field
for is carried in a part's `metadata`: the name and media type of text in 0.3, and in every dialect the mark that a part
is a function call or its result."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Literal, TypeGuard, cast, get_args

import msgspec

from a2a_fabric.core.call import part_kind_from_mime_type
from a2a_fabric.core.job import JobState, translate_state
from a2a_fabric.core.result import OriginalMessage, Part, PartKind

Dialect = Literal["1.0", "0.3", "0.3 proto"]

KIND = "kind"
_ADK_KIND = "adk_type"  # as agents of Google's ADK call it
_WRAPPED_MARK = "data_part_compat"  # the SDK's own mark for a value that was wrapped in an object for 0.3
_MAX_EXACT_FLOAT = 2.0**53  # a larger float may differ from the integer that it came from
_FUNCTION_KINDS: dict[Any, PartKind] = {
    "function_call": "function_call",
    "function_result": "function_result",
    "function_response": "function_result",
}


class WirePart(msgspec.Struct, rename="camel"):
    """A part of any dialect; every field may hold anything."""

    text: Any = None
    raw: Any = None
    url: Any = None
    data: Any = msgspec.UNSET
    file: Any = None
    filename: Any = None
    media_type: Any = None
    name: Any = None
    mime_type: Any = None
    metadata: Any = None


def parse_parts(wire_parts: Iterable[WirePart], dialect: Dialect) -> tuple[Part, ...]:
    """Parts of an unknown kind are left out."""
    return tuple(part for each in wire_parts if (part := parse_part(each, dialect)) is not None)


def parse_part(part: WirePart, dialect: Dialect, *, exact: bool = False) -> Part | None:
    """None for an unknown kind, which a later version may have. `exact`: numbers stay as they were written."""
    meta = dict(part.metadata) if isinstance(part.metadata, dict) else {}
    if isinstance(part.file, dict):
        return _parse_file(part.file, meta, dialect)
    name = _text_or_none(part.filename or part.name or meta.pop("name", None))
    media_type = _text_or_none(part.media_type or part.mime_type or meta.pop("mimeType", None))
    if isinstance(part.text, str):
        return Part(kind="file" if name else "text", text=part.text, mime_type=media_type, name=name, meta=meta)
    if isinstance(part.raw, str):
        return Part(
            kind=part_kind_from_mime_type(media_type),
            blob=_standard_base64(part.raw),
            mime_type=media_type,
            name=name,
            meta=meta,
        )
    if isinstance(part.url, str):
        return Part(kind=part_kind_from_mime_type(media_type), url=part.url, mime_type=media_type, name=name, meta=meta)
    if part.data is msgspec.UNSET:
        return None
    kind = _FUNCTION_KINDS.get(meta.pop(KIND, None)) or _FUNCTION_KINDS.get(meta.get(_ADK_KIND)) or "json"
    data = _unwrap_data(part.data, meta, dialect, exact=exact)
    return Part(kind=kind, data=data, mime_type=media_type, name=name, meta=meta)


def _parse_file(file: dict[str, Any], meta: dict[str, Any], dialect: Dialect) -> Part | None:
    media_type, name = _text_or_none(file.get("mimeType") or file.get("mime_type")), _text_or_none(file.get("name"))
    url = file.get("uri") or file.get("fileWithUri") or file.get("file_with_uri")
    if isinstance(url, str):
        return Part(kind=part_kind_from_mime_type(media_type), url=url, mime_type=media_type, name=name, meta=meta)
    blob = file.get("bytes") or file.get("fileWithBytes") or file.get("file_with_bytes")
    if not isinstance(blob, str):
        return None
    blob = _undo_double_base64(blob) if dialect == "0.3 proto" else _standard_base64(blob)
    return Part(kind=part_kind_from_mime_type(media_type), blob=blob, mime_type=media_type, name=name, meta=meta)


def _unwrap_data(data: Any, meta: dict[str, Any], dialect: Dialect, *, exact: bool) -> Any:
    if dialect == "0.3 proto" and isinstance(data, dict) and data.keys() == {"data"}:
        data = data["data"]
    if meta.pop(_WRAPPED_MARK, False) and isinstance(data, dict):
        data = data.get("value")
    return data if exact else restore_integers(data)


def restore_integers(value: Any) -> Any:
    """Protos have no integers in free data, so that most agents send a 7 back as 7.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT else value
    if isinstance(value, dict):
        return {key: restore_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [restore_integers(inner) for inner in value]
    return value


def _standard_base64(blob: str) -> str:
    """Some agents write URL-safe base64, or leave the padding out."""
    plain = blob.replace("-", "+").replace("_", "/").rstrip("=")
    return plain + "=" * (-len(plain) % 4)


def _undo_double_base64(blob: str) -> str:
    """The SDK of 0.3 puts base64 into a bytes field, which JSON encodes as base64 again; other SDKs do not."""
    try:
        inner = base64.b64decode(_standard_base64(blob))
        base64.b64decode(inner, validate=True)
    except (binascii.Error, ValueError):
        return _standard_base64(blob)
    return inner.decode("ascii")


def render_part(part: Part, dialect: Dialect) -> dict[str, Any]:
    """The part in this dialect. Every dialect can carry every part."""
    meta = dict(part.meta)
    if part.kind in ("function_call", "function_result") and _FUNCTION_KINDS.get(meta.get(_ADK_KIND)) != part.kind:
        meta[KIND] = part.kind
    wire_part = _render_v1(part, meta) if dialect == "1.0" else _render_v03(part, meta, dialect)
    return {**wire_part, "metadata": meta} if meta else wire_part


def _render_v1(part: Part, meta: dict[str, Any]) -> dict[str, Any]:
    wire_part: dict[str, Any]
    if part.text is not None:
        wire_part = {"text": part.text}
    elif part.blob is not None:
        wire_part = {"raw": part.blob}
    elif part.url is not None:
        wire_part = {"url": part.url}
    else:
        wire_part = {"data": part.data}
    if part.name:
        wire_part["filename"] = part.name
    if part.mime_type:
        wire_part["mediaType"] = part.mime_type
    return wire_part


def _render_v03(part: Part, meta: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if part.url is not None or part.blob is not None or (part.text is not None and part.kind != "text"):
        return _render_v03_file(part, dialect)
    labels = {"name": part.name, "mimeType": part.mime_type}
    meta.update({key: value for key, value in labels.items() if value})
    if part.text is not None:
        return {"kind": "text", "text": part.text} if dialect == "0.3" else {"text": part.text}
    data = part.data
    if not isinstance(data, dict):
        data = {"value": data}
        meta[_WRAPPED_MARK] = True
    return {"kind": "data", "data": data} if dialect == "0.3" else {"data": {"data": data}}


def _render_v03_file(part: Part, dialect: Dialect) -> dict[str, Any]:
    file = {key: value for key, value in (("name", part.name), ("mimeType", part.mime_type)) if value}
    if part.url is not None:
        file["uri" if dialect == "0.3" else "fileWithUri"] = part.url
    else:
        blob = part.blob if part.blob is not None else base64.b64encode((part.text or "").encode()).decode()
        if dialect == "0.3":
            file["bytes"] = blob
        else:
            file["fileWithBytes"] = base64.b64encode(blob.encode()).decode()  # encoded twice, as the SDK of 0.3 expects
    return {"kind": "file", "file": file} if dialect == "0.3" else {"file": file}


def _text_or_none(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None


A2ATaskState = Literal[
    "submitted",
    "working",
    "completed",
    "failed",
    "canceled",
    "rejected",
    "input-required",
    "auth-required",
    "unknown",
]
RUNNING_TASK_STATES: frozenset[A2ATaskState] = frozenset({"submitted", "working"})
FINAL_TASK_STATES: frozenset[A2ATaskState] = frozenset({"completed", "failed", "canceled", "rejected"})
INTERRUPTED_TASK_STATES: frozenset[A2ATaskState] = frozenset({"input-required", "auth-required"})

_STATES: dict[str, A2ATaskState] = {state.replace("-", ""): state for state in get_args(A2ATaskState)} | {
    "cancelled": "canceled"
}


def task_state_from_job(state: JobState) -> A2ATaskState:
    return cast(A2ATaskState, translate_state(state, "a2a_0_3"))


def parse_state(value: Any) -> A2ATaskState:
    """Accepts `working`, `TASK_STATE_WORKING` and `Working` alike; a state of a later version is `unknown`."""
    folded = str(value or "").lower().removeprefix("task_state_").replace("_", "").replace("-", "")
    return _STATES.get(folded, "unknown")


def render_state(state: A2ATaskState, dialect: Dialect) -> str:
    if dialect == "0.3":
        return state
    if state == "canceled" and dialect == "0.3 proto":
        return "TASK_STATE_CANCELLED"
    return f"TASK_STATE_{state.upper().replace('-', '_')}"


A2AVersion = Literal["1.0", "0.3"]
A2ABinding = Literal["jsonrpc", "http", "grpc"]


class A2AMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`raw` is the message as its sender wrote it, in `dialect`; it keeps the fields that are not read here."""

    id: str
    role: Literal["user", "agent"] = "agent"
    parts: tuple[Part, ...] = ()
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()
    raw: dict[str, Any] | None = None
    dialect: Dialect = "1.0"


class A2ATaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: A2ATaskState
    at: float = 0.0  # of the tasks that we serve; the timestamps of other agents are not read
    message: A2AMessage | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.message.parts if self.message is not None else ()


class A2AArtifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    parts: tuple[Part, ...] = ()
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] = {}
    extensions: tuple[str, ...] = ()


class A2ATask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: A2ATaskStatus
    context_id: str = ""
    artifacts: tuple[A2AArtifact, ...] | None = ()  # None: left out of the reply
    history: tuple[A2AMessage, ...] = ()
    metadata: dict[str, Any] = {}

    @property
    def task_id(self) -> str:
        """The id, under the name that it has in messages and updates."""
        return self.id

    @property
    def last_agent_message(self) -> A2AMessage | None:
        """The last message of the agent in the history."""
        return next((message for message in reversed(self.history) if message.role == "agent"), None)


class TaskStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    status: A2ATaskStatus
    context_id: str = ""
    metadata: dict[str, Any] = {}
    is_last: bool = False  # a field of 0.3; in 1.0 the state tells


class TaskArtifactUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, or, with `append`, the next piece of one."""

    task_id: str
    artifact: A2AArtifact
    context_id: str = ""
    append: bool = False
    last_chunk: bool = False


A2AUpdate = A2ATask | A2AMessage | TaskStatusUpdate | TaskArtifactUpdate


ORIGINAL_PROTOCOL = "a2a"  # of an OriginalMessage
AGENT_STATUS_KEY = "agent_status"  # in a status event: the update of the agent's own task, not of the node's job


def is_a2a(original: OriginalMessage | msgspec.UnsetType) -> TypeGuard[OriginalMessage]:
    return original is not msgspec.UNSET and original.protocol == ORIGINAL_PROTOCOL


class CallersMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What an A2A runtime gets of a message that came through the A2A door.

    The ids of task and context are left out, because the agent behind does not know them.
    """

    message: dict[str, Any]
    dialect: Dialect = "1.0"
    metadata: dict[str, Any] = {}  # of the request
    extensions: tuple[str, ...] = ()  # of the request's header
    output_modes: tuple[str, ...] = ()
    names_skill: bool = True  # false: the message names none and goes to the agent as it is


class AgentsReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the A2A door gets of the reply to such a message: the agent's own message or task.

    Parts that the result holds are not repeated here: `part_counts` says how many of them each artifact has.
    """

    message: A2AMessage | None = None
    task: A2ATask | None = None
    part_counts: tuple[int, ...] = ()


class A2AStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, and its number in the task's event log if it has one."""

    update: A2AUpdate
    number: int | None = None


class A2APushConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent sends notifications of a task's changes, and how it authenticates there."""

    id: str
    url: str
    task_id: str = ""
    token: str = ""
    scheme: str = ""
    credentials: str = ""


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the sender of a message wants to be answered, and the metadata of its request."""

    output_modes: tuple[str, ...] = ()
    blocking: bool = True
    push: A2APushConfig | None = None
    metadata: dict[str, Any] = {}
