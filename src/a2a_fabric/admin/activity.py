"""How many calls there were lately, how many failed, and how long they took: in all, and for each agent.

The numbers come from the tallies that the metrics keep anyway, so a call costs nothing more. Each sample holds only the
agents that were called since the one before. All processes of a node take their samples at the same moments, so those
of several processes can be added up."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.telemetry.metrics import Metrics

INTERVAL = 5.0  # seconds
_SAMPLES = 60  # five minutes
_SPARK = 30


class Tally(NamedTuple):
    """Calls within one interval, or since the start."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class Sample(NamedTuple):
    number: int  # of the interval, the same in all processes
    duration: float
    total: Tally
    by_agent: dict[str, Tally]


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """One interval of one process."""

    number: int
    duration: float
    calls: int
    errors: int
    seconds: float


class ActivityReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process counted, in all or for one agent; `intervals` oldest first."""

    intervals: tuple[Interval, ...] = ()
    calls_total: int = 0
    errors_total: int = 0


_NOTHING = Tally()


class Activity:
    """`run` samples until cancelled."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._before: dict[str, Tally] = {}
        self._sampled_at = clock()

    async def run(self) -> None:
        await self.sample()
        self._samples.clear()  # the first one begins at the start of the node
        while True:
            await asyncio.sleep(find_pause(self._clock()))
            await self.sample()

    async def sample(self) -> None:
        now = self._clock()
        sums = await self._metrics.sum_by_target()
        totals: dict[str, Tally] = {}
        by_agent: dict[str, Tally] = {}
        async for part in iterate_in_slices(sums.items()):
            for name, values in part:
                total = totals[name] = Tally(*values)
                before = self._before.get(name, _NOTHING)
                if total.calls > before.calls:
                    by_agent[name] = _subtract(total, before)
        self._before = totals
        number = round(now / INTERVAL)
        if self._samples:
            number = max(number, self._samples[-1].number + 1)
        self._samples.append(Sample(number, now - self._sampled_at, _add(by_agent.values()), by_agent))
        self._sampled_at = now

    def report(self) -> ActivityReport:
        total = _add(self._before.values())
        intervals = tuple(Interval(each.number, each.duration, *each.total) for each in self._samples)
        return ActivityReport(intervals=intervals, calls_total=total.calls, errors_total=total.errors)

    def report_agent(self, agent_id: str) -> ActivityReport:
        intervals = tuple(
            Interval(each.number, each.duration, *each.by_agent.get(agent_id, _NOTHING)) for each in self._samples
        )
        total = self._before.get(agent_id, _NOTHING)
        return ActivityReport(intervals=intervals, calls_total=total.calls, errors_total=total.errors)


def find_pause(now: float) -> float:
    """Until the next moment at which all processes sample. A timer may end a little early; that moment is over, too."""
    pause = INTERVAL - now % INTERVAL
    return pause if pause > INTERVAL / 2 else pause + INTERVAL


def render_activity(reports: Sequence[ActivityReport]) -> dict[str, Any]:
    """Calls a second, errors a second and mean milliseconds of all processes together, oldest first."""
    groups = _group_intervals(reports)
    return {
        "interval_seconds": INTERVAL,
        "at": [number * INTERVAL for number in groups],
        "calls_per_second": [_rate((each.calls, each.duration) for each in group) for group in groups.values()],
        "errors_per_second": [_rate((each.errors, each.duration) for each in group) for group in groups.values()],
        "mean_ms": [_mean_ms(group) for group in groups.values()],
        "calls_total": sum(report.calls_total for report in reports),
        "errors_total": sum(report.errors_total for report in reports),
    }


def render_agent_activity(reports: Sequence[ActivityReport]) -> dict[str, Any]:
    """The last five minutes of one agent: mean milliseconds for each interval, null without calls."""
    groups = _group_intervals(reports)
    intervals = [each for group in groups.values() for each in group]
    return {
        "calls": sum(each.calls for each in intervals),
        "errors": sum(each.errors for each in intervals),
        "mean_ms": _mean_ms(intervals),
        "spark": [_mean_ms(group) for group in list(groups.values())[-_SPARK:]],
        "calls_total": sum(report.calls_total for report in reports),
    }


def _group_intervals(reports: Sequence[ActivityReport]) -> dict[int, list[Interval]]:
    """By number, up to the newest interval that all processes have sampled: a part of one would look like a drop."""
    newest = min((report.intervals[-1].number for report in reports if report.intervals), default=0)
    groups: dict[int, list[Interval]] = {}
    for report in reports:
        for each in report.intervals:
            if each.number <= newest:
                groups.setdefault(each.number, []).append(each)
    return {number: groups[number] for number in sorted(groups)[-_SAMPLES:]}


def _add(tallies: Iterable[Tally]) -> Tally:
    columns = list(zip(*tallies, strict=True))
    return Tally(*(sum(column) for column in columns)) if columns else _NOTHING


def _subtract(after: Tally, before: Tally) -> Tally:
    return Tally(after.calls - before.calls, after.errors - before.errors, after.seconds - before.seconds)


def _rate(counts: Iterable[tuple[int, float]]) -> float:
    return round(sum(count / duration for count, duration in counts if duration > 0), 2)


def _mean_ms(intervals: Sequence[Interval]) -> float | None:
    calls = sum(each.calls for each in intervals)
    return round(sum(each.seconds for each in intervals) / calls * 1000, 2) if calls else None
