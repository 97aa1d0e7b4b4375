"""The gate before one agent: how many calls it has, and whether it is given any after failing again and again.

Whatever reaches the agent passes here, calls and traffic in its own protocol alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from a2a_fabric.core.breaker import (
    CLOSED,
    Breaker,
    BreakerPolicy,
    admit,
    failed,
    inconclusive,
    reachable,
    succeeded,
)
from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError, UpstreamFailed
from a2a_fabric.core.shares import SHARE, Shares
from a2a_fabric.registry.health import evidence_in


class Gate:
    """`enter` before, `leave` after, and in between `heard` of how it went.

    While the breaker is `CLOSED`, which it nearly always is, `take` is all that `enter` does. While nobody waits for
    it to become idle, `give_back` is all that `leave` does.
    """

    __slots__ = (
        "_agent_id",
        "_clock",
        "_policy",
        "_shares",
        "answers_broken",
        "breaker",
        "give_back",
        "interruptions",
        "nobody_inside",
        "take",
    )

    def __init__(
        self,
        agent_id: str,
        most: int,
        policy: BreakerPolicy,
        clock: Callable[[], float] = time.monotonic,
        share: float = SHARE,
    ) -> None:
        self.breaker: Breaker = CLOSED
        self.interruptions = 0  # how often the agent's answers were lost, all calls under way at the time taken as one
        self.answers_broken = False  # the last failure: the agent answered at once, but broken
        self._agent_id = agent_id
        self._policy = policy
        self._shares = Shares(f"calls to agent '{agent_id}'", most, share, used_up=partial(_busy, agent_id, most))
        self.take, self.give_back = self._shares.take, self._shares.give_back
        self._clock = clock
        self.nobody_inside: asyncio.Event | None = None  # only where somebody waits for it

    @property
    def calls(self) -> int:
        return self._shares.total

    def enter(self, caller: str | None = None, *, has_alternative: bool = False, is_alone: bool = True) -> None:
        """Raises AgentBusy, AgentOffline, RateLimited (the caller has its share); then there is nothing to leave.

        `has_alternative`: see `admit`. `is_alone`: no other agent may answer instead. One that answers broken is asked
        all the same then: a caller whose input breaks it again and again would else take it away from the others.
        """
        self.take(caller)
        if self.breaker is not CLOSED and not (is_alone and self.answers_broken):
            try:
                self._ask_for_admission(has_alternative=has_alternative)
            except AgentOffline:
                self.give_back(caller)
                raise

    def heard(self, error: FabricError | None = None) -> None:
        """A call has ended. An agent that answered, be it no, is there; only its own silence counts against it."""
        evidence = "alive" if error is None else evidence_in(error)
        if evidence == "failing":
            may_have_run = error is not None and not error.never_ran
            self.answers_broken = isinstance(error, UpstreamFailed)
            self.breaker = failed(self.breaker, self._clock(), self._policy, may_have_run=may_have_run)
        elif self.breaker is not CLOSED and evidence == "alive":
            self.breaker = succeeded(self.breaker, self._policy)
        elif self.breaker is not CLOSED:
            self.heard_nothing()

    def heard_nothing(self) -> None:
        """A call has ended without a word about the agent: its caller left, or gave it no time."""
        if self.breaker is not CLOSED:
            self.breaker = inconclusive(self.breaker, self._clock())

    def was_probed(self) -> None:
        """The agent has answered a probe."""
        if self.breaker is not CLOSED:
            self.breaker = reachable(self.breaker, self._clock())

    def leave(self, caller: str | None = None) -> None:
        self.give_back(caller)
        if self.nobody_inside is not None and not self.calls:
            self.nobody_inside.set()

    async def idle(self) -> None:
        """Until nobody is inside."""
        while self.calls:
            self.nobody_inside = self.nobody_inside or asyncio.Event()
            self.nobody_inside.clear()
            await self.nobody_inside.wait()

    def _ask_for_admission(self, *, has_alternative: bool) -> None:
        self.breaker, admitted = admit(self.breaker, self._clock(), self._policy, has_alternative=has_alternative)
        if not admitted:
            wait = self.breaker.until - self._clock()
            refusal = AgentOffline(
                f"Agent '{self._agent_id}' failed {self.breaker.failures} times in a row; "
                f"next try in {max(wait, 0.1):.1f} s"
            )
            refusal.is_inconclusive = True  # nobody asked the agent
            raise refusal


def _busy(agent_id: str, most: int) -> AgentBusy:
    words = f"Agent '{agent_id}' is busy with {most} calls, the most it is given at a time; try again in a moment"
    return AgentBusy(words, agent_id=agent_id)
