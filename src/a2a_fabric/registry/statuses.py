"""The status of agents as the whole node knows it: what all of its processes found out by their own probes and calls.

Each process of a node (`up --workers N`) plans its calls by its own health of an agent. Callers and operators read one
status, whichever process answers them. An agent that some processes reach and others do not is degraded: part of its
calls fail. A process is asked only for what has changed since it was asked last, and only when a reader asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Health, Status
from a2a_fabric.registry.health import HealthTracker

_MIN_INTERVAL = 0.1  # seconds between questions to the other processes
_RETRY_SECONDS = 5.0  # after a question that one of them did not answer

AskOthers = Callable[[Mapping[str, dict[str, Any]]], Awaitable[Mapping[str, Any]]]


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process knows of an agent."""

    status: Status = "unknown"
    error: str | None = None
    latency: float | None = None
    seen_at: float | None = None
    changed_at: float | None = None


class StatusAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The statuses that changed since an epoch of the same process, or all of them (`is_whole`)."""

    start_id: float
    epoch: int
    is_whole: bool
    reports: dict[str, StatusReport]


class _Process:
    """Another process of the node, as it said it was."""

    def __init__(self) -> None:
        self.start_id = 0.0
        self.epoch = 0
        self.reports: dict[str, StatusReport] = {}

    def take(self, answer: StatusAnswer) -> None:
        reports = answer.reports if answer.is_whole else {**self.reports, **answer.reports}
        self.reports = {agent_id: each for agent_id, each in reports.items() if each.status != "unknown"}
        self.start_id, self.epoch = answer.start_id, answer.epoch


class AgentStatuses:
    """`refresh` before `get`. In a node of one process both cost nothing more than its own health."""

    def __init__(self, health: HealthTracker, name: str = "") -> None:
        self._health = health
        self._name = name
        self._started_at = time.time()
        self._others: dict[str, _Process] = {}
        self._ask: AskOthers | None = None
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0

    def connect(self, name: str, others: list[str], ask: AskOthers) -> None:
        """`ask` puts a question to each of the other processes, by name, and returns what those that live answered."""
        self._name, self._ask = name, ask
        self._others = {each: _Process() for each in others}

    @property
    def stamp(self) -> str:
        """Another one after every change of a status, in any process."""
        return ".".join(str(epoch) for epoch in (self._health.epoch, *(each.epoch for each in self._others.values())))

    async def refresh(self) -> None:
        """Learn what changed in the other processes. Readers at the same time share one question."""
        if self._ask is None:
            return
        if self._task is None or (self._task.done() and time.monotonic() >= self._next_at):
            self._task = asyncio.ensure_future(self._ask_others(self._ask))
        await asyncio.shield(self._task)

    def get(self, agent_id: str) -> Health:
        own = self._health.get(agent_id)
        return own if not self._others else _merge(own, self._collect(agent_id))

    def find_change_time(self, agent_id: str) -> float | None:
        """Since when the agent has its status; None if it is not known."""
        if not self._others:
            return self._health.find_change_time(agent_id)
        status = self.get(agent_id).status
        reports = self._collect(agent_id).values()
        same = [each for each in reports if each.status == status]
        # A mixture has a status that no process has: it began when the first of them lost the agent.
        chosen = same or [each for each in reports if each.status not in ("unknown", "online")]
        return min((each.changed_at for each in chosen if each.changed_at is not None), default=None)

    def answer(self, arguments: dict[str, Any]) -> StatusAnswer:
        """For another process of the node."""
        epoch = arguments.get("epoch") if arguments.get("start_id") == self._started_at else None
        changed = None if epoch is None else self._health.list_changes(int(epoch))
        agent_ids = self._health.list_known() if changed is None else changed
        return StatusAnswer(
            start_id=self._started_at,
            epoch=self._health.epoch,
            is_whole=changed is None,
            reports={agent_id: self.report(agent_id) for agent_id in agent_ids},
        )

    def report(self, agent_id: str) -> StatusReport:
        """What this process knows."""
        health = self._health.get(agent_id)
        return StatusReport(
            status=health.status,
            error=health.error,
            latency=health.latency,
            seen_at=health.seen_at,
            changed_at=self._health.find_change_time(agent_id),
        )

    def _collect(self, agent_id: str) -> dict[str, StatusReport]:
        others = {name: each.reports[agent_id] for name, each in self._others.items() if agent_id in each.reports}
        return {self._name: self.report(agent_id), **others}

    async def _ask_others(self, ask: AskOthers) -> None:
        questions = {name: {"start_id": each.start_id, "epoch": each.epoch} for name, each in self._others.items()}
        answers = await ask(questions)
        for name, process in self._others.items():
            if name in answers:
                process.take(msgspec.convert(answers[name], StatusAnswer))
            else:
                self._others[name] = _Process()  # what it knew is left out, never guessed
        self._next_at = time.monotonic() + (_MIN_INTERVAL if len(answers) == len(self._others) else _RETRY_SECONDS)


def _merge(own: Health, reports: Mapping[str, StatusReport]) -> Health:
    """One status for the node. Processes that have not seen the agent yet say nothing about it."""
    known = {name: each for name, each in reports.items() if each.status != "unknown"}
    if not known:
        return own
    statuses = {each.status for each in known.values()}
    newest = max(known.values(), key=lambda each: each.seen_at or 0.0)
    status: Status = next(iter(statuses)) if len(statuses) == 1 else "degraded"
    return msgspec.structs.replace(
        own,
        status=status,
        error=None if status == "online" else _find_error(known, is_mixed=len(statuses) > 1),
        latency=newest.latency,
        seen_at=newest.seen_at,
    )


def _find_error(reports: Mapping[str, StatusReport], *, is_mixed: bool) -> str | None:
    """That of the process to which the agent is worst, with its name if others see the agent differently."""
    for status in ("offline", "degraded"):
        for name, each in reports.items():
            if each.status == status and each.error is not None:
                return f"{name}: {each.error}" if is_mixed and name else each.error
    return None
