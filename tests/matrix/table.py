"""Which pairs cannot do what, and why: everything else in the matrix is expected of every pair.

A row with `instead` is still tested, for what is seen there instead. A row without
leaves the pair out, and a test makes sure that it still has to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from mcp_types import INVALID_PARAMS

from tests.matrix.agents import RUNTIMES
from tests.matrix.doors import DOORS

Aspect = Literal[
    "reply", "words", "free form", "stream", "typed error", "timeout", "cancel", "failing", "standing in", "content"
]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Doors and runtimes as shell patterns; several by `|`. Of content, `instead` names the kinds that are carried."""

    door: str = "*"
    runtime: str = "*"
    aspects: tuple[Aspect, ...] = ASPECTS
    why: str
    instead: str | None = None

    def covers(self, door: str, runtime: str, aspect: Aspect) -> bool:
        return aspect in self.aspects and _matches(self.door, door) and _matches(self.runtime, runtime)


def _matches(patterns: str, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("|"))


ROWS: tuple[Row, ...] = (
    Row(
        door="mcp-agent-*|a2a-*",
        runtime="tool",
        aspects=("reply", "words", "stream", "typed error", "timeout", "cancel"),
        why="a built-in tool has no address of its own",
    ),
    Row(
        door="a2a-jsonrpc|a2a-rest|a2a-grpc",
        runtime="tool",
        aspects=("standing in",),
        why="the official client's types hold numbers as doubles, and this number is too large for one",
    ),
    Row(
        door="fabric",
        aspects=("stream",),
        why="there is one reply, at the end",
        instead="the answer alone",
    ),
    Row(
        runtime="http_plain|http_openapi|process_oneshot|tool|agentzero",
        aspects=("stream",),
        why="there is one reply, at the end",
        instead="the answer alone",
    ),
    Row(
        runtime="python|http_sse|process_jsonl|fabric",
        aspects=("free form",),
        why="an agent written with the library always publishes a schema",
    ),
    Row(runtime="mcp_*", aspects=("free form",), why="an MCP tool always has a schema"),
    Row(runtime="tool", aspects=("free form",), why="a built-in tool always has a schema"),
    Row(runtime="http_openapi", aspects=("free form",), why="an OpenAPI operation always has a schema"),
    Row(runtime="tool", aspects=("failing",), why="no other agent does a built-in tool's work"),
    Row(
        door="mcp-agent-*",
        runtime="mcp_*",
        aspects=("typed error",),
        why="the node passes the MCP server's replies through, errors too",
        instead=str(INVALID_PARAMS),
    ),
    Row(
        door="mcp-agent-*",
        runtime="mcp_*",
        aspects=("words", "timeout", "failing", "standing in"),
        why="requests pass through to the MCP server; only calls have `task`, `timeout_ms` and fallbacks",
    ),
    Row(
        runtime="a2a_*|acp|agent_client|agentzero|claude|mcp_*|process_oneshot|rest|rpc",
        aspects=("failing",),
        why="the agent reports its own failure, and that is its answer, so no other agent is asked",
        instead="the agent's own error",
    ),
    Row(runtime="claude", aspects=("content",), why="Claude Code takes images and answers only with text"),
    Row(runtime="tool", aspects=("content",), why="a built-in tool takes JSON and answers with JSON"),
    Row(
        runtime="http_openapi",
        aspects=("content",),
        why="a form takes many files, but the reply of an API is a single one",
        instead="image",
    ),
    Row(
        runtime="mcp_*",
        aspects=("content",),
        why="MCP has no type for JSON beside the answer, nor for functions",
        instead="text, image, audio, video, file",
    ),
    Row(
        runtime="agentzero",
        aspects=("content",),
        why="Agent Zero reads text and links; JSON is sent as text",
        instead="text",
    ),
)


def exception(door: str, runtime: str, aspect: Aspect) -> Row | None:
    return next((row for row in ROWS if row.covers(door, runtime, aspect)), None)


def pairs() -> Iterator[tuple[str, str]]:
    for door in DOORS:
        for runtime in RUNTIMES:
            yield door, runtime
