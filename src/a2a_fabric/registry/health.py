"""The health of each agent, from probes and from calls, with hysteresis: one failure is not an outage.

    unknown ─ok→ online ─failure→ degraded ─N failures→ offline ─M successes→ online

For an agent that was never reached, the first failure makes it offline and the
first success online.

A probe shows that an agent can be reached, not that it works. So an agent whose last N
calls reached it and failed is at best degraded by its probes; an answered call makes it
online again. An agent that answers with broken replies (HTTP 5xx, an unreadable body) is
degraded and not offline.

The history in the store has each change at once, and unchanged states at an interval. Recording
never waits: checks are buffered in memory, bounded, and written in batches. While the store is
unavailable the newest are kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Health, Status
from a2a_fabric.core.errors import AgentError, AllAttemptsFailed, FabricError, StoreError, UpstreamFailed
from a2a_fabric.core.registration import HealthCheck
from a2a_fabric.core.stores import HealthLog
from a2a_fabric.core.tasks import repeat_forever

_MIN_UPDATE_INTERVAL = 0.2  # seconds
_SMOOTHING = 0.2  # weight of the newest latency
_MAX_FORGOTTEN = 1000  # agents that are gone, and whose last change is still known
_NOT_FOUND_STATUSES = frozenset({404, 410})  # from a server that does not know the agent's path, or from the agent

Evidence = Literal["alive", "failing"]


class StatusListener(Protocol):
    """Called during a call at every change of an agent's status, with the reason; it must be quick."""

    def __call__(self, agent_id: str, before: Status, after: Status, reason: str, /) -> None: ...


