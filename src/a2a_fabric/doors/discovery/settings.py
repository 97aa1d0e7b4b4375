"""Settings of the discovery door."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TrustTier


class DiscoveryDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `discovery`."""

    publisher: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z0-9.-]+$", max_length=253)] | None,
        Meta(description="The domain in the identifiers of catalog entries. Unset: the domain of the node's address."),
    ] = None
    host_name: Annotated[str, Meta(min_length=1, description="The node's display name in the catalog.")] = "A2A Fabric"
    anonymous: Annotated[
        TrustTier | None,
        Meta(
            description="Let callers without credentials search, with this trust tier: `public` shows the agents of "
            "that tier to every client. Unset: as `auth.anonymous` says."
        ),
    ] = None
    cache_seconds: Annotated[int, Meta(ge=0, description="How long clients may keep the catalog and the cards.")] = 60
    max_agents: Annotated[
        int,
        Meta(ge=1, description="Agents in one document. A larger catalog is split into documents of so many agents."),
    ] = 1000
