"""How many calls there were lately, how many failed, and how long they took: in all, and for each agent.

The numbers come from the tallies that the metrics keep anyway, so a call costs nothing more. Each sample holds only the
agents that were called since the one before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from a2a_fabric.telemetry.metrics import Metrics

INTERVAL = 5.0  # seconds
_SAMPLES = 60  # five minutes


class Tally(NamedTuple):
    """Calls within one interval, or since the start."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class Sample(NamedTuple):
    at: float
    duration: float
    total: Tally
    by_agent: dict[str, Tally]


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
            await asyncio.sleep(INTERVAL)
            await self.sample()

    async def sample(self) -> None:
        now = self._clock()
        totals = {name: Tally(*values) for name, values in (await self._metrics.sum_by_target()).items()}
        by_agent: dict[str, Tally] = {}
        for name, total in totals.items():
            before = self._before.get(name, _NOTHING)
            if total.calls > before.calls:
                by_agent[name] = _subtract(total, before)
        self._before = totals
        total = Tally(*(sum(column) for column in zip(*by_agent.values(), strict=True))) if by_agent else _NOTHING
        self._samples.append(Sample(now, now - self._sampled_at, total, by_agent))
        self._sampled_at = now

    def render(self) -> dict[str, Any]:
        """Calls a second, errors a second and mean milliseconds, oldest first."""
        return {
            "interval_seconds": INTERVAL,
            "at": [round(sample.at, 3) for sample in self._samples],
            "calls_per_second": [_rate(sample.total.calls, sample.duration) for sample in self._samples],
            "errors_per_second": [_rate(sample.total.errors, sample.duration) for sample in self._samples],
            "mean_ms": [_mean_ms(sample.total) for sample in self._samples],
            "calls_total": sum(tally.calls for tally in self._before.values()),
            "errors_total": sum(tally.errors for tally in self._before.values()),
        }

    def render_agent(self, agent_id: str) -> dict[str, Any]:
        """The last five minutes of one agent: mean milliseconds for each interval, null without calls."""
        tallies = [sample.by_agent.get(agent_id, _NOTHING) for sample in self._samples]
        calls, errors = sum(each.calls for each in tallies), sum(each.errors for each in tallies)
        return {
            "calls": calls,
            "errors": errors,
            "mean_ms": _mean_ms(Tally(calls, errors, sum(each.seconds for each in tallies))),
            "spark": [_mean_ms(each) for each in tallies[-30:]],
            "calls_total": self._before.get(agent_id, _NOTHING).calls,
        }


def _subtract(after: Tally, before: Tally) -> Tally:
    return Tally(after.calls - before.calls, after.errors - before.errors, after.seconds - before.seconds)


def _rate(count: int, duration: float) -> float:
    return round(count / duration, 2) if duration > 0 else 0.0


def _mean_ms(tally: Tally) -> float | None:
    return round(tally.seconds / tally.calls * 1000, 2) if tally.calls else None
