"""The endpoint of a Claude Code agent in a manifest, and the description found in the agent's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.programs import ProgramSpec, build_program

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
    mcp_config: ArgumentText | None = None  # .mcp.json, if the folder has one
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


INSTRUCTIONS_FILE = "CLAUDE.md"
MCP_CONFIG_FILE = ".mcp.json"
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
