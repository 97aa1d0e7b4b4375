"""The endpoint of a Claude Code agent, its folder's description, and the command line and stdin of one run.

The task is never on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Part
from a2a_fabric.runtimes.claude.instructions import INSTRUCTIONS_FILE
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.mcp_servers import MCP_CONFIG_FILE
from a2a_fabric.runtimes.programs import NodeMcpServer, ProgramSpec, build_program

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
ArgumentText = Annotated[str, Meta(pattern=r"^[^-\x00][^\x00]*$")]  # never taken for an option

_INHERITED = ("CLAUDE_CONFIG_DIR", "LOGNAME", "SHELL", "TERM", "USER")  # besides what all programs inherit


class ClaudeEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    transport: Literal["local", "stdio"] = "local"
    path: str = "."  # the agent's folder, from the folder of the configuration
    command: list[str] | str = "claude"  # a string is split like a shell would; there is no shell
    arguments: list[str] = []  # further arguments, for every call
    env: dict[str, str] = {}
    system_prompt: Literal["append", "replace", "none"] = "append"  # how the folder's CLAUDE.md is used
    instructions: str | None = None  # the file of the system prompt; CLAUDE.md if unset
    knowledge: str | None = None  # the folder of knowledge; knowledge/ if it exists
    mcp_config: ArgumentText | None = None  # .mcp.json, if the folder has one
    mcp_env: list[str] | None = None  # variables to which its MCP configuration may refer; all if unset
    strict_mcp: bool = False  # no other MCP servers
    offer_node: bool = False  # this node as one more MCP server
    model: ArgumentText | None = None
    permission_mode: ArgumentText | None = None
    allowed_tools: list[ArgumentText] = []
    disallowed_tools: list[ArgumentText] = []
    commands: bool = False  # whether a task that begins with a slash is a command
    max_concurrent: Count = 4
    max_pending: Count = 64
    max_sessions: Count = 1000  # conversations that are remembered
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    line_bytes: Annotated[int, Meta(ge=1024)] | None = None


def read_endpoint(manifest: Manifest) -> ClaudeEndpoint:
    """Raises BadInput."""
    return decode_endpoint(manifest, ClaudeEndpoint)


def program_from_endpoint(agent_id: str, endpoint: ClaudeEndpoint, context: RuntimeContext) -> ProgramSpec:
    """The program in the agent's folder, without the arguments of a single call. Raises BadInput."""
    return build_program(
        context,
        agent_id,
        endpoint.command,
        env=endpoint.env,
        cwd=endpoint.path,
        inherited=_INHERITED,
        arguments=endpoint.arguments,
    )


PACKAGE_FILE = "package.json"

_MAX_READ_BYTES = 64 * 1024  # bytes of a file
_MAX_DESCRIPTION = 1000


class FolderInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    version: str = ""


def read_folder_info(folder: Path) -> FolderInfo:
    """Name and description from the first heading and paragraph of the instructions, and from the package file."""
    heading, paragraph = _first_heading_and_paragraph(_read_text(folder / INSTRUCTIONS_FILE))
    package = _read_package(folder / PACKAGE_FILE)
    return FolderInfo(
        name=heading or package.name, description=paragraph or package.description or heading, version=package.version
    )


def _first_heading_and_paragraph(text: str) -> tuple[str, str]:
    heading = ""
    paragraph: list[str] = []
    for line in map(str.strip, _strip_front_matter(text)):
        if line.startswith("#"):
            if paragraph:
                break
            heading = heading or line.lstrip("#").strip()
        elif line:
            paragraph.append(line)
        elif paragraph:
            break
    return heading[:_MAX_DESCRIPTION], " ".join(paragraph)[:_MAX_DESCRIPTION]


def _strip_front_matter(text: str) -> list[str]:
    lines = text.splitlines()
    if lines and lines[0].strip() == "---" and "---" in lines[1:]:
        return lines[lines.index("---", 1) + 1 :]
    return lines


def _read_package(path: Path) -> FolderInfo:
    try:
        document: Any = msgspec.json.decode(_read_text(path) or "{}")
    except msgspec.DecodeError:
        return FolderInfo()
    fields = {
        name: document[name][:_MAX_DESCRIPTION]
        for name in FolderInfo.__struct_fields__
        if isinstance(document.get(name), str)
    }
    return FolderInfo(**fields) if isinstance(document, dict) else FolderInfo()


def _read_text(path: Path) -> str:
    """The start of the file; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


_MAX_ARGUMENT_BYTES = 100_000  # Linux takes 128 KiB in one
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENT_TYPE = "application/pdf"
_STREAM_INPUT_OPTIONS = ("--input-format", "stream-json")

SessionMode = Literal["new", "resume"]


class ClaudeCallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call, besides the task."""

    stream: bool = False
    schema: dict[str, Any] | None = None
    session: tuple[SessionMode, str] | None = None  # None: the program keeps no session
    prompt: Path | None = None  # the file of the system prompt
    own_instructions: Path | None = None  # the agent's own file, which the program finds by itself, too
    servers: dict[str, Any] | None = None  # only these MCP servers; None: all that the folder's configuration has


