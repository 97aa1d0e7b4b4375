"""Credentials in, principal out; the one place that decides who a caller is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthInvalid, FabricError, Forbidden, Unauthenticated
from a2a_fabric.core.policy import may_do_nothing
from a2a_fabric.identity.credentials import Credentials
from a2a_fabric.identity.psk import SharedKeys

_KNOWN = 10_000

Counted = Callable[[str, str], None]


class Tokens(Protocol):
    """What others say about callers; see `identity.tokens`."""

    def principal(self, token: str) -> Principal: ...
    def knows(self, token: str) -> bool: ...
    async def learn(self, token: str) -> None: ...


class Resolver:
    """`anonymous` is who a caller without credentials is, or None if there is no such thing here.

    With `tokens` of other issuers, whoever takes requests lets callers introduce themselves first.
    """

    def __init__(
        self, keys: SharedKeys, anonymous: Principal | None, counted: Counted, tokens: Tokens | None = None
    ) -> None:
        self._keys = keys
        self._anonymous = anonymous
        self._counted = counted
        self._tokens = tokens
        self._known: dict[str | None, Principal] = {}  # headers that were good; shared keys never expire

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid, AuthExpired, Forbidden, or RateLimited if nobody can tell now."""
        known = self._known.get(credentials.authorization)
        if known is not None:
            self._counted(known.mode, "success")
            return known
        try:
            principal = self._resolve(credentials)
            if may_do_nothing(principal):
                raise Forbidden("These credentials have no scopes on this node, so they may do nothing here")
        except FabricError:
            self._counted("psk" if credentials.bearer else "none", "denied")
            raise
        self._counted(principal.mode, "success")
        if principal.mode == "psk" and credentials.authorization is not None and len(self._known) < _KNOWN:
            self._known[credentials.authorization] = principal
        return principal

    async def introduce(self, credentials: Credentials) -> None:
        """Find out about a token before somebody asks whose it is; what comes of it `__call__` says."""
        token = credentials.bearer
        if self._tokens is None or not token or self._tokens.knows(token) or self._keys.principal(token) is not None:
            return
        await self._tokens.learn(token)

    def _resolve(self, credentials: Credentials) -> Principal:
        token = credentials.bearer
        if token:
            principal = self._keys.principal(token)
            if principal is not None:
                return principal
            if self._tokens is None:
                raise AuthInvalid
            return self._tokens.principal(token)
        if credentials.authorization is not None:
            raise AuthInvalid("Only 'Authorization: Bearer TOKEN' is understood on this node")
        if self._anonymous is None:
            raise Unauthenticated
        if self._anonymous.trust == "local" and credentials.is_from_a_strange_page:
            raise Forbidden("Without credentials only programs of this machine are let in, not pages of other sites")
        return self._anonymous
