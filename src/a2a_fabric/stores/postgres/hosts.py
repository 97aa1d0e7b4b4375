"""Which of several servers we talk to: the one that may be written to, and each is asked for a share of the time.

A server that lost its power neither answers nor refuses. It must not use up the
time of the one that has taken over, and is asked last from then on.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg

from a2a_fabric.stores.postgres.errors import is_lost

Host = tuple[str, int]

_PORT = 5432
_SHORTEST = 1.0  # seconds that a server has to let us in, however many there are


class Hosts:
    """The servers of one address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._hosts = hosts_of(address)

    async def connect(self, *, timeout: float, **options: Any) -> Any:
        """One connection. Raises what asyncpg and the sockets raise; of several servers, what the last one did."""
        if len(self._hosts) < 2:
            return await asyncpg.connect(self._address, timeout=timeout, **options)
        if "target_session_attrs" not in self._address:
            options["target_session_attrs"] = "read-write"  # after a failover, the one that took over
        share = max(_SHORTEST, timeout / len(self._hosts))
        for place, (host, port) in enumerate(list(self._hosts), 1):
            try:
                made = await asyncpg.connect(self._address, host=host, port=port, timeout=share, **options)
            except Exception as exc:
                if place == len(self._hosts) or not is_lost(exc):
                    raise
            else:
                self._hosts.sort(key=lambda each: each != (host, port))  # first next time
                return made
        raise AssertionError("there is a last one")


def hosts_of(address: str) -> list[Host]:
    """All that an address names, with their ports; asyncpg knows what to do with one that names none."""
    parts = urlsplit(address)
    asked = dict(parse_qsl(parts.query))
    given = asked.get("host") or unquote(parts.netloc.rpartition("@")[2])
    ports = asked.get("port", "").split(",")
    found = [_host(each, ports[min(place, len(ports) - 1)]) for place, each in enumerate(given.split(","))]
    return [(host, port) for host, port in found if host]


def _host(given: str, port: str) -> Host:
    name, colon, own = given.rpartition(":")
    if given.startswith("/") or not colon or own.endswith("]"):
        name, own = given, ""
    return name.strip("[]"), int(own or port or _PORT)
