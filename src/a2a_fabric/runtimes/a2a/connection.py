"""Connects to the agent that a manifest's endpoint names: finds its card, and builds the client for one interface.

The card may be at the given address, below it, or at the root of its host. Its skills become capabilities."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Capability, Manifest, Modality, normalize_name
from a2a_fabric.core.errors import AgentOffline, ConfigError, OperatorText, translated
from a2a_fabric.core.ports import load_module
from a2a_fabric.outbound.port import HTTPClient, HTTPReply
from a2a_fabric.protocols.a2a.card import CARD_PATHS, A2ACard, A2AInterface, A2ASkill, is_card, read_card
from a2a_fabric.protocols.a2a.models import A2ABinding, A2AVersion
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS
from a2a_fabric.runtimes.a2a.client import (
    A2AClient,
    A2AHTTPTransport,
    A2AJSONRPCClient,
    A2ARESTClient,
    headers_for,
    public_address,
)
from a2a_fabric.runtimes.context import RuntimeContext, bad_endpoint, decode_endpoint
from a2a_fabric.runtimes.upstream import TRANSPORT_ERRORS

_URI_PATTERN = "^(https?|grpcs?)://"


class A2AEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uri` is the address of the agent or of its card. `card` is the address of a card, or the card itself."""

    uri: Annotated[str, Meta(pattern=_URI_PATTERN, max_length=4096)] | None = None
    transport: str = "http"
    card: str | dict[str, Any] | None = None
    binding: A2ABinding | tuple[A2ABinding, ...] = ()  # in order of preference; unset: as the card orders them
    version: A2AVersion | None = None  # unset: the newest that the card offers
    headers: dict[str, str] = {}
    tenant: str | None = None  # unset: as the card says
    extensions: tuple[str, ...] = ()  # URIs of extensions that the agent is asked to use
    push: bool = True  # false: the agent is never asked for push notifications
    look_seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # silence after which an agent that pushes is polled
    blocking: bool | None = None  # false: an agent that does not stream is polled instead

    @property
    def bindings(self) -> tuple[A2ABinding, ...]:
        return (self.binding,) if isinstance(self.binding, str) else self.binding


def read_endpoint(manifest: Manifest) -> A2AEndpoint:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, A2AEndpoint)
    if endpoint.uri is None and endpoint.card is None:
        raise bad_endpoint(manifest.agent_id, "it needs a `uri`, or a `card`")
    if endpoint.uri is None and isinstance(endpoint.card, str) and "://" not in endpoint.card:
        raise bad_endpoint(manifest.agent_id, "without a `uri`, `card` must be a whole address")
    if any("@" in urlsplit(address).netloc for address in (endpoint.uri, endpoint.card) if isinstance(address, str)):
        raise bad_endpoint(
            manifest.agent_id, "it has a user name in its address; put credentials into `headers`, as env:NAME"
        )
    if isinstance(endpoint.card, dict) and not is_card(endpoint.card):
        raise bad_endpoint(manifest.agent_id, "its card needs a name, and skills or interfaces")
    return endpoint


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
    card: A2ACard,
    bindings: Sequence[A2ABinding],
    version: A2AVersion | None,
    can_use: Callable[[A2ABinding], bool],
    avoid: Collection[str] = (),
) -> A2AInterface:
    """By the operator's preference, then the newest version, then the order of the card. Raises ConfigError.

    An interface at one of the URLs to avoid is taken only if there is no other.
    """

    def rank(each: A2AInterface) -> tuple[bool, int, int]:
        preference = bindings.index(each.binding) if bindings else 0
        return each.url in avoid, preference, _NEWEST_FIRST.index(each.version)

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


CARD_TIMEOUT = 5.0  # for one request; the caller's own deadline may be shorter
_CARD_BYTES = 4 * 1024 * 1024


def card_urls(endpoint: A2AEndpoint) -> list[str]:
    """Every URL at which the card may be, the likeliest first."""
    uri = endpoint.uri or ""
    if isinstance(endpoint.card, str):
        return [urljoin(uri, endpoint.card) if uri else endpoint.card]
    if not uri.startswith("http"):
        return []
    base, root = uri.partition("?")[0].rstrip("/"), "{0.scheme}://{0.netloc}".format(urlsplit(uri))
    below_endpoint = [base + path for path in CARD_PATHS]
    at_root = [root + path for path in CARD_PATHS]
    is_itself = base.endswith(".json")
    return list(dict.fromkeys([uri, *at_root] if is_itself else [*below_endpoint, *at_root, uri]))


