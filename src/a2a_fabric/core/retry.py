"""When work is retried: the retry policy of jobs, and the retry budget of calls.

A call that moves on to another agent after the first may have run doubles the work. One such
attempt helps a caller; one for every call turns a slow afternoon into an outage. So the extra
attempts for calls to an agent are kept below a share of its recent calls, plus a few that are
always allowed.

"Recent" decays: after `seconds` a call counts only a third (1/e). An account holds the totals
at one moment. It is brought up to date only when an attempt is requested; until then a call
costs one addition."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import AgentError, AgentNotFound, AllAttemptsFailed, FabricError, RateLimited


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is tried again. Work that may have run is repeated only if its capability allows that."""

    max_attempts: Annotated[int, Meta(ge=1, le=100, description="How many attempts a job has in all.")] = 3
    pause_seconds: Annotated[
        float, Meta(ge=0, description="Pause before the second attempt, varied at random by up to a half.")
    ] = 1.0
    factor: Annotated[float, Meta(ge=1, le=10, description="Factor by which each further pause grows.")] = 2.0
    max_pause_seconds: Annotated[float, Meta(ge=0, description="Longest pause.")] = 60.0


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
    pause = min(policy.pause_seconds * policy.factor ** (attempt - 1), policy.max_pause_seconds)
    return pause * (0.5 + jitter)


def may_retry(error: FabricError, *, may_repeat: bool) -> bool:
    """Whether a later attempt may succeed. An unknown agent may be registered soon, or known on another node."""
    if isinstance(error, AgentNotFound):
        return True
    if not isinstance(error, AgentError):
        return False
    return may_repeat or (error.never_ran and not isinstance(error, AllAttemptsFailed))


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
