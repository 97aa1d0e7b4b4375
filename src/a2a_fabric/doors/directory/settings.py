"""Settings of the directory door."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TrustTier


class DirectoryDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `directory`."""

    direct: Annotated[
        tuple[str, ...],
        Meta(
            description="Agents, by id or `*` for all, that are shown with their own address instead of one of this "
            "node. Only agents of the runtime `rpc`."
        ),
    ] = ()
    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers of this door in without credentials, with this trust tier. Unset: as "
            "`auth.anonymous` says. Only callers of tier `local` and `org` may register agents."
        ),
    ] = None
    path_wins: Annotated[
        bool,
        Meta(
            description="At addresses such as /a2a/discover, the address decides and not the method in the body: for "
            "clients that always send a2a/register."
        ),
    ] = False
    max_batch: Annotated[int, Meta(ge=1, description="Requests in one batch.")] = 50
    max_hops: Annotated[int, Meta(ge=1, le=1000, description="Actions in the chain of one task.")] = 16
    max_subscribers: Annotated[int, Meta(ge=0, description="Open streams of a2a/events at a time.")] = 1000
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0
