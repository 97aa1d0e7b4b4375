"""Is it an agent that speaks our plain contract? It publishes its manifest at its own address."""

from __future__ import annotations

from a2a_fabric.probing.asking import Asker
from a2a_fabric.probing.findings import Finding, first_of, words


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """Raises Unanswered."""
    published = await asker.json(url)
    if not isinstance(published, dict) or not isinstance(published.get("capabilities"), list):
        return "publishes no manifest"
    if not all(isinstance(each, dict) and each.get("name") for each in published["capabilities"]):
        return "publishes no manifest"
    if not isinstance(published.get("agent_id"), str):
        return "publishes no manifest"
    return Finding(
        runtime="http",
        endpoint={"transport": "http", "uri": url},
        told="the plain contract, with a manifest",
        name=words(published["agent_id"]),
        description=first_of(published.get("description"), published.get("display_name")),
        version=words(published.get("version")),
    )
