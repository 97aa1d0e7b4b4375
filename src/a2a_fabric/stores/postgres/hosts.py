"""The hosts of an address: the one that accepts writes is used, and a host that does not answer is tried last."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg

from a2a_fabric.stores.postgres.errors import is_connection_lost

Host = tuple[str, int]

_DEFAULT_PORT = 5432
_MIN_TIMEOUT = 1.0  # seconds that each host gets to accept a connection, however many hosts there are


class PostgresHosts:
    """The hosts of one address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._hosts = hosts_from_address(address)

    async def connect(self, *, timeout: float, **options: Any) -> Any:
        """One connection. Raises what asyncpg and the sockets raise; of several hosts, the error of the last one."""
        if len(self._hosts) < 2:
            return await asyncpg.connect(self._address, timeout=timeout, **options)
        if "target_session_attrs" not in self._address:
            options["target_session_attrs"] = "read-write"  # after a failover, the one that took over
        share = max(_MIN_TIMEOUT, timeout / len(self._hosts))
        for position, (host, port) in enumerate(list(self._hosts), 1):
            try:
                connection = await asyncpg.connect(self._address, host=host, port=port, timeout=share, **options)
            except Exception as exc:
                if position == len(self._hosts) or not is_connection_lost(exc):
                    raise
            else:
                self._hosts.sort(key=lambda each: each != (host, port))  # first next time
                return connection
        raise AssertionError("the last host returns or raises")


def hosts_from_address(address: str) -> list[Host]:
    """All hosts of an address, with their ports; empty for an address without one, which asyncpg handles."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    host_list = query.get("host") or unquote(parts.netloc.rpartition("@")[2])
    ports = query.get("port", "").split(",")
    hosts = [_parse_host(each, ports[min(index, len(ports) - 1)]) for index, each in enumerate(host_list.split(","))]
    return [(host, port) for host, port in hosts if host]


def _parse_host(text: str, port: str) -> Host:
    name, colon, own_port = text.rpartition(":")
    if text.startswith("/") or not colon or own_port.endswith("]"):
        name, own_port = text, ""
    return name.strip("[]"), int(own_port or port or _DEFAULT_PORT)
