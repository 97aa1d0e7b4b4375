"""Agents as the node describes them: the manifest, its capabilities, and the agent's health.

Manifests are decoded from `agents.yaml` and from the wire, so their field names are part of
the configuration format; an unknown field is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.retry import RetryPolicy

Status = Literal["online", "offline", "degraded", "unknown"]
TrustTier = Literal["local", "org", "public"]
Audience = Literal["personal", "work", "shared"]
Modality = Literal["text", "image", "audio", "video", "code", "file", "json"]
SideEffects = Literal["none", "reads", "writes"]

Milliseconds = Annotated[int, Meta(ge=1)]

AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)"
AgentId = Annotated[str, Meta(pattern=AGENT_ID_PATTERN, max_length=128, description="Unique name of the agent.")]

HEALTH_RANK: Mapping[Status, int] = {"online": 0, "unknown": 1, "degraded": 2, "offline": 3}  # the best first
# From most to least trusted: work may move to an agent of the same rank or a lower number, not to a higher one.
TRUST_RANK: Mapping[TrustTier, int] = {"local": 0, "org": 1, "public": 2}

REGISTERED_KEY = "registered"  # in `metadata`: who registered the agent, and on which terms; the node alone writes it

_SEPARATORS = re.compile(r"[-_\s]+")


def normalize_name(name: str) -> str:
    """`Parse-Recipe`, `parse_recipe` and `parse recipe` are one capability."""
    return _SEPARATORS.sub("_", name).lower()


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing an agent does. A tool, a skill and a legacy capability are all capabilities."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="The name that callers use.")]
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

    @property
    def may_repeat(self) -> bool:
        """Whether it may run again though it may have run already: declared, or it changes nothing."""
        return self.idempotent if self.idempotent is not None else self.side_effects in ("none", "reads")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    display_name: Annotated[str, Meta(description="Name for people.")] = ""
    description: Annotated[str, Meta(description="What it is for.")] = ""
    version: Annotated[str, Meta(description="The agent's own version.")] = ""
    node_id: Annotated[str, Meta(description="The machine or site it runs on.")] = "local"
    trust_tier: Annotated[
        TrustTier, Meta(description="Which callers reach the agent, and which agents may be asked in its place.")
    ] = "org"
    audience: Annotated[Audience | None, Meta(description="For whom the agent is.")] = None
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

    @property
    def is_tool(self) -> bool:
        return self.category is not None

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
        """Who registered it at run time; None for an agent of the operator's."""
        terms = self.metadata.get(REGISTERED_KEY)
        if terms is None:
            return None
        if not isinstance(terms, dict):
            return "unknown"
        return None if terms.get("by_operator") is True else str(terms.get("owner") or "unknown")

    @property
    def label(self) -> str:
        """How an attempt at this agent is named in errors: `percy@node-1`."""
        return f"{self.agent_id}@{self.node_id}"

    def find_capability(self, name: str) -> Capability | None:
        for capability in self.capabilities:
            if capability.name == name:
                return capability
        normalized = normalize_name(name)
        for capability in self.capabilities:
            if normalize_name(capability.name) == normalized:
                return capability
        return None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an agent's state, and since how many observations in a row."""

    status: Status = "unknown"
    failures: int = 0
    successes: int = 0
    failed_calls: int = 0  # in a row, of those that reached the agent; only an answered call ends the row
    has_answered: bool = False  # a call, at the address that probes ask
    error: str | None = None
    latency: float | None = None
    seen_at: float | None = None
