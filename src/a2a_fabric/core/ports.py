"""The ports of the core: protocols that runtimes, agent sources and the registry implement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from a2a_fabric.core.agent import Health, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.remote_agents import NodeListing
from a2a_fabric.core.result import Result


class Runtime(Protocol):
    """One agent behind the gateway. Built on first use, closed once, shared by many calls at a time.

    A runtime that offers more than this also implements `EnforcesDeadline` or `AgentHost`, or one of the
    protocols in `a2a_fabric.protocols.mcp.runtime_ports`; the node checks for each with `isinstance`.
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


class HealthView(Protocol):
    def get(self, agent_id: str) -> Health: ...
