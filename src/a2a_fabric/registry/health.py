"""How each agent is, from probes and from calls, with hysteresis: one bad moment is not an outage.

unknown ─ok→ online ─failure→ degraded ─N failures→ offline ─M successes→ online

An agent that was never seen alive has no good name to lose: its first failure
makes it offline, and its first success online.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Health, Status
from a2a_fabric.core.errors import AgentBusy, AgentError, AllAttemptsFailed, FabricError

_PULSE = 0.2  # seconds
_SMOOTHING = 0.2  # weight of the newest latency


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How agents are watched."""

    interval: Annotated[float, Meta(ge=0, description="Seconds between probes of each agent; 0 switches them off.")] = (
        30.0
    )
    timeout: Annotated[float, Meta(gt=0, description="Seconds a probe may take.")] = 5.0
    failures: Annotated[int, Meta(ge=1, description="Failures in a row until an agent counts as offline.")] = 3
    successes: Annotated[int, Meta(ge=1, description="Successes in a row until an offline agent is online again.")] = 2
    history_interval: Annotated[
        float, Meta(ge=0, description="Seconds between kept checks that say the same; changes are always kept.")
    ] = 60.0
    history_days: Annotated[float, Meta(gt=0, description="How long the history of health is kept.")] = 7.0


def after_success(health: Health, policy: HealthPolicy, latency: float | None, now: float) -> Health:
    successes = health.successes + 1
    status: Status = health.status
    was_never_seen = health.seen_at is None
    if status in ("unknown", "degraded") or was_never_seen or successes >= policy.successes:
        status = "online"
    if latency is None or health.latency is None:
        smoothed = latency if latency is not None else health.latency
    else:
        smoothed = health.latency + _SMOOTHING * (latency - health.latency)
    error = None if status == "online" else health.error
    return Health(status=status, successes=successes, error=error, latency=smoothed, seen_at=now)


def after_failure(health: Health, policy: HealthPolicy, error: str) -> Health:
    failures = health.failures + 1
    is_down = failures >= policy.failures or health.status == "offline" or health.seen_at is None
    status: Status = "offline" if is_down else "degraded"
    return Health(status=status, failures=failures, error=error[:500], latency=health.latency, seen_at=health.seen_at)


class HealthBook:
    """The health of every agent seen so far. `epoch` grows when any status changes, so plans know when to be remade."""

    def __init__(self, policy: HealthPolicy, clock: Callable[[], float] = time.time) -> None:
        self._policy = policy
        self._clock = clock
        self._book: dict[str, Health] = {}
        self._listeners: list[Callable[[str, Health], None]] = []
        self.epoch = 0

    def listen(self, listener: Callable[[str, Health], None]) -> None:
        """Be called after every change of a status, from the midst of a call: it must be quick."""
        self._listeners.append(listener)

    def of(self, agent_id: str) -> Health:
        return self._book.get(agent_id, _UNKNOWN)

    def succeeded(self, agent_id: str, latency: float | None = None) -> None:
        known, now = self._book.get(agent_id, _UNKNOWN), self._clock()
        if known.status == "online" and not known.failures and now - (known.seen_at or 0.0) < _PULSE:
            return  # nothing new: writing down a good pulse a few times a second is enough
        self._set(agent_id, after_success(known, self._policy, latency, now))

    def failed(self, agent_id: str, error: FabricError) -> None:
        """Only what says something about the agent counts: a refusal is a sign of life, a bad request says nothing."""
        if error.is_answer:
            self.succeeded(agent_id)
        elif isinstance(error, AgentError) and not isinstance(error, AllAttemptsFailed | AgentBusy):
            self._set(agent_id, after_failure(self.of(agent_id), self._policy, error.sentence))

    def set_status(self, agent_id: str, status: Status, error: str | None = None) -> None:
        """Somebody who knows says so (an operator, the agent's own heartbeat, a failed start)."""
        seen_at = self._clock() if status == "online" else self.of(agent_id).seen_at
        self._set(agent_id, Health(status=status, error=error, latency=self.of(agent_id).latency, seen_at=seen_at))

    def forget(self, agent_id: str) -> None:
        if self._book.pop(agent_id, None) is not None:
            self.epoch += 1

    def _set(self, agent_id: str, health: Health) -> None:
        has_changed = health.status != self.of(agent_id).status
        self._book[agent_id] = health
        if has_changed:
            self.epoch += 1
            for listener in self._listeners:
                listener(agent_id, health)


_UNKNOWN = Health()
