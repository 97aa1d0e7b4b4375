"""What a door found in a request that may say who is calling."""

from __future__ import annotations

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Raw and untrusted; never logged."""

    authorization: str | None = None
    api_key: str | None = None

    @property
    def bearer(self) -> str | None:
        """The token of `Authorization: Bearer TOKEN`, or of `X-API-Key`."""
        if self.authorization is not None:
            scheme, _, token = self.authorization.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else None
        return self.api_key
