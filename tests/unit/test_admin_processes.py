"""Several processes of a node asked as one: what is added up, and what is said of one that does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.admin.activity import (
    Activity,
    ActivityReport,
    Interval,
    find_pause,
    render_activity,
    render_agent_activity,
)
from a2a_fabric.admin.processes import LogPosition, Processes, format_positions, parse_positions
from a2a_fabric.core.errors import AgentOffline, BadInput
from a2a_fabric.telemetry.metrics import Metrics


class Other:
    def __init__(self, processes: Processes | None) -> None:
        self._processes = processes

    async def ask_admin(self, question: str, arguments: dict[str, Any]) -> Any:
        if self._processes is None:
            raise AgentOffline("worker 2 takes no requests now")
        return await self._processes.answer(question, arguments)


def make_processes(name: str, **others: Other) -> Processes:
    processes = Processes(name, "/run/node", others)

    async def answer(arguments: dict[str, Any]) -> str:
        return f"{name} {arguments.get('word', '')}".strip()

    processes.add("name", answer)
    return processes


async def test_a_process_that_does_not_answer_is_named_and_the_others_count() -> None:
    processes = make_processes("w0", w1=Other(make_processes("w1")), w2=Other(None))
    answers = await processes.ask("name", {"word": "hello"})
    assert answers.by_name == {"w0": "w0 hello", "w1": "w1 hello"}
    assert answers.missing == ["w2"]


async def test_all_processes_of_one_start_have_the_same_id() -> None:
    assert make_processes("w0").start_id == make_processes("w1").start_id
    assert Processes("w0", "/run/another").start_id != make_processes("w0").start_id


async def test_waiting_ends_with_the_first_answer_that_says_something() -> None:
    processes = make_processes("w0", w1=Other(make_processes("w1")), w2=Other(None))
    await processes.wait_for_any("name", {name: {} for name in processes.names}, 30.0)


async def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(BadInput, match="does not know"):
        await make_processes("w0").answer("secrets", {})


def report(*counts: tuple[int, int, int], seconds: float = 0.1) -> ActivityReport:
    intervals = tuple(Interval(number, 5.0, calls, errors, calls * seconds) for number, calls, errors in counts)
    total, failed = sum(each.calls for each in intervals), sum(each.errors for each in intervals)
    return ActivityReport(intervals=intervals, calls_total=total, errors_total=failed)


def test_figures_of_processes_are_added_up_interval_by_interval() -> None:
    figures = render_activity([report((10, 5, 1), (11, 10, 0)), report((11, 20, 5), seconds=0.4)])  # one began later
    assert figures["at"] == [50.0, 55.0]
    assert figures["calls_per_second"] == [1.0, 6.0]
    assert figures["errors_per_second"] == [0.2, 1.0]
    assert figures["mean_ms"] == [100.0, 300.0]
    assert (figures["calls_total"], figures["errors_total"]) == (35, 6)


def test_an_interval_that_not_all_processes_have_sampled_is_not_shown_yet() -> None:
    figures = render_activity([report((10, 5, 0), (11, 10, 0)), report((10, 5, 0))])
    assert figures["at"] == [50.0]
    assert render_activity([report(), report((10, 5, 0))])["at"] == [50.0]  # one has just begun
    assert render_activity([])["at"] == []


def test_the_latency_of_an_agent_is_the_mean_over_all_processes() -> None:
    told = render_agent_activity([report((10, 1, 0)), report((10, 3, 1), seconds=0.2)])
    assert (told["calls"], told["errors"], told["mean_ms"], told["spark"]) == (4, 1, 175.0, [175.0])


async def test_samples_have_the_number_of_their_interval_and_none_comes_twice() -> None:
    now = 1000.2
    activity = Activity(Metrics("test"), lambda: now)
    await activity.sample()
    await activity.sample()
    now = 1024.9
    await activity.sample()
    assert [each.number for each in activity.report().intervals] == [200, 201, 205]


@pytest.mark.parametrize(("now", "pause"), [(1000.0, 5.0), (1001.0, 4.0), (1004.999, 5.001), (1003.0, 7.0)])
def test_a_timer_that_ends_early_does_not_cause_a_second_sample(now: float, pause: float) -> None:
    assert find_pause(now) == pytest.approx(pause)


def test_positions_in_several_logs_are_one_text() -> None:
    positions = {"w0": LogPosition("1a2b", 17), "node-aw1": LogPosition("3c4d", 0)}
    assert parse_positions(format_positions(positions)) == positions
    for wrong in ("w0", "w0:x:-1", "w0:x:y", "w0:x:1:2", "w0:x:²"):
        with pytest.raises(BadInput, match="Start again"):
            parse_positions(wrong)
