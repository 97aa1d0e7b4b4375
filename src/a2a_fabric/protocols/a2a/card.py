"""Agent cards of A2A 1.0 and 0.3: where to find them and how to read them, leniently.

A card of 1.0 lists all interfaces; a card of 0.3 names one, and perhaps some more."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.protocols.a2a.models import A2ABinding, A2AVersion

CARD_PATH, OLD_CARD_PATH = "/.well-known/agent-card.json", "/.well-known/agent.json"  # the second before 0.3
CARD_PATHS = (CARD_PATH, OLD_CARD_PATH)
OLD_CARD_SUMMARY = "The card of this node's own agent, where older clients look for it."  # two doors may serve it
_BINDINGS: dict[str, A2ABinding] = {
    "JSONRPC": "jsonrpc",
    "JSON-RPC": "jsonrpc",
    "HTTP+JSON": "http",
    "HTTP": "http",
    "REST": "http",
    "GRPC": "grpc",
}
_CARD_KEYS = frozenset({"skills", "url", "supportedInterfaces", "supported_interfaces"})
_MAX_SKILLS = 5000


class A2AInterface(msgspec.Struct, frozen=True, kw_only=True):
    """An address of the agent, with the binding and version that it serves."""

    url: str
    binding: A2ABinding
    version: A2AVersion
    tenant: str = ""

    @property
    def is_local(self) -> bool:
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
    supports_push: bool = False
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
    """Whether a JSON value is meant to be a card: it has a name, and skills or interfaces."""
    return isinstance(document, dict) and isinstance(document.get("name"), str) and not _CARD_KEYS.isdisjoint(document)


def read_card(document: dict[str, Any], base: str | None) -> A2ACard:
    """`base` is the URL of the card: relative addresses start there."""
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
    """URL, binding, version and tenant of each."""
    interfaces = _dict_list(document.get("supportedInterfaces"))
    if interfaces:
        for each in interfaces:
            yield each.get("url"), each.get("protocolBinding"), each.get("protocolVersion") or "1.0", each.get("tenant")
        return
    version = document.get("protocolVersion") or "0.3"
    yield document.get("url"), document.get("preferredTransport") or "JSONRPC", version, None
    for each in _dict_list(document.get("additionalInterfaces")):
        yield each.get("url"), each.get("transport"), version, None


def _parse_version(version: Any) -> A2AVersion:
    return "0.3" if _stripped_text(version).lstrip("vV").startswith("0") else "1.0"


def _resolve_url(url: str, base: str | None) -> str:
    """Cards often name the address that their server is bound to, which cannot be reached from other machines."""
    if base is None:
        return url
    if "://" not in url and (not url or url.startswith("/")):
        return urljoin(base, url) if base.startswith("http") else base
    card_url = urlsplit(url if "://" in url else f"//{url}")  # addresses of gRPC often have no scheme
    base_url = urlsplit(base)
    if not card_url.hostname or not base_url.hostname or not is_this_machine(card_url.hostname):
        return url
    if _is_wildcard(card_url.hostname) or not is_this_machine(base_url.hostname):
        host = f"[{base_url.hostname}]" if ":" in base_url.hostname else base_url.hostname
        return urlunsplit(card_url._replace(netloc=f"{host}:{card_url.port}" if card_url.port else host)).removeprefix(
            "//"
        )
    return url


def is_this_machine(host: str) -> bool:
    """Whether the host is this machine under any name: `localhost`, a loopback or a wildcard address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def _parse_skills(skills: Any) -> Iterable[A2ASkill]:
    for each in _dict_list(skills)[:_MAX_SKILLS]:
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


def _stripped_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _text_tuple(value: Any) -> tuple[str, ...]:
    return tuple(text for each in value if (text := _stripped_text(each))) if isinstance(value, list | tuple) else ()


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dict_list(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list | tuple) else []
