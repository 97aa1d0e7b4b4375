"""What was found out about a token: whose it is, and how long that is good."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.call import Principal


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970. After `fresh` the next request has it checked again.

    Requests that came in before may still be on their way to whoever asks; for them it is good until `until`.
    """

    principal: Principal
    fresh: float
    until: float
