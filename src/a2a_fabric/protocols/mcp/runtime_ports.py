"""What a runtime of MCP agents offers to doors besides calls: prompts and resources, and a tunnel.

A runtime that offers one of them implements `OffersPromptsAndResources` or `OffersTunnel`; doors get both
through their context, so neither package imports the other. Lists of prompts and resources are those last
fetched: reading them sends no request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from a2a_fabric.core.call import Emit, Principal
from a2a_fabric.core.forwarding import CallSigner
from a2a_fabric.core.logins import BearerSource
from a2a_fabric.core.propagation import MaybeChain, Trace
from a2a_fabric.protocols.mcp.wire import McpMessage

Entries = tuple[dict[str, Any], ...]


class PromptResourceListing(msgspec.Struct, frozen=True, kw_only=True):
    """The entries as the agent lists them."""

    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()


EMPTY_LISTING = PromptResourceListing()


class PromptResourceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one agent. An agent that is still starting gets `start_timeout` seconds for that.

    `client_capabilities` are those of the client that asks. Only `principal` may answer the agent's questions.
    """

    method: Literal["prompts/get", "resources/read", "completion/complete"]
    params: dict[str, Any]
    trace: Trace
    timeout: float
    start_timeout: float
    client_capabilities: dict[str, Any] = {}
    principal: Principal = Principal()
    delegation_chain: MaybeChain = msgspec.UNSET


class PromptResourceProvider(Protocol):
    """The prompts and resources of one agent."""

    @property
    def listing(self) -> PromptResourceListing:
        """As last fetched, also while the agent is offline."""
        ...

    async def load(self) -> PromptResourceListing:
        """As the agent lists them now, or listed them last if it does not answer."""
        ...

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        """The agent's result, or its questions (`resultType` is `input_required`).

        Progress and log messages are emitted. Raises FabricError. Cancelling it cancels the agent's request.
        """
        ...

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        """Call `on_change` whenever this resource changes, until the returned function is called.

        `on_lost` is called if the runtime is closed before that. Raises FabricError if the agent does not notify.
        """
        ...


@runtime_checkable
class OffersPromptsAndResources(Protocol):
    """A runtime whose agent has prompts or resources besides its capabilities."""

    @property
    def prompts_and_resources(self) -> PromptResourceProvider: ...


FindProvider = Callable[[str, Principal | None], PromptResourceProvider | None]


def _find_none(agent_id: str, principal: Principal | None) -> PromptResourceProvider | None:
    return None


class PromptResourceProviders:
    """Those of all agents of a node. `version` grows with each change; `find` starts nothing.

    `list_ids` are the agents that may have any, without those that never do.

    An agent at which callers sign in has some for a principal that is signed in, and none without a principal.
    """

    def __init__(self, find: FindProvider = _find_none, list_ids: Callable[[], Container[str]] = frozenset) -> None:
        self.find = find
        self.list_ids = list_ids
        self.version = 0
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of a listing."""
        self._listeners.append(listener)

    def notify_changed(self) -> None:
        self.version += 1
        for listener in self._listeners:
            listener()


# In the `data` of errors that our transport makes in the server's place: offline, interrupted, failed, refused, gone.
TROUBLE_KEY = "a2a-fabric/trouble"


class TunnelWriter(Protocol):
    """The stream of messages to an agent."""

    async def send(self, message: Any, /) -> None:
        """Send a `SessionMessage` of the SDK."""
        ...

    def start_request(
        self, request_id: str | int, method: str, body: bytes, headers: Mapping[str, str]
    ) -> asyncio.Future[McpMessage]:
        """Send an encoded request. Its reply does not go into the stream from the agent.

        If the agent ends, only that stream ends. The caller also calls `forget_request`.
        """
        ...

    def forget_request(self, request_id: str | int) -> None:
        """Drop the reply, if it has not come yet."""
        ...


# Each call opens a conversation of its own; its value are the streams from the agent and to the agent.
OpenTunnel = Callable[[], AbstractAsyncContextManager[tuple[Any, TunnelWriter]]]


class HTTPTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP server. `headers` are the node's own credentials, never those of a caller.

    `open` is for a conversation in messages, where bytes cannot be forwarded as they are. A tunnel with an `owner` is
    for this principal alone: `bearer` is its token. With a `signer`, what is sent to the agent is signed.
    """

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int
    open: OpenTunnel | None = None
    owner: str | None = None
    bearer: BearerSource | None = None
    signer: CallSigner | None = None


class StdioTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """A server over message streams: a program on stdin and stdout, or HTTP+SSE. Each `open` starts it anew."""

    open: OpenTunnel
    owner: str | None = None
    signer: CallSigner | None = None


Tunnel = HTTPTunnel | StdioTunnel


@runtime_checkable
class OffersTunnel(Protocol):
    """A runtime whose agent is an MCP server that clients can talk to directly, in MCP itself."""

    @property
    def tunnel(self) -> Tunnel | None:
        """None if clients share what the runtime itself uses, and are served as those of other agents."""
        ...
