"""Where an agent's card is: at the address that is given, beside it, or at the root of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from a2a_fabric.core.errors import AgentOffline, OperatorText, translated
from a2a_fabric.outbound.port import HTTPClient, Reply
from a2a_fabric.runtimes.a2a.card import is_card
from a2a_fabric.runtimes.a2a.endpoint import A2AEndpoint, public
from a2a_fabric.runtimes.a2a.refusals import TRANSPORT_ERRORS

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
ASK_SECONDS = 5.0  # for one look; the caller's own deadline may be shorter
_CARD_BYTES = 4 * 1024 * 1024


def places(endpoint: A2AEndpoint) -> list[str]:
    """Every address at which the card may be, the likeliest first."""
    uri = endpoint.uri or ""
    if isinstance(endpoint.card, str):
        return [urljoin(uri, endpoint.card) if uri else endpoint.card]
    if not uri.startswith("http"):
        return []
    base, root = uri.partition("?")[0].rstrip("/"), "{0.scheme}://{0.netloc}".format(urlsplit(uri))
    beside = [base + path for path in WELL_KNOWN]
    at_root = [root + path for path in WELL_KNOWN]
    is_itself = base.endswith(".json")
    return list(dict.fromkeys([uri, *at_root] if is_itself else [*beside, *at_root, uri]))


async def find_card(
    client: HTTPClient, endpoint: A2AEndpoint, headers: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """The card and where it was found. Raises AgentOffline: whatever went wrong, the agent was not asked yet."""
    heard = []
    for place in places(endpoint):
        reply = await look(client, place, headers)
        if reply.status == 200 and (card := _decoded(reply.body)) is not None:
            return place, card
        heard.append(f"{place.partition('?')[0]}: {reply.status if reply.status != 200 else 'no card'}")
    where = f" ({'; '.join(heard) or 'no place to look'})"[:470]
    raise AgentOffline(OperatorText(f"No agent card was found{where}", "No agent card was found"))


async def look(client: HTTPClient, place: str, headers: Mapping[str, str]) -> Reply:
    """Raises AgentOffline."""
    with translated(dict.fromkeys(TRANSPORT_ERRORS, AgentOffline), upstream=public(place)):
        return await client.request("GET", place, headers=headers, timeout=ASK_SECONDS, limit=_CARD_BYTES)


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if is_card(found) else None
