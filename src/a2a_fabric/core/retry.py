"""When work is tried again: the retry policy of jobs, the retry budget of calls, the circuit breaker of an agent.

A call that moves on to another agent after the first may have run doubles the work. One such
attempt helps a caller; one for every call turns a slow afternoon into an outage. So the extra
attempts for calls to an agent are kept below a share of its recent calls, plus a few that are
always allowed. "Recent" decays: after `seconds` a call counts only a third (1/e). An account
holds the totals at one moment. It is brought up to date only when an attempt is requested; until
then a call costs one addition.

The circuit breaker is a value: closed, open for a while, then one trial call at a time. Only
failures that say something about the agent's own state count (offline, timeout, interrupted, a
broken answer); an agent that refuses a call is alive. A trial is an ordinary call. If the last
failures may have run (the agent was reached and then failed), a failed trial is lost for its
caller. So a call that another agent could answer becomes a trial only after the longest pause.
If the agent could not be reached, a failed trial costs nothing: the call moves on to the next
candidate."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import (
    AgentError,
    AgentNotFound,
    AllAttemptsFailed,
    BadInput,
    CapabilityNotFound,
    FabricError,
    InternalError,
    RateLimited,
    StoreUnavailable,
)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is tried again. Work that may have run is repeated only if its capability allows that."""

    max_attempts: Annotated[int, Meta(ge=1, le=100, description="How many attempts a job has in all.")] = 3
    pause_seconds: Annotated[
        float, Meta(ge=0, description="Pause before the second attempt, varied at random by up to a half.")
    ] = 1.0
    factor: Annotated[float, Meta(ge=1, le=10, description="Factor by which each further pause grows.")] = 2.0
    max_pause_seconds: Annotated[float, Meta(ge=0, description="Longest pause.")] = 60.0
    backoff: Annotated[
        Literal["exponential", "linear"],
        Meta(
            description="exponential: each pause is `factor` times the last one. linear: it is `pause_seconds` longer."
        ),
    ] = "exponential"


def compute_retry_pause(
    error: FabricError, attempt: int, policy: RetryPolicy, *, may_repeat: bool, jitter: float
) -> float | None:
    """Seconds until attempt number `attempt` + 1, or None if there is none. `jitter` (0 to 1) spreads the pauses.

    A rate-limited job is only postponed; that does not count as an attempt.
    """
    if isinstance(error, RateLimited):
        return max(error.retry_after, policy.pause_seconds) * (0.5 + jitter)
    if attempt >= policy.max_attempts or not may_retry(error, may_repeat=may_repeat):
        return None
    growth = attempt if policy.backoff == "linear" else policy.factor ** (attempt - 1)
    return min(policy.pause_seconds * growth, policy.max_pause_seconds) * (0.5 + jitter)


def may_retry(error: FabricError, *, may_repeat: bool) -> bool:
    """Whether a later attempt may succeed. An unknown agent may be registered soon, or known on another node."""
    if isinstance(error, AgentNotFound):
        return True
    if not isinstance(error, AgentError):
        return False
    return may_repeat or (error.never_ran and not isinstance(error, AllAttemptsFailed))


def is_recoverable(error: FabricError) -> bool:
    """Whether the same request, or a corrected one, may succeed later. It says nothing about work that may have run."""
    details = error.details
    if isinstance(error, AgentNotFound | CapabilityNotFound) or details.get("needs") == "knowledge":
        return False
    if details.get("reason") == "TASK_GRAPH_CYCLE" or error.is_answer:  # the agent itself said no
        return False
    if details.get("mcp_status") == "error":  # of an MCP server that the agent needs; it refuses again unless it broke
        status = details.get("status")
        return isinstance(status, int) and status >= 500
    return isinstance(error, BadInput | RateLimited | AgentError | StoreUnavailable | InternalError)


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many attempts beyond the first a node makes when agents fail after having been asked."""

    share: Annotated[
        float, Meta(ge=0, le=16, description="Allowed share of an agent's recent calls; 0.2 is one in five.")
    ] = 0.2
    floor: Annotated[float, Meta(ge=0, description="So many are allowed in addition, however few calls there are.")] = (
        10.0
    )
    seconds: Annotated[float, Meta(gt=0, description="How long a call counts as recent.")] = 60.0


class RetryAccount(msgspec.Struct, frozen=True):
    """Recent calls and recent attempts beyond the first, at the moment `at`."""

    calls: float = 0.0
    retries: float = 0.0
    at: float = 0.0


def update_account(account: RetryAccount, new_calls: int, now: float, budget: RetryBudget) -> RetryAccount:
    """The account now. `new_calls` were made since, and are taken as evenly spread."""
    elapsed = max(0.0, now - account.at) / budget.seconds
    decay = math.exp(-elapsed)
    added_calls = new_calls * (1 - decay) / elapsed if elapsed > 1e-9 else float(new_calls)
    return RetryAccount(account.calls * decay + added_calls, account.retries * decay, max(now, account.at))


def spend_retry(account: RetryAccount, budget: RetryBudget) -> RetryAccount | None:
    """The account after one more attempt; None if the budget is used up."""
    if account.retries + 1 > budget.floor + budget.share * account.calls:
        return None
    return RetryAccount(account.calls, account.retries + 1, account.at)


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
