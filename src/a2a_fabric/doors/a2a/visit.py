"""Who asks, and whom: one request, whichever binding it came through."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.a2a.extensions import Agreement


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """`agent` is None at the gateway's own address. `after` is the last event that a returning reader has."""

    principal: Principal
    trace: Trace
    agent: Manifest | None = None
    base: str = ""  # of our addresses, as this caller reaches them; empty if we do not know
    after: int | None = None
    extensions: Agreement = msgspec.field(default_factory=Agreement)
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
