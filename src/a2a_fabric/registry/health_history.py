"""The history of every agent's health in the store: each change at once, unchanged states at an interval.

Recording never waits: checks are buffered in memory, bounded, and written in
batches. While the store is unavailable the newest are kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from a2a_fabric.core.agent import Health
from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.registration import HealthCheck
from a2a_fabric.core.stores import HealthLog
from a2a_fabric.registry.health import HealthPolicy

_log = logging.getLogger(__name__)
_WRITE_EVERY = 1.0
_PRUNE_EVERY = 600.0
_BATCH = 500
_MAX_PENDING = 20_000
_STORE_TIMEOUT = 10.0
_STOP_TIMEOUT = 2.0
_MAX_PAUSE = 30.0
_MAX_READ = 10_000
_DAY = 86_400.0


class Uptime(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the seconds in which a node observed the agent it was usable."""

    observed: float = 0.0
    up: float = 0.0

    @property
    def ratio(self) -> float | None:
        return None if self.observed <= 0 else self.up / self.observed


class HealthHistory:
    """`run` writes until cancelled; `aclose` writes the rest."""

    def __init__(
        self, log: HealthLog, policy: HealthPolicy, node_id: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._log = log
        self._policy = policy
        self._node_id = node_id
        self._clock = clock
        self._pending: deque[HealthCheck] = deque(maxlen=_MAX_PENDING)
        self._last: dict[str, HealthCheck] = {}
        self._lock = asyncio.Lock()
        self._prune_at = clock() + _PRUNE_EVERY / 2

    def record(self, agent_id: str, health: Health, latency: float | None = None) -> None:
        """Record one check of an agent. A check without news within `history_interval` is dropped."""
        check = HealthCheck(
            agent_id=agent_id,
            status=health.status,
            checked_at=self._clock(),
            latency=latency,
            error=health.error,
            node_id=self._node_id,
        )
        last = self._last.get(agent_id)
        if last is not None and (last.status, last.error) == (check.status, check.error):
            if latency is not None and last.latency is None and self._pending and self._pending[-1] is last:
                self._pending.pop()  # the same check, recorded before its latency was known
            elif check.checked_at < last.checked_at + self._policy.history_interval:
                return
        self._last[agent_id] = check
        self._pending.append(check)

    async def run(self) -> None:
        pause = _WRITE_EVERY
        while True:
            await asyncio.sleep(pause)
            try:
                await self.write()
                await self._prune()
                pause = _WRITE_EVERY
            except (StoreError, TimeoutError) as error:
                if pause == _WRITE_EVERY:
                    _log.warning("the health history cannot be written now: %s", error or "no answer in time")
                pause = min(pause * 2, _MAX_PAUSE)
            except Exception:
                _log.exception("writing the health history failed; it is tried again")

    async def write(self) -> None:
        """Store the pending checks, oldest first. Raises StoreError or TimeoutError; then they stay pending."""
        async with self._lock:
            while self._pending:
                batch = list(islice(self._pending, _BATCH))
                async with asyncio.timeout(_STORE_TIMEOUT):
                    await self._log.append(batch)
                for check in batch:
                    if self._pending and self._pending[0] is check:  # else newer checks have displaced it
                        self._pending.popleft()

    async def read(self, agent_id: str, window: float, limit: int) -> tuple[Uptime, Sequence[HealthCheck]]:
        """Uptime within the last `window` seconds, and the newest checks. Raises StoreError."""
        await self.write()
        now = self._clock()
        async with asyncio.timeout(_STORE_TIMEOUT):
            checks = await self._log.read(agent_id, since=now - window, limit=_MAX_READ)
        max_gap = 3 * max(self._policy.history_interval, self._policy.interval)
        return compute_uptime(checks, now, max_gap), checks[:limit]

    async def aclose(self) -> None:
        """Never raises."""
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self.write()
        except (StoreError, TimeoutError):
            _log.warning("%d health checks could not be written", len(self._pending))

    async def _prune(self) -> None:
        now = self._clock()
        if now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_EVERY
        stale = now - 2 * self._policy.history_interval - 2 * self._policy.interval
        self._last = {agent_id: check for agent_id, check in self._last.items() if check.checked_at > stale}
        async with asyncio.timeout(_STORE_TIMEOUT):
            await self._log.prune(now - self._policy.history_days * _DAY)


def compute_uptime(checks: Sequence[HealthCheck], now: float, max_gap: float) -> Uptime:
    """Each check counts until the same node's next one, at most `max_gap` seconds."""
    by_node: dict[str, list[HealthCheck]] = defaultdict(list)
    for check in sorted(checks, key=lambda each: each.checked_at):
        by_node[check.node_id].append(check)
    observed = up = 0.0
    for node_checks in by_node.values():
        ends = [*(check.checked_at for check in node_checks[1:]), now]
        for check, end in zip(node_checks, ends, strict=True):
            seconds = min(max(end - check.checked_at, 0.0), max_gap)
            if check.status != "unknown":
                observed += seconds
                up += seconds if check.status in ("online", "degraded") else 0.0
    return Uptime(observed=observed, up=up)
