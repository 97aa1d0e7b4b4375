"""A finding as an entry of `agents.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from a2a_fabric.probing.findings import Finding

_INTERPRETERS = re.compile(r"(python|node|deno|bun|ruby|sh|bash|uv|uvx|npx|pnpm|env|java)[\d.]*")
_GENERIC = ("mcp", "agent", "agents", "api", "a2a", "server", "openapi", "index", "main", "v1", "rpc")


def entry_of(agent_id: str, runtime: str, endpoint: dict[str, Any], description: str) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {"agent_id": agent_id, "runtime": runtime, **about, "endpoint": endpoint}


def agent_id_for(found: Finding) -> str:
    """What it calls itself, or is called by where it is; made valid."""
    return _valid(found.name) or _valid(_by_place(found.endpoint)) or "agent"


def unique(wanted: str, taken: Collection[str]) -> str:
    number, tried = 1, wanted
    while tried in taken:
        number += 1
        tried = f"{wanted}-{number}"
    return tried


def _valid(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._").lower()[:100]


def _by_place(endpoint: dict[str, Any]) -> str:
    if "command" in endpoint:
        return _by_command([str(word) for word in endpoint["command"]])
    parts = urlsplit(str(endpoint.get("uri") or endpoint.get("openapi") or ""))
    pieces = [PurePath(piece).stem for piece in parts.path.split("/") if piece]
    told = [piece for piece in pieces if piece.lower() not in _GENERIC and not piece.startswith("t-")]
    return told[-1] if told else (parts.hostname or "")


def _by_command(words: list[str]) -> str:
    """The first word that is no interpreter and no option."""
    names = [PurePath(word.rpartition("@")[0] or word).stem for word in words if not word.startswith("-")]
    return next((name for name in names if not _INTERPRETERS.fullmatch(name)), names[0] if names else "")
