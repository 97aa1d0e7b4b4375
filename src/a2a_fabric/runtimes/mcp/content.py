"""Conversions between MCP and core types: tools to capabilities, replies to results, JSON-RPC errors to FabricErrors.

Replies are read from the JSON on the wire. The SDK's session and our own HTTP client share this
module, and fields that a newer protocol revision adds are ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Implementation,
    Tool,
)
from pydantic import ValidationError

from a2a_fabric.core.agent import Capability, Manifest, SideEffects
from a2a_fabric.core.call import result_from_parts
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
from a2a_fabric.core.json_text import decode_json_text, find_problem_of_texts
from a2a_fabric.core.result import Event, Part, Result, progress, status, to_json_object
from a2a_fabric.protocols.mcp.apps import drop_own_keys
from a2a_fabric.protocols.mcp.content import (
    McpContentBlock,
    collect_block_meta,
    mark_owner,
    original_from_meta,
    part_from_block,
)
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.protocols.mcp.wire import decode_or_none

_NAME_LENGTH = 256
_PROTOCOL_PREFIX = "io.modelcontextprotocol/"  # of keys in `_meta` that concern one connection
_MAX_ERROR_TEXT = 2000  # characters of a server's error text
_MAX_TOOL_META = 64 * 1024  # bytes of the `_meta` of a tool; longer ones are left out
_MAX_CACHED_META = 1024  # bytes of the `_meta` of a reply
_MAX_LOG_DATA = 16 * 1024  # characters of the data of a log message; of longer data only the beginning is kept, as text
_UNKNOWN_TOOL = re.compile(r"\b(unknown|no such|not found|does not exist|not exist)\b", re.IGNORECASE)

TransportProblem = Literal["busy", "offline", "interrupted", "gone", "failed", "refused"]


class UpstreamRpcError(msgspec.Struct, frozen=True):
    """The `error` of a JSON-RPC reply."""

    code: int
    message: str = ""
    data: Any = None

    @property
    def transport_problem(self) -> TransportProblem | None:
        return self.data.get(TROUBLE_KEY) if isinstance(self.data, dict) else None


class ToolReply(msgspec.Struct, frozen=True, rename="camel"):
    """The `result` of a `tools/call`."""

    content: tuple[McpContentBlock, ...] = ()
    structured_content: Any = msgspec.UNSET
    is_error: bool = False
    result_type: str = "complete"
    input_requests: dict[str, Any] | None = None
    request_state: str | None = None
    task_id: str | None = None  # of the task that the server made of the call
    meta: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="_meta")


_decode_tool_reply = msgspec.json.Decoder(ToolReply).decode


def read_plain_reply(result: msgspec.Raw) -> ToolReply | None:
    """A complete reply that consists of text, as most do. None for any other, which the SDK's types have to check."""
    try:
        reply = _decode_tool_reply(result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_plain = (
        bool(reply.content) and reply.result_type == "complete" and _is_object_or_absent(reply.structured_content)
    )
    return reply if is_plain and all(map(_is_plain_text, reply.content)) else None


def _is_plain_text(block: McpContentBlock) -> bool:
    return block.type == "text" and block.text is not None and block.annotations is None


def _is_object_or_absent(value: Any) -> bool:
    return value is msgspec.UNSET or value is None or isinstance(value, dict)


def capabilities_from_tools(tools: Sequence[Tool]) -> tuple[Capability, ...]:
    """Every tool as a capability. Any tool may report progress, so all of them stream."""
    return tuple(_capability_from_tool(tool) for tool in tools if 0 < len(tool.name) <= _NAME_LENGTH)


def _capability_from_tool(tool: Tool) -> Capability:
    title = tool.title or (tool.annotations and tool.annotations.title) or ""
    return Capability(
        name=tool.name,
        title=title[:256],
        description=tool.description or title,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        streaming=True,
        idempotent=_is_idempotent(tool),
        side_effects=_read_side_effects(tool),
        metadata=tool.meta if tool.meta and len(msgspec.json.encode(tool.meta)) <= _MAX_TOOL_META else {},
    )


def _is_idempotent(tool: Tool) -> bool | None:
    """The server's hint. Without one it is unknown; the specification's default is not assumed."""
    hints = tool.annotations
    if hints is None:
        return None
    return True if hints.read_only_hint else hints.idempotent_hint


def _read_side_effects(tool: Tool) -> SideEffects | None:
    """The server's hint. One about destruction has a meaning only for tools that write."""
    hints = tool.annotations
    if hints is None or (hints.read_only_hint is None and hints.destructive_hint is None):
        return None
    return "reads" if hints.read_only_hint else "writes"


def manifest_from_server(
    declared: Manifest, tools: Sequence[Tool], info: Implementation | None, instructions: str | None
) -> Manifest:
    """The server's description of itself, as a manifest."""
    description = (info and info.description) or (instructions or "").strip().partition("\n\n")[0]
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=capabilities_from_tools(tools),
        display_name=(info and (info.title or info.name)) or "",
        description=description[:1000],
        version=(info and info.version) or "",
    )


def result_from_tool_reply(reply: ToolReply, agent_id: str) -> Result:
    """Structured content is the answer; without it, the text is. Everything else becomes parts."""
    structured, content, raw_meta = reply.structured_content, reply.content, bytes(reply.meta)
    if structured is msgspec.UNSET or structured is None:
        result = result_from_parts(_read_parts(content, agent_id))
    elif _repeats_structured_content(content, structured):
        result = Result(data=to_json_object(structured))
    else:
        result = Result(data=to_json_object(structured), parts=_read_parts(content, agent_id))
    if not raw_meta or (len(raw_meta) <= _MAX_CACHED_META and _has_no_meta_for_callers(raw_meta)):
        return result
    meta = _read_meta_for_callers(raw_meta)
    return msgspec.structs.replace(result, original=original_from_meta(meta)) if meta else result


