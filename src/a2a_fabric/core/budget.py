"""How many second attempts a node may make, so that retries never multiply a bad day.

Asking somebody else after an agent may have worked in vain doubles the work. One
such attempt helps a caller; one for every call turns a slow afternoon into an
outage. So the attempts beyond the first that calls to an agent lead to are kept
below a share of its recent calls, plus a few that are always allowed.

"Recent" fades: after `seconds` a call counts only a third (1/e) of what it did. An
account says how things stood at one moment; nothing is worked out until an attempt is
asked for, and until then a call costs the addition of one to a number.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many attempts beyond the first a node makes when agents fail after having been asked."""

    share: Annotated[float, Meta(ge=0, le=16, description="Of an agent's recent calls; 0.2 is one in five.")] = 0.2
    floor: Annotated[float, Meta(ge=0, description="So many are allowed besides, however few calls there are.")] = 10.0
    seconds: Annotated[float, Meta(gt=0, description="How long a call counts as recent.")] = 60.0


class Account(msgspec.Struct, frozen=True):
    """Recent calls and recent attempts beyond the first, as they stood `at` this moment."""

    calls: float = 0.0
    retries: float = 0.0
    at: float = 0.0


def settled(account: Account, new_calls: int, now: float, budget: RetryBudget) -> Account:
    """The account now. `new_calls` came since then, and are taken as having come evenly."""
    passed = max(0.0, now - account.at) / budget.seconds
    kept = math.exp(-passed)
    fresh = new_calls * (1 - kept) / passed if passed > 1e-9 else float(new_calls)
    return Account(account.calls * kept + fresh, account.retries * kept, max(now, account.at))


def spend(account: Account, budget: RetryBudget) -> Account | None:
    """The account after one more attempt; None if there is nothing left for it."""
    if account.retries + 1 > budget.floor + budget.share * account.calls:
        return None
    return Account(account.calls, account.retries + 1, account.at)
