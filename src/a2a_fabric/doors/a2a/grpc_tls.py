"""TLS of the gRPC server: its certificate, which follows its files, and the certificates of its clients.

gRPC can demand client certificates or not ask for them. If they are optional, the node itself accepts the TLS
connections and passes their bytes to the gRPC server, which then listens on loopback only. Which client is at the other
end is kept by the port from which the bytes come; connections from other ports are refused."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import grpc
import grpc.aio
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509 import (
    DNSName,
    ExtensionNotFound,
    RFC822Name,
    SubjectAlternativeName,
    UniformResourceIdentifier,
    load_pem_x509_certificate,
)
from msgspec.structs import replace

from a2a_fabric.core.errors import ConfigError, Forbidden
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.doors.context import TLSFiles
from a2a_fabric.doors.tls import ServerTLS
from a2a_fabric.identity.peer import Peer, PeerCertificate, read_certificate

ClientCertificates = Literal["off", "optional", "required"]

_STOP_GRACE = 2.0
_HANDSHAKE_TIMEOUT = 10.0
_CONNECT_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 2.0
_CHUNK_BYTES = 64 * 1024
_MAX_CONNECTIONS = 5000  # that the node holds between clients and the gRPC server
_LOOPBACK = "127.0.0.1"

_log = logging.getLogger(__name__)


class GrpcListener:
    """Where the gRPC server listens, and who its clients are. `mode` None: as the node's own listener does."""

    def __init__(self, address: str, tls: TLSFiles | None, mode: ClientCertificates | None) -> None:
        """Raises ConfigError."""
        self._address = address
        self._relay: _TLSRelay | None = None
        self._credentials: grpc.ServerCredentials | None = None
        if tls is None:
            if mode not in (None, "off"):
                raise ConfigError("doors: a2a: grpc_client_certificates needs `tls`")
            return
        files = replace(tls, client_certificates=mode or tls.client_certificates)
        if files.client_certificates == "optional":
            self._relay = _TLSRelay(files)
        else:
            is_required = files.client_certificates == "required"
            self._credentials = load_credentials(files, needs_client_certificate=is_required)

    def read_peer(self, context: grpc.aio.ServicerContext) -> Peer:
        """Raises Forbidden for a connection that did not come through the node's own TLS."""
        address, _, port = unquote(context.peer() or "").partition(":")[2].rpartition(":")
        if self._relay is not None:
            return self._relay.find_peer(int(port))
        shown = context.auth_context().get("x509_pem_cert")
        return Peer(address=address.strip("[]"), certificate=_read_pem(shown[0]) if shown else None)

    @asynccontextmanager
    async def listen(self, server: grpc.aio.Server) -> AsyncIterator[int]:
        """Yields the port while the server serves. Raises ConfigError."""
        try:
            if self._relay is not None:
                port = server.add_insecure_port(f"{_LOOPBACK}:0")
            elif self._credentials is not None:
                port = server.add_secure_port(self._address, self._credentials)
            else:
                port = server.add_insecure_port(self._address)
        except RuntimeError as exc:
            raise ConfigError(f"doors: a2a: grpc: cannot listen on {self._address}") from exc
        await server.start()
        relay = self._relay
        try:
            yield port if relay is None else await relay.listen(self._address, port)
        finally:
            if relay is not None:
                relay.stop_listening()
            await server.stop(_STOP_GRACE)  # it tells its clients, and waits for their requests
            if relay is not None:
                await relay.aclose()


