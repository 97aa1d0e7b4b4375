"""Is it another Fabric node? Its health page says which protocol it speaks."""

from __future__ import annotations

from a2a_fabric.probing.asking import Asker, base_of, origin_of
from a2a_fabric.probing.findings import Finding, words

_SPEAKS = "af-mcp-"


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """At the root of the host, or where the node may be mounted. Raises Unanswered."""
    for base in dict.fromkeys([base_of(url), *([origin_of(url)] if beside else [])]):
        health = await asker.json(f"{base}/health")
        version = words(health.get("version")) if isinstance(health, dict) else ""
        if version.startswith(_SPEAKS):
            told = f"Fabric node ({version})"
            return Finding(runtime="fabric", endpoint={"uri": base}, told=told, is_exact=base == base_of(url))
    return "no health page of a Fabric node"
