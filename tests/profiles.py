"""How many examples Hypothesis tries: few in the edit loop (dev), all in CI (ci), many more in `make soak` (soak).

`HYPOTHESIS_PROFILE` chooses; the scripts set it. A test that wants its own number says `max_examples=examples(300)`,
and gets a tenth of it in the edit loop and twenty-five times as many in a soak.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
_FACTORS = {"dev": 0.1, "ci": 1.0, "soak": 25.0}
_DEFAULT_EXAMPLES = 100


def examples(number: int) -> int:
    return max(5, int(number * _FACTORS[PROFILE]))


def load_profile() -> None:
    """No deadline per example: how fast one is made says more about the machine than about the code."""
    settings.register_profile(
        PROFILE,
        max_examples=examples(_DEFAULT_EXAMPLES),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(PROFILE)
