"""Agent cards, built from the catalog for clients of 1.0 and 0.3 in one body, and cached until the catalog changes.

The two versions name the same things differently. A client of 0.3 reads its own names and ignores the others. A client
that says that it speaks 1.0 gets no names of 0.3. Complete schemas are in an extension; a skill shows an example."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.policy import make_access_key
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.a2a.requests import (
    PROFILE_EXTENSION,
    SCHEMAS_EXTENSION,
    A2ARequestContext,
    read_declared_extensions,
)
from a2a_fabric.gateway import Gateway
from a2a_fabric.identity.settings import openid_metadata_url
from a2a_fabric.version import __version__

_TEXT_TYPE, _JSON_TYPE = "text/plain", "application/json"
_MEDIA_TYPES_BY_MODALITY: dict[str, tuple[str, ...]] = {
    "text": (_TEXT_TYPE,),
    "code": (_TEXT_TYPE,),
    "json": (_JSON_TYPE,),
    "image": ("image/*",),
    "audio": ("audio/*",),
    "video": ("video/*",),
    "file": ("application/octet-stream", "*/*"),
}
_EXAMPLES_BY_TYPE: dict[str, Any] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
_BEARER_DESCRIPTION = "A key of this node, or a token that it trusts."
_MAX_SKILLS = 1000
_MAX_TAGS = 100  # of a skill that many agents have
_MAX_EXAMPLE_DEPTH = 4


class AgentUrls(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of an agent. All agents share the gRPC address, so `tenant` names the agent there.

    `url` is empty if the base URL is not known, as in a request that came through gRPC.
    """

    url: str
    grpc: str | None = None
    tenant: str = ""


class CardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the cards of all agents of the node have in common."""

    push: bool = True
    needs_key: bool = True
    supports_0_3: bool = True
    issuers: tuple[str, ...] = ()  # OpenID issuers whose tokens this node accepts


def build_agent_card(
    manifest: Manifest, capabilities: Sequence[Capability], urls: AgentUrls, options: CardOptions
) -> dict[str, Any]:
    name = manifest.display_name or manifest.agent_id
    return {
        "name": name,
        "description": manifest.description or f"Agent '{manifest.agent_id}'",
        "version": manifest.version or "0",
        **_render_provider(manifest),
        **_render_shared_fields(
            [(each, manifest.tags) for each in capabilities],
            urls,
            options,
            [*(msgspec.to_builtins(each) for each in read_declared_extensions(manifest)), *_render_profile(manifest)],
        ),
    }


def _render_provider(manifest: Manifest) -> dict[str, Any]:
    """A2A wants a URL beside the name; a contact that is an address of e-mail becomes one."""
    if manifest.provider is None:
        return {}
    contact = manifest.provider.contact
    url = f"mailto:{contact}" if "@" in contact and ":" not in contact else contact
    return {"provider": {"organization": manifest.provider.name, "url": url}}


def _render_profile(manifest: Manifest) -> list[dict[str, Any]]:
    """Role, signals and audience, which A2A has no fields for."""
    values = {"role": manifest.role, "signals": list(manifest.signals), "context": manifest.audience}
    params = {name: value for name, value in values.items() if value}
    if not params:
        return []
    return [{"uri": PROFILE_EXTENSION, "description": "Role, signals and context of the agent.", "params": params}]


async def build_gateway_card(
    node_id: str, agents: Iterable[Manifest], urls: AgentUrls, options: CardOptions
) -> dict[str, Any]:
    """The card of the node itself: the skills of its agents, each once, with the first of its tags.

    The skills are collected in slices, with other requests in between.
    """
    skills: dict[str, tuple[Capability, dict[str, None]]] = {}
    async for manifests in iterate_in_slices(agents):
        for manifest in manifests:
            for each in manifest.capabilities:
                name = normalize_name(each.name)
                if name not in skills:
                    if len(skills) == _MAX_SKILLS:
                        continue
                    skills[name] = each, {}
                if len(tags := skills[name][1]) < _MAX_TAGS:
                    tags.update(dict.fromkeys((manifest.agent_id, *manifest.tags)))
    return {
        **({"id": node_id, "endpoint": urls.url} if options.supports_0_3 else {}),
        "name": f"a2a-fabric node '{node_id}'",
        "description": "Finds the right agent for a skill; name the skill in metadata.skill.",
        "version": __version__,
        **_render_shared_fields([(each, tuple(tags)) for each, tags in skills.values()], urls, options),
    }


def _render_shared_fields(
    skills: Sequence[tuple[Capability, tuple[str, ...]]],
    urls: AgentUrls,
    options: CardOptions,
    extensions: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    skills = skills[:_MAX_SKILLS]
    modes = _list_modes([each for each, _ in skills])
    return {
        **_render_interfaces(urls, options),
        "capabilities": {
            "streaming": True,
            "pushNotifications": options.push,
            "extendedAgentCard": True,
            **({"stateTransitionHistory": False} if options.supports_0_3 else {}),
            "extensions": [*extensions, *_render_schemas_extension(each for each, _ in skills)],
        },
        **({"supportsAuthenticatedExtendedCard": True} if options.supports_0_3 else {}),
        "defaultInputModes": modes,
        "defaultOutputModes": modes,
        "skills": [_render_skill(each, tags) for each, tags in skills],
        **(_render_security(options) if options.needs_key else {}),
    }


def _render_interfaces(urls: AgentUrls, options: CardOptions) -> dict[str, Any]:
    versions = ("1.0", "0.3") if options.supports_0_3 else ("1.0",)
    grpc_interfaces = _render_grpc_interfaces(urls)
    if not urls.url:
        return {
            "supportedInterfaces": [
                {**each, "protocolVersion": version} for version in versions for each in grpc_interfaces
            ]
        }
    interfaces = [
        {"url": urls.url, "protocolBinding": binding, "protocolVersion": version}
        for version in versions
        for binding in ("JSONRPC", "HTTP+JSON")
    ]
    interfaces[2:2] = [{**each, "protocolVersion": "1.0"} for each in grpc_interfaces]
    return {"supportedInterfaces": interfaces, **(_render_0_3_interfaces(urls) if options.supports_0_3 else {})}


def _render_grpc_interfaces(urls: AgentUrls) -> list[dict[str, str]]:
    if urls.grpc is None:
        return []
    interface = {"url": urls.grpc, "protocolBinding": "GRPC"}
    return [{**interface, "tenant": urls.tenant} if urls.tenant else interface]


def _render_0_3_interfaces(urls: AgentUrls) -> dict[str, Any]:
    interfaces = [{"url": urls.url, "transport": transport} for transport in ("JSONRPC", "HTTP+JSON")]
    if urls.grpc is not None and not urls.tenant:  # 0.3 has no field for the tenant
        interfaces.append({"url": urls.grpc, "transport": "GRPC"})
    return {
        "protocolVersion": "0.3.0",
        "url": urls.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": interfaces,
    }


def _render_security(options: CardOptions) -> dict[str, Any]:
    schemes = {
        "bearer": _render_scheme("http", "httpAuth", {"scheme": "bearer", "description": _BEARER_DESCRIPTION}, options)
    }
    for number, issuer in enumerate(options.issuers, 1):
        fields = {"openIdConnectUrl": openid_metadata_url(issuer)}
        schemes[f"issuer{number}"] = _render_scheme("openIdConnect", "openIdConnect", fields, options)
    return {
        "securitySchemes": schemes,
        "securityRequirements": [{"schemes": {name: {"list": []}}} for name in schemes],
        **({"security": [{name: []} for name in schemes]} if options.supports_0_3 else {}),
    }


def _render_scheme(type_0_3: str, type_1_0: str, fields: dict[str, str], options: CardOptions) -> dict[str, Any]:
    """One scheme, in the form of 0.3 beside that of 1.0."""
    return {**({"type": type_0_3, **fields} if options.supports_0_3 else {}), f"{type_1_0}SecurityScheme": fields}


def _render_skill(capability: Capability, tags: Sequence[str]) -> dict[str, Any]:
    skill: dict[str, Any] = {
        "id": capability.name,
        "name": capability.name,
        "description": capability.description or f"Does '{capability.name}'",
        "tags": list(dict.fromkeys(tags)) or [normalize_name(capability.name)],
        "inputModes": _list_modes([capability]),
        "outputModes": _list_modes([capability]),
    }
    examples = list(capability.triggers)
    if capability.input_schema is not None:
        example = {"skill": capability.name, "arguments": build_example(capability.input_schema)}
        examples.append(msgspec.json.encode(example).decode())
    return {**skill, "examples": examples} if examples else skill


def _list_modes(capabilities: Sequence[Capability]) -> list[str]:
    capability_modes = [
        mode for each in capabilities for kind in each.modalities for mode in _MEDIA_TYPES_BY_MODALITY[kind]
    ]
    return list(dict.fromkeys([_TEXT_TYPE, _JSON_TYPE, *capability_modes]))


def _render_schemas_extension(capabilities: Iterable[Capability]) -> list[dict[str, Any]]:
    schemas: dict[str, Any] = {}
    for each in capabilities:
        candidates = {"input": each.input_schema, "output": each.output_schema}
        skill_schemas = {name: schema for name, schema in candidates.items() if schema is not None}
        if skill_schemas:
            schemas[each.name] = skill_schemas
    if not schemas:
        return []
    description = "JSON Schemas of the skills' arguments and results, by skill id."
    return [{"uri": SCHEMAS_EXTENSION, "description": description, "required": False, "params": schemas}]


def build_example(schema: Any, depth: int = 0) -> Any:
    """A minimal value that the schema is likely to accept."""
    if not isinstance(schema, dict) or depth > _MAX_EXAMPLE_DEPTH:
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
        candidates = required if isinstance(required, list) else ()
        names = dict.fromkeys(name for name in candidates if isinstance(name, str))  # each once
        return {name: build_example(properties.get(name), depth + 1) for name in names or properties}
    kind = schema.get("type", "object")
    first_kind = kind[0] if isinstance(kind, list) and kind else kind
    return _EXAMPLES_BY_TYPE.get(first_kind, {}) if isinstance(first_kind, str) else {}


CardSigner = Callable[[dict[str, Any]], list[dict[str, Any]]]
GATEWAY_PATH = "/gateway"
_MAX_CACHED = 2000


class ServedCard(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    etag: str
    modified_at: float

    @property
    def last_modified(self) -> str:
        return format_datetime(datetime.fromtimestamp(int(self.modified_at), UTC), usegmt=True)


class CardCache:
    """`read_options` returns what holds now: some of it changes while the node runs. `grpc_address` returns the address
    of the gRPC server, or None if it does not listen (yet).
    """

    def __init__(
        self,
        gateway: Gateway,
        read_options: Callable[[], CardOptions],
        grpc_address: Callable[[], str | None],
        sign: CardSigner | None,
    ) -> None:
        self._gateway = gateway
        self._read_options = read_options
        self._grpc_address = grpc_address
        self._sign = sign
        self._cache: OrderedDict[tuple[Any, ...], tuple[object, ServedCard]] = OrderedDict()

    async def get_card(self, context: A2ARequestContext) -> ServedCard:
        """The card of the agent, or of the gateway, with the skills that this caller may use."""
        registry = self._gateway.registry
        source: object = context.agent if context.agent is not None else registry.catalog_for(context.principal)
        name = context.agent.agent_id if context.agent is not None else None
        options = self._choose_options(context)
        access = make_access_key(context.principal)
        key = (name, context.base_url, access, self._grpc_address(), options)
        cached = self._cache.get(key)
        if cached is not None and cached[0] is source:
            self._cache.move_to_end(key)
            return cached[1]
        card = self._encode_card(await self._build_card(context, options), cached[1] if cached else None)
        self._cache[key] = (source, card)
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return card

    async def build_extended_card(self, context: A2ARequestContext) -> dict[str, Any]:
        return self._add_signatures(await self._build_card(context, self._choose_options(context)))

    def _choose_options(self, context: A2ARequestContext) -> CardOptions:
        """A client that says that it speaks 1.0 gets no names of 0.3."""
        options = self._read_options()
        return options if context.version == "0.3" else msgspec.structs.replace(options, supports_0_3=False)

    def _encode_card(self, card: dict[str, Any], previous: ServedCard | None) -> ServedCard:
        """A card whose content did not change keeps its date."""
        etag = hashlib.sha256(msgspec.json.encode(card, order="deterministic")).hexdigest()[:32]
        if previous is not None and previous.etag == f'"{etag}"':
            return previous
        body = msgspec.json.encode(self._add_signatures(card))
        return ServedCard(body=body, etag=f'"{etag}"', modified_at=time.time())

    def _add_signatures(self, card: dict[str, Any]) -> dict[str, Any]:
        return {**card, "signatures": self._sign(card)} if self._sign is not None else card

    async def _build_card(self, context: A2ARequestContext, options: CardOptions) -> dict[str, Any]:
        """The agent in the context is already reduced to what its caller may use."""
        agent = context.agent
        if agent is not None:
            urls = AgentUrls(
                url=_join_url(context, f"/agents/{agent.agent_id}"), grpc=self._grpc_address(), tenant=agent.agent_id
            )
            return build_agent_card(agent, agent.capabilities, urls, options)
        agents = (await self._gateway.registry.prepare_view(context.principal)).agents
        urls = AgentUrls(url=_join_url(context, GATEWAY_PATH), grpc=self._grpc_address())
        return await build_gateway_card(self._gateway.node_id, agents, urls, options)


def _join_url(context: A2ARequestContext, path: str) -> str:
    return f"{context.base_url}{path}" if context.base_url else ""
