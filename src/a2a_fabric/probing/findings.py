"""The outcome of a probe: every attempt, what was recognised, and the `agents.yaml` entry made from it."""

from __future__ import annotations

import re
import time
from pathlib import PurePath
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that one of the runtimes can reach, and how it describes itself."""

    runtime: str
    endpoint: dict[str, Any]
    evidence: str  # how it was recognised, for people
    name: str = ""
    description: str = ""
    version: str = ""
    is_exact: bool = True  # found at the given address, not near it

    @property
    def is_plain_http(self) -> bool:
        """Whether the agent follows the plain HTTP contract."""
        return self.runtime == "http" and "uri" in self.endpoint


class ProbedAgentInfo(TypedDict):
    """How an agent describes itself."""

    name: str
    description: str
    version: str


class ProbeAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt to speak one protocol."""

    protocol: str
    outcome: str
    seconds: float
    finding: Finding | None = None

    @classmethod
    def from_outcome(cls, protocol: str, outcome: Finding | str, began_at: float) -> ProbeAttempt:
        """`began_at` is a value of `time.perf_counter`."""
        seconds = time.perf_counter() - began_at
        if isinstance(outcome, str):
            return cls(protocol=protocol, outcome=outcome, seconds=seconds)
        return cls(protocol=protocol, outcome=outcome.evidence, seconds=seconds, finding=outcome)


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts, in order of preference."""

    target: str
    attempts: tuple[ProbeAttempt, ...]

    @property
    def finding(self) -> Finding | None:
        """The first finding at exactly the given address, else the first one."""
        findings = [attempt.finding for attempt in self.attempts if attempt.finding is not None]
        return next((each for each in findings if each.is_exact), findings[0] if findings else None)


def one_line(value: Any, max_length: int = 200) -> str:
    """Foreign text in one line of bounded length; empty for values that are not text."""
    return " ".join(value.split())[:max_length] if isinstance(value, str) else ""


def first_text(*values: Any) -> str:
    return next((text for value in values if (text := one_line(value))), "")


_INTERPRETERS = re.compile(r"(python|node|deno|bun|ruby|sh|bash|uv|uvx|npx|pnpm|env|java)[\d.]*")
_GENERIC_NAMES = ("mcp", "agent", "agents", "api", "a2a", "server", "openapi", "index", "main", "v1", "rpc")


def build_entry(agent_id: str, runtime: str, endpoint: dict[str, Any], description: str) -> dict[str, Any]:
    optional = {"description": description} if description else {}
    return {"agent_id": agent_id, "runtime": runtime, **optional, "endpoint": endpoint}


def suggest_agent_id(finding: Finding) -> str:
    """A valid id from the agent's own name, or else from its address."""
    return _make_valid(finding.name) or _make_valid(_name_from_endpoint(finding.endpoint)) or "agent"


def _make_valid(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._").lower()[:100]


def _name_from_endpoint(endpoint: dict[str, Any]) -> str:
    if "command" in endpoint:
        return _name_from_command([str(word) for word in endpoint["command"]])
    parts = urlsplit(str(endpoint.get("uri") or endpoint.get("openapi") or ""))
    pieces = [PurePath(piece).stem for piece in parts.path.split("/") if piece]
    specific = [piece for piece in pieces if piece.lower() not in _GENERIC_NAMES and not piece.startswith("t-")]
    return specific[-1] if specific else (parts.hostname or "")


def _name_from_command(argv: list[str]) -> str:
    """The first word that is neither an interpreter nor an option."""
    names = [PurePath(word.rpartition("@")[0] or word).stem for word in argv if not word.startswith("-")]
    return next((name for name in names if not _INTERPRETERS.fullmatch(name)), names[0] if names else "")
