"""HTTPClient on pyreqwest: Rust's reqwest sends and receives on a thread of its own, the event loop only waits.

Every reply is taken through pyreqwest's streamed form, the only one that can be
bounded: for `request` the library gathers up to `limit` bytes before it wakes
us, for `stream` nothing. With a guard, names are replaced by checked addresses.

One promise of the port it cannot keep: a request cancelled before its head came
ends for us at once, but pyreqwest 0.15 lets it run on to its deadline, connection
and all. Afterwards, while the body is read, cancelling does close the connection.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import (
    BuilderError,
    ConnectError,
    ConnectTimeoutError,
    DetailedPyreqwestError,
    PyreqwestError,
    RequestTimeoutError,
)
from pyreqwest.http import HeaderMap, Url
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response

from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    Interrupted,
    OutboundError,
    Reply,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.version import __version__

T = TypeVar("T")

LONGEST = 7 * 24 * 3600.0
CHECKED_FOR = 10.0  # seconds for which a looked-up and judged address is used again
PINNED_CLIENTS = 128  # about 100 KB and 6 ms of building each
SETTLE = 0.02  # seconds

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

# The library says "connect" of much that happens later, too; only under this cause was surely nothing sent.
_WHILE_CONNECTING = "client error (Connect)"

# First match wins.
_ERRORS: dict[type[Exception], type[OutboundError]] = {
    RequestTimeoutError: DeadlineExceeded,
    BuilderError: ConnectFailed,
    PyreqwestError: Interrupted,
    ValueError: ConnectFailed,  # a URL, method or header that cannot be sent
}


class _Outgoing(msgspec.Struct, frozen=True):
    method: str
    headers: Mapping[str, str]
    body: bytes | None
    gather: int  # bytes of the reply to wait for before it is handed out


class PyreqwestClient:
    """One per trust: without a guard for endpoints the operator declared, with one for those anybody may name."""

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        max_connections: int = 1000,  # per pinned host when guarded
        connect_timeout: float = 10.0,
        client_cert: bytes | None = None,  # PEM: certificate chain and private key
        ca: bytes | None = None,  # PEM: trusted besides the system's
        verify: bool = True,
    ) -> None:
        def build(host: str | None = None, address: str = "") -> Client:
            builder = _plain_builder().max_connections(max_connections).connect_timeout(_duration(connect_timeout))
            builder = builder.pool_max_idle_per_host(max_connections).danger_accept_invalid_certs(not verify)
            for root in _CERTIFICATE.findall(ca or b""):
                builder = builder.add_root_certificate_pem(root)
            if client_cert is not None:
                builder = builder.identity_pem(client_cert)
            if host is not None:
                builder = builder.resolve(host, address, 0)  # 0: the port of the URL
            return builder.build()

        atexit.unregister(_settle)
        atexit.register(_settle)
        self._client = build()
        self._pins = _Pins(guard, self._client, build) if guard else None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> Reply:
        sent, response = await self._open(url, _Outgoing(method, headers, body, limit + 1), timeout)
        try:
            whole = await _whole(response, limit)
        except BaseException:
            await sent.__aexit__(None, None, None)
            raise
        return Reply(response.status, _headers(response.headers), whole)

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> AbstractAsyncContextManager[StreamedReply]:
        return self._streaming(url, _Outgoing(method, headers, body, 0), timeout, limit)

    async def aclose(self) -> None:
        if self._pins:
            await self._pins.aclose()
        await self._client.close()

    @asynccontextmanager
    async def _streaming(
        self, url: str, outgoing: _Outgoing, timeout: float, limit: int
    ) -> AsyncIterator[StreamedReply]:
        sent, response = await self._open(url, outgoing, timeout)
        try:
            yield _Streamed(response, limit, has_body=outgoing.method != "HEAD")
        finally:
            await sent.__aexit__(None, None, None)

    async def _open(self, url: str, outgoing: _Outgoing, timeout: float) -> tuple[StreamRequest, Response]:
        if self._pins is None:
            return await _send(self._client, url, outgoing, timeout)
        return await self._pins.open(url, outgoing, timeout)


class _Streamed:
    def __init__(self, response: Response, limit: int, *, has_body: bool) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _headers(response.headers)
        self._limit = limit
        self._next_chunk = response.body_reader.read_chunk
        self._declared = _length(self.headers) if has_body else 0

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._declared > self._limit:
            raise _too_large(self._limit)
        size = 0
        while (chunk := await _heeding_cancel(self._next_chunk())) is not None:
            size += len(chunk)
            if size > self._limit:
                raise _too_large(self._limit)
            yield chunk.to_bytes()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


class _Pins:
    """Clients that reach one checked address of one host and look nothing up; the longest unused go first."""

    def __init__(self, guard: Guard, unpinned: Client, build: Callable[[str, str], Client]) -> None:
        self._guard = guard
        self._unpinned = unpinned
        self._build = build
        self._clients: OrderedDict[tuple[str, str], Client] = OrderedDict()
        self._checked: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()

    async def open(self, url: str, outgoing: _Outgoing, timeout: float) -> tuple[StreamRequest, Response]:
        """Send to the first address that takes the connection, all within one deadline."""
        ends_at = time.monotonic() + timeout
        target = self._guard.check_url(url)
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._addresses(target)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"No address within {timeout:g} s") from exc
        failure = ConnectFailed("No address to connect to")
        for address in addresses:
            try:
                client = await self._client(target, address)
                return await _send(client, target, outgoing, ends_at - time.monotonic())
            except ConnectFailed as exc:
                failure = exc
        raise failure

    async def _addresses(self, target: Url) -> list[str]:
        host = target.host_str or ""
        until, addresses = self._checked.get(host, (0.0, []))
        if until < time.monotonic():
            addresses = await self._guard.addresses(host, target.port_or_known_default or 0)
            _remember(self._checked, host, (time.monotonic() + CHECKED_FOR, addresses))
        return addresses

    async def _client(self, target: Url, address: str) -> Client:
        if target.domain is None:
            return self._unpinned  # the URL holds the address itself: nothing to look up
        key = (target.domain, address)
        client = self._clients.get(key)
        if client is None:
            client = await asyncio.to_thread(self._build, *key)
        _remember(self._clients, key, client)
        return client

    async def aclose(self) -> None:
        while self._clients:
            await self._clients.popitem()[1].close()


def _settle() -> None:
    """Let the library's thread put down the last reply: if it wants the interpreter any later, the process aborts."""
    time.sleep(SETTLE)


