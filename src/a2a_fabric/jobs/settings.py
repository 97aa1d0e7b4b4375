"""Settings of the job engine for operators, and the options a caller may give for one job."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import NORMAL
from a2a_fabric.core.retry import RetryPolicy

_HOUR = 3600


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls that are stored and outlive their connection."""

    concurrent: Annotated[
        int, Meta(ge=0, description="Jobs that this node runs at a time. 0: it only accepts jobs.")
    ] = 64
    concurrent_per_agent: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Jobs of one agent at a time, over all nodes. Unset: no limit."),
    ] = None
    agents: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(description="The same for single agents, by id. 0: their jobs are left to other nodes."),
    ] = {}
    waiting_per_principal: Annotated[
        int, Meta(ge=1, description="Jobs of one caller that may wait at a time. Further jobs are RATE_LIMITED.")
    ] = 10_000
    job_after_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Every call that takes longer becomes a job. Unset: only if the capability or the caller says"
            " so."
        ),
    ] = None
    timeout_ms: Annotated[int, Meta(ge=1, description="Timeout of a job that names none, for one attempt.")] = (
        _HOUR * 1000
    )
    max_timeout_ms: Annotated[int, Meta(ge=1, description="Longest timeout that a job may name.")] = 24 * _HOUR * 1000
    retry: RetryPolicy = RetryPolicy()
    lease_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="A node that does not renew its lease on a job for this long loses the job to another node.",
        ),
    ] = 15.0
    keep_seconds: Annotated[float, Meta(ge=0, description="How long a job is kept after its end.")] = 7.0 * 24 * _HOUR
    keep_bytes: Annotated[
        int, Meta(ge=0, description="How many bytes of ended jobs are kept. The oldest are removed first.")
    ] = 1 << 30
    event_bytes: Annotated[
        int, Meta(ge=1024, description="Largest event log of one job. The call is stopped if its agent sends more.")
    ] = 64 << 20
    webhook_secret: Annotated[
        str | None, Meta(description="Signs webhooks whose request names no secret; `env:NAME`.")
    ] = None
    webhook_allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Private hosts that webhooks may go to, by name, IP address or CIDR. Public hosts are always "
            "allowed."
        ),
    ] = ()

    def clamp_timeout(self, timeout_ms: int | None) -> int:
        """The caller's timeout within the node's limits. Raises BadInput."""
        if timeout_ms is not None and timeout_ms < 1:
            raise BadInput("timeout_ms must be at least 1", field="timeout_ms")
        return min(self.timeout_ms if timeout_ms is None else timeout_ms, self.max_timeout_ms)


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where the end of a job is reported. The request is signed as Standard Webhooks specify."""

    url: Annotated[str, Meta(min_length=1, max_length=2048, description="Gets a POST when the job has ended.")]
    secret: Annotated[
        Annotated[str, Meta(min_length=8, max_length=512)] | None,
        Meta(description="Signs it; unset: the node's own secret does."),
    ] = None


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`at_once`: answer with the handle. Else the caller waits `job_after` seconds, or as long as the call may take.

    `is_durable` means that the job is stored before it runs, not only once it takes long.
    """

    at_once: bool = False
    job_after: float | None = None
    job_id: str | None = None  # set by doors that choose the ids themselves
    key: str | None = None
    priority: int = NORMAL
    run_at: float | None = None
    expires_at: float | None = None
    retention: float | None = None
    webhook: Webhook | None = None
    meta: dict[str, Any] = {}  # what the door keeps with the job

    @property
    def is_durable(self) -> bool:
        durable_options = (self.key, self.run_at, self.expires_at, self.webhook, self.retention, self.job_id)
        return self.at_once or self.priority != NORMAL or any(each is not None for each in durable_options)