def _ignore_change(agent_id: str, before: Status, after: Status, reason: str, /) -> None:
    pass


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the health of agents is checked."""

    interval: Annotated[float, Meta(ge=0, description="Seconds between probes of each agent; 0 switches them off.")] = (
        30.0
    )
    timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds that a probe may take. A timeout of a call with less time does not count against its"
            " agent.",
        ),
    ] = 5.0
    first_list_timeout: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds that a list of tools, or a call of an unknown tool, waits for agents that were never "
            "asked what they offer. What they offered before a restart is listed without waiting.",
        ),
    ] = 5.0
    failures: Annotated[int, Meta(ge=1, description="Failures in a row until an agent counts as offline.")] = 3
    successes: Annotated[int, Meta(ge=1, description="Successes in a row until an offline agent is online again.")] = 2
    history_interval: Annotated[
        float, Meta(ge=0, description="Seconds between kept checks with the same outcome; changes are always kept.")
    ] = 60.0
    required: Annotated[
        tuple[str, ...],
        Meta(description="Agents without which the node is not ready (`/readyz`): ids. Unset: none."),
    ] = ()
    history_days: Annotated[float, Meta(gt=0, description="How long the history of health is kept.")] = 7.0


def evidence_from_error(error: FabricError) -> Evidence | None:
    """What a failed call shows about the agent: a refusal shows that it is online, a bad request shows nothing."""
    if error.is_inconclusive or isinstance(error, AllAttemptsFailed):
        return None
    if error.is_answer:
        return None if error.details.get("status") in _NOT_FOUND_STATUSES else "alive"
    return "failing" if isinstance(error, AgentError) else None


def apply_success(health: Health, policy: HealthPolicy, latency: float | None, now: float) -> Health:
    """The agent answered a call."""
    if latency is None or health.latency is None:
        smoothed = latency if latency is not None else health.latency
    else:
        smoothed = health.latency + _SMOOTHING * (latency - health.latency)
    updated = Health(successes=health.successes + 1, has_answered=True, latency=smoothed, seen_at=now)
    return _improve_status(health, policy, updated, "online")


def apply_probe(health: Health, policy: HealthPolicy, now: float) -> Health:
    """The agent answered a probe."""
    best: Status = "online" if health.failed_calls < policy.failures else "degraded"
    updated = msgspec.structs.replace(health, failures=0, successes=health.successes + 1, seen_at=now)
    return _improve_status(health, policy, updated, best)


def _improve_status(before: Health, policy: HealthPolicy, after: Health, best: Status) -> Health:
    """`after` with its new status, which is `best` once there is enough evidence."""
    is_first_contact = before.seen_at is None
    is_enough = before.status in ("unknown", "degraded") or is_first_contact or after.successes >= policy.successes
    status = best if is_enough else before.status
    error = None if status == "online" else before.error
    return msgspec.structs.replace(after, status=status, error=error)


def apply_failure(
    health: Health, policy: HealthPolicy, error: str, *, has_run: bool = False, is_broken: bool = False
) -> Health:
    """`has_run`: it was a call, and it reached the agent. `is_broken`: the agent answered it, so it is not offline."""
    failures, failed_calls = health.failures + 1, health.failed_calls + has_run
    is_down = max(failures, failed_calls) >= policy.failures or health.status == "offline" or health.seen_at is None
    return msgspec.structs.replace(
        health,
        status="offline" if is_down and not is_broken else "degraded",
        failures=failures,
        successes=0,
        failed_calls=failed_calls,
        error=error[:500],
    )


class HealthTracker:
    """The health of every agent seen so far. `epoch` grows with every change of a status, which outdates plans."""

    def __init__(
        self,
        policy: HealthPolicy,
        clock: Callable[[], float] = time.time,
        on_change: StatusListener = _ignore_change,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
        self._health_by_agent: dict[str, Health] = {}
        self._good_until: dict[str, float] = {}  # for healthy agents: when the next success is recorded
        self._listeners: list[Callable[[str, Health], None]] = []
        self._changes: dict[str, tuple[int, float]] = {}  # the epoch and time of each agent's last change, in order
        self._complete_since = 0  # the epoch after which `_changes` has every change
        self.epoch = 0

    def add_listener(self, listener: Callable[[str, Health], None]) -> None:
        """`listener` is called during a call after every change of a status; it must be quick."""
        self._listeners.append(listener)

    def get(self, agent_id: str) -> Health:
        return self._health_by_agent.get(agent_id, _UNKNOWN)

    def find_change_time(self, agent_id: str) -> float | None:
        """When the status of an agent changed last."""
        change = self._changes.get(agent_id)
        return None if change is None else change[1]

    def list_known(self) -> list[str]:
        return list(self._health_by_agent)

    def list_changes(self, epoch: int) -> list[str] | None:
        """The agents whose status changed, or that were forgotten, since an epoch; None if this is not known."""
        if not self._complete_since <= epoch <= self.epoch:
            return None
        newest_first = reversed(self._changes.items())
        return [agent_id for agent_id, _ in takewhile(lambda change: change[1][0] > epoch, newest_first)]

    def record_success(self, agent_id: str, latency: float | None = None) -> None:
        """A call was answered."""
        now = self._clock()
        if agent_id in self._good_until and now < self._good_until[agent_id]:
            return  # nothing new: recording a success a few times a second is enough
        health = apply_success(self.get(agent_id), self._policy, latency, now)
        self._set(agent_id, health, "it answered a call")
        if health.status == "online":  # an online agent has answered, so it has no failures
            self._good_until[agent_id] = now + _MIN_UPDATE_INTERVAL

    def record_probe_success(self, agent_id: str) -> None:
        current = self._health_by_agent.get(agent_id, _UNKNOWN)
        health = apply_probe(current, self._policy, self._clock())
        reason = "it answered a probe"
        if health.status == "degraded":
            reason = f"it answers probes, but its last {health.failed_calls} calls failed: {health.error}"
        self._set(agent_id, health, reason)

    def record_failure(self, agent_id: str, error: FabricError) -> None:
        """Record a failed call, if the failure shows something about the agent."""
        evidence = evidence_from_error(error)
        if evidence == "alive":
            self.record_success(agent_id)
        elif error.is_answer:
            self._write(agent_id, msgspec.structs.replace(self.get(agent_id), has_answered=False))
        elif evidence == "failing":
            has_run = not error.never_ran
            is_broken = isinstance(error, UpstreamFailed)
            current = self.get(agent_id)
            health = apply_failure(current, self._policy, error.full_message, has_run=has_run, is_broken=is_broken)
            self._set(agent_id, health, error.full_message)

    def record_probe_failure(self, agent_id: str, error: FabricError) -> None:
        """Record a failed probe. A 404 does not count if calls were answered: the server may accept only POST."""
        current = self.get(agent_id)
        if current.has_answered and error.details.get("status") in _NOT_FOUND_STATUSES:
            return
        self._set(agent_id, apply_failure(current, self._policy, error.full_message), error.full_message)

    def set_status(self, agent_id: str, status: Status, error: str | None = None) -> None:
        """Set a reported status: by an operator, the agent's own heartbeat, or a failed start."""
        current = self.get(agent_id)
        seen_at = self._clock() if status == "online" else current.seen_at
        health = msgspec.structs.replace(current, status=status, failures=0, successes=0, error=error, seen_at=seen_at)
        self._set(agent_id, health, error or "it was reported so")

    def forget(self, agent_id: str) -> None:
        self._good_until.pop(agent_id, None)
        if self._health_by_agent.pop(agent_id, None) is not None:
            self._note_change(agent_id)

    def _write(self, agent_id: str, health: Health) -> None:
        self._health_by_agent[agent_id] = health
        self._good_until.pop(agent_id, None)

    def _set(self, agent_id: str, health: Health, reason: str) -> None:
        before = self.get(agent_id).status
        self._write(agent_id, health)
        if health.status != before:
            self._note_change(agent_id)
            self._on_change(agent_id, before, health.status, reason[:500])
            for listener in self._listeners:
                listener(agent_id, health)

    def _note_change(self, agent_id: str) -> None:
        self.epoch += 1
        self._changes.pop(agent_id, None)
        self._changes[agent_id] = self.epoch, self._clock()
        if len(self._changes) > 2 * len(self._health_by_agent) + _MAX_FORGOTTEN:  # agents come and go
            self._changes = {name: change for name, change in self._changes.items() if name in self._health_by_agent}
            self._complete_since = self.epoch


_UNKNOWN = Health()


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
        """Until cancelled."""

        async def write_and_prune() -> None:
            await self.write()
            await self._prune()

        await repeat_forever(write_and_prune, _WRITE_EVERY, _MAX_PAUSE, _log, "writing the health history")

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
