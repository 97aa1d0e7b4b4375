"""Attempts beyond the first, counted for each agent that was asked for, and refused when its budget is used up.

What surely never reached an agent was no work, so asking somebody else then costs
nothing of the budget; that is how all calls move on from an agent that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from a2a_fabric.core.budget import Account, RetryBudget, settled, spend
from a2a_fabric.core.errors import FabricError

_AGENTS_REMEMBERED = 100_000


class _Tally:
    """An agent's account, and the calls since it was last looked at."""

    __slots__ = ("account", "calls")

    def __init__(self, now: float) -> None:
        self.account = Account(at=now)
        self.calls = 0


def _unheard(agent_id: str, is_made: bool) -> None:
    pass


class Retries:
    """`told` hears of each attempt beyond the first: whether it was made, or the budget was used up."""

    def __init__(
        self,
        budget: RetryBudget,
        told: Callable[[str, bool], None] = _unheard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._told = told
        self._clock = clock
        self._tallies: dict[str, _Tally] = {}

    def count(self, agent_id: str) -> None:
        """A call to this agent begins. This is all that a call costs that goes well."""
        tally = self._tallies.get(agent_id)
        if tally is None:
            tally = self._begun(agent_id)
        tally.calls += 1

    def allow(self, agent_id: str, error: FabricError) -> bool:
        """Whether somebody else may be asked after this failure. Then it is as good as done."""
        is_allowed = error.never_ran or self._spent(agent_id)
        self._told(agent_id, is_allowed)
        return is_allowed

    def _spent(self, agent_id: str) -> bool:
        tally = self._tallies.get(agent_id) or self._begun(agent_id)
        account = settled(tally.account, tally.calls, self._clock(), self._budget)
        after = spend(account, self._budget)
        tally.account, tally.calls = after or account, 0
        return after is not None

    def _begun(self, agent_id: str) -> _Tally:
        if len(self._tallies) >= _AGENTS_REMEMBERED:
            self._tallies.clear()
        tally = self._tallies[agent_id] = _Tally(self._clock())
        return tally


def say_exhausted(error: FabricError, agent_id: str) -> None:
    """Written into the error, so that nobody wonders why no other agent was asked."""
    if "not_retried" not in error.details:
        why = f"the retry budget of agent '{agent_id}' is used up"
        error.details["not_retried"] = why
        error.message = f"{error.message} (nobody else was asked: {why})"
