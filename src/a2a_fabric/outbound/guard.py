"""The one guard against server-side request forgery: which addresses a URL of somebody else's may lead to.

A host is looked up once, every address it stands for is judged, and the client
connects to one of the judged addresses, never to the name. URLs are read once, for
the judgement and for the connection, so both see the same host however it is spelt.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from a2a_fabric.outbound.port import ConnectFailed, Refused
from a2a_fabric.outbound.url import Url, parse_url

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]

HOST_LENGTH = 255
LOOKUP_TIMEOUT = 5.0
LOOKUP_THREADS = 8

# What `allow_private` opens: the networks of one machine, one site, one provider. Link-local addresses are not
# among them, since clouds serve credentials there; neither is the IPv6 form of that service.
_PRIVATE = [
    ip_network(network)
    for network in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7",
    )
]  # fmt: skip
_METADATA = [ip_network("169.254.169.254/32"), ip_network("fd00:ec2::254/128"), ip_network("100.100.100.200/32")]
_GLOBAL_IPV6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")


class Guard:
    """Lets public addresses pass, and those private ones that the operator lists by name, IP or CIDR."""

    def __init__(
        self, allow_private: bool = False, allow: Sequence[str] = (), *, resolve: Resolve | None = None
    ) -> None:
        self._allow_private = allow_private
        self._networks = [network for entry in allow if (network := _network(entry))]
        self._names = {_plain(entry) for entry in allow if not _network(entry)}
        self._resolve = resolve or self._look_up
        # Its own threads: names that answer slowly must not hold up the event loop's other blocking work.
        self._lookups = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="lookup")

    def check_url(self, url: str) -> Url:
        """The URL as the client reads it, too. Raises Refused unless it is plain http(s) of a sane length."""
        try:
            return parse_url(url)
        except ConnectFailed as exc:
            raise Refused(str(exc)) from exc

    async def addresses(self, host: str, port: int) -> list[str]:
        """Every address of `host`. Raises Refused if one of them is not allowed, ConnectFailed if there is none."""
        name = _plain(host)
        if not name or len(name) > HOST_LENGTH or " " in name or not name.isprintable():
            raise Refused("Not a host name")
        found = _spelt_out(name) or await self._found(host, port)
        if name not in self._names:
            for address in found:
                if not self._allows(address):
                    raise Refused(f"{host} leads to {address}, which is not a public address")
        return [str(address) for address in found]

    async def _found(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                found = await self._resolve(host, port)
        except TimeoutError as exc:
            raise ConnectFailed(f"No address for {host} within {LOOKUP_TIMEOUT:g} s") from exc
        except (OSError, UnicodeError) as exc:
            raise ConnectFailed(f"No address for {host}: {exc}") from exc
        if not found:
            raise ConnectFailed(f"No address for {host}")
        return [ip_address(address) for address in dict.fromkeys(found)]

    async def _look_up(self, host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(self._lookups, _system_addresses, host, port)

    def _allows(self, address: Address) -> bool:
        return all(self._fits(face) for face in _faces(address))

    def _fits(self, address: Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        if any(address in network for network in _METADATA):
            return False
        if self._allow_private and any(address in network for network in _PRIVATE):
            return True
        return _is_public(address)


def _system_addresses(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _plain(host: str) -> str:
    return host.strip().removeprefix("[").removesuffix("]").removesuffix(".").lower()


def _network(entry: str) -> Network | None:
    try:
        return ip_network(_plain(entry), strict=False)
    except ValueError:
        return None


def _spelt_out(name: str) -> list[Address] | None:
    """The addresses of a host that needs no lookup: a literal in any spelling, or localhost."""
    if name == "localhost" or name.endswith(".localhost"):
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    try:
        return [ip_address(name)]
    except ValueError:
        pass
    try:
        return [IPv4Address(socket.inet_aton(name))]  # 127.1, 0x7f.1, 2130706433
    except (OSError, ValueError):
        return None


def _faces(address: Address) -> list[Address]:
    """What must be fit to reach: the IPv4 address that an IPv6 one stands for, or both where both are on the way."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if address.sixtofour:
        return [address, address.sixtofour]
    return [address]


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
