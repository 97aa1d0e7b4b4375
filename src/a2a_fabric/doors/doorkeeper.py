"""Who is let in at a door that may be open to callers who show nothing, and where each of them reaches us."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden, Unauthenticated
from a2a_fabric.doors.http import Head
from a2a_fabric.identity.credentials import Credentials

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class Doorkeeper:
    """The node's own rules, but that this door may be open to callers who show nothing."""

    def __init__(self, identify: Callable[[Credentials], Principal], anonymous: TrustTier | None) -> None:
        self._identify = identify
        self._stranger = (
            None if anonymous is None else Principal(mode="none", principal_id="anonymous", trust=anonymous)
        )

    @property
    def is_open(self) -> bool:
        """Whether programs are let in without credentials."""
        try:
            self(Credentials())
        except (Unauthenticated, Forbidden):
            return False
        return True

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid, AuthExpired or Forbidden."""
        try:
            return self._identify(credentials)
        except Unauthenticated:
            if self._stranger is None:
                raise
            if self._stranger.trust == "local" and credentials.is_from_a_strange_page:
                raise Forbidden("Without credentials only programs are let in, not pages of other sites") from None
            return self._stranger


def base_of(public_url: str | None, scope: Any, head: Head) -> str:
    """Where this caller reaches us: as the operator says, else as they did."""
    if public_url is not None:
        return public_url.rstrip("/")
    host = head.get(b"host") or ""
    return f"{scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else 'localhost'}"
