"""Credentials in, principal out; the one place that decides who a caller is."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthInvalid, CallerError, Forbidden, Unauthenticated
from a2a_fabric.identity.credentials import Credentials
from a2a_fabric.identity.psk import SharedKeys

_KNOWN = 10_000

Counted = Callable[[str, str], None]


class Resolver:
    """`anonymous` is who a caller without credentials is, or None if there is no such thing here."""

    def __init__(self, keys: SharedKeys, anonymous: Principal | None, counted: Counted) -> None:
        self._keys = keys
        self._anonymous = anonymous
        self._counted = counted
        self._known: dict[str | None, Principal] = {}  # headers that were good; shared keys never expire

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid or Forbidden."""
        known = self._known.get(credentials.authorization)
        if known is not None:
            self._counted(known.mode, "success")
            return known
        try:
            principal = self._resolve(credentials)
        except CallerError:
            self._counted("psk" if credentials.bearer else "none", "denied")
            raise
        self._counted(principal.mode, "success")
        if credentials.authorization is not None and len(self._known) < _KNOWN:
            self._known[credentials.authorization] = principal
        return principal

    def _resolve(self, credentials: Credentials) -> Principal:
        token = credentials.bearer
        if token:
            principal = self._keys.principal(token)
            if principal is None:
                raise AuthInvalid
            return principal
        if credentials.authorization is not None:
            raise AuthInvalid("Only 'Authorization: Bearer TOKEN' is understood on this node")
        if self._anonymous is None:
            raise Unauthenticated
        if self._anonymous.trust == "local" and credentials.is_from_a_strange_page:
            raise Forbidden("Without credentials only programs of this machine are let in, not pages of other sites")
        return self._anonymous
