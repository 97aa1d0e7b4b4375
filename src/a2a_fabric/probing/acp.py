"""Is it a server of the Agent Communication Protocol? Its list of agents tells."""

from __future__ import annotations

from typing import Any

from a2a_fabric.probing.asking import Asker, base_of
from a2a_fabric.probing.findings import Finding, words

_ITS_OWN = ("input_content_types", "output_content_types", "metadata")


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """Raises Unanswered."""
    listed = await asker.json(f"{base_of(url)}/agents")
    agents = listed.get("agents") if isinstance(listed, dict) else None
    if not isinstance(agents, list) or not agents or not all(_is_agent(each) for each in agents):
        return "no list of agents"
    names = ", ".join(words(each["name"], 40) for each in agents[:5])
    alone: dict[str, Any] = agents[0] if len(agents) == 1 else {}
    return Finding(
        runtime="acp",
        endpoint={"uri": base_of(url)},
        told=f"ACP ({len(agents)} {'agent' if alone else 'agents'}: {names})",
        name=words(alone.get("name")),
        description=words(alone.get("description")),
    )


def _is_agent(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and any(key in value for key in _ITS_OWN)
