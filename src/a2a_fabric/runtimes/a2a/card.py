"""An agent's card, read leniently: of version 1.0 or 0.3, and however its author understood them.

Its skills become capabilities. Its interfaces say where and how the agent is spoken to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Modality, fold
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.runtimes.a2a.endpoint import Binding, Version

_BINDINGS: dict[str, Binding] = {
    "JSONRPC": "jsonrpc",
    "JSON-RPC": "jsonrpc",
    "HTTP+JSON": "http",
    "HTTP": "http",
    "REST": "http",
    "GRPC": "grpc",
}
_MODES: dict[str, Modality] = {"text": "text", "image": "image", "audio": "audio", "video": "video", "data": "json"}
_NEWEST_FIRST: tuple[Version, ...] = ("1.0", "0.3")
_SKILLS = 5000
_EXAMPLES = 5
UNNAMED = "message"  # the one capability of an agent that lists no skills


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One way to speak to the agent."""

    url: str
    binding: Binding
    version: Version
    tenant: str = ""

    @property
    def is_near(self) -> bool:
        """On this machine."""
        return is_of_one_machine(urlsplit(self.url if "://" in self.url else f"//{self.url}").hostname or "")


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()


class Card(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    version: str = ""
    streaming: bool = False
    pushes: bool = False  # tells by itself how a task goes on
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    skills: tuple[Skill, ...] = ()

    def skill(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills if fold(skill.id) == fold(name)), None)

    def inputs(self, skill: Skill | None) -> tuple[str, ...]:
        return (skill.input_modes if skill else ()) or self.input_modes

    def outputs(self, skill: Skill | None) -> tuple[str, ...]:
        return (skill.output_modes if skill else ()) or self.output_modes


def is_card(found: Any) -> bool:
    """Whether a JSON value is meant to be a card at all."""
    return isinstance(found, dict) and "name" in found and bool({"skills", "url", "supportedInterfaces"} & found.keys())


def read_card(found: dict[str, Any], base: str | None) -> Card:
    """`base` is where it was found: relative addresses start there."""
    can = _dict(found.get("capabilities"))
    return Card(
        name=_text(found.get("name")),
        description=_text(found.get("description")),
        version=_text(found.get("version")),
        streaming=can.get("streaming") is True,
        pushes=can.get("pushNotifications") is True,
        input_modes=_texts(found.get("defaultInputModes")),
        output_modes=_texts(found.get("defaultOutputModes")),
        interfaces=tuple(_interfaces(found, base)),
        skills=tuple(_skills(found.get("skills"))),
    )


def _interfaces(found: dict[str, Any], base: str | None) -> Iterable[Interface]:
    for url, binding, version, tenant in _listed(found):
        known = _BINDINGS.get(_text(binding).upper().replace("_", "+"))
        place = _reachable(_text(url), base)
        if known and place:
            yield Interface(url=place, binding=known, version=_dialect(version), tenant=_text(tenant))


def _listed(found: dict[str, Any]) -> Iterable[tuple[Any, Any, Any, Any]]:
    """A card of 1.0 lists all of them; older ones name one, and perhaps some more."""
    listed = _dicts(found.get("supportedInterfaces"))
    if listed:
        for each in listed:
            yield each.get("url"), each.get("protocolBinding"), each.get("protocolVersion") or "1.0", each.get("tenant")
        return
    version = found.get("protocolVersion") or "0.3"
    yield found.get("url"), found.get("preferredTransport") or "JSONRPC", version, None
    for each in _dicts(found.get("additionalInterfaces")):
        yield each.get("url"), each.get("transport"), version, None


def _dialect(version: Any) -> Version:
    return "0.3" if _text(version).lstrip("vV").startswith("0") else "1.0"


