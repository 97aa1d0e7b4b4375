"""The processes of a node (`up --workers N`) as one: each of them answers for all.

A question goes to all processes at once. One that does not answer in time is named in the reply; its part is left out,
never guessed. A node that is one process asks only itself, and pays nothing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.core.node_health import OK, NodeCheck, NodeHealth
from a2a_fabric.core.tasks import cancel_and_wait

WORKERS_CHECK = "workers"  # the name of the check, in a node of several processes
_HEALTH = "health"
_HEALTH_SECONDS = 1.0
_MAX_REASON = 300
_TIMEOUT = 2.0  # seconds for an answer
_SEPARATOR, _INNER = ",", ":"
_log = logging.getLogger(__name__)

Question = Callable[[dict[str, Any]], Awaitable[Any]]


class OtherProcess(Protocol):
    async def ask_admin(self, question: str, arguments: dict[str, Any]) -> Any:
        """What `Processes.answer` of that process returns. Raises FabricError."""
        ...


class ProcessAnswers(NamedTuple):
    by_name: dict[str, Any]  # this process first
    missing: list[str]  # processes that did not answer


class _Answer(NamedTuple):
    value: Any  # None too


class Processes:
    """`name` is that of this process; None if the node is one process. `folder` is that of the workers' sockets."""

    def __init__(
        self, name: str | None = None, folder: str = "", others: Mapping[str, OtherProcess] | None = None
    ) -> None:
        self.name = name
        self._own_name = name or ""
        self._others = others or {}
        self._questions: dict[str, Question] = {}
        # The same in all processes, and another one after each start of the node.
        self.start_id = hashlib.sha256(folder.encode()).hexdigest()[:8]

    @property
    def is_single(self) -> bool:
        return not self._others

    @property
    def names(self) -> list[str]:
        return [self._own_name, *self._others]

    def add(self, name: str, question: Question) -> None:
        """How this process answers a question."""
        self._questions[name] = question

    async def answer(self, question: str, arguments: dict[str, Any]) -> Any:
        """For another process of this node. Raises FabricError."""
        handler = self._questions.get(question)
        if handler is None:
            raise BadInput(f"This process does not know the question '{question[:64]}'")
        return await handler(arguments)

    async def ask(self, question: str, arguments: dict[str, Any] | None = None) -> ProcessAnswers:
        """All processes, with the same arguments."""
        return await self.ask_each(question, dict.fromkeys(self.names, arguments or {}))

    async def ask_each(self, question: str, arguments: Mapping[str, dict[str, Any]]) -> ProcessAnswers:
        """All processes, each with arguments of its own."""
        own, others = await asyncio.gather(
            self.answer(question, arguments[self._own_name]), self.ask_others(question, arguments)
        )
        return ProcessAnswers({self._own_name: own, **others.by_name}, others.missing)

    async def ask_others(self, question: str, arguments: Mapping[str, dict[str, Any]]) -> ProcessAnswers:
        """All processes but this one, each with arguments of its own."""
        answers = await asyncio.gather(*(self._ask_other(name, question, arguments[name]) for name in self._others))
        by_name = {name: each.value for name, each in zip(self._others, answers, strict=True) if each is not None}
        return ProcessAnswers(by_name, [name for name in self._others if name not in by_name])

    async def wait_for_any(self, question: str, arguments: Mapping[str, dict[str, Any]], seconds: float) -> None:
        """Until one process has answered with something; the others are asked no longer."""

        async def ask(name: str) -> Any:
            if name == self._own_name:
                return await self.answer(question, arguments[name])
            answer = await self._ask_other(name, question, arguments[name], seconds + _TIMEOUT)
            return None if answer is None else answer.value

        pending = {asyncio.ensure_future(ask(name)) for name in self.names}
        try:
            async with asyncio.timeout(seconds):
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    if any(task.result() for task in done):
                        return
        except TimeoutError:
            pass
        finally:
            await cancel_and_wait(*pending)

    async def _ask_other(
        self, name: str, question: str, arguments: dict[str, Any], timeout: float = _TIMEOUT
    ) -> _Answer | None:
        try:
            async with asyncio.timeout(timeout):
                return _Answer(await self._others[name].ask_admin(question, arguments))
        except (FabricError, TimeoutError) as error:
            _log.debug("process %s did not answer the question '%s': %s", name, question, error)
            return None


class ProcessesCheck:
    """Whether the other processes of the node answer, and whether they are well; asked at most once a second."""

    def __init__(self, processes: Processes, health: NodeHealth) -> None:
        self._processes = processes
        self._health = health
        self._task: asyncio.Task[NodeCheck] | None = None
        self._checked_at = 0.0
        processes.add(_HEALTH, self._answer)

    async def __call__(self) -> NodeCheck:
        if self._task is None or (self._task.done() and time.monotonic() - self._checked_at > _HEALTH_SECONDS):
            self._task = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._task)

    async def _ask(self) -> NodeCheck:
        answers = await self._processes.ask(_HEALTH)
        self._checked_at = time.monotonic()
        others = {name: failed for name, failed in answers.by_name.items() if name != self._processes.name}
        problems = [f"{name} does not answer" for name in answers.missing]
        problems += [f"{name}: {check}: {why}" for name, failed in others.items() for check, why in failed.items()]
        if not problems:
            return OK
        count = len(answers.missing) + sum(bool(failed) for failed in others.values())
        reason = f"{count} of {len(self._processes.names)} processes of this node are not well"
        return NodeCheck(status="degraded", reason=reason, detail=f"{reason}: {'; '.join(problems)}"[:_MAX_REASON])

    async def _answer(self, arguments: dict[str, Any]) -> dict[str, str]:
        checks = await self._health.check_own()
        return {name: each.detail or each.reason or each.status for name, each in checks.items() if each.status != "ok"}


class LogPosition(NamedTuple):
    """How far the log of one process was read; `start_id` is that of the process."""

    start_id: str
    position: int


def format_positions(positions: Mapping[str, LogPosition]) -> str:
    return _SEPARATOR.join(f"{name}{_INNER}{each.start_id}{_INNER}{each.position}" for name, each in positions.items())


def parse_positions(text: str) -> dict[str, LogPosition]:
    """Raises BadInput."""
    positions: dict[str, LogPosition] = {}
    for part in filter(None, text.split(_SEPARATOR)):
        match part.split(_INNER):
            case [name, start_id, position] if position.isascii() and position.isdecimal():
                positions[name] = LogPosition(start_id, int(position))
            case _:
                raise BadInput("Invalid position. Start again without `after`", field="after")
    return positions
