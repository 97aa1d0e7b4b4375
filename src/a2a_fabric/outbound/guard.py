"""URLs, and the guard against server-side request forgery: which addresses a URL may lead to, also by trust tier.

Only plain http and https are accepted. What browsers would repair or guess (spaces, backslashes,
credentials, percent signs in a host) is refused.

A host is looked up once, every address is checked, and the client connects to a checked address, never to
the name. URLs are parsed once, for the check and for the connection, so both see the same host."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.outbound.port import AddressRefused, ConnectFailed

MAX_URL_LENGTH = 8192
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?=.{1,253}\.?\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")
_UNQUOTED = "!$%&'()*+,/:;=?@[]~"  # besides letters, digits and _.-


class Url(msgspec.Struct, frozen=True):
    scheme: str
    host: str  # in lower case and ASCII; an IPv6 address without its brackets
    port: int
    target: str  # path and query, as in the request line

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def server_name(self) -> str:
        """The name that the certificate must be for."""
        return self.host.removesuffix(".")


def read_origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ConnectFailed."""
    parsed = parse_url(url)
    return parsed.scheme, parsed.host, parsed.port


def parse_url(url: str) -> Url:
    """Raises ConnectFailed, never with more of the URL than its scheme, since secrets may be in the rest."""
    if len(url) > MAX_URL_LENGTH:
        raise ConnectFailed(f"URL longer than {MAX_URL_LENGTH} characters")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ConnectFailed("URL with spaces, backslashes or control characters")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ConnectFailed("Not a URL with a scheme and a host")
    scheme = parts[1].lower()
    if scheme not in _PORTS:
        raise ConnectFailed(f"Only http and https URLs can be used, not {scheme[:20]}")
    host, port = _parse_authority(parts[2])
    return Url(scheme, host, port or _PORTS[scheme], _quote_target(parts[3]))


def _parse_authority(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise ConnectFailed("URL with a user name or password")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ConnectFailed("URL without a well-formed host and port")
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 65536:
        raise ConnectFailed(f"There is no port {port}")
    return _parse_host(match[1]), port


def _parse_host(text: str) -> str:
    try:
        if text.startswith("["):
            return str(IPv6Address(text[1:-1]))
        host = text.lower() if text.isascii() else text.encode("idna").decode("ascii").lower()
    except ValueError as exc:
        raise ConnectFailed("URL whose host is neither a name nor an address") from exc
    if not _NAME.fullmatch(host):
        raise ConnectFailed("URL whose host is neither a name nor an address")
    return host


def _quote_target(text: str) -> str:
    try:
        target = quote(text, safe=_UNQUOTED)
    except UnicodeEncodeError as exc:
        raise ConnectFailed("URL with characters that cannot be sent") from exc
    return target if target.startswith("/") else f"/{target}"


IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]

MAX_HOST_LENGTH = 255
LOOKUP_TIMEOUT = 5.0
LOOKUP_THREADS = 8

