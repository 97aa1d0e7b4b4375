"""What every door receives from the node, and what it hands back to the web server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from starlette.routing import BaseRoute

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.delegation import Chain, MaybeChain
from a2a_fabric.core.limits import DEFAULT_SHARE, FairLimit
from a2a_fabric.core.trace import Trace
from a2a_fabric.gateway import Gateway
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.operations import Operations
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceProviders, Tunnel

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
ASGIApp = Callable[[Any, Receive, Send], Awaitable[None]]


class RequestLog(Protocol):
    """Where a door writes about requests that were no calls."""

    def __call__(
        self, trace: Trace, operation: str, *, code: str | None, message: str | None, seconds: float, status: int
    ) -> None: ...


class ProxySteps(Protocol):
    """What surrounds requests that go to an agent in its own protocol; the work is the door's.

    `work` raises FabricError for what went wrong, also if the caller was told already.
    """

    def extend_chain(self, chain: MaybeChain, manifest: Manifest) -> Chain:
        """The delegation chain that goes to the agent with a request. Raises DelegationRefused."""
        ...

    async def run_call(self, call: Call, manifest: Manifest, work: Callable[[], Awaitable[None]]) -> None:
        """Past the steps and the gate: seen, allowed, counted. Raises FabricError."""
        ...

    async def run_request(
        self, manifest: Manifest, work: Callable[[], Awaitable[None]], caller: str | None = None
    ) -> None:
        """Through the gate only, for what asks for no capability. Raises FabricError."""
        ...


def _no_tunnel(manifest: Manifest) -> Tunnel | None:
    return None


@dataclass(frozen=True, kw_only=True)
class TLSFiles:
    """The node's certificate and its key, in PEM."""

    cert: Path
    key: Path
    password: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoorContext:
    """`tunnel` is the way to an agent that can be spoken to in its own protocol; `passage` surrounds what goes there.

    Whoever does not come through the web server is to `introduce` himself before somebody may `identify` him.
    `http` is for what goes through as it is. `libraries` is what agents hold besides their capabilities.
    """

    gateway: Gateway
    operations: Operations
    identify: Callable[[Credentials], Principal]
    verify_credentials: Callable[[Credentials], Awaitable[None]]
    jobs: Jobs
    messages: Messages
    inboxes: Inboxes
    log: RequestLog
    acquire_stream: Callable[[str | None], None]  # by this principal; raises RateLimited if it has its share of them
    release_stream: Callable[[str | None], None]
    streams: FairLimit  # which the two above count
    subscriptions: FairLimit
    caller_share: float = DEFAULT_SHARE  # of what is limited that one caller may have alone
    body_bytes: int = 4 * 1024 * 1024
    metrics: Callable[[], bytes] | None = None
    tunnel: Callable[[Manifest], Tunnel | None] = _no_tunnel  # raises AgentOffline
    proxy_steps: ProxySteps | None = None
    http: HTTPClient | None = None
    resource_providers: PromptResourceProviders = field(default_factory=PromptResourceProviders)
    public_url: str | None = None  # how callers reach this node, if the operator says so; else as each one did
    issuers: tuple[str, ...] = ()  # whose tokens are good here, besides the node's keys
    door_kinds: frozenset[str] = frozenset()  # of all doors of the node, for those who tell of the others
    tls: TLSFiles | None = None  # with which the node serves; a door that listens elsewhere does so too


@dataclass(frozen=True, kw_only=True)
class Door:
    """`hot` paths are dispatched before any router; `sockets` are WebSockets; `routes` are Starlette's.

    The node enters `lifetime` before it serves and leaves it after; `stop` is called when it takes no new requests.
    """

    hot: Mapping[str, ASGIApp] = field(default_factory=dict)
    sockets: Mapping[str, ASGIApp] = field(default_factory=dict)
    routes: Sequence[BaseRoute] = ()
    lifetime: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)
    stop: Sequence[Callable[[], None]] = ()
