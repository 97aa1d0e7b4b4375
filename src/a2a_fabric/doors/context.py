"""`DoorContext`, which the node gives to every door, and `Door`, which a door returns to the web server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from starlette.routing import BaseRoute, Route

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.files import FileVersion, read_file_version
from a2a_fabric.core.limits import DEFAULT_SHARE, BodyLimit, FairLimit, Share
from a2a_fabric.core.propagation import Chain, MaybeChain, Trace
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.doors.api_docs import DoorDescription
from a2a_fabric.gateway import Gateway
from a2a_fabric.identity.failed_attempts import FailedAttempts
from a2a_fabric.identity.resolver import Credentials, MessageCredential
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
    """Logs a request that was not a call."""

    def __call__(
        self, trace: Trace, operation: str, *, code: str | None, message: str | None, seconds: float, status: int
    ) -> None: ...


class ProxySteps(Protocol):
    """The steps and the gate around a request that the door forwards to an agent in the agent's own protocol.

    `work` forwards the request. It raises FabricError for a failure, even if the caller has its error reply already.
    """

    def extend_chain(self, chain: MaybeChain, manifest: Manifest) -> Chain:
        """The delegation chain to send to the agent with the request. Raises DelegationRefused."""
        ...

    async def run_call(self, call: Call, manifest: Manifest, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` as a call: inside the steps and the gate. Raises FabricError."""
        ...

    async def run_request(
        self, manifest: Manifest, work: Callable[[], Awaitable[None]], caller: str | None = None
    ) -> None:
        """Run `work` inside the gate only, for a request that names no capability. Raises FabricError."""
        ...


class TLSFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The node's certificate and its key, in PEM, and the authorities of client certificates, if it asks for any."""

    cert: Path
    key: Path
    password: str | None = None
    client_certificates: Literal["off", "optional", "required"] = "off"
    client_ca: Path | None = None

    @property
    def versions(self) -> tuple[FileVersion | None, ...]:
        """Others when one of the files has changed."""
        return tuple(map(read_file_version, (self.cert, self.key, self.client_ca)))


class DoorContext(msgspec.Struct, frozen=True, kw_only=True):
    """`tunnel` connects to an agent that is called in its own protocol; `proxy_steps` surround its requests.

    A door that listens outside the web server calls `verify_credentials` before `identify`. `http` sends requests that
    are forwarded unchanged. `resource_providers` hold the prompts and resources of the agents.
    """

    gateway: Gateway
    operations: Operations
    identify: Callable[[Credentials], Principal]
    narrow_to_views: Callable[[Principal, Credentials], Principal]  # for callers that a door admits itself
    verify_credentials: Callable[[Credentials], Awaitable[None]]
    # The caller of a message with passports or mandates of its own; raises FabricError.
    add_credentials: Callable[[Principal, Iterable[MessageCredential]], Awaitable[Principal]]
    jobs: Jobs
    messages: Messages
    inboxes: Inboxes
    log: RequestLog
    acquire_stream: Callable[[str | None], None]  # for this principal; raises RateLimited if its share is used up
    release_stream: Callable[[str | None], None]
    streams: FairLimit  # the limit that the two functions above count
    subscriptions: FairLimit
    followed_jobs: FairLimit  # jobs whose events are pushed
    failed_attempts: FailedAttempts
    caller_share: Share = DEFAULT_SHARE  # of each limit, for one caller
    counts: SharedCounts | None = None  # where the processes of the node, if it has several, count what they use
    body_limit: BodyLimit = msgspec.field(default_factory=lambda: BodyLimit(4 * 1024 * 1024))
    # Asks the other processes to close a session for a caller that has so many; whether one did.
    make_room_elsewhere: Callable[[str, int], Awaitable[bool]] | None = None
    metrics: Callable[[], Awaitable[bytes]] | None = None
    tunnel: Callable[[Manifest, Principal], Tunnel | None] = lambda *_: None  # raises AgentOffline
    proxy_steps: ProxySteps | None = None
    http: HTTPClient | None = None
    find_client: Callable[[str], HTTPClient | None] = lambda agent_id: None  # instead of `http`, for one agent
    sign_trace: Callable[[Trace, str, Any], str] | None = None  # for trace, outcome and result of a reply
    resource_providers: PromptResourceProviders = msgspec.field(default_factory=PromptResourceProviders)
    public_url: str | None = None  # of this node; None: the address that each request was sent to
    admits_anonymous: Callable[[], bool] = lambda: False  # whether programs need no credentials
    list_issuers: Callable[[], tuple[str, ...]] = lambda: ()  # whose tokens are accepted, besides the node's own keys
    door_kinds: frozenset[str] = frozenset()  # the kinds of all doors of the node
    describe_doors: Callable[[], Sequence[DoorDescription]] = tuple  # those that say what they serve over HTTP
    tls: TLSFiles | None = None  # of the node, also for a door with a listener of its own
    session_file: Path | None = None  # where sessions are kept while the process is restarted
    is_serving: bool = True  # False: a door with a listener of its own checks its settings, and opens no port
    owner_tag: str = ""  # the end of ids that must come back to this process, if the node has several


async def _prepare_nothing() -> None:
    pass


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """`hot` paths are dispatched before any router; `sockets` are WebSockets; `routes` are Starlette's.

    `hot_routes` are those of the routes whose paths become hot when they are first used. Their endpoints are ASGI
    applications that need no more of the scope than a hot path has, and `path_params`.
    The node enters `lifetime` before it serves and exits it afterwards; it calls `stop` when it takes no new requests.
    It awaits `prepare` when its agents are known, before it serves: what the first request would wait for is loaded.
    """

    hot: Mapping[str, ASGIApp] = {}
    sockets: Mapping[str, ASGIApp] = {}
    routes: Sequence[BaseRoute] = ()
    hot_routes: Sequence[Route] = ()
    lifetime: AbstractAsyncContextManager[Any] = msgspec.field(default_factory=nullcontext)
    prepare: Callable[[], Awaitable[None]] = _prepare_nothing
    stop: Sequence[Callable[[], None]] = ()
    describe: Callable[[], DoorDescription] | None = None  # its paths over HTTP, for `/docs`
    # Closes a session for a caller with so many who opens one in another process of the node; whether there was one.
    make_room: Callable[[str, int], bool] | None = None
    sessions: Mapping[str, Callable[[], int]] = {}  # by kind: how many are open, for metrics
