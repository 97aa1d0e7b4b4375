"""What an ACP server publishes of its agents, as a manifest."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core.agent import Capability, Manifest, Modality
from a2a_fabric.runtimes.acp.wire import RemoteAgent

_MODALITIES: dict[str, Modality] = {"text": "text", "image": "image", "audio": "audio", "video": "video"}
_JSON = "application/json"
_NAME_LENGTH = 256


def described(declared: Manifest, agents: Sequence[RemoteAgent]) -> Manifest:
    """Each agent is a capability; one that is alone speaks for the whole."""
    found = [agent for agent in agents if 0 < len(agent.name) <= _NAME_LENGTH]
    alone = found[0] if len(found) == 1 else None
    tags = alone.metadata.tags if alone is not None and alone.metadata is not None else None
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=tuple(_capability(agent) for agent in found),
        display_name=alone.name if alone is not None else "",
        description=(alone.description or "")[:1000] if alone is not None else "",
        tags=tuple(tags or ()),
    )


def _capability(agent: RemoteAgent) -> Capability:
    return Capability(
        name=agent.name, description=(agent.description or "")[:1000], streaming=True, modalities=_modalities(agent)
    )


def _modalities(agent: RemoteAgent) -> tuple[Modality, ...]:
    """Of what goes in and what comes out; `*/*` says nothing."""
    types = [*(agent.input_content_types or ()), *(agent.output_content_types or ())]
    found = dict.fromkeys(_modality(each) for each in types if each != "*/*")
    return tuple(found) or ("text",)


def _modality(content_type: str) -> Modality:
    if content_type == _JSON:
        return "json"
    return _MODALITIES.get(content_type.partition("/")[0], "file")
