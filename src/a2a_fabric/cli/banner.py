"""What `up` says once the node is ready: where it is, the key to it, and three commands to paste."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from a2a_fabric.cli.program import NAME

_AGENTS_SHOWN = 8


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own key, and where it comes from."""

    secret: str | None
    origin: Literal["configured", "environment", "kept", "made", "none"]
    path: str = ""


def banner(url: str, key: Key, agents: Sequence[str], *, is_demo: bool) -> str:
    more = f" and {len(agents) - _AGENTS_SHOWN} more" if len(agents) > _AGENTS_SHOWN else ""
    shown = ", ".join(agents[:_AGENTS_SHOWN]) + more if agents else "none yet"
    lines = [
        "",
        f"  Fabric is up at {url}",
        f"  Token   {_token(key)}",
        f"  Agents  {shown}{' (the demo fleet)' if is_demo else ''}",
        "",
        "  Try, in another terminal:",
        *(f"    {command}" for command in _commands(url, key, agents)),
        "",
        "  Ctrl-C lets running calls finish and stops.",
        "",
    ]
    return "\n".join(lines)


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


def _commands(url: str, key: Key, agents: Sequence[str]) -> list[str]:
    program = _program()
    first = f'{program} call percy reason "What is 12 * 7 + 16?"' if "percy" in agents else f"{program} tools"
    return [f"{program} agents", first, _curl(url, key)]


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
