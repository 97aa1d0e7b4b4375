"""What the runtime makes of an agent card: skills become capabilities, and one interface is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from a2a_fabric.core.agent import Capability, Manifest, Modality, normalize_name
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.protocols.a2a.card import A2ACard, A2AInterface, A2ASkill
from a2a_fabric.protocols.a2a.models import A2ABinding, A2AVersion

_MODALITY_BY_MODE: dict[str, Modality] = {
    "text": "text",
    "image": "image",
    "audio": "audio",
    "video": "video",
    "data": "json",
}
_NEWEST_FIRST: tuple[A2AVersion, ...] = ("1.0", "0.3")
_MAX_EXAMPLES = 5
DEFAULT_CAPABILITY = "message"  # the one capability of an agent that lists no skills


def choose_interface(
    card: A2ACard, bindings: Sequence[A2ABinding], version: A2AVersion | None, can_use: Callable[[A2ABinding], bool]
) -> A2AInterface:
    """By the operator's preference, then the newest version, then the order of the card. Raises ConfigError."""

    def rank(each: A2AInterface) -> tuple[int, int]:
        return bindings.index(each.binding) if bindings else 0, _NEWEST_FIRST.index(each.version)

    offered = [each for each in card.interfaces if version in (None, each.version)]
    usable = [each for each in offered if each.binding in bindings or (not bindings and can_use(each.binding))]
    if usable:
        return min(usable, key=rank)
    listed = ", ".join(f"{each.binding} {each.version}" for each in card.interfaces) or "no interface"
    requirement = " ".join(filter(None, ("/".join(bindings), version)))
    if any(each.binding == "grpc" for each in offered) and not bindings:
        raise grpc_not_installed()
    raise ConfigError(
        f"the agent's card offers {listed}" + (f", not {requirement}" if requirement else " that this runtime can use")
    )


def grpc_not_installed() -> ConfigError:
    return ConfigError("the agent speaks gRPC, which is not installed here: pip install 'a2a-fabric[grpc]'")


def manifest_from_card(declared: Manifest, card: A2ACard) -> Manifest:
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=tuple(_capabilities_from_card(card)),
        display_name=card.name,
        description=card.description[:1000],
        version=card.version,
        tags=tuple(dict.fromkeys(tag for skill in card.skills for tag in skill.tags))[:50],
    )


def _capabilities_from_card(card: A2ACard) -> Iterable[Capability]:
    names: set[str] = set()
    for skill in card.skills or (A2ASkill(id=DEFAULT_CAPABILITY, description=card.description),):
        if normalize_name(skill.id) not in names:
            names.add(normalize_name(skill.id))
            yield Capability(
                name=skill.id,
                description=_describe_skill(skill),
                streaming=card.streaming,
                modalities=modalities_of((*card.input_modes_of(skill), *card.output_modes_of(skill))),
                triggers=skill.examples,
            )


def _describe_skill(skill: A2ASkill) -> str:
    text = skill.description or skill.name
    if skill.examples:
        text += "\nExamples: " + "; ".join(skill.examples[:_MAX_EXAMPLES])
    return text.strip()[:2000]


def modalities_of(modes: Iterable[str]) -> tuple[Modality, ...]:
    """Media types as kinds of content; text if there are none."""
    return tuple(dict.fromkeys(_modality(mode) for mode in modes)) or ("text",)


def _modality(mode: str) -> Modality:
    kind = mode.lower().partition(";")[0].strip()
    if is_json(kind):
        return "json"
    return _MODALITY_BY_MODE.get(kind.partition("/")[0], "text" if kind.startswith("*") else "file")


def is_json(mode: str) -> bool:
    return mode in ("json", "data") or mode.endswith(("/json", "+json"))


def takes_json(modes: Sequence[str]) -> bool:
    """Whether an agent reads data parts. An agent that declares no input modes is assumed to."""
    return not modes or any(is_json(mode.lower()) or mode in ("*/*", "*", "application/*") for mode in modes)
