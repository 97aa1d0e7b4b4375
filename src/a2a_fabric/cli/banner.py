"""What `up` says once the node is ready: where it is, the key to it, what it keeps where, and three commands."""

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
from a2a_fabric.stores.address import without_secrets

_AGENTS_SHOWN = 8
_SUM = "What is 12 * 7 + 16?"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own key, and where it comes from."""

    secret: str | None
    origin: Literal["configured", "environment", "kept", "made", "none"]
    path: str = ""


def banner(url: str, key: Key, store: str, agents: Sequence[Manifest], *, is_demo: bool) -> str:
    more = f" and {len(agents) - _AGENTS_SHOWN} more" if len(agents) > _AGENTS_SHOWN else ""
    shown = ", ".join(agent.agent_id for agent in agents[:_AGENTS_SHOWN]) + more if agents else "none yet"
    lines = [
        "",
        f"  Fabric is up at {url}",
        f"  Token   {_token(key)}",
        f"  Store   {kept_at(store)}",
        f"  Agents  {shown}{' (the demo fleet)' if is_demo else ''}",
        "",
        "  Try, in another terminal:",
        *(f"    {command}" for command in _commands(url, key, agents, is_demo=is_demo)),
        "",
        "  Ctrl-C lets running calls finish and stops.",
        "",
    ]
    return "\n".join(lines)


def kept_at(store: str) -> str:
    """Where jobs, registered agents and messages are, for people."""
    return "memory: all is gone when it stops" if store.startswith("memory") else without_secrets(store)


def _token(key: Key) -> str:
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


def _commands(url: str, key: Key, agents: Sequence[Manifest], *, is_demo: bool) -> list[str]:
    program = _program()
    first = f'call percy reason "{_SUM}"' if is_demo else _first_call(agents)
    return [f"{program} agents", f"{program} {first}", _curl(url, key)]


def _first_call(agents: Sequence[Manifest]) -> str:
    """Of somebody who is there, something that they do; what goes in is up to the person."""
    for agent in agents:
        for capability in agent.capabilities:
            return " ".join(["call", shlex.quote(agent.agent_id), shlex.quote(capability.name), *_blanks(capability)])
    return f"describe {shlex.quote(agents[0].agent_id)}" if agents else "tools"


def _blanks(capability: Capability) -> list[str]:
    """For the words, or for every argument that is needed."""
    schema: dict[str, Any] = capability.input_schema or {"properties": {"task": {}}}
    needed = [str(name) for name in schema.get("required", ())]
    if "task" in (schema.get("properties") or {}):
        return ['"..."', *(f"--arg {shlex.quote(name)}=..." for name in needed if name != "task")]
    return [f"--arg {shlex.quote(name)}=..." for name in needed]


def _curl(url: str, key: Key) -> str:
    given = {
        "made": f"$(cat {shlex.quote(key.path)})",
        "kept": f"$(cat {shlex.quote(key.path)})",
        "environment": "$FABRIC_PSK",
        "configured": "$FABRIC_TOKEN",
    }.get(key.origin)
    auth = f'-H "Authorization: Bearer {given}" ' if given else ""
    body = '{"name":"fabric.tool.math.calculate","arguments":{"expression":"6*7"}}'
    return f"curl -s {url}/mcp/call {auth}-H 'Content-Type: application/json' -d '{body}'"


def _program() -> str:
    """The command as any other shell finds it."""
    started = Path(sys.argv[0])
    if started.name != NAME:
        return f"{shlex.quote(sys.executable)} -m a2a_fabric"
    in_a_venv = sys.prefix != sys.base_prefix
    return shlex.quote(str(started.absolute())) if in_a_venv or not shutil.which(NAME) else NAME
