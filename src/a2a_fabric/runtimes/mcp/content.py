"""Conversions between MCP and core types: tools to capabilities, replies to results, JSON-RPC errors to FabricErrors.

Replies are read from the JSON on the wire. The SDK's session and our own HTTP client share this
module, and fields that a newer protocol revision adds are ignored."""

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
from a2a_fabric.core.content import KIND_KEY, part_kind_from_mime_type, result_from_parts
from a2a_fabric.core.errors import (
    AgentBusy,
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
from a2a_fabric.core.result import Result, to_json_object

_NAME_LENGTH = 256
_MAX_ERROR_TEXT = 2000  # characters of a server's error text worth passing on
_UNKNOWN_TOOL = re.compile(r"\b(unknown|no such|not found|does not exist|not exist)\b", re.IGNORECASE)

# Set in the `data` of errors that our own transport makes, where no server was there to make one.
TRANSPORT_PROBLEM_KEY = "a2a-fabric/trouble"
TransportProblem = Literal["busy", "offline", "interrupted", "gone", "failed", "refused"]


class UpstreamRpcError(msgspec.Struct, frozen=True):
    """The `error` of a JSON-RPC reply."""

    code: int
    message: str = ""
    data: Any = None

    @property
    def transport_problem(self) -> TransportProblem | None:
        return self.data.get(TRANSPORT_PROBLEM_KEY) if isinstance(self.data, dict) else None


class McpContentBlock(msgspec.Struct, frozen=True, rename="camel"):
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

    content: tuple[McpContentBlock, ...] = ()
    structured_content: Any = msgspec.UNSET
    is_error: bool = False
    result_type: str = "complete"
    input_requests: dict[str, Any] | None = None
    request_state: str | None = None


def capabilities_from_tools(tools: Sequence[Tool]) -> tuple[Capability, ...]:
    """Every tool as a capability. Any tool may report progress, so all of them stream."""
    return tuple(_capability_from_tool(tool) for tool in tools if 0 < len(tool.name) <= _NAME_LENGTH)


def _capability_from_tool(tool: Tool) -> Capability:
    return Capability(
        name=tool.name,
        description=tool.description or tool.title or (tool.annotations and tool.annotations.title) or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        streaming=True,
        idempotent=_is_idempotent(tool),
        side_effects=_read_side_effects(tool),
    )


def _is_idempotent(tool: Tool) -> bool | None:
    """Only what the server says; its silence is not the specification's default but ours."""
    hints = tool.annotations
    if hints is None:
        return None
    return True if hints.read_only_hint else hints.idempotent_hint


def _read_side_effects(tool: Tool) -> SideEffects | None:
    if tool.annotations is None or tool.annotations.read_only_hint is None:
        return None
    return "reads" if tool.annotations.read_only_hint else "writes"


def manifest_from_server(
    declared: Manifest, tools: Sequence[Tool], info: Implementation | None, instructions: str | None
) -> Manifest:
    """What the server says of itself, as a manifest."""
    description = (info and info.description) or (instructions or "").strip().partition("\n\n")[0]
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=capabilities_from_tools(tools),
        display_name=(info and (info.title or info.name)) or "",
        description=description[:1000],
        version=(info and info.version) or "",
    )


def result_from_tool_reply(reply: ToolReply) -> Result:
    """Structured content is the answer; without it, the words are. Whatever that does not hold stays as parts."""
    structured = None if reply.structured_content is msgspec.UNSET else reply.structured_content
    if structured is None:
        return result_from_parts(tuple(map(_part_from_block, reply.content)))
    data = to_json_object(structured)
    if _repeats_structured_content(reply.content, structured):
        return Result(data=data)
    return Result(data=data, parts=tuple(map(_part_from_block, reply.content)))


def _repeats_structured_content(content: Sequence[McpContentBlock], structured: Any) -> bool:
    """Servers repeat structured content as JSON text, for clients that know no better."""
    if len(content) != 1 or content[0].type != "text" or _collect_meta(content[0]):
        return not content
    try:
        return bool(msgspec.json.decode(content[0].text or "") == structured)
    except msgspec.DecodeError:
        return False


_KINDS: dict[str, PartKind] = {"text": "text", "image": "image", "audio": "audio"}


def _part_from_block(block: McpContentBlock) -> Part:
    meta = _collect_meta(block)
    if block.type == "resource_link":
        link_kind = _pop_part_kind(meta) or part_kind_from_mime_type(block.mime_type)
        return Part(kind=link_kind, url=block.uri, name=block.name, mime_type=block.mime_type, meta=meta)
    if block.type == "resource" and block.resource is not None:
        return _part_from_resource(block.resource, meta)
    if block.type == "text" and (kind := _pop_part_kind(meta)) is not None:
        return _part_from_json_text(block.text or "", kind, meta)
    if block.type in _KINDS:
        return Part(kind=_KINDS[block.type], text=block.text, blob=block.data, mime_type=block.mime_type, meta=meta)
    return Part(kind="json", data=msgspec.to_builtins(block), meta=meta)


