"""Whether a host is this machine itself; the one answer for whom we trust because they are here."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"  # `127.evil.example` is anybody's name
