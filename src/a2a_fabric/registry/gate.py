"""The gate in front of one agent: its concurrency limit, each caller's share, and its circuit breaker.

Everything that reaches the agent passes it: calls, and requests proxied in the agent's
own protocol, which `GatedProxySteps` also sends through the steps around a call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Emit, Step, compose, ignore_event
from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError, UpstreamFailed
from a2a_fabric.core.limits import DEFAULT_SHARE, Share
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.propagation import Chain, DelegationGuard, MaybeChain
from a2a_fabric.core.recording import current_recording
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import (
    CLOSED_BREAKER,
    Breaker,
    BreakerPolicy,
    admit,
    record_failure,
    record_inconclusive,
    record_reachable,
    record_success,
)
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.registry.health import evidence_from_error

_log = logging.getLogger(__name__)


class Gate:
    """Call `enter` before and `leave` after a call, and `record_outcome` in between.

    While the breaker is closed, which it nearly always is, `enter` only calls `take`. While no task waits for the
    gate to become idle, `leave` only calls `give_back`.
    """

    __slots__ = (
        "_agent_id",
        "_clock",
        "_policy",
        "_shares",
        "answers_broken",
        "breaker",
        "give_back",
        "idle_event",
        "interruptions",
        "take",
    )

    def __init__(
        self,
        agent_id: str,
        most: int,
        policy: BreakerPolicy,
        clock: Callable[[], float] = time.monotonic,
        share: Share = DEFAULT_SHARE,
        counts: SharedCounts | None = None,
    ) -> None:
        """`counts`: other processes of the node call the agent, too."""
        self.breaker: Breaker = CLOSED_BREAKER
        self.interruptions = 0  # how often the agent's answers were lost, all calls under way at the time taken as one
        self.answers_broken = False  # the last failure: the agent answered at once, but broken
        self._agent_id = agent_id
        self._policy = policy
        self._shares = build_limit(counts, f"calls to agent '{agent_id}'", most, share, used_up=self._make_busy)
        self.take, self.give_back = self._shares.acquire, self._shares.release
        self._clock = clock
        self.idle_event: asyncio.Event | None = None  # set while a task waits for it

    def resize(self, most: int) -> None:
        """Calls that are under way go on."""
        self._shares.resize(most)

    def _make_busy(self) -> AgentBusy:
        return _busy(self._agent_id, self._shares.capacity)

    @property
    def calls(self) -> int:
        return self._shares.in_use

    def enter(self, caller: str | None = None, *, has_alternative: bool = False, is_alone: bool = True) -> None:
        """Raises AgentBusy, AgentOffline, RateLimited (the caller has its share); then do not call `leave`.

        `has_alternative`: see `admit`. `is_alone`: no other agent may answer instead. One that answers broken is asked
        all the same then: a caller whose input breaks it again and again would else take it away from the others.
        """
        self.take(caller)
        if self.breaker is not CLOSED_BREAKER and not (is_alone and self.answers_broken):
            try:
                self._admit_or_raise(has_alternative=has_alternative)
            except AgentOffline:
                self.give_back(caller)
                raise

    def record_outcome(self, error: FabricError | None = None) -> None:
        """A call has ended. Any answer of the agent, even a refusal, counts as success; a missing answer does not."""
        evidence = "alive" if error is None else evidence_from_error(error)
        if evidence == "failing":
            may_have_run = error is not None and not error.never_ran
            self.answers_broken = isinstance(error, UpstreamFailed)
            was_closed = self.breaker.state == "closed"
            self.breaker = record_failure(self.breaker, self._clock(), self._policy, may_have_run=may_have_run)
            if was_closed and self.breaker.state == "open":
                _log.warning(
                    "breaker of agent %s opened: %d calls failed in a row; next try in %.3g s",
                    self._agent_id,
                    self.breaker.failures,
                    self.breaker.cool_down,
                )
        elif self.breaker is not CLOSED_BREAKER and evidence == "alive":
            was_open = self.breaker.state != "closed"
            self.breaker = record_success(self.breaker, self._policy)
            if was_open and self.breaker is CLOSED_BREAKER:
                _log.info("breaker of agent %s closed: it answers again", self._agent_id)
        elif self.breaker is not CLOSED_BREAKER:
            self.record_no_evidence()

    def record_no_evidence(self) -> None:
        """A call has ended without evidence about the agent: its caller disconnected, or gave it no time."""
        if self.breaker is not CLOSED_BREAKER:
            self.breaker = record_inconclusive(self.breaker, self._clock())

    def record_probe(self) -> None:
        """The agent has answered a probe."""
        if self.breaker is not CLOSED_BREAKER:
            self.breaker = record_reachable(self.breaker, self._clock())

    def leave(self, caller: str | None = None) -> None:
        self.give_back(caller)
        if self.idle_event is not None and not self.calls:
            self.idle_event.set()

    async def wait_until_idle(self) -> None:
        """Wait until no call is inside."""
        while self.calls:
            self.idle_event = self.idle_event or asyncio.Event()
            self.idle_event.clear()
            await self.idle_event.wait()

    def _admit_or_raise(self, *, has_alternative: bool) -> None:
        self.breaker, admitted = admit(self.breaker, self._clock(), self._policy, has_alternative=has_alternative)
        if not admitted:
            wait = self.breaker.until - self._clock()
            refusal = AgentOffline(
                f"Agent '{self._agent_id}' failed {self.breaker.failures} times in a row; "
                f"next try in {max(wait, 0.1):.1f} s"
            )
            refusal.is_inconclusive = True  # the agent was not asked
            raise refusal


def _busy(agent_id: str, most: int) -> AgentBusy:
    message = f"Agent '{agent_id}' is busy with {most} calls, the most it is given at a time; try again in a moment"
    return AgentBusy(message, agent_id=agent_id)


_EMPTY_RESULT = Result(data={})


class GatedProxySteps:
    """Runs proxied requests. `work` raises FabricError on failure, also if the reply was sent already."""

    def __init__(
        self, steps: Sequence[Step], gate_of: Callable[[Manifest], Gate], delegations: DelegationGuard | None = None
    ) -> None:
        self._steps = steps
        self._gate_of = gate_of
        self._delegations = delegations or DelegationGuard()

    def extend_chain(self, chain: MaybeChain, manifest: Manifest) -> Chain:
        """The delegation chain to send to the agent with a request. Raises DelegationRefused."""
        self._delegations.check(chain, manifest.agent_id)
        return self._delegations.extend(chain, manifest.agent_id)

    async def run_call(self, call: Call, manifest: Manifest, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` through the steps, as a call of a capability. Raises FabricError."""

        async def run_work(call: Call, emit: Emit) -> Result:
            if (recording := current_recording.get()) is not None:
                recording.begin_attempt(manifest, "proxied in the agent's own protocol")
            await self.run_request(manifest, work, call.auth.principal_id)
            return _EMPTY_RESULT

        await compose(self._steps, run_work)(call, ignore_event)

    async def run_request(
        self, manifest: Manifest, work: Callable[[], Awaitable[None]], caller: str | None = None
    ) -> None:
        """Any other request. Raises FabricError."""
        gate = self._gate_of(manifest)
        recording = current_recording.get()
        gate.enter(caller)
        try:
            if recording is not None:
                recording.enter_runtime()
            await work()
            gate.record_outcome()
            if recording is not None:
                recording.end_attempt()
        except FabricError as error:
            gate.record_outcome(error)
            if recording is not None:
                recording.end_attempt(error)
            raise
        finally:
            gate.leave(caller)
