"""Agents as the node describes them: the manifest, its capabilities, and the agent's health.

Manifests are decoded from `agents.yaml` and from the wire, so their field names are part of
the configuration format; an unknown field is refused.

An agent `percy` of another node that is in the catalog as `lab` is known here as `lab/percy`.
The other node describes what the agent does. How it is reached, who may call it and its
fallbacks come from the catalog entry of the node."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.federation import (
    AgentOrigin,
    Coordination,
    Dependencies,
    Observability,
    Phrase,
    Provider,
    SpanFacts,
    describe_span,
)
from a2a_fabric.core.propagation import UNNAMED_NODE
from a2a_fabric.core.retry import RetryPolicy

Status = Literal["online", "offline", "degraded", "unknown"]
TrustTier = Literal["local", "org", "public"]
Audience = Literal["personal", "work", "shared"]
Modality = Literal["text", "image", "audio", "video", "code", "file", "json"]
SideEffects = Literal["none", "reads", "writes"]

Milliseconds = Annotated[int, Meta(ge=1)]

# For Python, `$` also matches before a final line break; the look-ahead is against that. The engines of many clients
# refuse look-ahead, so `to_portable_schema` removes it from published schemas.
_STRICT_END = r"(?!\n)"
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$" + _STRICT_END
LINE_PATTERN = r"^[^\x00-\x1f\x7f]+$" + _STRICT_END  # one line without control characters
MAX_CAPABILITY_NAME = 256  # characters
AgentId = Annotated[str, Meta(pattern=AGENT_ID_PATTERN, max_length=128, description="Unique name of the agent.")]

HEALTH_RANK: Mapping[Status, int] = {"online": 0, "unknown": 1, "degraded": 2, "offline": 3}  # the best first
# From most to least trusted: work may move to an agent of the same rank or a lower number, not to a higher one.
TRUST_RANK: Mapping[TrustTier, int] = {"local": 0, "org": 1, "public": 2}

# The least trusted callers for whom an agent of an audience is.
AUDIENCE_TIER: Mapping[Audience, TrustTier] = {"personal": "local", "work": "org", "shared": "public"}

REGISTERED_KEY = "registered"  # in `metadata`: who registered the agent, and on which terms; the node alone writes it

_SEPARATORS = re.compile(r"[-_\s]+")


def normalize_name(name: str) -> str:
    """`Parse-Recipe`, `parse_recipe` and `parse recipe` are one capability."""
    return _SEPARATORS.sub("_", name).lower()


def iterate_strings(value: Any) -> Iterator[str]:
    """Every text of a JSON value, at any depth; not the names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from iterate_strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from iterate_strings(inner)


def to_portable_schema(schema: Any) -> Any:
    """A JSON Schema of our own structs, with patterns that every engine of regular expressions understands."""
    if isinstance(schema, dict):
        portable = {key: to_portable_schema(value) for key, value in schema.items()}
        if isinstance(portable.get("pattern"), str):
            portable["pattern"] = portable["pattern"].removesuffix(_STRICT_END)
        return portable
    return [to_portable_schema(value) for value in schema] if isinstance(schema, list | tuple) else schema


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One thing an agent does. A tool, a skill and a legacy capability are all capabilities."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_CAPABILITY_NAME, description="The name that callers use.")]
    title: Annotated[str, Meta(max_length=256, description="A name for people; unset: clients show the name.")] = ""
    description: Annotated[str, Meta(description="One or two sentences for people and models.")] = ""
    input_schema: Annotated[
        dict[str, Any] | None, Meta(description="JSON Schema of the arguments; calls are checked against it.")
    ] = None
    output_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the result.")] = None
    streaming: Annotated[bool, Meta(description="Whether the agent sends events before the result.")] = False
    modalities: Annotated[tuple[Modality, ...], Meta(description="Kinds of content that it takes and returns.")] = (
        "text",
    )
    idempotent: Annotated[
        bool | None,
        Meta(
            description="true: may be repeated freely. false: never repeated once it may have run. Unset: a declared "
            "fallback or pool member may repeat it after a timeout or a broken reply, but not after a "
            "lost answer, and never if side_effects is `writes`."
        ),
    ] = None
    max_timeout_ms: Annotated[Milliseconds | None, Meta(description="Longest timeout of a call to it.")] = None
    triggers: Annotated[tuple[str, ...], Meta(description="Phrases by which this capability is chosen.")] = ()
    deterministic: Annotated[bool | None, Meta(description="Same arguments, same result.")] = None
    side_effects: Annotated[
        SideEffects | None,
        Meta(description="none, reads (looks at something outside) or writes (changes something outside)."),
    ] = None
    job_after_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="A call that takes longer becomes a job, and its caller gets the job's handle. 0: every call "
            "does."
        ),
    ] = None
    retry: Annotated[
        RetryPolicy | None, Meta(description="How a job is tried again. Unset: as the node's `jobs.retry` says.")
    ] = None
    default: Annotated[
        bool, Meta(description="This one answers messages that name no capability. At most one of an agent.")
    ] = False
    metadata: Annotated[
        dict[str, Any], Meta(description="Anything else: the `_meta` of the tool for MCP clients, such as its `ui`.")
    ] = {}

    @property
    def is_for_models(self) -> bool:
        """False for a tool that only the user interface of its MCP server is meant to call."""
        ui = self.metadata.get("ui")
        visibility = ui.get("visibility") if isinstance(ui, dict) else None
        return not isinstance(visibility, list) or "model" in visibility

    @property
    def may_repeat(self) -> bool:
        """Whether it may run again though it may have run already: declared, or it changes nothing."""
        return self.idempotent if self.idempotent is not None else self.side_effects in ("none", "reads")