# The networks that `allow_private` opens: those of one machine, one site, one provider. Link-local addresses are not
# among them, since clouds serve credentials there; neither is the IPv6 address of that service.
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
        self._allowed_networks = [network for entry in allow if (network := _parse_network(entry))]
        self._allowed_names = {_normalize_host(entry) for entry in allow if not _parse_network(entry)}
        self._resolve = resolve or self._look_up_in_thread
        # Threads of its own: slow lookups must not hold up the event loop's other blocking work.
        self._lookup_threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="lookup")

    def check_url(self, url: str) -> Url:
        """The URL, parsed as the client parses it. Raises AddressRefused for anything but plain http(s)."""
        try:
            return parse_url(url)
        except ConnectFailed as exc:
            raise AddressRefused(str(exc)) from exc

    async def resolve_addresses(self, host: str, port: int) -> list[str]:
        """Every address of `host`. Raises AddressRefused if one is not allowed, ConnectFailed if there is none."""
        name = _normalize_host(host)
        if not name or len(name) > MAX_HOST_LENGTH or " " in name or not name.isprintable():
            raise AddressRefused("Not a host name")
        resolved = _parse_literal(name) or await self._look_up_host(host, port)
        if name not in self._allowed_names:
            for address in resolved:
                if not all(self._allows_form(form) for form in _reached_addresses(address)):
                    raise AddressRefused(f"{host} leads to {address}, which is not a public address")
        return [str(address) for address in resolved]

    async def _look_up_host(self, host: str, port: int) -> list[IPAddress]:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                resolved = await self._resolve(host, port)
        except TimeoutError as exc:
            raise ConnectFailed(f"No address for {host} within {LOOKUP_TIMEOUT:g} s") from exc
        except (OSError, UnicodeError) as exc:
            raise ConnectFailed(f"No address for {host}: {exc}") from exc
        if not resolved:
            raise ConnectFailed(f"No address for {host}")
        return [ip_address(address) for address in dict.fromkeys(resolved)]

    async def _look_up_in_thread(self, host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(self._lookup_threads, look_up_addresses, host, port)

    def _allows_form(self, address: IPAddress) -> bool:
        if any(address in network for network in self._allowed_networks):
            return True
        if any(address in network for network in _METADATA):
            return False
        if self._allow_private and any(address in network for network in _PRIVATE):
            return True
        return _is_public(address)


def look_up_addresses(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _normalize_host(host: str) -> str:
    return host.strip().removeprefix("[").removesuffix("]").removesuffix(".").lower()


def _parse_network(entry: str) -> IPNetwork | None:
    try:
        return ip_network(_normalize_host(entry), strict=False)
    except ValueError:
        return None


def _parse_literal(name: str) -> list[IPAddress] | None:
    """The addresses of a host that needs no lookup: an address in any notation, or localhost."""
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


def _reached_addresses(address: IPAddress) -> list[IPAddress]:
    """The addresses to check: the IPv4 address that an IPv6 address stands for, or both if both are contacted."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if address.sixtofour:
        return [address, address.sixtofour]
    return [address]


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_IPV6:
            return False
        if address.sixtofour is not None:
            return True  # judged by the IPv4 address inside it; Python 3.13 calls the whole prefix private
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


class RegistrationGuards:
    """The guards for registered agents: those of trust tier `local` may reach private addresses, if configured."""

    def __init__(self, allow: Sequence[str], *, private_for_local: bool) -> None:
        self.public_guard = Guard(allow=allow)
        self.local_guard = Guard(allow_private=private_for_local, allow=allow)

    def guard_for(self, trust: TrustTier) -> Guard:
        return self.local_guard if trust == "local" else self.public_guard

    async def check(self, url: str, trust: TrustTier) -> None:
        """Raises Forbidden for an address that is not allowed, BadInput for a URL without a usable one."""
        guard = self.guard_for(trust)
        try:
            parsed = guard.check_url(url)
        except AddressRefused as exc:
            raise BadInput(f"The endpoint's uri cannot be used: {exc}", field="endpoint.uri") from exc
        try:
            await guard.resolve_addresses(parsed.host, parsed.port)
        except AddressRefused as exc:
            raise Forbidden(
                f"The endpoint is out of reach for registered agents: {exc}. The operator may list it under "
                "`registration.allow`",
                field="endpoint.uri",
            ) from exc
        except ConnectFailed as exc:
            raise BadInput(f"The endpoint's uri cannot be used: {exc}", field="endpoint.uri") from exc


def format_grpc_target(addresses: list[str], port: int) -> str:
    """The checked addresses of one host, as gRPC has to be given them: of one family only."""
    if ":" in addresses[0]:
        return "ipv6:" + ",".join(f"[{each}]:{port}" for each in addresses if ":" in each)
    return "ipv4:" + ",".join(f"{each}:{port}" for each in addresses if ":" not in each)
