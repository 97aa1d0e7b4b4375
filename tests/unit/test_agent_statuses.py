"""The status of agents in a node of several processes: what is merged, and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.statuses import AgentStatuses


class OneProcess:
    def __init__(self) -> None:
        self.now = 100.0
        self.health = HealthTracker(HealthPolicy(), lambda: self.now)
        self.statuses = AgentStatuses(self.health)


class TwoProcesses:
    """`own` reads; `other` may be away. `asked` are the answers that it gave."""

    def __init__(self) -> None:
        self.own, self.other = OneProcess(), OneProcess()
        self.is_away = False
        self.answers: list[dict[str, Any]] = []
        self.own.statuses.connect("w0", ["w1"], self._ask)

    async def _ask(self, questions: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        if self.is_away:
            return {}
        self.answers.append(msgspec.to_builtins(self.other.statuses.answer(questions["w1"])))
        return {"w1": self.answers[-1]}

    async def refresh(self) -> None:
        self.own.statuses._next_at = 0.0
        await self.own.statuses.refresh()


@pytest.mark.parametrize(
    ("own", "other", "status"),
    [
        ("online", "online", "online"),
        ("offline", "offline", "offline"),
        ("online", "offline", "degraded"),
        ("degraded", "online", "degraded"),
        ("unknown", "online", "online"),
        ("unknown", "offline", "offline"),
        ("online", "unknown", "online"),
        ("unknown", "unknown", "unknown"),
    ],
)
async def test_an_agent_that_only_some_processes_reach_is_degraded(own: Status, other: Status, status: Status) -> None:
    node = TwoProcesses()
    node.own.health.set_status("percy", own, None if own == "online" else "own reason")
    node.other.health.set_status("percy", other, None if other == "online" else "other reason")
    await node.refresh()
    assert node.own.statuses.get("percy").status == status


async def test_the_reason_names_the_process_that_does_not_reach_the_agent() -> None:
    node = TwoProcesses()
    node.own.health.set_status("percy", "online")
    node.other.now = 140.0
    node.other.health.set_status("percy", "offline", "connection refused")
    await node.refresh()
    assert node.own.statuses.get("percy").error == "w1: connection refused"
    assert node.own.statuses.find_change_time("percy") == 140.0
    node.own.health.set_status("percy", "offline", "connection refused")
    assert node.own.statuses.get("percy").error == "connection refused"  # of all of them


async def test_only_what_changed_is_asked_for() -> None:
    node = TwoProcesses()
    for name in ("a", "b", "c"):
        node.other.health.set_status(name, "online")
    await node.refresh()
    before = node.own.statuses.stamp
    node.other.health.set_status("b", "offline", "gone")
    node.other.health.forget("c")
    await node.refresh()
    await node.refresh()
    assert [sorted(answer["reports"]) for answer in node.answers] == [["a", "b", "c"], ["b", "c"], []]
    assert [node.own.statuses.get(name).status for name in ("a", "b", "c")] == ["online", "offline", "unknown"]
    assert node.own.statuses.stamp != before


async def test_a_process_that_was_started_again_tells_everything() -> None:
    node = TwoProcesses()
    node.other.health.set_status("percy", "offline", "gone")
    await node.refresh()
    node.other = OneProcess()
    node.other.health.set_status("ada", "online")
    await node.refresh()
    assert node.own.statuses.get("percy").status == "unknown"
    assert node.own.statuses.get("ada").status == "online"


async def test_what_a_process_knew_does_not_count_while_it_does_not_answer() -> None:
    node = TwoProcesses()
    node.own.health.set_status("percy", "online")
    node.other.health.set_status("percy", "offline", "gone")
    await node.refresh()
    node.is_away = True
    await node.refresh()
    assert node.own.statuses.get("percy").status == "online"
    node.is_away = False
    await node.refresh()
    assert node.own.statuses.get("percy").status == "degraded"


async def test_many_readers_share_one_question() -> None:
    node = TwoProcesses()
    for _ in range(5):
        await node.own.statuses.refresh()
    assert len(node.answers) == 1


def test_changes_of_agents_that_are_gone_are_forgotten_at_some_time() -> None:
    health = HealthTracker(HealthPolicy())
    for number in range(5000):
        health.record_failure(f"agent-{number}", AgentOffline("gone"))
        health.forget(f"agent-{number}")
    assert len(health._changes) < 1500
    assert health.list_changes(0) is None  # so the reader gets all
    assert health.list_changes(health.epoch) == []


async def test_one_process_alone_asks_no_other() -> None:
    node = OneProcess()
    node.health.set_status("percy", "offline", "gone")
    await node.statuses.refresh()
    assert node.statuses.get("percy") is node.health.get("percy")
    assert node.statuses.find_change_time("percy") == 100.0
