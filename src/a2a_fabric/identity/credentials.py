"""What a door found in a request that may say who is calling."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.hosts import is_loopback

_SCHEMES = ("bearer", "apikey")


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Raw and untrusted; never logged."""

    authorization: str | None = None
    api_key: str | None = None
    host: str | None = None  # the name under which we were called
    origin: str | None = None  # the page whose script calls, if a browser does

    @property
    def bearer(self) -> str | None:
        """The token of `Authorization: Bearer TOKEN`, also called `ApiKey`, or of `X-API-Key`."""
        if self.authorization is not None:
            scheme, _, token = self.authorization.partition(" ")
            return token.strip() if scheme.lower() in _SCHEMES else None
        return self.api_key

    @property
    def is_from_a_strange_page(self) -> bool:
        """Whether a web page of another site makes the browser call us: under its own name, or under ours."""
        names = [name for name in (self.host, self.origin) if name is not None]
        return any(not _is_local_name(name) for name in names)


def _is_local_name(name: str) -> bool:
    host = name.rpartition("//")[2]
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(host)