def _pop_part_kind(meta: dict[str, Any]) -> PartKind | None:
    """What the other side, if it is one of us, says that it is; taken out of `meta`."""
    block_meta = meta.get("_meta")
    part_kind = block_meta.get(KIND_KEY) if isinstance(block_meta, dict) else None
    if part_kind not in PART_KINDS:
        return None
    remaining = {name: value for name, value in meta.pop("_meta").items() if name != KIND_KEY}
    if remaining:
        meta["_meta"] = remaining
    return cast(PartKind, part_kind)


def _part_from_json_text(text: str, kind: PartKind, meta: dict[str, Any]) -> Part:
    """Content that MCP has no word for, and that came as JSON text."""
    try:
        return Part(kind=kind, data=msgspec.json.decode(text), meta=meta)
    except (msgspec.DecodeError, RecursionError):
        return Part(kind=kind, text=text, meta=meta)


def _part_from_resource(resource: dict[str, Any], meta: dict[str, Any]) -> Part:
    """An embedded resource: its URI is a name, not a place to fetch it from, so it stands in `meta`."""
    uri, media_type = str(resource.get("uri", "")), resource.get("mimeType")
    if resource_meta := resource.get("_meta"):
        meta["resource_meta"] = resource_meta
    return Part(
        kind=_pop_part_kind(meta) or ("video" if part_kind_from_mime_type(media_type) == "video" else "file"),
        text=resource.get("text"),
        blob=resource.get("blob"),
        mime_type=media_type,
        name=uri.rstrip("/").rpartition("/")[2] or None,
        meta={"uri": uri, **meta},
    )


def _collect_meta(block: McpContentBlock) -> dict[str, Any]:
    if not (block.annotations or block.meta or block.title or block.description or block.size):
        return {}
    meta_fields = {
        "title": block.title,
        "description": block.description,
        "size": block.size,
        "annotations": block.annotations,
        "_meta": block.meta,
    }
    return {name: value for name, value in meta_fields.items() if value is not None}


def error_from_tool_reply(reply: ToolReply, agent_id: str, tool: str, tool_names: Iterable[str]) -> FabricError:
    """What the server says went wrong inside the tool."""
    text = "\n".join(block.text for block in reply.content if block.text)[:_MAX_ERROR_TEXT]
    if _names_unknown_tool(text, tool):
        return CapabilityNotFound(agent_id, tool, tool_names)
    details = to_json_object(reply.structured_content) if reply.structured_content is not msgspec.UNSET else None
    return UpstreamRefused(text or f"The tool '{tool}' failed without saying why", structured=details or None)


def error_from_rpc_error(error: UpstreamRpcError, agent_id: str, tool: str, tool_names: Iterable[str]) -> FabricError:
    """A JSON-RPC error as one of ours."""
    text = error.message[:_MAX_ERROR_TEXT] or f"JSON-RPC error {error.code}"
    match error.transport_problem:
        case "busy":
            return AgentBusy(text, status=error.data.get("status"))
        case "offline":
            return AgentOffline(text)
        case "interrupted" | "gone":
            return UpstreamInterrupted(text)
        case "failed":
            return UpstreamFailed(text, status=error.data.get("status"))
        case "refused":
            return UpstreamRefused(text, status=error.data.get("status"))
    if error.code == CONNECTION_CLOSED:
        return UpstreamInterrupted(text)
    if error.code == PARSE_ERROR:  # one side could not read the other: nobody has answered
        return UpstreamFailed(text, upstream_code=error.code)
    if error.code == METHOD_NOT_FOUND or (error.code == INVALID_PARAMS and _names_unknown_tool(text, tool)):
        return CapabilityNotFound(agent_id, tool, tool_names)
    if error.code == INVALID_PARAMS:
        return BadInput(text, upstream_code=error.code)
    return UpstreamRefused(text, upstream_code=error.code, data=error.data)


def _names_unknown_tool(text: str, tool: str) -> bool:
    """Servers tell an unknown tool from bad arguments in words only: `Unknown tool: dance`."""
    return len(text) < len(tool) + 60 and tool in text and "tool" in text.lower() and bool(_UNKNOWN_TOOL.search(text))


def make_progress_event(done: float, total: float | None, message: str | None) -> Event:
    """Percent where a total is known; the server's own numbers stay beside it."""
    event = progress(100 * done / total if total else 0.0, message)
    if not total:
        event.data.pop("percent")
    event.data.update({"progress": done} if total is None else {"progress": done, "total": total})
    return event


def make_log_event(level: str, data: Any, logger: str | None) -> Event:
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    extra = {"level": level, "logger": logger} if logger else {"level": level}
    return status("running", text[:_MAX_ERROR_TEXT], **extra)


def event_from_notification(method: str, params: dict[str, Any]) -> Event | None:
    """A notification of the server as an event, if it is one that callers hear of."""
    if method == "notifications/progress" and isinstance(done := params.get("progress"), int | float):
        total, message = params.get("total"), params.get("message")
        known_total = float(total) if isinstance(total, int | float) else None
        return make_progress_event(float(done), known_total, message if isinstance(message, str) else None)
    if method == "notifications/message":
        logger = params.get("logger")
        return make_log_event(str(params.get("level", "info")), params.get("data"), str(logger) if logger else None)
    return None