def _read_meta_for_callers(raw_meta: bytes) -> dict[str, Any]:
    """The `_meta` of a reply without what concerns the connection, or would pass for the node's own."""
    meta = drop_own_keys(decode_or_none(raw_meta, dict[str, Any]))
    return {key: value for key, value in meta.items() if not key.startswith(_PROTOCOL_PREFIX)}


@lru_cache(maxsize=1024)
def _has_no_meta_for_callers(raw_meta: bytes) -> bool:
    """Cached, because most servers send the same description of themselves with every reply."""
    return not _read_meta_for_callers(raw_meta)


def _read_parts(content: Sequence[McpContentBlock], agent_id: str) -> tuple[Part, ...]:
    """Raises UpstreamRefused."""
    if len(content) > 1 and (problem := find_problem_of_texts([each.text or "" for each in content if each.meta])):
        raise UpstreamRefused(problem, agent_id=agent_id)
    return tuple(mark_owner(part_from_block(block), agent_id) for block in content)


def _repeats_structured_content(content: Sequence[McpContentBlock], structured: Any) -> bool:
    """Servers repeat structured content as JSON text, for older clients."""
    if len(content) != 1:
        return not content
    block = content[0]
    if block.type != "text" or collect_block_meta(block):
        return False
    try:
        return bool(decode_json_text(block.text or "") == structured)
    except (msgspec.DecodeError, RecursionError):
        return False


def error_from_tool_reply(reply: ToolReply, agent_id: str, tool: str, tool_names: Iterable[str]) -> FabricError:
    """The error that the tool itself reported."""
    text = "\n".join(block.text for block in reply.content if block.text)[:_MAX_ERROR_TEXT]
    if _names_unknown_tool(text, tool):
        return CapabilityNotFound(agent_id, tool, tool_names)
    details = to_json_object(reply.structured_content) if reply.structured_content is not msgspec.UNSET else None
    return UpstreamRefused(text or f"The tool '{tool}' failed and gave no reason", structured=details or None)


def error_from_rpc_error(error: UpstreamRpcError, agent_id: str, tool: str, tool_names: Iterable[str]) -> FabricError:
    """A JSON-RPC error as a FabricError."""
    text = error.message[:_MAX_ERROR_TEXT] or f"JSON-RPC error {error.code}"
    match error.transport_problem:
        case "busy":
            return AgentBusy(text, status=error.data.get("status"), retry_after=error.data.get("retry_after"))
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
    if error.code == PARSE_ERROR:  # one side could not read the other
        return UpstreamFailed(text, upstream_code=error.code)
    if error.code == METHOD_NOT_FOUND or (error.code == INVALID_PARAMS and _names_unknown_tool(text, tool)):
        return CapabilityNotFound(agent_id, tool, tool_names)
    if error.code == INVALID_PARAMS:
        return BadInput(text, upstream_code=error.code)
    return UpstreamRefused(text, upstream_code=error.code, data=error.data)


def _names_unknown_tool(text: str, tool: str) -> bool:
    """Servers report an unknown tool by the text of an error only: `Unknown tool: dance`."""
    return len(text) < len(tool) + 60 and tool in text and "tool" in text.lower() and bool(_UNKNOWN_TOOL.search(text))


class ProgressFilter:
    """The progress of one call as events: it never goes back and never passes its total, whatever the server sends."""

    def __init__(self) -> None:
        self._done = float("-inf")
        self._message: str | None = None

    def make_event(self, done: float, total: float | None, message: str | None) -> Event | None:
        """None for a report that says nothing new."""
        bounded = min(done, total) if total is not None else done
        if not math.isfinite(bounded) or (bounded <= self._done and (not message or message == self._message)):
            return None
        self._done, self._message = max(bounded, self._done), message
        return make_progress_event(self._done, None if total is None else max(total, self._done), message)


def make_progress_event(done: float, total: float | None, message: str | None) -> Event:
    """An event with percent, if the total is known, and the server's own numbers."""
    event = progress(100 * done / total if total else 0.0, message)
    if not total:
        event.data.pop("percent")
    event.data.update({"progress": done} if total is None else {"progress": done, "total": total})
    return event


def make_log_event(level: str, data: Any, logger: str | None) -> Event:
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    extra: dict[str, Any] = {"level": level, "logger": logger} if logger else {"level": level}
    if not isinstance(data, str) and len(text) <= _MAX_LOG_DATA:
        extra["data"] = data
    return status("running", text[:_MAX_ERROR_TEXT], **extra)


def event_from_notification(method: str, params: dict[str, Any], progress_filter: ProgressFilter) -> Event | None:
    """A progress or log notification as an event; None for other notifications."""
    if method == "notifications/progress" and isinstance(done := params.get("progress"), int | float):
        total, message = params.get("total"), params.get("message")
        known_total = float(total) if isinstance(total, int | float) else None
        return progress_filter.make_event(float(done), known_total, message if isinstance(message, str) else None)
    return event_from_log(params) if method == "notifications/message" else None


def event_from_log(params: dict[str, Any]) -> Event:
    """The parameters of a log notification as an event."""
    logger = params.get("logger")
    return make_log_event(str(params.get("level", "info")), params.get("data"), str(logger) if logger else None)


def summarize_validation_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"[:300]
