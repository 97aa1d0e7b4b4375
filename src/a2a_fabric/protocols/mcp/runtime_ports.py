"""What a runtime of MCP agents offers to doors besides calls: prompts and resources, and a tunnel.

A runtime that offers one of them implements `OffersPromptsAndResources` or `OffersTunnel`; doors get both
through their context, so neither package imports the other. Lists of prompts and resources are those last
fetched: reading them sends no request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.trace import Trace

Entries = tuple[dict[str, Any], ...]


class PromptResourceListing(msgspec.Struct, frozen=True, kw_only=True):
    """As the agent lists them."""

    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()


EMPTY_LISTING = PromptResourceListing()


class PromptResourceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`client` is what the asking client says it can do; `patience` is for an agent that is still starting.

    `owner` is on whose behalf it is asked: nobody else can answer what the agent wants to know first.
    """

    method: Literal["prompts/get", "resources/read", "completion/complete"]
    params: dict[str, Any]
    trace: Trace
    timeout: float
    start_timeout: float
    client_capabilities: dict[str, Any] = {}
    owner: tuple[str, str | None] = ("none", None)
    delegation_chain: MaybeChain = msgspec.UNSET


class PromptResourceProvider(Protocol):
    """One agent's."""

    @property
    def listing(self) -> PromptResourceListing:
        """As last learnt, also while the agent is away."""
        ...

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        """The agent's result, or what it wants to know first (`resultType` is `input_required`).

        What happens meanwhile is emitted. Raises FabricError; cancelling it tells the agent.
        """
        ...

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        """Call `told` whenever this resource of the agent changes, until what is returned is called.

        `lost` is called if the library ends before that. Raises FabricError if the agent cannot be asked to tell.
        """
        ...


@runtime_checkable
class OffersPromptsAndResources(Protocol):
    """A runtime whose agent has prompts or resources besides its capabilities."""

    @property
    def prompts_and_resources(self) -> PromptResourceProvider: ...


def _find_none(agent_id: str) -> PromptResourceProvider | None:
    return None


class PromptResourceProviders:
    """Those of all agents of a node. `version` grows with each change; `of` finds one without starting anything."""

    def __init__(self, find: Callable[[str], PromptResourceProvider | None] = _find_none) -> None:
        self.find = find
        self.version = 0
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Be called after every change of any holdings."""
        self._listeners.append(listener)

    def notify_changed(self) -> None:
        self.version += 1
        for listener in self._listeners:
            listener()


# In the data of a JSON-RPC error that stands for an answer that never came: offline, interrupted, refused or gone.
TROUBLE_KEY = "a2a-fabric/trouble"

# Each `open` begins a conversation of its own, and yields what the agent says and what is said to it.
OpenTunnel = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]


class HTTPTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP server: its headers are the node's own credentials, and never those of a caller.

    `open` is for what cannot go through as it is: a conversation in messages instead of bytes.
    """

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int
    open: OpenTunnel | None = None


class StdioTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """A program on stdin and stdout. Each `open` starts one."""

    open: OpenTunnel


Tunnel = HTTPTunnel | StdioTunnel


@runtime_checkable
class OffersTunnel(Protocol):
    """A runtime whose agent is an MCP server that clients can talk to directly, in MCP itself."""

    @property
    def tunnel(self) -> Tunnel: ...
