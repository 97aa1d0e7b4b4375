"""MCP's words turned into ours, and nothing else: tools into capabilities, replies into results, errors into errors.

Replies are read from the wire's own JSON, so both ways of asking (the SDK's session
and our own HTTP client) share this module, and what a newer revision adds is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Implementation,
    Tool,
)

from a2a_fabric.core.agent import Capability, Manifest, SideEffects
from a2a_fabric.core.content import KIND_KEY, kind_of, result_of_parts
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CapabilityNotFound,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.events import Event, progress, status
from a2a_fabric.core.part import PART_KINDS, Part, PartKind
from a2a_fabric.core.result import Result, as_object

_NAME_LENGTH = 256
_WORDS = 2000  # characters of a server's error text worth passing on
_UNKNOWN_TOOL = re.compile(r"\b(unknown|no such|not found|does not exist|not exist)\b", re.IGNORECASE)

# Set in the `data` of errors that our own transport makes, where no server was there to make one.
TROUBLE = "a2a-fabric/trouble"
Trouble = Literal["offline", "interrupted", "gone", "failed", "refused"]


class RPCError(msgspec.Struct, frozen=True):
    """The `error` of a JSON-RPC reply."""

    code: int
    message: str = ""
    data: Any = None

    @property
    def trouble(self) -> Trouble | None:
        return self.data.get(TROUBLE) if isinstance(self.data, dict) else None


class Content(msgspec.Struct, frozen=True, rename="camel"):
    """A content block of any type; each type uses some of the fields."""

    type: str
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None
    resource: dict[str, Any] | None = None
    uri: str | None = None
    name: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class ToolReply(msgspec.Struct, frozen=True, rename="camel"):
    """The `result` of a `tools/call`."""

    content: tuple[Content, ...] = ()
    structured_content: Any = msgspec.UNSET
    is_error: bool = False
    result_type: str = "complete"
    input_requests: dict[str, Any] | None = None
    request_state: str | None = None


def capabilities_of(tools: Sequence[Tool]) -> tuple[Capability, ...]:
    """Every tool as a capability. Any tool may report progress, so all of them stream."""
    return tuple(_capability(tool) for tool in tools if 0 < len(tool.name) <= _NAME_LENGTH)


def _capability(tool: Tool) -> Capability:
    return Capability(
        name=tool.name,
        description=tool.description or tool.title or (tool.annotations and tool.annotations.title) or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        streaming=True,
        idempotent=_idempotent(tool),
        side_effects=_side_effects(tool),
    )


def _idempotent(tool: Tool) -> bool | None:
    """Only what the server says; its silence is not the specification's default but ours."""
    hints = tool.annotations
    if hints is None:
        return None
    return True if hints.read_only_hint else hints.idempotent_hint


def _side_effects(tool: Tool) -> SideEffects | None:
    if tool.annotations is None or tool.annotations.read_only_hint is None:
        return None
    return "reads" if tool.annotations.read_only_hint else "writes"


def description_of(
    declared: Manifest, tools: Sequence[Tool], info: Implementation | None, instructions: str | None
) -> Manifest:
    """What the server says of itself, as a manifest."""
    described = (info and info.description) or (instructions or "").strip().partition("\n\n")[0]
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=capabilities_of(tools),
        display_name=(info and (info.title or info.name)) or "",
        description=described[:1000],
        version=(info and info.version) or "",
    )


def result_of(reply: ToolReply) -> Result:
    """Structured content is the answer; without it, the words are. Whatever that does not hold stays as parts."""
    structured = None if reply.structured_content is msgspec.UNSET else reply.structured_content
    if structured is None:
        return result_of_parts(tuple(map(_part, reply.content)))
    data = as_object(structured)
    if _says_the_same(reply.content, structured):
        return Result(data=data)
    return Result(data=data, parts=tuple(map(_part, reply.content)))


def _says_the_same(content: Sequence[Content], structured: Any) -> bool:
    """Servers repeat structured content as JSON text, for clients that know no better."""
    if len(content) != 1 or content[0].type != "text" or _meta(content[0]):
        return not content
    try:
        return bool(msgspec.json.decode(content[0].text or "") == structured)
    except msgspec.DecodeError:
        return False


_KINDS: dict[str, PartKind] = {"text": "text", "image": "image", "audio": "audio"}


def _part(block: Content) -> Part:
    meta = _meta(block)
    if block.type == "resource_link":
        linked = _told_kind(meta) or kind_of(block.mime_type)
        return Part(kind=linked, url=block.uri, name=block.name, mime_type=block.mime_type, meta=meta)
    if block.type == "resource" and block.resource is not None:
        return _embedded(block.resource, meta)
    if block.type == "text" and (kind := _told_kind(meta)) is not None:
        return _restored(block.text or "", kind, meta)
    if block.type in _KINDS:
        return Part(kind=_KINDS[block.type], text=block.text, blob=block.data, mime_type=block.mime_type, meta=meta)
    return Part(kind="json", data=msgspec.to_builtins(block), meta=meta)


