"""Step: an agent that keeps failing is left alone for a while, and fails fast meanwhile. One per agent."""

from __future__ import annotations

import time
from collections.abc import Callable

from a2a_fabric.core.breaker import CLOSED, Breaker, BreakerPolicy, admit, failed, succeeded
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentError, AgentOffline, CallerError, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result


class Guarded:
    """A handler behind a circuit breaker."""

    def __init__(self, inner: Handler, policy: BreakerPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = inner
        self._policy = policy
        self._clock = clock
        self.breaker: Breaker = CLOSED

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if self.breaker is not CLOSED:
            self._ask_for_admission(call)
        try:
            result = await self._inner(call, emit)
        except (UpstreamRefused, CallerError):  # it answered, so it is there
            self.breaker = succeeded(self.breaker, self._policy)
            raise
        except AgentError:
            self.breaker = failed(self.breaker, self._clock(), self._policy)
            raise
        if self.breaker is not CLOSED:
            self.breaker = succeeded(self.breaker, self._policy)
        return result

    def _ask_for_admission(self, call: Call) -> None:
        self.breaker, admitted = admit(self.breaker, self._clock(), self._policy)
        if not admitted:
            wait = self.breaker.until - self._clock()
            raise AgentOffline(
                f"Agent '{call.target.agent_id}' failed {self.breaker.failures} times in a row; "
                f"next try in {max(wait, 0.1):.1f} s"
            )