class ToolText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a tool says about itself to people, models and clients. UNSET: of a version that did not keep it."""

    description: str = ""
    input_schema: dict[str, object] | None = None
    title: str | msgspec.UnsetType = msgspec.UNSET
    side_effects: SideEffects | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def from_capability(cls, capability: Capability) -> ToolText:
        return cls(
            description=capability.description,
            input_schema=capability.input_schema,
            title=capability.title,
            side_effects=capability.side_effects,
            metadata=capability.metadata,
        )

    def is_kept_by(self, current: ToolText) -> bool:
        """Whether the tool still says this."""
        mine = msgspec.structs.asdict(self)
        return all(value is msgspec.UNSET or getattr(current, name) == value for name, value in mine.items())

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:32]


# The only capability in the catalog of an agent that shows nothing to callers without a login of their own.
LOGIN_CAPABILITY = Capability(
    name="login",
    title="Sign in",
    description="Sign in with your own account. What this agent offers you is listed after that.",
    input_schema={"type": "object", "properties": {}},
    idempotent=True,
)


# What every federated agent can do besides its own capabilities, listed or not: see `coordination.task_format`.
TASK_CAPABILITY = Capability(
    name="task",
    title="Standard task",
    description="Takes a standard task request (id, type, payload, …) and answers with a standard task response.",
    input_schema={
        "type": "object",
        "properties": {"id": {"type": "string"}, "type": {"type": "string"}, "payload": {"type": "object"}},
        "required": ["id", "type", "payload"],
    },
)


class DerivedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A tool made from another one."""

    source: Annotated[str, Meta(min_length=1, max_length=256, description="The agent's own tool.")] = msgspec.field(
        name="from"
    )
    description: Annotated[str | None, Meta(description="Its description. Unset: that of the other tool.")] = None
    arguments: Annotated[
        dict[str, Any], Meta(description="Arguments that are always sent; callers neither see nor change them.")
    ] = {}
    result: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2000)] | None,
        Meta(description="A JMESPath expression: only what it finds in the result is returned."),
    ] = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Which of an agent's tools are listed and can be called, and how they are named and described.

    Patterns may hold `*` and `?`; case, dashes and underscores do not count.
    """

    include: Annotated[tuple[str, ...] | None, Meta(description="Only these tools. Unset: all.")] = None
    exclude: Annotated[tuple[str, ...], Meta(description="All but these tools.")] = ()
    rename: Annotated[
        dict[str, Annotated[str, Meta(min_length=1, max_length=256)]],
        Meta(description="New names, by the agent's own; one `*` on both sides stands for the same text."),
    ] = {}
    describe: Annotated[dict[str, str], Meta(description="Descriptions instead of the agent's own, by name.")] = {}
    derive: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=256)], DerivedTool],
        Meta(description="New tools made from the agent's own, by name; also from tools that are not listed."),
    ] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An agent as the node knows it. Only `agent_id` and `endpoint` are needed: the rest defaults or is found out."""

    agent_id: AgentId
    endpoint: Annotated[
        dict[str, Any], Meta(description="Address or command of the agent, and the options of its runtime.")
    ]
    runtime: Annotated[
        str | None,
        Meta(description="The runtime that reaches the agent. Unset: the node finds it out from the endpoint."),
    ] = None
    capabilities: Annotated[
        tuple[Capability, ...], Meta(description="What the agent does. Empty: the node asks the agent.")
    ] = ()
    tools: Annotated[
        ToolChoice | None, Meta(description="Which of its tools are listed, and how. Unset: all, as they are.")
    ] = None
    pin_tools: Annotated[
        bool | None,
        Meta(
            description="Whether a tool that changes what it says (description, schema, title, hints, `_meta`) is held "
            "back until it is approved. Unset: as the node's `pin_tools` says."
        ),
    ] = None
    enabled: Annotated[
        bool, Meta(description="`false` switches the agent off: it is neither listed nor called nor probed.")
    ] = True
    display_name: Annotated[str, Meta(description="Name for people.")] = ""
    description: Annotated[str, Meta(description="What it is for.")] = ""
    version: Annotated[str, Meta(description="The agent's own version.")] = ""
    role: Annotated[str, Meta(max_length=256, description="Its role in a few words, such as: Sous Chef.")] = ""
    personality: Annotated[
        str, Meta(max_length=4000, description="How it speaks; part of the prompt of agents that are prompts.")
    ] = ""
    signals: Annotated[
        tuple[Phrase, ...], Meta(description="Words and phrases by which it is chosen, the most specific first.")
    ] = ()
    provider: Annotated[Provider | None, Meta(description="Who maintains it.")] = None
    dependencies: Annotated[Dependencies | None, Meta(description="What it needs besides itself.")] = None
    observability: Annotated[Observability | None, Meta(description="How its calls appear in traces and logs.")] = None
    coordination: Annotated[
        Coordination | None, Meta(description="How it works together with other agents. Unset: it accepts subtasks.")
    ] = None
    origin: Annotated[
        AgentOrigin | None, Meta(description="Where a federated agent comes from. The node writes it.")
    ] = None
    node_id: Annotated[str, Meta(description="The machine or site it runs on.")] = "local"
    trust_tier: Annotated[
        TrustTier, Meta(description="Which callers reach the agent, and which agents may be asked in its place.")
    ] = "org"
    audience: Annotated[
        Audience | None,
        Meta(
            description="For whom the agent is. `personal`: callers of trust tier `local`. `work`: also `org`. "
            "`shared`: all that `trust_tier` allows. A key with `audiences` reaches only agents of these. Unset: as "
            "`shared`."
        ),
    ] = None
    tags: Annotated[tuple[str, ...], Meta(description="Free words for filtering.")] = ()
    fallbacks: Annotated[
        tuple[str, ...],
        Meta(description="Agents that may answer instead when this one fails, in this order."),
    ] = ()
    pool: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="Agents of one pool are replicas: they share the calls to each of them, least busy first."),
    ] = None
    delegate_id: Annotated[str | None, Meta(description="Delegate that the agent acts as.")] = None
    cog_id: Annotated[str | None, Meta(description="Cog that the agent belongs to.")] = None
    realm: Annotated[str | None, Meta(description="Realm that the agent belongs to.")] = None
    category: Annotated[str | None, Meta(description="Set on built-in tools only: io, web, math…")] = None
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Anything else. Keys that begin with `private` are shown only to the operator."),
    ] = {}

    def __post_init__(self) -> None:
        """Raises ValueError if two capabilities are the default."""
        if (
            len(self.capabilities) > 1
            and len(defaults := [each.name for each in self.capabilities if each.default]) > 1
        ):
            raise ValueError(f"only one capability may be the default, not {', '.join(defaults[:3])}")

    @property
    def is_tool(self) -> bool:
        return self.category is not None

    @property
    def access_tier(self) -> TrustTier:
        """The least trusted callers that reach it: what its trust tier and its audience both allow."""
        if self.audience is None:
            return self.trust_tier
        return min(self.trust_tier, AUDIENCE_TIER[self.audience], key=TRUST_RANK.__getitem__)

    @property
    def wants_login(self) -> bool:
        """Whether every caller signs in to the agent with an account of its own."""
        return "auth" in self.endpoint

    @property
    def takes_tasks(self) -> bool:
        """Whether the node answers standard task requests for it: federated agents do, besides their own."""
        return self.origin is not None

    @property
    def is_open_ended(self) -> bool:
        """Whether it may offer capabilities that are not listed here, so that only a call can tell."""
        return not self.capabilities or (len(self.capabilities) == 1 and self.capabilities[0] is LOGIN_CAPABILITY)

    @property
    def transport(self) -> str:
        """As declared, or as its address speaks for it."""
        scheme = str(self.endpoint.get("uri", "")).partition("://")[0].removesuffix("s")
        return str(self.endpoint.get("transport") or (scheme if scheme in ("http", "grpc") else "local"))

    @property
    def implied_runtime(self) -> str | None:
        """What its endpoint can only mean where no runtime is declared; None if it has to be found out."""
        if str(self.endpoint.get("uri", "")).startswith("python:"):
            return "python"
        return "process" if "command" in self.endpoint else None

    @property
    def registered_by(self) -> str | None:
        """The caller that registered it at run time; None for an agent of the operator's."""
        terms = self.metadata.get(REGISTERED_KEY)
        if terms is None:
            return None
        if not isinstance(terms, dict):
            return "unknown"
        return None if terms.get("by_operator") is True else str(terms.get("owner") or "unknown")

    def describe_span(self, capability: str) -> SpanFacts | None:
        """Name and attributes of a call to a capability in traces and logs; None if its card wants no traces."""
        return describe_span(self.observability, self.agent_id, self.role, capability)

    @property
    def label(self) -> str:
        """How an attempt at this agent is named in errors: `percy@node-1`."""
        return f"{self.agent_id}@{self.node_id}"

    def find_capability(self, name: str) -> Capability | None:
        """By its name, however it is written. Signing in and standard tasks are possible, listed or not."""
        for capability in self.capabilities:
            if capability.name == name:
                return capability
        normalized = normalize_name(name)
        for capability in self.capabilities:
            if normalize_name(capability.name) == normalized:
                return capability
        if normalized == LOGIN_CAPABILITY.name and self.wants_login:
            return LOGIN_CAPABILITY
        return TASK_CAPABILITY if normalized == TASK_CAPABILITY.name and self.takes_tasks else None


