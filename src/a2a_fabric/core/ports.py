"""The ports of the core: protocols that runtimes, agent sources and the registry implement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from a2a_fabric.core.agent import Health, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.remote_agents import NodeListing
from a2a_fabric.core.result import Result


class Runtime(Protocol):
    """One agent behind the gateway. Built lazily, closed once, shared by many calls at a time.

    One with an attribute `keeps_time = True` ends each call by itself when
    `target.timeout_ms` is over; all others are cancelled then.
    """

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """Ask the agent. Raises FabricError only; cancelling it cancels the agent's work."""
        ...

    async def health(self) -> Status:
        """A cheap look at the agent. Raises FabricError when it cannot be reached. The caller sets the deadline."""
        ...

    async def describe(self) -> Manifest:
        """The manifest, completed with what the agent itself publishes. Raises FabricError when it cannot be asked."""
        ...

    async def aclose(self) -> None:
        """Release processes and connections; never raises, may be called twice."""
        ...


class AgentHost(Protocol):
    """A runtime that stands for a whole node: its agents come into the catalog as agents of their own.

    Each is reached by the same runtime, with its id as `agent` in the endpoint.
    """

    async def listing(self, known_revision: str | None) -> NodeListing:
        """The node's agents, at once if `known` is not its revision any more, else when something changes.

        Raises FabricError when the node cannot be asked. It keeps its own time.
        """
        ...


class AgentSource(Protocol):
    """Where manifests come from: a file, a folder, a store, another node."""

    name: str

    async def load(self) -> Sequence[Manifest]:
        """All manifests of this source, or ConfigError: then the last good ones stay in force."""
        ...

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Call `changed` after each change, until cancelled."""
        ...


class AgentIndex(Protocol):
    """What routing reads: lookups whose cost does not grow with the number of agents."""

    def get(self, agent_id: str) -> Manifest | None: ...

    def offering(self, capability: str) -> Sequence[Manifest]:
        """Agents with this capability (folded name), in order of registration."""
        ...

    def replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        """The agents of its pool, itself included; nothing if it is in none."""
        ...

    def is_learnt(self, agent_id: str) -> bool:
        """Whether the agent's capabilities were found out by asking it, instead of declared by the operator."""
        ...


class HealthView(Protocol):
    def of(self, agent_id: str) -> Health: ...