def build_arguments(
    endpoint: ClaudeEndpoint, folder: Path, options: ClaudeCallOptions, node: NodeMcpServer | None
) -> list[str]:
    """All arguments after the program's name. Raises BadInput for a schema that is too long."""
    return [
        "--print",
        *("--output-format", "stream-json", "--verbose"),
        *(["--include-partial-messages"] if options.stream else []),
        *_session_arguments(options.session),
        *_instruction_arguments(endpoint, folder, options),
        *_mcp_arguments(endpoint, folder, node, options.servers),
        *(["--json-schema", _encode_schema(options.schema)] if options.schema is not None else []),
        *(["--model", endpoint.model] if endpoint.model else []),
        *(["--permission-mode", endpoint.permission_mode] if endpoint.permission_mode else []),
        *(["--allowedTools", *endpoint.allowed_tools] if endpoint.allowed_tools else []),
        *(["--disallowedTools", *endpoint.disallowed_tools] if endpoint.disallowed_tools else []),
        *endpoint.arguments,
    ]


def _session_arguments(session: tuple[SessionMode, str] | None) -> list[str]:
    if session is None:
        return ["--no-session-persistence"]
    mode, id_ = session
    return ["--resume" if mode == "resume" else "--session-id", id_]


def _instruction_arguments(endpoint: ClaudeEndpoint, folder: Path, options: ClaudeCallOptions) -> Iterator[str]:
    """The prompt by its path, as it may be too long for an argument; only once, though the program finds it too.

    A folder whose card names another file as its prompt may have instructions for people who work on the agent.
    """
    if endpoint.system_prompt == "none" or options.prompt is None:
        return
    yield "--append-system-prompt-file" if endpoint.system_prompt == "append" else "--system-prompt-file"
    yield str(options.prompt)
    if "--settings" not in endpoint.arguments and options.own_instructions is not None:
        yield "--settings"
        excluded = dict.fromkeys((str(options.own_instructions), str(folder / INSTRUCTIONS_FILE)))
        yield msgspec.json.encode({"claudeMdExcludes": list(excluded)}).decode()


def _mcp_arguments(
    endpoint: ClaudeEndpoint, folder: Path, node: NodeMcpServer | None, servers: dict[str, Any] | None
) -> list[str]:
    config_file = folder / (endpoint.mcp_config or MCP_CONFIG_FILE)
    configs = [str(config_file)] if endpoint.mcp_config is not None or config_file.is_file() else []
    if servers is not None:
        configs = [msgspec.json.encode({"mcpServers": servers}).decode()] if servers else []
    if node is not None:
        server = {"type": "stdio", "command": node.command, "args": node.args, "env": node.env}
        configs.append(msgspec.json.encode({"mcpServers": {node.name: server}}).decode())
    is_strict = endpoint.strict_mcp or servers is not None  # else the program finds the folder's own file, too
    return [*(["--mcp-config", *configs] if configs else []), *(["--strict-mcp-config"] if is_strict else [])]


def _encode_schema(schema: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(schema).decode()
    if len(text) > _MAX_ARGUMENT_BYTES:
        raise BadInput(f"The capability's output schema is longer than {_MAX_ARGUMENT_BYTES} bytes")
    return text


class ClaudeInput(msgspec.Struct, frozen=True, kw_only=True):
    """The program's stdin, the option that names its format, and notes on parts that were left out."""

    stdin: bytes
    options: tuple[str, ...] = ()
    unsupported: tuple[Part, ...] = ()


def build_input(text: str, parts: Sequence[Part], *, may_command: bool) -> ClaudeInput:
    """Text alone is sent as it is; with arguments or attachments it becomes a message of blocks."""
    if text.startswith("/") and not may_command:
        text = f" {text}"  # the program reads a slash as a command only at the start
    blocks, unsupported = [], []
    for part in parts:
        block = _block_from_part(part)
        if block is None:
            unsupported.append(part)
        else:
            blocks.append(block)
    if not blocks:
        return ClaudeInput(stdin=text.encode(), unsupported=tuple(unsupported))
    content = [_text_block(text), *blocks]
    line = msgspec.json.encode({"type": "user", "message": {"role": "user", "content": content}})
    return ClaudeInput(stdin=line + b"\n", options=_STREAM_INPUT_OPTIONS, unsupported=tuple(unsupported))


def _block_from_part(part: Part) -> dict[str, Any] | None:
    if part.blob is not None:
        return _block_from_bytes(part, part.blob)
    if part.url is not None:
        return _text_block(f"{part.name}: {part.url}" if part.name else part.url)
    if part.text is not None:
        return _text_block(f"{part.name}:\n{part.text}" if part.name else part.text)
    data = part.data if part.kind == "json" else {part.kind: part.data}
    return _text_block(msgspec.json.encode(data).decode())


def _block_from_bytes(part: Part, blob: str) -> dict[str, Any] | None:
    kind = "image" if part.mime_type in _IMAGE_TYPES else "document" if part.mime_type == _DOCUMENT_TYPE else None
    if kind is None:
        return None
    return {"type": kind, "source": {"type": "base64", "media_type": part.mime_type, "data": blob}}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
