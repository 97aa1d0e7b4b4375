"""The text that `up` prints once the node is ready: its URL, its key, its store, and three commands to try."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from a2a_fabric.cli.program import NAME
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.stores.address import redact_address

_AGENTS_SHOWN = 8
# The demo's first calls let two protocols meet: the command line calls an MCP server, an A2A client an ACP agent.
_DEMO_CALL = "call units convert --arg value=26.2 --arg unit=mi --arg to=km"
_DEMO_PATH = "/agents/morse/message:send"
_DEMO_MESSAGE = (
    '{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hello world"}],"metadata":{"skill":"morse"}}}'
)


class NodeKey(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own key, and where it comes from."""

    secret: str | None
    origin: Literal["configured", "environment", "kept", "made", "none"]
    path: str = ""


def build_banner(url: str, key: NodeKey, store: str, agents: Sequence[Manifest], *, is_demo: bool) -> str:
    overflow = f" and {len(agents) - _AGENTS_SHOWN} more" if len(agents) > _AGENTS_SHOWN else ""
    agent_names = ", ".join(agent.agent_id for agent in agents[:_AGENTS_SHOWN]) + overflow if agents else "none yet"
    lines = [
        "",
        f"  Fabric is up at {url}",
        f"  Token   {_describe_key(key)}",
        f"  Store   {describe_store(store)}",
        f"  Agents  {agent_names}{' (the demo fleet)' if is_demo else ''}",
        "",
        "  Try, in another terminal:",
        *(f"    {command}" for command in _suggest_commands(url, key, agents, is_demo=is_demo)),
        "",
        "  Ctrl-C lets running calls finish and stops.",
        "",
    ]
    return "\n".join(lines)


def describe_store(store: str) -> str:
    """Where jobs, registered agents and messages are, for people."""
    return "memory: all is gone when it stops" if store.startswith("memory") else redact_address(store)


def _describe_key(key: NodeKey) -> str:
    match key.origin:
        case "configured":
            return "the one in your configuration"
        case "environment":
            return "the one in FABRIC_PSK"
        case "none":
            return "none needed"
        case "made":
            return f"{key.secret}  (kept in {key.path})"
        case "kept":
            return f"{key.secret}" if sys.stderr.isatty() else f"kept in {key.path}"


def _suggest_commands(url: str, key: NodeKey, agents: Sequence[Manifest], *, is_demo: bool) -> list[str]:
    program = _find_program()
    first_call = _DEMO_CALL if is_demo else _suggest_call(agents)
    return [f"{program} agents", f"{program} {first_call}", _build_curl(url, key, is_demo=is_demo)]


def _suggest_call(agents: Sequence[Manifest]) -> str:
    """Of somebody who is there, something that they do; what goes in is up to the person."""
    for agent in agents:
        for capability in agent.capabilities:
            return " ".join(
                ["call", shlex.quote(agent.agent_id), shlex.quote(capability.name), *_build_placeholders(capability)]
            )
    return f"describe {shlex.quote(agents[0].agent_id)}" if agents else "tools"


def _build_placeholders(capability: Capability) -> list[str]:
    """For the words, or for every argument that is needed."""
    schema: dict[str, Any] = capability.input_schema or {"properties": {"task": {}}}
    needed = [str(name) for name in schema.get("required", ())]
    if "task" in (schema.get("properties") or {}):
        return ['"..."', *(f"--arg {shlex.quote(name)}=..." for name in needed if name != "task")]
    return [f"--arg {shlex.quote(name)}=..." for name in needed]


def _build_curl(url: str, key: NodeKey, *, is_demo: bool) -> str:
    token = {
        "made": f"$(cat {shlex.quote(key.path)})",
        "kept": f"$(cat {shlex.quote(key.path)})",
        "environment": "$FABRIC_PSK",
        "configured": "$FABRIC_TOKEN",
    }.get(key.origin)
    auth = f'-H "Authorization: Bearer {token}" ' if token else ""
    if is_demo:
        headers = f"{auth}-H 'A2A-Version: 1.0' -H 'Content-Type: application/json'"
        return f"curl -s {url}{_DEMO_PATH} {headers} -d '{_DEMO_MESSAGE}'"
    body = '{"name":"fabric.tool.math.calculate","arguments":{"expression":"6*7"}}'
    return f"curl -s {url}/mcp/call {auth}-H 'Content-Type: application/json' -d '{body}'"


def _find_program() -> str:
    """The command as any other shell finds it."""
    program_path = Path(sys.argv[0])
    if program_path.name != NAME:
        return f"{shlex.quote(sys.executable)} -m a2a_fabric"
    in_a_venv = sys.prefix != sys.base_prefix
    return shlex.quote(str(program_path.absolute())) if in_a_venv or not shutil.which(NAME) else NAME