class Health(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an agent's state, and since how many observations in a row."""

    status: Status = "unknown"
    failures: int = 0
    successes: int = 0
    failed_calls: int = 0  # in a row, of those that reached the agent; only an answered call ends the row
    has_answered: bool = False  # a call, at the address that probes ask
    error: str | None = None
    latency: float | None = None
    seen_at: float | None = None


AGENT_KEY = "agent"  # in an endpoint: which agent of the node is meant
_SEPARATOR = "/"  # declared ids cannot contain it


class ListedAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    manifest: Manifest  # as the other node describes it
    status: Status = "unknown"
    error: str | None = None


class NodeListing(msgspec.Struct, frozen=True, kw_only=True):
    """`agents` is None if nothing has changed since the known revision."""

    agents: tuple[ListedAgent, ...] | None
    revision: str | None = None  # None if the node does not report revisions


MESH_RUNTIME = "mesh"  # the runtime of an agent that another node of the mesh holds


def is_elsewhere(manifest: Manifest) -> bool:
    """Whether another node described the agent, so that this one does not ask it."""
    return is_imported(manifest.agent_id) or manifest.runtime == MESH_RUNTIME


def is_imported(agent_id: str) -> bool:
    """Whether the id is of another node's agent."""
    return _SEPARATOR in agent_id


def node_entry_of(agent_id: str) -> str:
    """The catalog entry through which the agent is reached: the node of an imported agent, else the agent itself."""
    return agent_id.partition(_SEPARATOR)[0]


def import_agent(node: Manifest, published: Manifest) -> Manifest:
    return replace(
        published,
        agent_id=f"{node.agent_id}{_SEPARATOR}{published.agent_id}",
        endpoint={**node.endpoint, AGENT_KEY: published.agent_id},
        runtime=node.runtime,
        node_id=published.node_id if published.node_id != UNNAMED_NODE else node.agent_id,
        trust_tier=node.trust_tier,
        audience=node.audience or published.audience,
        origin=node.origin,
        tags=tuple(dict.fromkeys((*node.tags, *published.tags))),
        fallbacks=node.fallbacks,
        pool=None,
        tools=node.tools,
        pin_tools=node.pin_tools,
        metadata={**published.metadata, **node.metadata},
    )
