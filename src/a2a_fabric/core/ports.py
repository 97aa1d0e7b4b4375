"""The ports of the core, and how a package declares a door, a runtime or a store that a node can use.

    plugin = RuntimePlugin(build=build)

An entry point of the group `a2a_fabric.doors`, `a2a_fabric.runtimes` or `a2a_fabric.stores` names such a
value; the name of the entry point is the `kind` that operators write. The contexts are type parameters,
because they belong to the packages that hand them out: `DoorContext` and `RuntimeContext` of `a2a_fabric`."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from a2a_fabric.core.agent import Health, Manifest, NodeListing, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import Span
from a2a_fabric.core.stores import Store

_import_lock = threading.RLock()
_loaded_modules: dict[str, ModuleType] = {}  # these need no lock


def load_module(name: str) -> ModuleType:
    """Raises ImportError."""
    loaded = _loaded_modules.get(name)
    if loaded is not None:
        return loaded
    with _import_lock:
        module = _loaded_modules[name] = importlib.import_module(name)
        return module


class Runtime(Protocol):
    """One agent behind the gateway. Built on first use, closed once, shared by many calls at a time.

    A runtime that offers more than this also implements `EnforcesDeadline`, `StartsProgram` or `AgentHost`, or one of
    the protocols in `a2a_fabric.protocols.mcp.runtime_ports`; the node checks for each with `isinstance`.
    """

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """Ask the agent. Raises FabricError only; cancelling the call cancels the agent's work."""
        ...

    async def health(self) -> Status:
        """Check the agent cheaply. Raises FabricError when it cannot be reached. The caller sets the deadline."""
        ...

    async def describe(self) -> Manifest:
        """The manifest, completed with what the agent publishes. Raises FabricError if the agent does not answer."""
        ...

    async def aclose(self) -> None:
        """Release processes and connections; never raises, may be called twice."""
        ...


@runtime_checkable
class EnforcesDeadline(Protocol):
    """A runtime that raises CallTimeout itself when `target.timeout_ms` is over. The node cancels all others then."""

    enforces_deadline: Literal[True]


@runtime_checkable
class StartsProgram(Protocol):
    """A runtime whose agent is a program that takes a while to start. A probe that fails meanwhile says nothing."""

    @property
    def is_starting(self) -> bool:
        """Whether the program was started and has not answered yet. It becomes false by itself, after a deadline."""
        ...


@runtime_checkable
class ExplainsHealth(Protocol):
    """A runtime that says why the agent's last `health` was not `online`, where the agent itself does not."""

    health_reason: str | None


@runtime_checkable
class AgentHost(Protocol):
    """A runtime that reaches a whole node: the node's agents become agents of this node's catalog.

    Each of them is reached by the same kind of runtime, with its id as `agent` in the endpoint.
    """

    async def list_agents(self, known_revision: str | None) -> NodeListing:
        """The node's agents: at once if `known_revision` is outdated, else when something changes.

        Raises FabricError when the node does not answer. It sets its own deadline.
        """
        ...


class AgentSource(Protocol):
    """A source of manifests: a file, a folder, a store, another node."""

    name: str

    async def load(self) -> Sequence[Manifest]:
        """All manifests of this source. Raises ConfigError; then the last good ones stay in use."""
        ...

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Call `changed` after each change, until cancelled."""
        ...


@runtime_checkable
class RoutesByWords(Protocol):
    """A source that also says how words choose among its agents. Read after each `load`."""

    @property
    def word_routing(self) -> WordRouting: ...


class MeaningHit(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that is the nearest to a request by meaning; `score` is between 0 and 1.

    `capability` is the nearest of its capabilities; None if the agent has none.
    """

    manifest: Manifest
    score: float
    capability: str | None = None


class MeaningMatcher(Protocol):
    """Chooses an agent by meaning. Routing asks it after the words of a request have found none."""

    async def find_best(
        self, text: str, agents: Sequence[Manifest], may_answer: Callable[[Manifest], bool]
    ) -> MeaningHit | None:
        """None if no agent is clearly the nearest. Returns soon, and raises nothing but CancelledError."""
        ...


@runtime_checkable
class ReportsProblems(Protocol):
    """A source that leaves out agents that it cannot read, and goes on with the others. Read after each `load`."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong, by the file or address."""
        ...


class AgentIndex(Protocol):
    """What routing reads: lookups whose cost does not grow with the number of agents."""

    def get(self, agent_id: str) -> Manifest | None: ...

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        """Agents with this capability (normalized name), in order of registration."""
        ...

    def list_replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        """The agents of the same pool, this one included; empty if it belongs to none."""
        ...

    def is_discovered(self, agent_id: str) -> bool:
        """Whether the agent's capabilities were found out by asking it, instead of declared by the operator."""
        ...


class AgentCatalog(AgentIndex, Protocol):
    """One state of the catalog, or of what one caller sees of it, for lists and tables of all agents."""

    @property
    def agents(self) -> Sequence[Manifest]: ...

    @property
    def tools(self) -> Sequence[Manifest]: ...

    @property
    def capability_count(self) -> int:
        """How many capabilities all its agents have."""
        ...

    def changes_since(self, previous: Any) -> Collection[str]:
        """The ids of all agents and tools that differ from those of an earlier state."""
        ...


class HealthView(Protocol):
    def get(self, agent_id: str) -> Health: ...


SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)
ContextT = TypeVar("ContextT")
DoorT = TypeVar("DoorT")


class NoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a door that has none: every key besides `kind` is refused."""


class DoorPlugin(msgspec.Struct, Generic[SettingsT, ContextT, DoorT], frozen=True, kw_only=True):
    """`settings` is the struct into which the door's table in `fabric.yaml` is decoded, `kind` left out."""

    settings: type[SettingsT]
    build: Callable[[SettingsT, ContextT], DoorT]


class RuntimePlugin(msgspec.Struct, Generic[ContextT], frozen=True, kw_only=True):
    """`build` raises BadInput for an endpoint that it cannot use. It connects to nothing: the first call does."""

    build: Callable[[Manifest, ContextT], Runtime]


class StorePlugin(msgspec.Struct, frozen=True, kw_only=True):
    """`build` opens the store at an address such as `kind:PATH`. Raises StoreError if it cannot be used."""

    build: Callable[[str], Awaitable[Store]]


class MeshNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the mesh, as this one knows it. `heard_seconds` is how long ago it was heard of."""

    node: str
    member: str
    site: str
    version: str
    state: str
    agents: int
    calls: int
    started_at: float
    heard_seconds: float
    problem: str | None = None


class NodeDirectory(Protocol):
    """The nodes of a mesh, for what tells people of them. What is not async answers from memory."""

    def list_nodes(self) -> Sequence[MeshNode]:
        """All nodes, this one first."""
        ...

    def find_node(self, agent_id: str) -> str | None:
        """The node to which a call of an agent of the mesh would go now."""
        ...

    async def read_trace(self, trace_id: str) -> Sequence[Span]:
        """What the other nodes recorded of a trace. A node that does not answer soon is left out."""
        ...
