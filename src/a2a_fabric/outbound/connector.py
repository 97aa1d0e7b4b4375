"""Opens connections: looks up the host, checks its addresses, tries one after the other; builds the TLS context.

Only addresses that the lookup returned and the guard allows are connected to, never the name; TLS still
requires a certificate for the name."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from ipaddress import ip_address

from a2a_fabric.outbound.connection import Connection
from a2a_fabric.outbound.guard import Guard, look_up_addresses
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.outbound.url import Url


def make_client_context(client_cert: bytes | None, ca: bytes | None, verify: bool) -> ssl.SSLContext:
    """Trusts the system's authorities and those of `ca`; presents `client_cert` (chain and key) to servers that ask."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    if client_cert is not None:
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # `ssl` reads only files; this one is private
            file.write(client_cert)
            file.flush()
            context.load_cert_chain(file.name)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


DNS_CACHE_SECONDS = 10.0  # seconds for which the addresses of a host are used again
MAX_CACHED_HOSTS = 1024


class Connector:
    """Belongs to one event loop."""

    def __init__(self, guard: Guard | None, timeout: float, tls: Callable[[], ssl.SSLContext]) -> None:
        self._resolve = guard.resolve_addresses if guard else _resolve_unguarded
        self._timeout = timeout
        self._tls = tls
        self._dns_cache: dict[str, tuple[float, list[str]]] = {}

    async def connect(self, url: Url, make: Callable[[], Connection]) -> Connection:
        """Raises ConnectFailed, or AddressRefused, which is one."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._connect_first(url, make, await self._look_up(url))
        except TimeoutError as exc:
            raise ConnectFailed(f"No connection to {url.host} within {self._timeout:g} s") from exc

    async def _look_up(self, url: Url) -> list[str]:
        now = asyncio.get_running_loop().time()
        expires_at, addresses = self._dns_cache.get(url.host, (0.0, []))
        if expires_at <= now:
            addresses = await self._resolve(url.host, url.port)
            if len(self._dns_cache) >= MAX_CACHED_HOSTS:
                self._dns_cache.clear()
            self._dns_cache[url.host] = (now + DNS_CACHE_SECONDS, addresses)
        return addresses

    async def _connect_first(self, url: Url, make: Callable[[], Connection], addresses: list[str]) -> Connection:
        """Connect to the first address that answers. Each gets an equal share of the time left."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout
        failure: Exception | None = None
        for number, address in enumerate(addresses):
            share = (ends_at - loop.time()) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    return await self._attempt(url, address, make())
            except (OSError, ValueError) as exc:  # ValueError: a host name that TLS does not accept
                failure = exc
        self._dns_cache.pop(url.host, None)  # the host may have moved
        reason = str(failure) or f"no answer within {self._timeout:g} s"
        raise ConnectFailed(f"No connection to {url.host}: {reason}") from failure

    async def _attempt(self, url: Url, address: str, connection: Connection) -> Connection:
        is_tls = url.scheme == "https"
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address,
                url.port,
                ssl=self._tls() if is_tls else None,
                server_hostname=url.server_name if is_tls else None,
            )
        except BaseException:
            connection.discard()
            raise
        if connection.is_closing:
            raise ConnectionError("closed as soon as it was made")
        return connection


async def _resolve_unguarded(host: str, port: int) -> list[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        return await asyncio.to_thread(look_up_addresses, host, port)
    except (OSError, UnicodeError) as exc:
        raise ConnectFailed(f"No address for {host}: {exc}") from exc
