"""Settings of the REST door."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TrustTier


class RestDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `rest`."""

    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers of this door in without credentials, with this trust tier. Unset: as "
            "`auth.anonymous` says."
        ),
    ] = None
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Requests per minute of each caller. Further requests get 429. null: no limit."),
    ] = 6000
    body_bytes: Annotated[
        int, Meta(ge=1024, description="Largest request body at this door, where media travel as base64.")
    ] = 16 * 1024 * 1024
    max_streams: Annotated[int, Meta(ge=0, description="Open event streams of tasks at a time.")] = 1000
    keep_alive: Annotated[float, Meta(gt=0, lt=30, description="Seconds between the heartbeats on a quiet stream.")] = (
        15.0
    )
    rpc: Annotated[
        bool, Meta(description="Serve JSON-RPC clients of agent platforms at `POST /` and `GET /stream`.")
    ] = True
