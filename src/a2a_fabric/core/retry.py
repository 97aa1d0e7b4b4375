"""When a job that failed is tried again: a pure answer from what went wrong and what policy allows."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import AgentError, AgentNotFound, AllAttemptsFailed, FabricError, RateLimited


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is tried again. What may have run is repeated only if its capability allows that."""

    max_attempts: Annotated[int, Meta(ge=1, le=100, description="How often it is tried in all.")] = 3
    pause_seconds: Annotated[float, Meta(ge=0, description="Before the second attempt, give or take a half.")] = 1.0
    factor: Annotated[float, Meta(ge=1, le=10, description="How much longer each further pause is.")] = 2.0
    max_pause_seconds: Annotated[float, Meta(ge=0, description="No pause is longer.")] = 60.0


def pause_before_retry(
    error: FabricError, attempt: int, policy: RetryPolicy, *, may_repeat: bool, chance: float
) -> float | None:
    """Seconds until attempt number `attempt` + 1, or None if there is none. `chance` (0 to 1) spreads the pauses.

    A caller who has asked too often is only put off: that is no attempt.
    """
    if isinstance(error, RateLimited):
        return max(error.retry_after, policy.pause_seconds) * (0.5 + chance)
    if attempt >= policy.max_attempts or not can_help(error, may_repeat=may_repeat):
        return None
    pause = min(policy.pause_seconds * policy.factor ** (attempt - 1), policy.max_pause_seconds)
    return pause * (0.5 + chance)


def can_help(error: FabricError, *, may_repeat: bool) -> bool:
    """Whether the same may go better later. An agent that is not known here may be so soon, or elsewhere."""
    if isinstance(error, AgentNotFound):
        return True
    if not isinstance(error, AgentError):
        return False
    return may_repeat or (error.never_ran and not isinstance(error, AllAttemptsFailed))
