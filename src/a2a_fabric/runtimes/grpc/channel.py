"""The channel to a gRPC agent: endpoint, TLS, connecting, and status codes as FabricErrors. All calls share it.

gRPC has one status for an agent that was not reached and for one that was lost half-way, and
only the first may be retried elsewhere. So a channel that is not connected is tried with a
health request first; calls are sent once that was answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    ErrorTable,
    FabricError,
    NotReached,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    translated,
)
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.outbound.client_tls import ClientTLSFiles
from a2a_fabric.outbound.grpc_tls import ChannelTLS
from a2a_fabric.outbound.guard import Guard, format_grpc_target
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.runtimes.proto.messages import HealthRequest
from a2a_fabric.runtimes.proto.service import AgentStub

# Errors of a request that was sent over an open connection. Every other status is a refusal.
_ERRORS_BY_STATUS: dict[grpc.StatusCode, type[FabricError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadInput,
    grpc.StatusCode.OUT_OF_RANGE: BadInput,
    grpc.StatusCode.UNIMPLEMENTED: AgentOffline,  # a server answers, but it does not serve agents
    grpc.StatusCode.UNAVAILABLE: UpstreamInterrupted,  # the connection broke: the call may have run
    grpc.StatusCode.CANCELLED: UpstreamInterrupted,
    grpc.StatusCode.INTERNAL: UpstreamInterrupted,
    grpc.StatusCode.DATA_LOSS: UpstreamInterrupted,
    grpc.StatusCode.UNKNOWN: UpstreamFailed,  # the agent's code raised an exception
}


def error_from_rpc(exc: grpc.aio.AioRpcError, timeout: float, upstream: str) -> FabricError:
    code, details = exc.code(), (exc.details() or "").strip()[:500]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallTimeout(timeout, grpc_status=code.name, upstream=upstream)
    kind = _ERRORS_BY_STATUS.get(code, UpstreamRefused)
    message = f"gRPC {code.name}: {details}" if details else f"gRPC {code.name}"
    return kind(message, grpc_status=code.name, upstream=upstream)


def is_unimplemented(exc: grpc.aio.AioRpcError) -> bool:
    """Whether the server does not offer this method."""
    return bool(exc.code() is grpc.StatusCode.UNIMPLEMENTED)


def is_unreachable(exc: grpc.aio.AioRpcError) -> bool:
    """Whether the first request on a channel failed because there is no connection."""
    return exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


_PLAIN, _SECURE = ("http",), ("https", "grpcs")
_SCHEMES = ("grpc", *_PLAIN, *_SECURE)
_KEEP_ALIVE_MS = 60_000  # servers close the connections of clients that ping more often
_MetadataName = Annotated[str, Meta(pattern=r"^(?!grpc-)[a-z0-9_.-]+(?<!-bin)$", max_length=256)]
_MetadataValue = Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$", max_length=8192)]


class GRPCEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tls` unset: the scheme decides (`grpcs`, `https`, `http`), else plain to this machine and TLS to all others."""

    uri: Annotated[str, Meta(min_length=1, max_length=4096)]
    transport: str = "grpc"
    metadata: dict[_MetadataName, _MetadataValue] = {}
    tls: bool | None = None
    ca: str | None = None  # files, relative to the configuration's folder
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None  # the name in the certificate, if it is not the host


class GRPCAddress(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    is_secure: bool

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(manifest: Manifest, endpoint: GRPCEndpoint) -> GRPCAddress:
    """Raises BadInput."""
    parts = urlsplit(endpoint.uri if "://" in endpoint.uri else f"grpc://{endpoint.uri}")
    try:
        port = parts.port
    except ValueError:
        port = None
    is_host_only = parts.path in ("", "/") and not parts.query and "@" not in parts.netloc
    if parts.scheme not in _SCHEMES or not parts.hostname or not port or not is_host_only:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a bad endpoint: uri must be grpc://HOST:PORT, or grpcs:// with TLS",
            agent_id=manifest.agent_id,
        )
    if (endpoint.cert is None) != (endpoint.key is None):
        raise BadInput(f"Agent '{manifest.agent_id}' needs both `cert` and `key`, or neither")
    is_secure = parts.scheme in _SECURE or (parts.scheme not in _PLAIN and not is_loopback(parts.hostname))
    return GRPCAddress(host=parts.hostname, port=port, is_secure=is_secure if endpoint.tls is None else endpoint.tls)


