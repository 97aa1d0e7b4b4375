"""The catalog as documents: one, or a list of parts if there are too many agents for one.

What a caller is shown depends on its trust tier and scopes, and on the address under which it
reaches us; what was written for one kind of caller is kept until the catalog changes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import Reach, reach_of
from a2a_fabric.doors.discovery import entries
from a2a_fabric.doors.discovery.entries import Address
from a2a_fabric.gateway import Gateway

_KEPT = 64
_Key = tuple[Reach, Address, int | None]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    etag: str


def document(body: dict[str, Any]) -> Document:
    written = msgspec.json.encode(body)
    return Document(body=written, etag=f'"{hashlib.sha256(written).hexdigest()[:32]}"')


class Documents:
    def __init__(self, gateway: Gateway, host: str, most: int) -> None:
        self._gateway = gateway
        self._host = host
        self._most = most
        self._catalog: object = None
        self._seen: OrderedDict[Reach, list[Manifest]] = OrderedDict()
        self._kept: OrderedDict[_Key, Document | None] = OrderedDict()

    def get(self, principal: Principal, address: Address, part: int | None) -> Document | None:
        """None if there is no such part."""
        seen = self._visible(principal)
        key = (reach_of(principal), address, part)
        if key not in self._kept:
            self._kept[key] = self._written(seen, address, part)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _visible(self, principal: Principal) -> list[Manifest]:
        catalog = self._gateway.registry.catalog
        if catalog is not self._catalog:
            self._catalog = catalog
            self._seen.clear()
            self._kept.clear()
        reach = reach_of(principal)
        seen = self._seen.get(reach)
        if seen is None:
            agents = self._gateway.registry.seen_by(principal).agents
            seen = self._seen[reach] = sorted(agents, key=lambda manifest: manifest.agent_id)
            if len(self._seen) > _KEPT:
                self._seen.popitem(last=False)
        return seen

    def _written(self, seen: Sequence[Manifest], address: Address, part: int | None) -> Document | None:
        pieces = [seen[at : at + self._most] for at in range(0, len(seen), self._most)]
        if part is not None and not 1 <= part <= len(pieces):
            return None
        listed: list[dict[str, Any]] = [] if part is not None else list(entries.own_entries(address))
        if part is None and len(pieces) > 1:
            listed += [
                entries.part_entry(address, number, len(pieces), piece[0].agent_id, piece[-1].agent_id)
                for number, piece in enumerate(pieces, 1)
            ]
        else:
            piece = pieces[part - 1 if part is not None else 0] if pieces else ()
            listed += [entry for manifest in piece for entry in entries.entries_of(address, manifest)]
        return document(entries.catalog(address, self._host, listed))
