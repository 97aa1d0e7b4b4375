"""Settings for messages, conversations and inboxes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_DAY = 24 * 3600.0


class MessageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages, conversations and inboxes."""

    ttl_seconds: Annotated[
        float, Meta(gt=0, description="How long a message that names no time is tried, or waits in an inbox.")
    ] = _DAY
    max_ttl_seconds: Annotated[float, Meta(gt=0, description="Longest time that a message may name.")] = 30 * _DAY
    keep_seconds: Annotated[float, Meta(gt=0, description="How long a message stays in its conversation.")] = 30 * _DAY
    inbox_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages that may wait in one inbox. Further ones are RATE_LIMITED; published ones are not "
            "delivered there.",
        ),
    ] = 10_000
    topics_per_inbox: Annotated[
        int, Meta(ge=1, description="Topics that one inbox may subscribe to. Further ones are RATE_LIMITED.")
    ] = 1000
    max_followers: Annotated[int, Meta(ge=0, description="Open streams of conversations at a time.")] = 1000

    def clamp_ttl(self, seconds: float | None) -> float:
        """The sender's time to live within the node's limit."""
        return min(self.ttl_seconds if seconds is None else seconds, self.max_ttl_seconds)
