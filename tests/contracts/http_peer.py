"""A server that misbehaves on request: raw sockets, one behaviour per path, and a record of what it saw.

It never sleeps: what is slow waits until the client leaves or the test says `go`.
"""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WAIT_TIMEOUT = 30.0
MUCH = 48 * 1024 * 1024


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Exchange:
    """One request on one connection."""

    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer

    async def reply(self, body: bytes = b"", status: str = "200 OK", *headers: str) -> None:
        await self.send(_head(status, f"Content-Length: {len(body)}", *headers) + body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_client_leaves(self) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await self.reader.read()
        self.peer.left.set()

    async def may_go_on(self) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await self.peer.go.acquire()


@dataclass
class Peer:
    """Where the server listens and what happened to it."""

    port: int = 0
    scheme: str = "http"
    connections: int = 0
    requests: list[Received] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # a request was read
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the client closed during a reply
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # a connection ended, for whatever reason
    stalled: asyncio.Event = field(default_factory=asyncio.Event)  # the client takes no more of a reply
    go: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


async def _echo(exchange: Exchange) -> None:
    await exchange.reply(exchange.request.body, "200 OK", "Content-Type: application/json", "X-Peer: here")


async def _slow_head(exchange: Exchange) -> None:
    await exchange.until_client_leaves()


async def _slow_body(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Content-Length: 100") + b"first")
    await exchange.until_client_leaves()


async def _reset_before_head(exchange: Exchange) -> None:
    _reset(exchange.writer)


async def _reset_in_body(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Content-Length: 100") + b"first")
    await exchange.may_go_on()
    _reset(exchange.writer)


async def _truncated(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Content-Length: 100") + b"only this")
    exchange.writer.close()


async def _truncated_chunks(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Transfer-Encoding: chunked") + b"5\r\nfirst\r\n")
    exchange.writer.close()


async def _flood(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Transfer-Encoding: chunked"))
    try:
        while True:
            await exchange.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    except ConnectionError:
        exchange.peer.left.set()
        raise


async def _huge(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Content-Length: 99999999999999") + b"x" * 4096)
    await exchange.until_client_leaves()


async def _declared(exchange: Exchange) -> None:
    """What a HEAD request gets: a length without a body."""
    await exchange.send(_head("200 OK", "Content-Length: 99999999999999"))


async def _chunked(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")


async def _events(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"))
    for number in range(3):
        await exchange.may_go_on()
        event = f"data: {number}\n\n".encode()
        await exchange.send(f"{len(event):x}\r\n".encode() + event + b"\r\n")
    await exchange.send(b"0\r\n\r\n")


async def _last_words(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK", "Transfer-Encoding: chunked") + b"c\r\nall you need\r\n")
    await exchange.may_go_on()
    await exchange.send(b"4\r\nmore\r\n0\r\n\r\n")


async def _redirect(exchange: Exchange) -> None:
    await exchange.reply(b"", "307 Temporary Redirect", f"Location: {exchange.peer.url('/echo')}")


async def _error(exchange: Exchange) -> None:
    await exchange.reply(b"broken", "500 Internal Server Error")


async def _gzip(exchange: Exchange) -> None:
    await exchange.reply(gzip.compress(b"x" * 1_000_000), "200 OK", "Content-Encoding: gzip")


async def _odd_headers(exchange: Exchange) -> None:
    await exchange.reply(b"ok", "200 OK", "X-Twice: one", "X-Twice: two", "X-Latin: caf\xe9", "X-Plain: yes")


async def _closes_after_reply(exchange: Exchange) -> None:
    await exchange.reply(b"bye")
    exchange.writer.close()


async def _garbage(exchange: Exchange) -> None:
    await exchange.send(b"this is not HTTP\r\n\r\n")
    exchange.writer.close()


async def _interim(exchange: Exchange) -> None:
    await exchange.send(_head("100 Continue") + _head("103 Early Hints", "Link: </style.css>"))
    await exchange.reply(b"at last")


async def _until_close(exchange: Exchange) -> None:
    await exchange.send(_head("200 OK") + b"all ")
    await exchange.send(b"of it")
    exchange.writer.close()


async def _no_content(exchange: Exchange) -> None:
    await exchange.send(_head("204 No Content"))


async def _says_it_closes(exchange: Exchange) -> None:
    await exchange.reply(b"bye", "200 OK", "Connection: close")
    await exchange.until_client_leaves()


async def _two_replies(exchange: Exchange) -> None:
    one = _head("200 OK", "Content-Length: 3") + b"one"
    await exchange.send(one + _head("200 OK", "Content-Length: 6") + b"poison")
    await exchange.until_client_leaves()


async def _upgrade(exchange: Exchange) -> None:
    await exchange.send(_head("101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket"))
    await exchange.until_client_leaves()


async def _endless_head(exchange: Exchange) -> None:
    await _endlessly(exchange, b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 4096 + b"\r\n")


async def _endless_trailer(exchange: Exchange) -> None:
    start = _head("200 OK", "Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\nX-Long: "
    await _endlessly(exchange, start, b"x" * 4096)


async def _endlessly(exchange: Exchange, start: bytes, again: bytes) -> None:
    try:
        await exchange.send(start)
        while True:
            await exchange.send(again)
    except ConnectionError:
        exchange.peer.left.set()
        raise


async def _crumbs(exchange: Exchange) -> None:
    """A large body in chunks of a single byte."""
    await exchange.send(_head("200 OK", "Transfer-Encoding: chunked"))
    await exchange.send(b"1\r\nx\r\n" * 100_000)
    await exchange.send(b"0\r\n\r\n")


async def _much(exchange: Exchange) -> None:
    """More than all buffers hold; says so when the client takes no more for a while."""
    await exchange.send(_head("200 OK", f"Content-Length: {MUCH}"))
    exchange.writer.write(b"x" * MUCH)
    draining = asyncio.ensure_future(exchange.writer.drain())
    if not (await asyncio.wait([draining], timeout=0.5))[0]:
        exchange.peer.stalled.set()
    await draining


_BEHAVIOURS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    "/echo": _echo,
    "/slow-head": _slow_head,
    "/slow-body": _slow_body,
    "/reset-before-head": _reset_before_head,
    "/reset-in-body": _reset_in_body,
    "/truncated": _truncated,
    "/truncated-chunks": _truncated_chunks,
    "/flood": _flood,
    "/huge": _huge,
    "/declared": _declared,
    "/chunked": _chunked,
    "/events": _events,
    "/last-words": _last_words,
    "/redirect": _redirect,
    "/error": _error,
    "/gzip": _gzip,
    "/odd-headers": _odd_headers,
    "/closes-after-reply": _closes_after_reply,
    "/garbage": _garbage,
    "/interim": _interim,
    "/until-close": _until_close,
    "/no-content": _no_content,
    "/says-it-closes": _says_it_closes,
    "/two-replies": _two_replies,
    "/upgrade": _upgrade,
    "/endless-head": _endless_head,
    "/endless-trailer": _endless_trailer,
    "/crumbs": _crumbs,
    "/much": _much,
}


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Peer]:
    """A peer on a free port, gone with all its connections when the block ends."""
    peer = Peer(scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.create_task(_converse(peer, reader, writer)))
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _converse(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    peer.connections += 1
    try:
        while not writer.is_closing():
            exchange = Exchange(await _read(reader), reader, writer, peer)
            peer.requests.append(exchange.request)
            peer.arrived.set()
            await _BEHAVIOURS[exchange.request.path](exchange)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()
        peer.closed.set()


async def _read(reader: asyncio.StreamReader) -> Received:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body)


def _head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a killed process or a firewall does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing, so that a TLS handshake never ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def answering_threads() -> Iterator[tuple[int, threading.Event]]:
    """Answers requests from threads, even while the event loop is held up; the event says: one was answered."""
    answered = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while connection.recv(65536):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                answered.set()

    def accept() -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1], answered
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_TIMEOUT)


@dataclass
class Authority:
    """A certificate authority of our own, with a folder for the files that `ssl` wants."""

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.name = f"test authority of {self.folder.name}"
        self.certificate = self._sign(self.name, self.key, is_authority=True)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> bytes:
        """Certificate and key of `name`, in one PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._sign(name, key).public_bytes(serialization.Encoding.PEM) + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def server(self, name: str, *, demands_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.pem.decode())
        path = self.folder / f"{name}.pem"
        path.write_bytes(self.issue(name))
        context.load_cert_chain(path)
        if demands_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        known_as = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        if not is_authority:
            builder = builder.add_extension(known_as, critical=False)
        return builder.sign(self.key, hashes.SHA256())
