"""Is there an agent card of A2A, and of which version? Agent Zero's, of the dialect 0.2.5, is told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from a2a_fabric.probing.asking import Asker, Unanswered, base_of, is_root, json_in, origin_of, refusal_in
from a2a_fabric.probing.findings import About, Finding, words

_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """Raises Unanswered."""
    refused: list[str] = []
    async for place, card in _cards(asker, [url, *_places(url, beside)], refused):
        if not _is_zeros(card):
            return Finding(
                runtime="a2a",
                endpoint={"transport": "http", "uri": url},
                told=f"A2A card ({_version(card) or 'of no version'})",
                is_exact=place.startswith(base_of(url)),
                **_about(card),
            )
    return next(iter(refused), "no agent card")


async def look_for_zero(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """Below `/a2a`, which is where it is served unless the address says so itself. Raises Unanswered."""
    refused: list[str] = []
    below = [f"{origin_of(url)}/a2a{path}" for path in _CARDS] if is_root(url) else []
    async for place, card in _cards(asker, [*below, *_places(url, beside)], refused):
        if _is_zeros(card):
            told = f"Agent Zero's A2A ({_version(card) or 'of no version'})"
            endpoint = {"uri": url if is_root(url) else _base(place)}
            return Finding(runtime="agentzero", endpoint=endpoint, told=told, **_about(card))
    return next(iter(refused), "no card of Agent Zero's")


def _base(place: str) -> str:
    """The address to which this card belongs."""
    for path in _CARDS:
        place = place.removesuffix(path)
    return place


def _places(url: str, beside: bool) -> list[str]:
    bases = dict.fromkeys([base_of(url), *([origin_of(url)] if beside else [])])
    return [base + path for base in bases for path in _CARDS]


async def _cards(asker: Asker, places: list[str], refused: list[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Raises Unanswered if the first place does not answer; pages that ask for credentials are noted."""
    for place in places:
        try:
            reply = await asker.page(place)
        except Unanswered:
            if place == places[0]:
                raise
            continue
        found = json_in(reply) if reply.status == 200 else None
        if found is not None and is_card(found):
            yield place, found
        elif reply.status in (401, 403) and place.endswith(_CARDS):
            refused.append(f"its card {refusal_in(reply)}")


def is_card(value: Any) -> bool:
    """A card names its agent, where or how to reach it, and what it can."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    is_reached = any(key in value for key in ("url", "supportedInterfaces", "supported_interfaces"))
    return is_reached and (isinstance(value.get("skills"), list) or isinstance(value.get("capabilities"), dict))


def _is_zeros(card: dict[str, Any]) -> bool:
    """By its name; and nobody else still speaks 0.2, which only that runtime knows."""
    return "agent zero" in card["name"].lower() or _version(card).startswith("0.2")


def _version(card: dict[str, Any]) -> str:
    interfaces = card.get("supportedInterfaces")
    named = [each.get("protocolVersion") for each in interfaces or () if isinstance(each, dict)]
    return next((words(each, 20) for each in (*named, card.get("protocolVersion")) if isinstance(each, str)), "")


def _about(card: dict[str, Any]) -> About:
    said = {name: words(card.get(name)) for name in ("name", "description", "version")}
    return About(name=said["name"], description=said["description"], version=said["version"])