class _TLSRelay:
    """Takes TLS off connections and passes their bytes to a server on loopback, and back."""

    def __init__(self, files: TLSFiles) -> None:
        """Raises ConfigError."""
        self._tls = ServerTLS(files, protocols=("h2",))
        self._peers: dict[int, Peer] = {}  # by the port from which the server on loopback sees the connection
        self._connections: set[asyncio.Task[None]] = set()
        self._upstream_port = 0
        self._server: asyncio.Server | None = None
        self._is_stopping = False

    def find_peer(self, port: int) -> Peer:
        """Raises Forbidden."""
        peer = self._peers.get(port)
        if peer is None:
            raise Forbidden("This port is for the node itself. Connect to the address on the agent's card")
        return peer

    async def listen(self, address: str, upstream_port: int) -> int:
        """The port at which clients connect. Raises ConfigError."""
        self._upstream_port = upstream_port
        listener = _bind(address)
        self._server = await asyncio.start_server(
            self._accept,
            sock=listener,
            ssl=self._tls.context,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,
            limit=_CHUNK_BYTES,
        )
        return int(listener.getsockname()[1])

    def stop_listening(self) -> None:
        self._is_stopping = True
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        await cancel_and_wait(*self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # the server starts one for each connection
        if self._is_stopping:  # its handshake was under way
            writer.transport.abort()
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            _log.warning("gRPC: %d connections are open; one more was closed", len(self._connections))
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._connect(reader, writer)
        except (OSError, TimeoutError) as exc:
            _log.debug("gRPC: a connection ended: %s", exc)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = read_certificate(writer.get_extra_info("ssl_object"))
        peer = Peer(address=str(writer.get_extra_info("peername")[0]), certificate=certificate)
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            from_server, to_server = await asyncio.open_connection(_LOOPBACK, self._upstream_port, limit=_CHUNK_BYTES)
        port = to_server.get_extra_info("sockname")[1]
        self._peers[port] = peer  # before the first byte is passed on
        pumps = [
            asyncio.ensure_future(_pump(reader, to_server)),
            asyncio.ensure_future(_pump(from_server, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The port is another connection's as soon as this one is closed, so it is forgotten first.
            del self._peers[port]
            to_server.transport.abort()  # before the wait, which a second cancellation would end
            await cancel_and_wait(*pumps)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT):
                writer.close()
                await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reader's side ends."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


def _bind(address: str) -> socket.socket:
    """Raises ConfigError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_any = host == "::"
    try:
        return socket.create_server(
            (host, int(port)),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            dualstack_ipv6=is_any and socket.has_dualstack_ipv6(),
        )
    except (OSError, ValueError) as exc:
        raise ConfigError(f"doors: a2a: grpc: cannot listen on {address}: {exc}") from exc


def load_credentials(files: TLSFiles, *, needs_client_certificate: bool = False) -> grpc.ServerCredentials:
    """Credentials that follow their files: gRPC asks for them at each handshake. Raises ConfigError."""
    follower = _CredentialFiles(files, needs_client_certificate)
    return grpc.dynamic_ssl_server_credentials(follower.load(), follower.fetch, needs_client_certificate)


class _CredentialFiles:
    """`fetch` is called in threads of gRPC, one at a time for each handshake; what it races for is the same files."""

    def __init__(self, files: TLSFiles, needs_client_certificate: bool) -> None:
        self._files = files
        self._needs_client_certificate = needs_client_certificate
        self._versions = files.versions

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Raises ConfigError."""
        files = self._files
        key, chain = _read_file(files.key), _read_file(files.cert)
        if not self._needs_client_certificate:
            return grpc.ssl_server_certificate_configuration([(_decrypt_key(key, files), chain)])
        if files.client_ca is None:
            raise ConfigError("tls: client certificates at gRPC need `client_ca`")
        authorities = _read_file(files.client_ca)
        return grpc.ssl_server_certificate_configuration([(_decrypt_key(key, files), chain)], authorities)

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """None if nothing has changed that can be used."""
        versions = self._files.versions
        if versions == self._versions:
            return None
        self._versions = versions
        try:
            return self.load()
        except ConfigError as error:
            _log.warning("%s. gRPC goes on with the certificate that it read before", error.message)
            return None


@lru_cache(maxsize=1024)
def _read_pem(pem: bytes) -> PeerCertificate:
    certificate = load_pem_x509_certificate(pem)
    try:
        alternatives = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        names = (
            *(f"dns:{name}" for name in alternatives.get_values_for_type(DNSName)),
            *(f"uri:{name}" for name in alternatives.get_values_for_type(UniformResourceIdentifier)),
            *(f"email:{name}" for name in alternatives.get_values_for_type(RFC822Name)),
        )
    except (ExtensionNotFound, ValueError):
        names = ()
    return PeerCertificate(
        names=names,
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def _decrypt_key(key: bytes, files: TLSFiles) -> bytes:
    try:
        private_key = load_pem_private_key(key, files.password.encode() if files.password else None)
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"tls: {files.key} is not a private key, or its password is wrong: {exc}") from exc
    return private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise ConfigError(f"tls: {file}: {exc.strerror}") from exc
