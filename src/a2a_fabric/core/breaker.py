"""The circuit breaker as a value: closed, open for a while, then one trial call at a time.

Only failures that say something about the agent's own state count (offline,
timeout, interrupted, a broken answer); an agent that refuses a call is alive.

A trial is an ordinary call. If the last failures may have run (the agent was reached
and then failed), a failed trial is lost for its caller. So a call that another agent
could answer becomes a trial only after the longest pause. If the agent could not be
reached, a failed trial costs nothing: the call moves on to the next candidate."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the node stops calling an agent that keeps failing."""

    failures: Annotated[
        int, Meta(ge=1, description="Failures in a row after which the node stops calling the agent for a while.")
    ] = 5
    cool_down: Annotated[
        float, Meta(gt=0, description="Seconds until the first trial call; doubles with each failed trial.")
    ] = 5.0
    max_cool_down: Annotated[float, Meta(gt=0, description="Longest pause between trials, in seconds.")] = 60.0
    trials: Annotated[
        int, Meta(ge=1, description="Successful trial calls in a row until the agent gets all calls again.")
    ] = 1


class Breaker(msgspec.Struct, frozen=True):
    state: Literal["closed", "open", "trial"] = "closed"
    failures: int = 0
    successes: int = 0
    until: float = 0.0  # open: not before; trial: when a lost trial no longer blocks
    cool_down: float = 0.0
    may_have_run: bool = False  # the last failure: the agent was reached, so a failed trial is lost for its caller


CLOSED_BREAKER = Breaker()


def admit(
    breaker: Breaker, now: float, policy: BreakerPolicy, *, has_alternative: bool = False
) -> tuple[Breaker, bool]:
    """May a call go to the agent now? The returned breaker takes the place of the given one.

    `has_alternative`: another agent answers this call if this one is left alone, but not once it has run here.
    """
    if breaker.state == "closed":
        return breaker, True
    until = breaker.until
    if has_alternative and breaker.may_have_run:
        until += policy.max_cool_down - min(breaker.cool_down, policy.max_cool_down)
    if now < until:
        return breaker, False
    return msgspec.structs.replace(breaker, state="trial", until=now + breaker.cool_down), True


def record_success(breaker: Breaker, policy: BreakerPolicy) -> Breaker:
    if breaker.state == "closed" or breaker.successes + 1 >= policy.trials:
        return CLOSED_BREAKER
    return msgspec.structs.replace(breaker, state="open", successes=breaker.successes + 1, until=0.0)


def record_failure(breaker: Breaker, now: float, policy: BreakerPolicy, *, may_have_run: bool = False) -> Breaker:
    failures = breaker.failures + 1
    if breaker.state == "closed" and failures < policy.failures:
        return Breaker("closed", failures)
    next_cool_down = min(policy.max_cool_down, breaker.cool_down * 2 or policy.cool_down)
    cool_down = next_cool_down if breaker.state != "open" else breaker.cool_down
    return Breaker("open", failures, 0, now + cool_down, cool_down, may_have_run)


def record_inconclusive(breaker: Breaker, now: float) -> Breaker:
    """A trial ended without saying anything about the agent: the next call may be one."""
    return msgspec.structs.replace(breaker, state="open", until=now) if breaker.state == "trial" else breaker


def record_reachable(breaker: Breaker, now: float) -> Breaker:
    """A probe was answered. That says enough for a trial, unless the agent had been reached all the time."""
    if breaker.state != "open" or breaker.may_have_run or breaker.until <= now:
        return breaker
    return msgspec.structs.replace(breaker, until=now)
