"""Cards as they are served: made once per change of the catalog, with what caches need, signed if there is a key."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import msgspec

from a2a_fabric.core.policy import reach_of
from a2a_fabric.doors.a2a.card import Offer, Reach, card_of, gateway_card
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.gateway import Gateway

Signer = Callable[[dict[str, Any]], list[dict[str, Any]]]
GATEWAY = "/gateway"
_KEPT = 2000


class Served(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    etag: str
    modified_at: float

    @property
    def last_modified(self) -> str:
        return format_datetime(datetime.fromtimestamp(int(self.modified_at), UTC), usegmt=True)


class Cards:
    """`grpc` says where gRPC listens, once it does."""

    def __init__(self, gateway: Gateway, offer: Offer, grpc: Callable[[], str | None], sign: Signer | None) -> None:
        self._gateway = gateway
        self._offer = offer
        self._grpc = grpc
        self._sign = sign
        self._made: OrderedDict[tuple[Any, ...], tuple[object, Served]] = OrderedDict()

    def served(self, visit: Visit) -> Served:
        """The card of whoever is asked, as this principal may see it."""
        made_for: object = visit.agent if visit.agent is not None else self._gateway.registry.catalog
        name = visit.agent.agent_id if visit.agent is not None else None
        key = (name, visit.base, reach_of(visit.principal), self._grpc())
        known = self._made.get(key)
        if known is not None and known[0] is made_for:
            self._made.move_to_end(key)
            return known[1]
        served = self._encoded(self._card(visit), known[1] if known else None)
        self._made[key] = (made_for, served)
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return served

    def extended(self, visit: Visit) -> dict[str, Any]:
        return self._signed(self._card(visit))

    def _encoded(self, card: dict[str, Any], before: Served | None) -> Served:
        """The same content as before keeps its date."""
        etag = hashlib.sha256(msgspec.json.encode(card, order="deterministic")).hexdigest()[:32]
        if before is not None and before.etag == f'"{etag}"':
            return before
        body = msgspec.json.encode(self._signed(card))
        return Served(body=body, etag=f'"{etag}"', modified_at=time.time())

    def _signed(self, card: dict[str, Any]) -> dict[str, Any]:
        return {**card, "signatures": self._sign(card)} if self._sign is not None else card

    def _card(self, visit: Visit) -> dict[str, Any]:
        """Only with what this caller may ask for: the agent of a visit is what its principal sees of it."""
        agent = visit.agent
        if agent is not None:
            reach = Reach(url=_below(visit, f"/agents/{agent.agent_id}"), grpc=self._grpc(), tenant=agent.agent_id)
            return card_of(agent, agent.capabilities, reach, self._offer)
        agents = self._gateway.registry.seen_by(visit.principal).agents
        reach = Reach(url=_below(visit, GATEWAY), grpc=self._grpc())
        offered = ((each, each.capabilities) for each in agents)
        return gateway_card(self._gateway.node_id, offered, reach, self._offer)


def _below(visit: Visit, path: str) -> str:
    return f"{visit.base}{path}" if visit.base else ""
