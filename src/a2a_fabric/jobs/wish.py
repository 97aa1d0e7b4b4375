"""What a caller may say about a job of theirs, whatever the door."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.job import NORMAL


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where to tell of a job's end. The request is signed as Standard Webhooks say."""

    url: Annotated[str, Meta(min_length=1, max_length=2048, description="Gets a POST when the job has ended.")]
    secret: Annotated[
        Annotated[str, Meta(min_length=8, max_length=512)] | None,
        Meta(description="Signs it; unset: the node's own secret does."),
    ] = None


class JobWish(msgspec.Struct, frozen=True, kw_only=True):
    """`at_once`: answer with the handle. Else the caller waits: `job_after` seconds, or as long as the call may take.

    `is_durable` means written down from the first moment, not only once it takes long.
    """

    at_once: bool = False
    job_after: float | None = None
    job_id: str | None = None  # a door that gives ids by itself
    key: str | None = None
    priority: int = NORMAL
    run_at: float | None = None
    expires_at: float | None = None
    retention: float | None = None
    webhook: Webhook | None = None
    meta: dict[str, Any] = {}  # what the door wants to find again

    @property
    def is_durable(self) -> bool:
        rest = (self.key, self.run_at, self.expires_at, self.webhook, self.retention, self.job_id)
        return self.at_once or self.priority != NORMAL or any(each is not None for each in rest)
