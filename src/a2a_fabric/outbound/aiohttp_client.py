"""HTTPClient on aiohttp: slower than its Rust neighbour, but cancelling closes the connection at any moment.

With a guard, aiohttp's name lookup is replaced by the guard's, so the addresses
it connects to are the checked ones; addresses written in the URL are checked before.
If a kept-alive connection breaks, aiohttp sends GET, HEAD, PUT and DELETE once more, POST never.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from socket import AF_INET, AF_INET6, AF_UNSPEC, AI_NUMERICHOST, AddressFamily

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDictProxy
from yarl import URL

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

CHECKED_FOR = 10  # seconds for which a looked-up address is used again
KEPT_ALIVE_FOR = 30.0

# First match wins.
_ERRORS: dict[type[Exception], type[OutboundError]] = {
    aiohttp.ClientConnectorError: ConnectFailed,
    aiohttp.ConnectionTimeoutError: ConnectFailed,
    TimeoutError: DeadlineExceeded,
    aiohttp.InvalidURL: ConnectFailed,
    aiohttp.NonHttpUrlClientError: ConnectFailed,
    aiohttp.ClientError: Interrupted,
    OSError: Interrupted,
    ValueError: ConnectFailed,  # a method or header that cannot be sent
    RuntimeError: ConnectFailed,  # the session is closed
}


class AiohttpClient:
    """Belongs to the event loop that sends its first request."""

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        max_connections: int = 1000,
        connect_timeout: float = 10.0,
        client_cert: bytes | None = None,  # PEM: certificate chain and private key
        ca: bytes | None = None,  # PEM: trusted besides the system's
        verify: bool = True,
    ) -> None:
        self._guard = guard
        self._max_connections = max_connections
        self._connect_timeout = connect_timeout
        self._tls = _tls_context(client_cert, ca, verify)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

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
        with _in_our_errors():
            async with await self._send(method, url, headers, body, timeout) as response:
                whole = b"".join([chunk async for chunk in _bounded(response, limit)])
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
        return self._streaming(method, url, headers, body, timeout, limit)

    async def aclose(self) -> None:
        self._closed = True
        if self._session:
            await self._session.close()

    @asynccontextmanager
    async def _streaming(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float, limit: int
    ) -> AsyncIterator[StreamedReply]:
        with _in_our_errors():
            response = await self._send(method, url, headers, body, timeout)
        async with response:
            yield _Streamed(response, limit)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> aiohttp.ClientResponse:
        if timeout <= 0:
            raise DeadlineExceeded("No time left to send the request")
        if self._guard:
            url = await _checked(self._guard, url)
        return await self._opened().request(
            method,
            URL(url),
            headers=headers,
            data=body,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=self._connect_timeout),
            allow_redirects=False,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectFailed("The client is closed")
        if self._session is None:  # only now is there surely an event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections,
                    ssl=self._tls,
                    keepalive_timeout=KEPT_ALIVE_FOR,
                    ttl_dns_cache=CHECKED_FOR,
                    resolver=_GuardedResolver(self._guard) if self._guard else None,
                ),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding", "Content-Type"),
                headers={"User-Agent": f"a2a-fabric/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


class _Streamed:
    def __init__(self, response: aiohttp.ClientResponse, limit: int) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _headers(response.headers)
        self._response = response
        self._limit = limit

    async def chunks(self) -> AsyncIterator[bytes]:
        with _in_our_errors():
            async for chunk in _bounded(self._response, self._limit):
                yield chunk

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


class _GuardedResolver(AbstractResolver):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_UNSPEC) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=AF_INET6 if ":" in address else AF_INET,
                proto=0,
                flags=AI_NUMERICHOST,
            )
            for address in await self._guard.addresses(host, port)
        ]

    async def close(self) -> None:
        pass


async def _checked(guard: Guard, url: str) -> str:
    """The URL in the guard's spelling. A name is checked when it is looked up, an address never is: check it now."""
    target = guard.check_url(url)
    if target.domain is None:
        await guard.addresses(target.host_str or "", target.port_or_known_default or 0)
    return str(target)


async def _bounded(response: aiohttp.ClientResponse, limit: int) -> AsyncIterator[bytes]:
    too_large = ReplyTooLarge(f"The reply is larger than {limit} bytes")
    if response.method != "HEAD" and (response.content_length or 0) > limit:
        raise too_large
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise too_large
        yield chunk


@contextmanager
def _in_our_errors() -> Iterator[None]:
    try:
        yield
    except OutboundError:
        raise
    except tuple(_ERRORS) as exc:
        reason = _reason(exc)
        raise next(ours for foreign, ours in _ERRORS.items() if isinstance(exc, foreign))(reason) from exc


def _reason(exc: Exception) -> str:
    """Without the URL, since secrets may be in its query."""
    if isinstance(exc, aiohttp.ClientResponseError):
        return exc.message
    if isinstance(exc, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return "Not a URL that can be reached"
    return str(exc) or type(exc).__name__


def _headers(headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _tls_context(client_cert: bytes | None, ca: bytes | None, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    if client_cert is not None:
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # readable by its owner only
            file.write(client_cert)
            file.flush()
            context.load_cert_chain(file.name)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
