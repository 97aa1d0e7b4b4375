"""Where a gRPC agent listens, and how it is reached: plainly on this machine, with TLS everywhere else."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline, BadInput

_PLAIN, _SECURE = ("http",), ("https", "grpcs")
_SCHEMES = ("grpc", *_PLAIN, *_SECURE)
_KEEP_ALIVE_MS = 60_000  # servers hang up on those who ask more often
_MetadataName = Annotated[str, Meta(pattern=r"^(?!grpc-)[a-z0-9_.-]+(?<!-bin)$", max_length=256)]
_MetadataValue = Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$", max_length=8192)]


class GRPCEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tls` unset: by the scheme (`grpcs`, `https`, `http`), else plain to this machine and secure to all others."""

    uri: Annotated[str, Meta(min_length=1, max_length=4096)]
    transport: str = "grpc"
    metadata: dict[_MetadataName, _MetadataValue] = {}
    tls: bool | None = None
    ca: str | None = None  # files, relative to the configuration's folder
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None  # whom the certificate must name, if not the host


class Place(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    is_secure: bool

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(manifest: Manifest, endpoint: GRPCEndpoint) -> Place:
    """Raises BadInput."""
    parts = urlsplit(endpoint.uri if "://" in endpoint.uri else f"grpc://{endpoint.uri}")
    try:
        port = parts.port
    except ValueError:
        port = None
    is_bare = parts.path in ("", "/") and not parts.query and "@" not in parts.netloc
    if parts.scheme not in _SCHEMES or not parts.hostname or not port or not is_bare:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a bad endpoint: uri must be grpc://HOST:PORT, or grpcs:// with TLS",
            agent_id=manifest.agent_id,
        )
    if (endpoint.cert is None) != (endpoint.key is None):
        raise BadInput(f"Agent '{manifest.agent_id}' needs both `cert` and `key`, or neither")
    is_secure = parts.scheme in _SECURE or (parts.scheme not in _PLAIN and not _is_here(parts.hostname))
    return Place(host=parts.hostname, port=port, is_secure=is_secure if endpoint.tls is None else endpoint.tls)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_channel(
    place: Place, endpoint: GRPCEndpoint, addresses: list[str], base: Path, reply_bytes: int
) -> grpc.aio.Channel:
    """To one of these addresses, or to whatever the name leads to. Nothing is sent. Raises AgentOffline."""
    target = _pinned(addresses, place.port) if addresses else place.authority
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", reply_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.min_reconnect_backoff_ms", 5000),  # in truth how long it may take to be connected; else 20 s
        ("grpc.enable_retries", 0),  # what may have run is not repeated behind our back
        ("grpc.enable_http_proxy", 0),  # it would lead around the guard
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.default_authority", endpoint.server_name or place.authority),
    ]
    if not place.is_secure:
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", endpoint.server_name or place.host))
    return grpc.aio.secure_channel(target, _credentials(endpoint, base), options=options)


def _pinned(addresses: list[str], port: int) -> str:
    """Of one family: a target names no more."""
    if ":" in addresses[0]:
        return "ipv6:" + ",".join(f"[{each}]:{port}" for each in addresses if ":" in each)
    return "ipv4:" + ",".join(f"{each}:{port}" for each in addresses if ":" not in each)


def _credentials(endpoint: GRPCEndpoint, base: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_file(endpoint.ca, base),
        private_key=_file(endpoint.key, base),
        certificate_chain=_file(endpoint.cert, base),
    )


def _file(name: str | None, base: Path) -> bytes | None:
    if name is None:
        return None
    try:
        return (base / name).read_bytes()
    except OSError as exc:
        raise AgentOffline(f"{name} cannot be read: {exc.strerror}") from exc
