"""An agent's card, from what the catalog says of it: for clients of 1.0 and of 0.3 in one body.

The two versions have different names for the same things, so that each reads its own and
passes over the other's; where 0.3 is not spoken, its names are left out. Whole schemas stand
in an extension; in a skill there is an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, fold
from a2a_fabric.doors.a2a.extensions import SCHEMAS, declared
from a2a_fabric.identity.pages import openid_page
from a2a_fabric.version import __version__

_TEXT, _JSON = "text/plain", "application/json"
_MODES: dict[str, tuple[str, ...]] = {
    "text": (_TEXT,),
    "code": (_TEXT,),
    "json": (_JSON,),
    "image": ("image/*",),
    "audio": ("audio/*",),
    "video": ("video/*",),
    "file": ("application/octet-stream", "*/*"),
}
_EXAMPLES: dict[str, Any] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
_BEARER = "A key of this node, or a token that it trusts."
_MOST_SKILLS = 1000
_DEPTH = 4


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent is reached: the address of HTTP, and of gRPC with the name by which it is told apart there.

    An empty address of HTTP is one that we do not know.
    """

    url: str
    grpc: str | None = None
    tenant: str = ""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What all agents of the node have in common."""

    push: bool = True
    needs_key: bool = True
    has_old: bool = True  # 0.3 is spoken too
    issuers: tuple[str, ...] = ()  # whose tokens are good here, too


def card_of(manifest: Manifest, capabilities: Sequence[Capability], reach: Reach, offer: Offer) -> dict[str, Any]:
    name = manifest.display_name or manifest.agent_id
    return {
        "name": name,
        "description": manifest.description or f"Agent '{manifest.agent_id}'",
        "version": manifest.version or "0",
        **_offered([(each, manifest.tags) for each in capabilities], reach, offer, _extensions(manifest)),
    }


def gateway_card(
    node_id: str, agents: Iterable[tuple[Manifest, Sequence[Capability]]], reach: Reach, offer: Offer
) -> dict[str, Any]:
    """Of the node itself: the skills of all its agents, each once."""
    offered: dict[str, tuple[Capability, tuple[str, ...]]] = {}
    for manifest, capabilities in agents:
        for each in capabilities:
            known = offered.get(fold(each.name))
            tags = (manifest.agent_id, *manifest.tags)
            offered[fold(each.name)] = (each, tags) if known is None else (known[0], (*known[1], *tags))
    return {
        **({"id": node_id, "endpoint": reach.url} if offer.has_old else {}),
        "name": f"a2a-fabric node '{node_id}'",
        "description": "Finds the right agent for a skill; name it in metadata.skill.",
        "version": __version__,
        **_offered(list(offered.values()), reach, offer),
    }


def _offered(
    skills: Sequence[tuple[Capability, tuple[str, ...]]],
    reach: Reach,
    offer: Offer,
    extensions: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    skills = skills[:_MOST_SKILLS]
    inputs, outputs = _modes(each for each, _ in skills)
    return {
        **_interfaces(reach, offer),
        "capabilities": {
            "streaming": True,
            "pushNotifications": offer.push,
            "extendedAgentCard": True,
            **({"stateTransitionHistory": False} if offer.has_old else {}),
            "extensions": [*extensions, *_schemas(each for each, _ in skills)],
        },
        **({"supportsAuthenticatedExtendedCard": True} if offer.has_old else {}),
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "skills": [_skill(each, tags) for each, tags in skills],
        **(_security(offer) if offer.needs_key else {}),
    }


def _interfaces(reach: Reach, offer: Offer) -> dict[str, Any]:
    versions = ("1.0", "0.3") if offer.has_old else ("1.0",)
    spoken = _over_grpc(reach)
    if not reach.url:
        return {
            "supportedInterfaces": [{**each, "protocolVersion": version} for version in versions for each in spoken]
        }
    new = [
        {"url": reach.url, "protocolBinding": binding, "protocolVersion": version}
        for version in versions
        for binding in ("JSONRPC", "HTTP+JSON")
    ]
    new[2:2] = [{**each, "protocolVersion": "1.0"} for each in spoken]
    return {"supportedInterfaces": new, **(_old_interfaces(reach) if offer.has_old else {})}


def _over_grpc(reach: Reach) -> list[dict[str, str]]:
    if reach.grpc is None:
        return []
    spoken = {"url": reach.grpc, "protocolBinding": "GRPC"}
    return [{**spoken, "tenant": reach.tenant} if reach.tenant else spoken]


def _old_interfaces(reach: Reach) -> dict[str, Any]:
    old = [{"url": reach.url, "transport": transport} for transport in ("JSONRPC", "HTTP+JSON")]
    if reach.grpc is not None and not reach.tenant:  # 0.3 has no word for whom gRPC is meant
        old.append({"url": reach.grpc, "transport": "GRPC"})
    return {
        "protocolVersion": "0.3.0",
        "url": reach.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": old,
    }


def _security(offer: Offer) -> dict[str, Any]:
    schemes = {"bearer": _scheme("http", "httpAuth", {"scheme": "bearer", "description": _BEARER}, offer)}
    for number, issuer in enumerate(offer.issuers, 1):
        told = {"openIdConnectUrl": openid_page(issuer)}
        schemes[f"issuer{number}"] = _scheme("openIdConnect", "openIdConnect", told, offer)
    return {
        "securitySchemes": schemes,
        "securityRequirements": [{"schemes": {name: {"list": []}}} for name in schemes],
        **({"security": [{name: []} for name in schemes]} if offer.has_old else {}),
    }


def _scheme(old: str, new: str, told: dict[str, str], offer: Offer) -> dict[str, Any]:
    """As 0.3 has it beside as 1.0 does."""
    return {**({"type": old, **told} if offer.has_old else {}), f"{new}SecurityScheme": told}


def _skill(capability: Capability, tags: Sequence[str]) -> dict[str, Any]:
    skill: dict[str, Any] = {
        "id": capability.name,
        "name": capability.name,
        "description": capability.description or f"Does '{capability.name}'",
        "tags": list(dict.fromkeys(tags)) or [fold(capability.name)],
        "inputModes": _modes_of([capability], has_data=True),
        "outputModes": _modes_of([capability], has_data=True),
    }
    examples = list(capability.triggers)
    if capability.input_schema is not None:
        given = {"skill": capability.name, "arguments": example_of(capability.input_schema)}
        examples.append(msgspec.json.encode(given).decode())
    return {**skill, "examples": examples} if examples else skill


def _modes(capabilities: Iterable[Capability]) -> tuple[list[str], list[str]]:
    modes = _modes_of(list(capabilities), has_data=True)
    return modes, modes


def _modes_of(capabilities: Sequence[Capability], *, has_data: bool) -> list[str]:
    named = [mode for each in capabilities for kind in each.modalities for mode in _MODES[kind]]
    return list(dict.fromkeys([_TEXT, *([_JSON] if has_data else []), *named]))


def _extensions(manifest: Manifest) -> list[dict[str, Any]]:
    """That the agent itself declares."""
    return [msgspec.to_builtins(each) for each in declared(manifest)]


def _schemas(capabilities: Iterable[Capability]) -> list[dict[str, Any]]:
    schemas: dict[str, Any] = {}
    for each in capabilities:
        both = {"input": each.input_schema, "output": each.output_schema}
        found = {name: schema for name, schema in both.items() if schema is not None}
        if found:
            schemas[each.name] = found
    if not schemas:
        return []
    described = "JSON Schemas of the skills' arguments and results, by skill id."
    return [{"uri": SCHEMAS, "description": described, "required": False, "params": schemas}]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def example_of(schema: Any, depth: int = 0) -> Any:
    """The least value that a schema is likely to accept."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    properties = schema.get("properties")
    if isinstance(properties, dict):
        required = schema.get("required")
        names = dict.fromkeys(filter(_is_text, required)) if isinstance(required, list) else {}  # each once
        return {name: example_of(properties.get(name), depth + 1) for name in names or properties}
    kind = schema.get("type", "object")
    return _EXAMPLES.get(kind[0] if isinstance(kind, list) and kind else kind if isinstance(kind, str) else "", {})