K = TypeVar("K")


def _remember(cache: OrderedDict[K, T], key: K, value: T) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > PINNED_CLIENTS:
        cache.popitem(last=False)  # not closed: requests under way keep it alive until they are done


def _plain_builder() -> ClientBuilder:
    """No surprises: no proxies of the environment, no redirects, no cookies, and bodies as they were sent."""
    builder = ClientBuilder().no_proxy().follow_redirects(False).referer(False).http1_only()
    return builder.gzip(False).brotli(False).zstd(False).deflate(False).user_agent(f"a2a-fabric/{__version__}")


async def _send(client: Client, url: str | Url, outgoing: _Outgoing, timeout: float) -> tuple[StreamRequest, Response]:
    if timeout <= 0:
        raise DeadlineExceeded("No time left to send the request")
    try:
        request = client.request(outgoing.method, url).headers(outgoing.headers).timeout(_duration(timeout))
        if outgoing.body is not None:
            request = request.body_bytes(outgoing.body)
        sent = request.streamed_read_buffer_limit(outgoing.gather).build_streamed()
    except (PyreqwestError, ValueError) as exc:
        raise _ours(exc) from exc
    try:
        return sent, await _heeding_cancel(sent.__aenter__())
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # there is nothing to close unless the reply came at the same moment
            await sent.__aexit__(None, None, None)
        raise


async def _heeding_cancel(step: Awaitable[T]) -> T:
    """Await the library, in our errors. It may hand out what is ready although its task was cancelled meanwhile."""
    task = asyncio.current_task()
    asked = task.cancelling() if task else 0
    try:
        return await step
    except PyreqwestError as exc:
        raise _ours(exc) from exc
    finally:
        if task and task.cancelling() > asked:
            raise asyncio.CancelledError


async def _whole(response: Response, limit: int) -> bytes:
    chunks, size = [], 0
    next_chunk = response.body_reader.read_chunk
    while (chunk := await _heeding_cancel(next_chunk())) is not None:
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk.to_bytes())
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _ours(exc: Exception) -> OutboundError:
    causes = exc.details["causes"] or [] if isinstance(exc, DetailedPyreqwestError) else []
    # The first cause repeats the whole URL, and secrets may be in its query.
    reason = ": ".join(cause["message"] for cause in causes[1:]) or str(exc.args[0])
    if isinstance(exc, ConnectError | ConnectTimeoutError) and _WHILE_CONNECTING in reason:
        return ConnectFailed(reason)
    return next(ours for foreign, ours in _ERRORS.items() if isinstance(exc, foreign))(reason)


def _too_large(limit: int) -> ReplyTooLarge:
    return ReplyTooLarge(f"The reply is larger than {limit} bytes")


def _headers(headers: HeaderMap) -> Mapping[str, str]:
    """Names are in lower case already; repeated ones are joined, unreadable ones (not ASCII) left out."""
    try:
        plain = dict(headers.items())
    except ValueError:
        plain = {}
    if len(plain) == len(headers):
        return plain
    return {name: value for name in dict.fromkeys(headers) if (value := _joined(headers, name)) is not None}


def _joined(headers: HeaderMap, name: str) -> str | None:
    try:
        return ", ".join(headers.getall(name))
    except ValueError:
        return None


def _length(headers: Mapping[str, str]) -> int:
    declared = headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST))
