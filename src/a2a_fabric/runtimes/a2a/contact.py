"""How an agent is reached: its card, the interface that was chosen from it, and the line to that."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.errors import ConfigError, OperatorText
from a2a_fabric.core.modules import load
from a2a_fabric.runtimes.a2a.card import UNNAMED, Card, Interface, chosen, needs_grpc, read_card, takes_json
from a2a_fabric.runtimes.a2a.discovery import find_card
from a2a_fabric.runtimes.a2a.endpoint import A2AEndpoint, Binding
from a2a_fabric.runtimes.a2a.http_wire import HTTPWire, headers_for
from a2a_fabric.runtimes.a2a.jsonrpc import JSONRPCLine
from a2a_fabric.runtimes.a2a.line import Line
from a2a_fabric.runtimes.a2a.rest import RESTLine
from a2a_fabric.runtimes.context import RuntimeContext

_GRPC = "a2a_fabric.runtimes.a2a.grpc_line"
_NAMES_KEPT = 10_000


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """What the card says of one capability."""

    skill: str | None
    takes_json: bool
    output_modes: tuple[str, ...]


class Contact:
    """`place` is where the card was found, if it was looked for."""

    def __init__(self, card: Card, interface: Interface, line: Line, place: str | None) -> None:
        self.card = card
        self.interface = interface
        self.line = line
        self.place = place
        self._meant: dict[str, Meant] = {}

    def meant_by(self, capability: str) -> Meant:
        found = self._meant.get(capability)
        if found is None:
            if len(self._meant) >= _NAMES_KEPT:
                self._meant.clear()
            found = self._meant[capability] = self._looked_up(capability)
        return found

    def _looked_up(self, capability: str) -> Meant:
        skill = self.card.skill(capability)
        called = skill.id if skill is not None else capability
        return Meant(
            skill=None if called == UNNAMED and skill is None else called,
            takes_json=takes_json(self.card.inputs(skill)),
            output_modes=self.card.outputs(skill),
        )


async def make_contact(endpoint: A2AEndpoint, context: RuntimeContext, known: Contact | None = None) -> Contact:
    """With the line of the contact that is `known`, if it still leads there. Raises FabricError."""
    place, card = await _card_of(endpoint, context)
    interface = chosen(card, endpoint.bindings, endpoint.version, _can_use)
    if endpoint.tenant is not None:
        interface = msgspec.structs.replace(interface, tenant=endpoint.tenant)
    if known is not None and known.interface == interface:
        return Contact(card, interface, known.line, place)
    return Contact(card, interface, _line_to(interface, endpoint, context), place)


async def _card_of(endpoint: A2AEndpoint, context: RuntimeContext) -> tuple[str | None, Card]:
    if isinstance(endpoint.card, dict):
        return None, read_card(endpoint.card, endpoint.uri)
    if endpoint.card is None and (endpoint.uri or "").startswith("grpc"):
        return None, await _card_by_grpc(endpoint, context)
    place, found = await find_card(context.http, endpoint, endpoint.headers)
    return place, read_card(found, place)


async def _card_by_grpc(endpoint: A2AEndpoint, context: RuntimeContext) -> Card:
    """An agent that speaks nothing else can only be asked there; one that does not tell has just its address."""
    interface = Interface(url=endpoint.uri or "", binding="grpc", version=endpoint.version or "1.0")
    line = _line_to(interface, endpoint, context)
    try:
        found: dict[str, Any] = await line.card()  # type: ignore[attr-defined]  # this line can
    finally:
        await line.aclose()
    card = read_card(found, endpoint.uri) if found else Card()
    return msgspec.structs.replace(card, interfaces=(interface,), streaming=card.streaming or not found)


def _can_use(binding: Binding) -> bool:
    return binding != "grpc" or importlib.util.find_spec("grpc") is not None


def _line_to(interface: Interface, endpoint: A2AEndpoint, context: RuntimeContext) -> Line:
    if interface.binding == "grpc":
        line: Line = _grpc_line()(interface, endpoint, context)
        return line
    if urlsplit(interface.url).scheme not in ("http", "https"):
        public_why = "the agent's card names no address to send JSON to"
        why = f"the agent's card names {interface.url[:200]!r}, which is no address to send JSON to"
        raise ConfigError(OperatorText(why, public_why))
    headers = headers_for(interface.version, endpoint.headers, endpoint.extensions)
    wire = HTTPWire(context.http, interface.url, headers, context.reply_bytes)
    if interface.binding == "jsonrpc":
        return JSONRPCLine(wire, interface.version, interface.tenant)
    return RESTLine(wire, interface.version, interface.tenant)


def _grpc_line() -> Callable[[Interface, A2AEndpoint, RuntimeContext], Line]:
    """Raises ConfigError if the library is not there."""
    if not _can_use("grpc"):
        raise needs_grpc()
    build: Callable[[Interface, A2AEndpoint, RuntimeContext], Line] = load(_GRPC).build
    return build