def open_channel(
    address: GRPCAddress, endpoint: GRPCEndpoint, addresses: list[str], tls: ChannelTLS, reply_bytes: int
) -> grpc.aio.Channel:
    """A channel to one of these addresses, or to those that the name resolves to. Raises AgentOffline."""
    target = format_grpc_target(addresses, address.port) if addresses else address.authority
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", reply_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.min_reconnect_backoff_ms", 5000),  # in effect the time-out for connecting; the default is 20 s
        ("grpc.enable_retries", 0),  # gRPC must not repeat a call that may have run
        ("grpc.enable_http_proxy", 0),  # a proxy would bypass the guard
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.default_authority", endpoint.server_name or address.authority),
    ]
    if not address.is_secure:
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", endpoint.server_name or address.host))
    return grpc.aio.secure_channel(target, tls.load_credentials(), options=options)


_ERRORS: ErrorTable = {ConnectFailed: AgentOffline}
_CONNECT_TIMEOUT = 10.0


class GRPCConnection:
    def __init__(
        self, address: GRPCAddress, endpoint: GRPCEndpoint, guard: Guard | None, base: Path, reply_bytes: int
    ) -> None:
        self.metadata = tuple(endpoint.metadata.items())
        self._address = address
        self._endpoint = endpoint
        self._guard = guard
        self._reply_bytes = reply_bytes
        files = ClientTLSFiles(cert=endpoint.cert, key=endpoint.key, ca=endpoint.ca)
        self._tls = ChannelTLS(files.resolve(base) if address.is_secure else None)
        self._channel: grpc.aio.Channel | None = None
        self._stub: AgentStub | None = None
        self._connect_lock = asyncio.Lock()
        self._is_doubtful = False
        self._is_closed = False

    async def get_stub(self, timeout: float) -> AgentStub:
        """Raises AgentOffline."""
        stub = self._ready_stub()
        return stub if stub is not None else await self._connect(min(timeout, _CONNECT_TIMEOUT))

    def mark_doubtful(self) -> None:
        """A request was lost. The channel may still look connected, so the next call checks it first."""
        self._is_doubtful = True

    async def aclose(self) -> None:
        self._is_closed = True
        await self._close_channel()
        await self._tls.aclose()

    def _ready_stub(self) -> AgentStub | None:
        if self._channel is None or self._is_doubtful:
            return None
        if self._tls.has_changed():
            self._tls.close_when_idle(self._channel)
            self._channel = self._stub = None
            return None
        return self._stub if self._channel.get_state() is grpc.ChannelConnectivity.READY else None

    async def _connect(self, timeout: float) -> AgentStub:
        try:
            async with asyncio.timeout(timeout), self._connect_lock:
                return self._ready_stub() or await self._check_health(timeout)
        except TimeoutError as exc:
            raise self._make_not_reached(timeout) from exc

    async def _check_health(self, timeout: float) -> AgentStub:
        stub = self._stub or await self._open()
        try:
            await stub.health(HealthRequest(), timeout=timeout, metadata=self.metadata)
        except grpc.aio.AioRpcError as exc:
            if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._make_not_reached(timeout) from exc
            if is_unreachable(exc):
                if self._guard is not None:  # the name may resolve to other addresses now, which it must check
                    await self._close_channel()
                reason = (exc.details() or exc.code().name)[:500]
                raise AgentOffline(f"{self._address.authority} cannot be reached: {reason}") from exc
        self._is_doubtful = False  # any other status shows that a server is there
        return stub

    def _make_not_reached(self, timeout: float) -> NotReached:
        return NotReached(f"No connection to {self._address.authority} within {timeout:.1f} s")

    async def _open(self) -> AgentStub:
        if self._is_closed:
            raise AgentOffline("The connection is shut down with the node")
        addresses: list[str] = []
        if self._guard is not None:
            with translated(_ERRORS):
                addresses = await self._guard.resolve_addresses(self._address.host, self._address.port)
        self._channel = open_channel(self._address, self._endpoint, addresses, self._tls, self._reply_bytes)
        self._stub = AgentStub(self._channel)
        return self._stub

    async def _close_channel(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()
