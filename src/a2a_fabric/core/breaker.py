"""The circuit breaker as a value: closed, open for a while, then one trial at a time.

Only failures that say something about the agent's own state count (offline,
timeout, interrupted); an agent that answers "no" is alive.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an agent that keeps failing is left alone."""

    failures: Annotated[int, Meta(ge=1, description="Failures in a row until calls fail fast.")] = 5
    cool_down: Annotated[
        float, Meta(gt=0, description="Seconds until the first trial call; doubles with each failed trial.")
    ] = 5.0
    max_cool_down: Annotated[float, Meta(gt=0, description="Longest pause between trials, in seconds.")] = 60.0
    trials: Annotated[int, Meta(ge=1, description="Successful trials in a row until all is normal again.")] = 1


class Breaker(msgspec.Struct, frozen=True):
    state: Literal["closed", "open", "trial"] = "closed"
    failures: int = 0
    successes: int = 0
    until: float = 0.0  # open: not before; trial: when a lost trial no longer blocks
    cool_down: float = 0.0


CLOSED = Breaker()


def admit(breaker: Breaker, now: float, policy: BreakerPolicy) -> tuple[Breaker, bool]:
    """May a call go to the agent now? The returned breaker takes the place of the given one."""
    if breaker.state == "closed":
        return breaker, True
    if now < breaker.until:
        return breaker, False
    trial = Breaker("trial", breaker.failures, breaker.successes, now + breaker.cool_down, breaker.cool_down)
    return trial, True


def succeeded(breaker: Breaker, policy: BreakerPolicy) -> Breaker:
    if breaker.state == "closed":
        return CLOSED
    if breaker.successes + 1 >= policy.trials:
        return CLOSED
    return Breaker("open", breaker.failures, breaker.successes + 1, 0.0, breaker.cool_down)


def failed(breaker: Breaker, now: float, policy: BreakerPolicy) -> Breaker:
    failures = breaker.failures + 1
    if breaker.state == "closed" and failures < policy.failures:
        return Breaker("closed", failures)
    longer = min(policy.max_cool_down, breaker.cool_down * 2 or policy.cool_down)
    cool_down = longer if breaker.state != "open" else breaker.cool_down
    return Breaker("open", failures, 0, now + cool_down, cool_down)
