"""The endpoint of an agent that is a folder for Claude Code, as it stands in a manifest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.process_child import Program, environment

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Word = Annotated[str, Meta(pattern=r"^[^-\x00][^\x00]*$")]  # never taken for an option

_INHERITED = ("CLAUDE_CONFIG_DIR", "LOGNAME", "SHELL", "TERM", "USER")  # besides what all programs inherit


class ClaudeEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    transport: Literal["local", "stdio"] = "local"
    path: str = "."  # the agent's folder, from the folder of the configuration
    command: list[str] | str = "claude"  # a string is split like a shell would; there is no shell
    arguments: list[str] = []  # more of them, for every call
    env: dict[str, str] = {}
    system_prompt: Literal["append", "replace", "none"] = "append"  # what becomes of the folder's CLAUDE.md
    mcp_config: Word | None = None  # .mcp.json, if the folder has one
    strict_mcp: bool = False  # no MCP servers but these
    offer_node: bool = False  # this node as one more MCP server
    model: Word | None = None
    permission_mode: Word | None = None
    allowed_tools: list[Word] = []
    disallowed_tools: list[Word] = []
    commands: bool = False  # whether a task that begins with a slash is a command
    max_concurrent: Count = 4
    max_pending: Count = 64
    max_sessions: Count = 1000  # conversations of which we know whether they have begun
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    line_bytes: Annotated[int, Meta(ge=1024)] | None = None


def endpoint_of(manifest: Manifest) -> ClaudeEndpoint:
    """Raises BadInput."""
    return decode_endpoint(manifest, ClaudeEndpoint)


def program_of(agent_id: str, endpoint: ClaudeEndpoint, context: RuntimeContext) -> Program:
    """The executable in the agent's folder, without what belongs to a single call. Raises BadInput."""
    try:
        argv = shlex.split(endpoint.command) if isinstance(endpoint.command, str) else endpoint.command
    except ValueError as exc:
        raise _bad(agent_id, f"command: {exc}") from exc
    texts = [*argv, *endpoint.arguments, endpoint.path, *endpoint.env, *endpoint.env.values()]
    if not argv or not argv[0] or any("\0" in text for text in texts) or any("=" in name for name in endpoint.env):
        raise _bad(agent_id, "command, arguments or env cannot be run")
    inherited: Mapping[str, str] = context.options.get("environ", {})
    usual = {name: inherited[name] for name in _INHERITED if name in inherited}
    return Program(
        agent_id=agent_id,
        argv=tuple(argv),
        env=environment(inherited, {**usual, **endpoint.env}),
        cwd=(context.base / endpoint.path).resolve(),
    )


def _bad(agent_id: str, why: str) -> BadInput:
    return BadInput(f"Agent '{agent_id}' has a bad endpoint: {why}", agent_id=agent_id)