async def find_card(
    client: HTTPClient, endpoint: A2AEndpoint, headers: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """The card and its URL. Raises AgentOffline for every failure, because no call was sent yet."""
    attempts = []
    for url in card_urls(endpoint):
        reply = await request_card(client, url, headers)
        if reply.status == 200 and (card := _parse_card(reply.body)) is not None:
            return url, card
        attempts.append(f"{url.partition('?')[0]}: {reply.status if reply.status != 200 else 'no card'}")
    tried = f" ({'; '.join(attempts) or 'the endpoint has no URL'})"[:470]
    raise AgentOffline(OperatorText(f"No agent card was found{tried}", "No agent card was found"))


async def request_card(client: HTTPClient, url: str, headers: Mapping[str, str]) -> HTTPReply:
    """Raises AgentOffline."""
    with translated(dict.fromkeys(TRANSPORT_ERRORS, AgentOffline), upstream=public_address(url)):
        return await client.request("GET", url, headers=headers, timeout=CARD_TIMEOUT, limit=_CARD_BYTES)


def _parse_card(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None
    return document if is_card(document) else None


class CardClient(A2AClient, Protocol):
    """A client that can also ask the agent for its card, as gRPC can."""

    async def fetch_card(self) -> dict[str, Any]:
        """An empty object if the agent has no card for us."""
        ...


_GRPC_MODULE = "a2a_fabric.runtimes.a2a.grpc_client"
_MAX_SKILL_INFOS = 10_000


class SkillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the card says about one capability."""

    skill: str | None
    takes_json: bool
    output_modes: tuple[str, ...]


class A2AConnection:
    """A card, the chosen interface and its client. `card_url` is None if the card was not fetched by HTTP."""

    def __init__(self, card: A2ACard, interface: A2AInterface, client: A2AClient, card_url: str | None) -> None:
        self.card = card
        self.interface = interface
        self.client = client
        self.card_url = card_url
        self._skill_infos: dict[str, SkillInfo] = {}

    def skill_info(self, capability: str) -> SkillInfo:
        info = self._skill_infos.get(capability)
        if info is None:
            if len(self._skill_infos) >= _MAX_SKILL_INFOS:
                self._skill_infos.clear()
            info = self._skill_infos[capability] = self._make_skill_info(capability)
        return info

    def _make_skill_info(self, capability: str) -> SkillInfo:
        skill = self.card.find_skill(capability)
        skill_id = skill.id if skill is not None else capability
        return SkillInfo(
            skill=None if skill_id == DEFAULT_CAPABILITY and skill is None else skill_id,
            takes_json=takes_json(self.card.input_modes_of(skill)),
            output_modes=self.card.output_modes_of(skill),
        )


async def connect(
    endpoint: A2AEndpoint,
    context: RuntimeContext,
    previous: A2AConnection | None = None,
    avoid: Collection[str] = (),
) -> A2AConnection:
    """Reuses the client of the previous connection if the interface is the same. Raises FabricError."""
    card_url, card = await _load_card(endpoint, context)
    interface = choose_interface(card, endpoint.bindings, endpoint.version, _can_use, avoid)
    if endpoint.tenant is not None:
        interface = msgspec.structs.replace(interface, tenant=endpoint.tenant)
    if previous is not None and previous.interface == interface:
        return A2AConnection(card, interface, previous.client, card_url)
    return A2AConnection(card, interface, _make_client(interface, endpoint, context), card_url)


async def _load_card(endpoint: A2AEndpoint, context: RuntimeContext) -> tuple[str | None, A2ACard]:
    if isinstance(endpoint.card, dict):
        return None, read_card(endpoint.card, endpoint.uri)
    if endpoint.card is None and (endpoint.uri or "").startswith("grpc"):
        return None, await _load_card_by_grpc(endpoint, context)
    card_url, document = await find_card(context.http, endpoint, endpoint.headers)
    return card_url, read_card(document, card_url)


async def _load_card_by_grpc(endpoint: A2AEndpoint, context: RuntimeContext) -> A2ACard:
    """The card of an agent that serves only gRPC; without a card, the endpoint is its only interface."""
    interface = A2AInterface(url=endpoint.uri or "", binding="grpc", version=endpoint.version or "1.0")
    client = _load_grpc_builder()(interface, endpoint, context)
    try:
        document: dict[str, Any] = await client.fetch_card()
    finally:
        await client.aclose()
    card = read_card(document, endpoint.uri) if document else A2ACard()
    return msgspec.structs.replace(card, interfaces=(interface,), streaming=card.streaming or not document)


def _can_use(binding: A2ABinding) -> bool:
    return binding != "grpc" or importlib.util.find_spec("grpc") is not None


def _make_client(interface: A2AInterface, endpoint: A2AEndpoint, context: RuntimeContext) -> A2AClient:
    if interface.binding == "grpc":
        return _load_grpc_builder()(interface, endpoint, context)
    if urlsplit(interface.url).scheme not in ("http", "https"):
        public_why = "the agent's card names no HTTP address"
        why = f"the agent's card names {interface.url[:200]!r}, which is not an HTTP address"
        raise ConfigError(OperatorText(why, public_why))
    headers = headers_for(interface.version, endpoint.headers, endpoint.extensions)
    transport = A2AHTTPTransport(context.http, interface.url, headers, context.reply_bytes)
    if interface.binding == "jsonrpc":
        return A2AJSONRPCClient(transport, interface.version, interface.tenant)
    return A2ARESTClient(transport, interface.version, interface.tenant)


def _load_grpc_builder() -> Callable[[A2AInterface, A2AEndpoint, RuntimeContext], CardClient]:
    """Raises ConfigError if grpc is not installed."""
    if not _can_use("grpc"):
        raise grpc_not_installed()
    build: Callable[[A2AInterface, A2AEndpoint, RuntimeContext], CardClient] = load_module(_GRPC_MODULE).build
    return build
