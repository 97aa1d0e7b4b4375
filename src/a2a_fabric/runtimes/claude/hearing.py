"""What the program prints, line by line: events for whoever listens, and in the end the result.

With partial messages the words of the answer come in pieces, and again as a whole; the
whole is only heard where the pieces are not. What a sub-agent says is no part of the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from a2a_fabric.core.events import Event, status, token

_log = logging.getLogger(__name__)

RUBBISH_SHOWN = 10
_TOOLS = 1000  # whose names are remembered
_WORDS = 2000
_STRUCTURED = "StructuredOutput"  # how the program makes its model answer with an object; no tool of the agent's


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The model's API did not answer, and the program is going to ask again."""

    kind: str
    delay: float  # seconds
    attempt: int


class Hearing:
    def __init__(self, agent_id: str, *, in_pieces: bool) -> None:
        self.result: dict[str, Any] | None = None
        self.has_begun = False  # it has read its options and found its session
        self.has_worked = False  # something was said or done that cannot be taken back
        self.trouble = ""  # what the program calls the error of its model's API
        self.retry: Retry | None = None
        self.notes: list[str] = []
        self._agent_id = agent_id
        self._in_pieces = in_pieces
        self._tools: dict[str, str] = {}
        self._rubbish = 0

    def take(self, line: bytes) -> Iterator[Event]:
        try:
            said = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._take_rubbish(line)
            return
        if not isinstance(said, dict):
            self._take_rubbish(line)
            return
        self.retry = None
        match said.get("type"):
            case "system":
                yield from self._system(said)
            case "stream_event":
                yield from self._piece(said)
            case "assistant":
                yield from self._assistant(said)
            case "user":
                yield from self._tool_results(said)
            case "result":
                self.result = said

    def _system(self, said: dict[str, Any]) -> Iterator[Event]:
        match said:
            case {"subtype": "init"}:
                self.has_begun = True
                self.notes += _missing_servers(said.get("mcp_servers"))
            case {"subtype": "api_retry"}:
                delay, kind = _number(said.get("retry_delay_ms")) / 1000, str(said.get("error") or "unknown")
                self.retry = Retry(kind=kind, delay=delay, attempt=int(_number(said.get("attempt"))))
                yield status("running", f"the model's API: {kind}; next try in {delay:.1f} s")

    def _piece(self, said: dict[str, Any]) -> Iterator[Event]:
        match said.get("event"):
            case {"delta": {"type": "text_delta", "text": str(text)}} if not said.get("parent_tool_use_id"):
                self.has_worked = True
                yield token(text)

    def _assistant(self, said: dict[str, Any]) -> Iterator[Event]:
        if isinstance(said.get("error"), str):
            self.trouble = said["error"]
            return
        for block in _blocks(said):
            match block:
                case {"type": "text", "text": str(text)} if text and not said.get("parent_tool_use_id"):
                    self.has_worked = True
                    if not self._in_pieces:
                        yield token(text)
                case {"type": "tool_use", "id": str(id_), "name": str(name)} if name != _STRUCTURED:
                    self.has_worked = True
                    if len(self._tools) < _TOOLS:
                        self._tools[id_] = name
                    given = block.get("input")
                    yield _tool_event(said, name, id_, arguments=given if isinstance(given, dict) else {})

    def _tool_results(self, said: dict[str, Any]) -> Iterator[Event]:
        for block in _blocks(said):
            match block:
                case {"type": "tool_result", "tool_use_id": str(id_)} if id_ in self._tools:
                    how = "failed" if block.get("is_error") else "completed"
                    output = block.get("content")
                    yield _tool_event(said, self._tools[id_], id_, arguments={}, status=how, output=output)

    def _take_rubbish(self, line: bytes) -> None:
        if line.strip():
            self._rubbish += 1
            if self._rubbish <= RUBBISH_SHOWN:
                _log.warning("%s: not a message on stdout: %r", self._agent_id, line[:200])


def _blocks(said: dict[str, Any]) -> list[Any]:
    message = said.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _tool_event(said: dict[str, Any], name: str, id_: str, **more: Any) -> Event:
    told = {"tool": name, **more, "id": id_, "parent": said.get("parent_tool_use_id")}
    return Event("tool_call", {key: value for key, value in told.items() if value is not None})


def _missing_servers(servers: Any) -> Iterator[str]:
    for server in servers if isinstance(servers, list) else ():
        match server:
            case {"name": str(name), "status": "failed" | "needs-auth" as state}:
                yield f"the MCP server '{name[:100]}' was not there: {state}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
