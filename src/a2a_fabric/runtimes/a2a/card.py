"""Agent cards of A2A 1.0 and 0.3, parsed leniently: skills become capabilities, interfaces become addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Modality, normalize_name
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.runtimes.a2a.endpoint import A2ABinding, A2AVersion

_BINDINGS: dict[str, A2ABinding] = {
    "JSONRPC": "jsonrpc",
    "JSON-RPC": "jsonrpc",
    "HTTP+JSON": "http",
    "HTTP": "http",
    "REST": "http",
    "GRPC": "grpc",
}
_MODALITY_BY_MODE: dict[str, Modality] = {
    "text": "text",
    "image": "image",
    "audio": "audio",
    "video": "video",
    "data": "json",
}
_NEWEST_FIRST: tuple[A2AVersion, ...] = ("1.0", "0.3")
_MAX_SKILLS = 5000
_MAX_EXAMPLES = 5
DEFAULT_CAPABILITY = "message"  # the one capability of an agent that lists no skills


class A2AInterface(msgspec.Struct, frozen=True, kw_only=True):
    """One way to speak to the agent."""

    url: str
    binding: A2ABinding
    version: A2AVersion
    tenant: str = ""

    @property
    def is_local(self) -> bool:
        """On this machine."""
        return is_this_machine(urlsplit(self.url if "://" in self.url else f"//{self.url}").hostname or "")


class A2ASkill(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()


class A2ACard(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    version: str = ""
    streaming: bool = False
    supports_push: bool = False  # tells by itself how a task goes on
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    interfaces: tuple[A2AInterface, ...] = ()
    skills: tuple[A2ASkill, ...] = ()

    def find_skill(self, name: str) -> A2ASkill | None:
        return next((skill for skill in self.skills if normalize_name(skill.id) == normalize_name(name)), None)

    def input_modes_of(self, skill: A2ASkill | None) -> tuple[str, ...]:
        return (skill.input_modes if skill else ()) or self.input_modes

    def output_modes_of(self, skill: A2ASkill | None) -> tuple[str, ...]:
        return (skill.output_modes if skill else ()) or self.output_modes


def is_card(document: Any) -> bool:
    """Whether a JSON value is meant to be a card at all."""
    return (
        isinstance(document, dict)
        and "name" in document
        and bool({"skills", "url", "supportedInterfaces"} & document.keys())
    )


def read_card(document: dict[str, Any], base: str | None) -> A2ACard:
    """`base` is where it was found: relative addresses start there."""
    capabilities = _dict_or_empty(document.get("capabilities"))
    return A2ACard(
        name=_stripped_text(document.get("name")),
        description=_stripped_text(document.get("description")),
        version=_stripped_text(document.get("version")),
        streaming=capabilities.get("streaming") is True,
        supports_push=capabilities.get("pushNotifications") is True,
        input_modes=_text_tuple(document.get("defaultInputModes")),
        output_modes=_text_tuple(document.get("defaultOutputModes")),
        interfaces=tuple(_parse_interfaces(document, base)),
        skills=tuple(_parse_skills(document.get("skills"))),
    )


def _parse_interfaces(document: dict[str, Any], base: str | None) -> Iterable[A2AInterface]:
    for url, binding, version, tenant in _list_interfaces(document):
        binding_name = _BINDINGS.get(_stripped_text(binding).upper().replace("_", "+"))
        resolved_url = _resolve_url(_stripped_text(url), base)
        if binding_name and resolved_url:
            yield A2AInterface(
                url=resolved_url, binding=binding_name, version=_parse_version(version), tenant=_stripped_text(tenant)
            )


def _list_interfaces(document: dict[str, Any]) -> Iterable[tuple[Any, Any, Any, Any]]:
    """A card of 1.0 lists all of them; older ones name one, and perhaps some more."""
    listed = _dict_list(document.get("supportedInterfaces"))
    if listed:
        for each in listed:
            yield each.get("url"), each.get("protocolBinding"), each.get("protocolVersion") or "1.0", each.get("tenant")
        return
    version = document.get("protocolVersion") or "0.3"
    yield document.get("url"), document.get("preferredTransport") or "JSONRPC", version, None
    for each in _dict_list(document.get("additionalInterfaces")):
        yield each.get("url"), each.get("transport"), version, None


def _parse_version(version: Any) -> A2AVersion:
    return "0.3" if _stripped_text(version).lstrip("vV").startswith("0") else "1.0"


def _resolve_url(url: str, base: str | None) -> str:
    """Cards often name the address their server was bound to, which from elsewhere leads nowhere."""
    if base is None:
        return url
    if "://" not in url and (not url or url.startswith("/")):
        return urljoin(base, url) if base.startswith("http") else base
    card_url, base_url = (
        urlsplit(url if "://" in url else f"//{url}"),
        urlsplit(base),
    )  # gRPC is often named without a scheme
    if not card_url.hostname or not base_url.hostname or not is_this_machine(card_url.hostname):
        return url
    if _is_wildcard(card_url.hostname) or not is_this_machine(base_url.hostname):
        host = f"[{base_url.hostname}]" if ":" in base_url.hostname else base_url.hostname
        return urlunsplit(card_url._replace(netloc=f"{host}:{card_url.port}" if card_url.port else host)).removeprefix(
            "//"
        )
    return url


def is_this_machine(host: str) -> bool:
    """Whether the name of a host means the machine that one asks from."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def _parse_skills(listed: Any) -> Iterable[A2ASkill]:
    for each in _dict_list(listed)[:_MAX_SKILLS]:
        name = _stripped_text(each.get("id")) or _stripped_text(each.get("name"))
        if name:
            yield A2ASkill(
                id=name[:256],
                name=_stripped_text(each.get("name")),
                description=_stripped_text(each.get("description")),
                tags=_text_tuple(each.get("tags")),
                examples=_text_tuple(each.get("examples")),
                input_modes=_text_tuple(each.get("inputModes")),
                output_modes=_text_tuple(each.get("outputModes")),
            )


def choose_interface(
    card: A2ACard, bindings: Sequence[A2ABinding], version: A2AVersion | None, can_use: Callable[[A2ABinding], bool]
) -> A2AInterface:
    """The operator's preference decides, then the version, then the card's own order. Raises ConfigError."""

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
        f"the agent's card offers {listed}" + (f", not {requirement}" if requirement else " that is understood")
    )


def grpc_not_installed() -> ConfigError:
    return ConfigError("the agent speaks gRPC, which is not installed here: pip install 'a2a-fabric[grpc]'")


def manifest_from_card(declared: Manifest, card: A2ACard) -> Manifest:
    """What the card says, as a manifest."""
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
    """Media types as kinds of content, words first if nothing is said."""
    return tuple(dict.fromkeys(_modality(mode) for mode in modes)) or ("text",)


def _modality(mode: str) -> Modality:
    kind = mode.lower().partition(";")[0].strip()
    if is_json(kind):
        return "json"
    return _MODALITY_BY_MODE.get(kind.partition("/")[0], "text" if kind.startswith("*") else "file")


def is_json(mode: str) -> bool:
    return mode in ("json", "data") or mode.endswith(("/json", "+json"))


def takes_json(modes: Sequence[str]) -> bool:
    """Whether an agent reads data parts; one that does not say so is trusted to."""
    return not modes or any(is_json(mode.lower()) or mode in ("*/*", "*", "application/*") for mode in modes)


def _stripped_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _text_tuple(value: Any) -> tuple[str, ...]:
    return tuple(text for each in value if (text := _stripped_text(each))) if isinstance(value, list | tuple) else ()


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dict_list(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list | tuple) else []
