"""One call as a command line and as what the program reads on its stdin. The task never stands on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part
from a2a_fabric.runtimes.claude.endpoint import ClaudeEndpoint
from a2a_fabric.runtimes.claude.folder import INSTRUCTIONS, MCP_CONFIG
from a2a_fabric.runtimes.offered_node import OfferedNode

_ARGUMENT_BYTES = 100_000  # Linux takes 128 KiB in one
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENT = "application/pdf"
_IN_STREAM = ("--input-format", "stream-json")

Way = Literal["new", "resume"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a call wants from the program, besides the task."""

    stream: bool = False
    schema: dict[str, Any] | None = None
    session: tuple[Way, str] | None = None  # None: nothing is kept


def arguments_of(endpoint: ClaudeEndpoint, folder: Path, asked: Asked, node: OfferedNode | None) -> list[str]:
    """All but the program itself. Raises BadInput for a schema that is too long."""
    return [
        "--print",
        *("--output-format", "stream-json", "--verbose"),
        *(["--include-partial-messages"] if asked.stream else []),
        *_session(asked.session),
        *_instructions(endpoint, folder),
        *_servers(endpoint, folder, node),
        *(["--json-schema", _schema(asked.schema)] if asked.schema is not None else []),
        *(["--model", endpoint.model] if endpoint.model else []),
        *(["--permission-mode", endpoint.permission_mode] if endpoint.permission_mode else []),
        *(["--allowedTools", *endpoint.allowed_tools] if endpoint.allowed_tools else []),
        *(["--disallowedTools", *endpoint.disallowed_tools] if endpoint.disallowed_tools else []),
        *endpoint.arguments,
    ]


def _session(session: tuple[Way, str] | None) -> list[str]:
    if session is None:
        return ["--no-session-persistence"]
    way, id_ = session
    return ["--resume" if way == "resume" else "--session-id", id_]


def _instructions(endpoint: ClaudeEndpoint, folder: Path) -> Iterator[str]:
    """CLAUDE.md by its name, for it may be longer than an argument; and once, though the program finds it too."""
    file = folder / INSTRUCTIONS
    if endpoint.system_prompt == "none" or not file.is_file():
        return
    yield "--append-system-prompt-file" if endpoint.system_prompt == "append" else "--system-prompt-file"
    yield str(file)
    if "--settings" not in endpoint.arguments:
        yield "--settings"
        yield msgspec.json.encode({"claudeMdExcludes": [str(file)]}).decode()


def _servers(endpoint: ClaudeEndpoint, folder: Path, node: OfferedNode | None) -> list[str]:
    given = folder / (endpoint.mcp_config or MCP_CONFIG)
    configs = [str(given)] if endpoint.mcp_config is not None or given.is_file() else []
    if node is not None:
        server = {"type": "stdio", "command": node.command, "args": node.args, "env": node.env}
        configs.append(msgspec.json.encode({"mcpServers": {node.name: server}}).decode())
    return [*(["--mcp-config", *configs] if configs else []), *(["--strict-mcp-config"] if endpoint.strict_mcp else [])]


def _schema(schema: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(schema).decode()
    if len(text) > _ARGUMENT_BYTES:
        raise BadInput(f"The capability's output schema is longer than {_ARGUMENT_BYTES} bytes")
    return text


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the program reads, which option says how, and what could not be said."""

    stdin: bytes
    options: tuple[str, ...] = ()
    left: tuple[Part, ...] = ()


def message_of(words: str, parts: Sequence[Part], *, may_command: bool) -> Message:
    """Words alone are read as they are; anything that comes with them makes it a message of blocks."""
    if words.startswith("/") and not may_command:
        words = f" {words}"  # the program takes a slash for one of its commands only in the first place
    blocks, left = [], []
    for part in parts:
        block = _block(part)
        if block is None:
            left.append(part)
        else:
            blocks.append(block)
    if not blocks:
        return Message(stdin=words.encode(), left=tuple(left))
    content = [_text(words), *blocks]
    line = msgspec.json.encode({"type": "user", "message": {"role": "user", "content": content}})
    return Message(stdin=line + b"\n", options=_IN_STREAM, left=tuple(left))


def _block(part: Part) -> dict[str, Any] | None:
    if part.blob is not None:
        return _bytes_block(part, part.blob)
    if part.url is not None:
        return _text(f"{part.name}: {part.url}" if part.name else part.url)
    if part.text is not None:
        return _text(f"{part.name}:\n{part.text}" if part.name else part.text)
    data = part.data if part.kind == "json" else {part.kind: part.data}
    return _text(msgspec.json.encode(data).decode())


def _bytes_block(part: Part, blob: str) -> dict[str, Any] | None:
    kind = "image" if part.mime_type in _IMAGES else "document" if part.mime_type == _DOCUMENT else None
    if kind is None:
        return None
    return {"type": kind, "source": {"type": "base64", "media_type": part.mime_type, "data": blob}}


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
