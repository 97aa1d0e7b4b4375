"""How a connection comes about: the host is looked up, its addresses are judged, and tried one after the other.

Only the addresses that the lookup gave (and the guard let pass) are connected
to, never the name; TLS still demands a certificate for the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address

from a2a_fabric.outbound.connection import Connection
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.outbound.url import Url

KNOWN_FOR = 10.0  # seconds for which the addresses of a host are used again
KNOWN_HOSTS = 1024


class Connector:
    """Of one event loop."""

    def __init__(self, guard: Guard | None, timeout: float, tls: Callable[[], ssl.SSLContext]) -> None:
        self._find = guard.addresses if guard else _system_addresses
        self._timeout = timeout
        self._tls = tls
        self._known: dict[str, tuple[float, list[str]]] = {}

    async def connect(self, url: Url, make: Callable[[], Connection]) -> Connection:
        """Raises ConnectFailed, Refused included."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._first(url, make, await self._addresses(url))
        except TimeoutError as exc:
            raise ConnectFailed(f"No connection to {url.host} within {self._timeout:g} s") from exc

    async def _addresses(self, url: Url) -> list[str]:
        now = asyncio.get_running_loop().time()
        until, addresses = self._known.get(url.host, (0.0, []))
        if until <= now:
            addresses = await self._find(url.host, url.port)
            if len(self._known) >= KNOWN_HOSTS:
                self._known.clear()
            self._known[url.host] = (now + KNOWN_FOR, addresses)
        return addresses

    async def _first(self, url: Url, make: Callable[[], Connection], addresses: list[str]) -> Connection:
        """The first address that answers. Each has a fair share of the time that is left."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout
        failure: Exception | None = None
        for number, address in enumerate(addresses):
            share = (ends_at - loop.time()) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    return await self._attempt(url, address, make())
            except (OSError, ValueError) as exc:  # ValueError: a host name that TLS does not take
                failure = exc
        self._known.pop(url.host, None)  # it may have moved
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


async def _system_addresses(host: str, port: int) -> list[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ConnectFailed(f"No address for {host}: {exc}") from exc
    return [str(row[4][0]) for row in rows]