def _told_kind(meta: dict[str, Any]) -> PartKind | None:
    """What the other side, if it is one of us, says that it is; taken out of `meta`."""
    theirs = meta.get("_meta")
    told = theirs.get(KIND_KEY) if isinstance(theirs, dict) else None
    if told not in PART_KINDS:
        return None
    rest = {name: value for name, value in meta.pop("_meta").items() if name != KIND_KEY}
    if rest:
        meta["_meta"] = rest
    return cast(PartKind, told)


def _restored(text: str, kind: PartKind, meta: dict[str, Any]) -> Part:
    """Content that MCP has no word for, and that came as JSON text."""
    try:
        return Part(kind=kind, data=msgspec.json.decode(text), meta=meta)
    except (msgspec.DecodeError, RecursionError):
        return Part(kind=kind, text=text, meta=meta)


def _embedded(resource: dict[str, Any], meta: dict[str, Any]) -> Part:
    """An embedded resource: its URI is a name, not a place to fetch it from, so it stands in `meta`."""
    uri, media = str(resource.get("uri", "")), resource.get("mimeType")
    if inner := resource.get("_meta"):
        meta["resource_meta"] = inner
    return Part(
        kind=_told_kind(meta) or ("video" if kind_of(media) == "video" else "file"),
        text=resource.get("text"),
        blob=resource.get("blob"),
        mime_type=media,
        name=uri.rstrip("/").rpartition("/")[2] or None,
        meta={"uri": uri, **meta},
    )


def _meta(block: Content) -> dict[str, Any]:
    if not (block.annotations or block.meta or block.title or block.description or block.size):
        return {}
    told = {
        "title": block.title,
        "description": block.description,
        "size": block.size,
        "annotations": block.annotations,
        "_meta": block.meta,
    }
    return {name: value for name, value in told.items() if value is not None}


def refusal_of(reply: ToolReply, agent_id: str, tool: str, offered: Iterable[str]) -> FabricError:
    """What the server says went wrong inside the tool."""
    words = "\n".join(block.text for block in reply.content if block.text)[:_WORDS]
    if _is_unknown(words, tool):
        return CapabilityNotFound(agent_id, tool, offered)
    details = as_object(reply.structured_content) if reply.structured_content is not msgspec.UNSET else None
    return UpstreamRefused(words or f"The tool '{tool}' failed without saying why", structured=details or None)


def failure_of(error: RPCError, agent_id: str, tool: str, offered: Iterable[str]) -> FabricError:
    """A JSON-RPC error as one of ours."""
    words = error.message[:_WORDS] or f"JSON-RPC error {error.code}"
    match error.trouble:
        case "offline":
            return AgentOffline(words)
        case "interrupted" | "gone":
            return UpstreamInterrupted(words)
        case "failed":
            return UpstreamFailed(words, status=error.data.get("status"))
        case "refused":
            return UpstreamRefused(words, status=error.data.get("status"))
    if error.code == CONNECTION_CLOSED:
        return UpstreamInterrupted(words)
    if error.code == PARSE_ERROR:  # one side could not read the other: nobody has answered
        return UpstreamFailed(words, upstream_code=error.code)
    if error.code == METHOD_NOT_FOUND or (error.code == INVALID_PARAMS and _is_unknown(words, tool)):
        return CapabilityNotFound(agent_id, tool, offered)
    if error.code == INVALID_PARAMS:
        return BadInput(words, upstream_code=error.code)
    return UpstreamRefused(words, upstream_code=error.code, data=error.data)


def _is_unknown(words: str, tool: str) -> bool:
    """Servers tell an unknown tool from bad arguments in words only: `Unknown tool: dance`."""
    return (
        len(words) < len(tool) + 60 and tool in words and "tool" in words.lower() and bool(_UNKNOWN_TOOL.search(words))
    )


def progress_event(done: float, total: float | None, message: str | None) -> Event:
    """Percent where a total is known; the server's own numbers stay beside it."""
    event = progress(100 * done / total if total else 0.0, message)
    if not total:
        event.data.pop("percent")
    event.data.update({"progress": done} if total is None else {"progress": done, "total": total})
    return event


def log_event(level: str, data: Any, logger: str | None) -> Event:
    words = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    more = {"level": level, "logger": logger} if logger else {"level": level}
    return status("running", words[:_WORDS], **more)


def event_of(method: str, params: dict[str, Any]) -> Event | None:
    """A notification of the server as an event, if it is one that callers hear of."""
    if method == "notifications/progress" and isinstance(done := params.get("progress"), int | float):
        total, message = params.get("total"), params.get("message")
        known = float(total) if isinstance(total, int | float) else None
        return progress_event(float(done), known, message if isinstance(message, str) else None)
    if method == "notifications/message":
        logger = params.get("logger")
        return log_event(str(params.get("level", "info")), params.get("data"), str(logger) if logger else None)
    return None
