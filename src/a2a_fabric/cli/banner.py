"""The banner that `up` prints when the node is ready: its URL, key, store and agents, and three commands to try."""

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
    """The node's own key, and its origin: the configuration, FABRIC_PSK, the saved file, or newly created."""

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
        f"  Agents  {agent_names}{' (the demo)' if is_demo else ''}",
        "",
        "  Try, in another terminal:",
        *(f"    {command}" for command in _suggest_commands(url, key, agents, is_demo=is_demo)),
        "",
        "  Ctrl-C stops the node after running calls have finished.",
        "",
    ]
    return "\n".join(lines)


def describe_store(store: str) -> str:
    return "memory: jobs are lost when the node stops" if store.startswith("memory") else redact_address(store)


def _describe_key(key: NodeKey) -> str:
    match key.origin:
        case "configured":
            return "the key in your configuration"
        case "environment":
            return "the key in FABRIC_PSK"
        case "none":
            return "not required"
        case "made":
            return f"{key.secret}  (saved in {key.path})"
        case "kept":
            return f"{key.secret}" if sys.stderr.isatty() else f"saved in {key.path}"


def _suggest_commands(url: str, key: NodeKey, agents: Sequence[Manifest], *, is_demo: bool) -> list[str]:
    program = _find_program()
    first_call = _DEMO_CALL if is_demo else _suggest_call(agents)
    return [f"{program} agents", f"{program} {first_call}", _build_curl(url, key, is_demo=is_demo)]


def _suggest_call(agents: Sequence[Manifest]) -> str:
    """A call to the first agent with a capability; the user fills in the arguments."""
    for agent in agents:
        for capability in agent.capabilities:
            return " ".join(
                ["call", shlex.quote(agent.agent_id), shlex.quote(capability.name), *_build_placeholders(capability)]
            )
    return f"describe {shlex.quote(agents[0].agent_id)}" if agents else "tools"


def _build_placeholders(capability: Capability) -> list[str]:
    """A placeholder for the task, and for every required argument."""
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
    """The command as another shell finds it."""
    program_path = Path(sys.argv[0])
    if program_path.name != NAME:
        return f"{shlex.quote(sys.executable)} -m a2a_fabric"
    in_a_venv = sys.prefix != sys.base_prefix
    return shlex.quote(str(program_path.absolute())) if in_a_venv or not shutil.which(NAME) else NAME
