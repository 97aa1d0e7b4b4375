"""The gate before one agent: how many calls it has, and whether it is given any after failing again and again.

Whatever reaches the agent passes here, calls and traffic in its own protocol alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from a2a_fabric.core.breaker import CLOSED, Breaker, BreakerPolicy, admit, failed, succeeded
from a2a_fabric.core.errors import AgentBusy, AgentError, AgentOffline, CallerError, FabricError
from a2a_fabric.core.shares import SHARE, Shares


class Gate:
    """`enter` before, `leave` after, and in between `heard` of how it went."""

    __slots__ = ("_agent_id", "_clock", "_idle", "_most", "_policy", "_shares", "breaker", "calls")

    def __init__(
        self,
        agent_id: str,
        most: int,
        policy: BreakerPolicy,
        clock: Callable[[], float] = time.monotonic,
        share: float = SHARE,
    ) -> None:
        self.calls = 0
        self.breaker: Breaker = CLOSED
        self._agent_id = agent_id
        self._most = most
        self._policy = policy
        self._shares = Shares(f"calls to agent '{agent_id}'", most, share)
        self._clock = clock
        self._idle = asyncio.Event()

    def enter(self, caller: str | None = None) -> None:
        """Raises AgentBusy, AgentOffline, RateLimited (the caller has its share); then there is nothing to leave."""
        if self.calls >= self._most:
            raise AgentBusy(f"Agent '{self._agent_id}' is busy with {self._most} calls")
        self._shares.take(caller)
        if self.breaker is not CLOSED:
            try:
                self._ask_for_admission()
            except AgentOffline:
                self._shares.give_back(caller)
                raise
        self.calls += 1

    def heard(self, error: FabricError | None = None) -> None:
        """An agent that answered, be it no, is there; only its own silence counts against it."""
        if error is None or error.is_answer or isinstance(error, CallerError):
            if self.breaker is not CLOSED:
                self.breaker = succeeded(self.breaker, self._policy)
        elif isinstance(error, AgentError):
            self.breaker = failed(self.breaker, self._clock(), self._policy)

    def leave(self, caller: str | None = None) -> None:
        self.calls -= 1
        self._shares.give_back(caller)
        if not self.calls:
            self._idle.set()

    async def idle(self) -> None:
        """Until nobody is inside."""
        while self.calls:
            self._idle.clear()
            await self._idle.wait()

    def _ask_for_admission(self) -> None:
        self.breaker, admitted = admit(self.breaker, self._clock(), self._policy)
        if not admitted:
            wait = self.breaker.until - self._clock()
            raise AgentOffline(
                f"Agent '{self._agent_id}' failed {self.breaker.failures} times in a row; "
                f"next try in {max(wait, 0.1):.1f} s"
            )
