"""Lines of a node's log for its operator: the newest ones that a filter lets through, of all processes of the node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from a2a_fabric.admin.processes import LogPosition, Processes, format_positions, parse_positions
from a2a_fabric.core.errors import BadInput

_POLL_SECONDS = 0.2
_LINES, _HAS_LINES = "log.lines", "log.has_lines"


class RecentLog(Protocol):
    """The newest lines of the log, as JSON. `start_id` is another one after each start."""

    start_id: str

    def read_after(self, position: int) -> tuple[list[bytes], int]:
        """The lines after a position, and the position after them."""
        ...


class LineFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Without `calls`, every line; an agent or `failed` imply it."""

    calls: bool = False
    agent_id: str | None = None
    failed: bool = False

    def matches(self, line: bytes) -> bool:
        if not (self.calls or self.failed or self.agent_id is not None):
            return True
        facts = _decode_facts(line)
        is_refused = facts.event == "request" and facts.status == "failed"  # before it became a call
        if facts.event not in ("call", "job") and not is_refused:
            return False
        if self.agent_id is not None and facts.target != self.agent_id:
            return False
        return not self.failed or facts.status in ("failed", "timeout", "rejected")


class _LineFacts(msgspec.Struct, frozen=True):
    event: str = ""
    target: str | None = None
    status: str | None = None


_decode_facts = msgspec.json.Decoder(_LineFacts).decode


def read_lines(log: RecentLog, position: int, wanted: LineFilter) -> tuple[list[bytes], int]:
    """The lines after a position that match, and the position after all of them."""
    lines, end = log.read_after(position)
    return [line for line in lines if wanted.matches(line)], end


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next` leads on: a number for a node that is one process, else the positions in the logs of all."""

    node: str  # another one after each start of the node
    next: int | str
    lines: list[msgspec.Raw]
    missing: list[str] = []  # processes that did not answer


class _LinesQuestion(msgspec.Struct, frozen=True, kw_only=True):
    position: int = 0
    start_id: str | None = None
    wanted: LineFilter = LineFilter()
    last: int = 0
    wait: float = 0.0


class _LinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    start_id: str
    next: int
    lines: list[bytes]


class NodeLog:
    """The logs of all processes as one, in the order of time. `is_stopping` ends every wait."""

    def __init__(self, log: RecentLog, processes: Processes, is_stopping: Callable[[], bool]) -> None:
        self._log = log
        self._processes = processes
        self._is_stopping = is_stopping
        processes.add(_LINES, self._answer_lines)
        processes.add(_HAS_LINES, self._answer_has_lines)

    async def read(self, after: int | str | None, last: int, wanted: LineFilter, wait: float) -> LogPage:
        """The lines after `next` of an earlier page; waits for one if there is none. Raises BadInput."""
        if self._processes.is_single:
            return await self._read_own(after if isinstance(after, int) else 0, last, wanted, wait)
        if isinstance(after, int) and after:
            raise BadInput("This node is several processes: send `next` of the reply before as it is", field="after")
        positions = parse_positions(after) if isinstance(after, str) else {}
        page = await self._read_all(positions, last, wanted)
        if not page.lines and wait > 0:
            positions = parse_positions(str(page.next))
            questions = {name: self._question(positions.get(name), 1, wanted, wait) for name in self._processes.names}
            await self._processes.wait_for_any(_HAS_LINES, questions, wait)
            page = await self._read_all(positions, last, wanted)
        return page

    async def _read_own(self, position: int, last: int, wanted: LineFilter, wait: float) -> LogPage:
        ends_at = time.monotonic() + wait
        lines, end = read_lines(self._log, position, wanted)
        while not lines and time.monotonic() < ends_at and not self._is_stopping():
            await asyncio.sleep(_POLL_SECONDS)
            lines, end = read_lines(self._log, end, wanted)
        return LogPage(node=self._log.start_id, next=end, lines=[msgspec.Raw(line) for line in _take(lines, last)])

    async def _read_all(self, positions: dict[str, LogPosition], last: int, wanted: LineFilter) -> LogPage:
        names = self._processes.names
        questions = {name: self._question(positions.get(name), last, wanted) for name in names}
        answers = await self._processes.ask_each(_LINES, questions)
        found = {name: msgspec.convert(answer, _LinesAnswer) for name, answer in answers.by_name.items()}
        lines = [_name_process(line, name) for name, answer in found.items() for line in answer.lines]
        lines.sort(key=_read_time)
        reached = {name: LogPosition(answer.start_id, answer.next) for name, answer in found.items()}
        return LogPage(
            node=self._processes.start_id,
            next=format_positions({**positions, **reached}),
            lines=[msgspec.Raw(line) for line in _take(lines, last)],
            missing=answers.missing,
        )

    def _question(
        self, position: LogPosition | None, last: int, wanted: LineFilter, wait: float = 0.0
    ) -> dict[str, Any]:
        start_id, number = (None, 0) if position is None else position
        question = _LinesQuestion(position=number, start_id=start_id, wanted=wanted, last=last, wait=wait)
        return dict(msgspec.to_builtins(question))

    async def _answer_lines(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What this process has. It may have been started again since the position was given."""
        question = msgspec.convert(arguments, _LinesQuestion)
        lines, end = read_lines(self._log, self._find_position(question), question.wanted)
        return {"start_id": self._log.start_id, "next": end, "lines": _take(lines, question.last)}

    async def _answer_has_lines(self, arguments: dict[str, Any]) -> bool:
        """Waits until there is one."""
        question = msgspec.convert(arguments, _LinesQuestion)
        page = await self._read_own(self._find_position(question), 1, question.wanted, question.wait)
        return bool(page.lines)

    def _find_position(self, question: _LinesQuestion) -> int:
        return question.position if question.start_id == self._log.start_id else 0


def _take(lines: list[bytes], last: int) -> list[bytes]:
    return lines[max(0, len(lines) - last) :]


def _name_process(line: bytes, name: str) -> bytes:
    return line[: line.rindex(b"}")] + b',"process":' + msgspec.json.encode(name) + b"}"


class _LineTime(msgspec.Struct, frozen=True):
    time: str = ""


_decode_time = msgspec.json.Decoder(_LineTime).decode


def _read_time(line: bytes) -> str:
    return _decode_time(line).time