def _reachable(url: str, base: str | None) -> str:
    """Cards often name the address their server was bound to, which from elsewhere leads nowhere."""
    if base is None:
        return url
    if "://" not in url and (not url or url.startswith("/")):
        return urljoin(base, url) if base.startswith("http") else base
    there, here = urlsplit(url if "://" in url else f"//{url}"), urlsplit(base)  # gRPC is often named without a scheme
    if not there.hostname or not here.hostname or not is_of_one_machine(there.hostname):
        return url
    if _is_wildcard(there.hostname) or not is_of_one_machine(here.hostname):
        host = f"[{here.hostname}]" if ":" in here.hostname else here.hostname
        return urlunsplit(there._replace(netloc=f"{host}:{there.port}" if there.port else host)).removeprefix("//")
    return url


def is_of_one_machine(host: str) -> bool:
    """Whether the name of a host means the machine that one asks from."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def _skills(listed: Any) -> Iterable[Skill]:
    for each in _dicts(listed)[:_SKILLS]:
        name = _text(each.get("id")) or _text(each.get("name"))
        if name:
            yield Skill(
                id=name[:256],
                name=_text(each.get("name")),
                description=_text(each.get("description")),
                tags=_texts(each.get("tags")),
                examples=_texts(each.get("examples")),
                input_modes=_texts(each.get("inputModes")),
                output_modes=_texts(each.get("outputModes")),
            )


def chosen(
    card: Card, bindings: Sequence[Binding], version: Version | None, can_use: Callable[[Binding], bool]
) -> Interface:
    """The operator's preference decides, then the version, then the card's own order. Raises ConfigError."""

    def rank(each: Interface) -> tuple[int, int]:
        return bindings.index(each.binding) if bindings else 0, _NEWEST_FIRST.index(each.version)

    offered = [each for each in card.interfaces if version in (None, each.version)]
    fitting = [each for each in offered if each.binding in bindings or (not bindings and can_use(each.binding))]
    if fitting:
        return min(fitting, key=rank)
    listed = ", ".join(f"{each.binding} {each.version}" for each in card.interfaces) or "no interface"
    wanted = " ".join(filter(None, ("/".join(bindings), version)))
    if any(each.binding == "grpc" for each in offered) and not bindings:
        raise needs_grpc()
    raise ConfigError(f"the agent's card offers {listed}" + (f", not {wanted}" if wanted else " that is understood"))


def needs_grpc() -> ConfigError:
    return ConfigError("the agent speaks gRPC, which is not installed here: pip install 'a2a-fabric[grpc]'")


def description_of(declared: Manifest, card: Card) -> Manifest:
    """What the card says, as a manifest."""
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=tuple(_capabilities(card)),
        display_name=card.name,
        description=card.description[:1000],
        version=card.version,
        tags=tuple(dict.fromkeys(tag for skill in card.skills for tag in skill.tags))[:50],
    )


def _capabilities(card: Card) -> Iterable[Capability]:
    seen: set[str] = set()
    for skill in card.skills or (Skill(id=UNNAMED, description=card.description),):
        if fold(skill.id) not in seen:
            seen.add(fold(skill.id))
            yield Capability(
                name=skill.id,
                description=_described(skill),
                streaming=card.streaming,
                modalities=modalities_of((*card.inputs(skill), *card.outputs(skill))),
                triggers=skill.examples,
            )


def _described(skill: Skill) -> str:
    words = skill.description or skill.name
    if skill.examples:
        words += "\nExamples: " + "; ".join(skill.examples[:_EXAMPLES])
    return words.strip()[:2000]


def modalities_of(modes: Iterable[str]) -> tuple[Modality, ...]:
    """Media types as kinds of content, words first if nothing is said."""
    return tuple(dict.fromkeys(_modality(mode) for mode in modes)) or ("text",)


def _modality(mode: str) -> Modality:
    kind = mode.lower().partition(";")[0].strip()
    if is_json(kind):
        return "json"
    return _MODES.get(kind.partition("/")[0], "text" if kind.startswith("*") else "file")


def is_json(mode: str) -> bool:
    return mode in ("json", "data") or mode.endswith(("/json", "+json"))


def takes_json(modes: Sequence[str]) -> bool:
    """Whether an agent reads data parts; one that does not say so is trusted to."""
    return not modes or any(is_json(mode.lower()) or mode in ("*/*", "*", "application/*") for mode in modes)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for each in value if (text := _text(each))) if isinstance(value, list | tuple) else ()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list | tuple) else []
