"""Tokens of the issuers that this node trusts. Each is checked once, ahead of the request; the verdict is kept.

Whoever identifies a caller only looks up the verdict, so that no request waits twice
and requests with tokens that are known already do not wait at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, FabricError, RateLimited
from a2a_fabric.identity.signed import Unsigned, issuer_of
from a2a_fabric.identity.verdict import Verdict

_KNOWN = 10_000
_AT_A_TIME = 64
_LONGEST = 16 * 1024
_PATIENCE = 15.0  # seconds for a token to be checked, with all who wait before it
_REFUSED_SECONDS = 5.0  # a bad token is not asked about again for so long


class Checker(Protocol):
    async def check(self, token: str) -> Verdict:
        """Raises FabricError."""
        ...


class Issuer:
    """What it signs, what it can be asked about, or both."""

    def __init__(self, name: str, signed: Checker | None, opaque: Checker | None) -> None:
        self.name = name
        self.signed = signed
        self.opaque = opaque


class Tokens:
    def __init__(self, issuers: Sequence[Issuer], patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._issuers = {issuer.name: issuer for issuer in issuers}
        self._verdicts: dict[str, Verdict | _Refusal] = {}
        self._under_way: dict[str, asyncio.Task[Verdict | _Refusal]] = {}

    def principal(self, token: str) -> Principal:
        """Raises AuthInvalid, AuthExpired, or RateLimited if nobody can tell now."""
        found = self._verdicts.get(token)
        if found is None:
            raise AuthInvalid
        if isinstance(found, _Refusal):
            raise found.error
        if found.until <= time.time():
            raise AuthExpired("The token has expired")
        return found.principal

    def knows(self, token: str) -> bool:
        found = self._verdicts.get(token)
        return found is not None and found.fresh > time.time()

    async def learn(self, token: str) -> None:
        """Afterwards `principal` tells. Requests that bring the same token wait for the same answer."""
        checking = self._under_way.get(token)
        if checking is None:
            checking = self._under_way[token] = asyncio.ensure_future(self._verdict(token))
            checking.add_done_callback(lambda _: self._under_way.pop(token, None))
        found = await asyncio.shield(checking)
        self._verdicts.pop(token, None)
        if len(self._verdicts) >= _KNOWN:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[token] = found

    async def aclose(self) -> None:
        for checking in (under_way := list(self._under_way.values())):
            checking.cancel()
        if under_way:
            await asyncio.wait(under_way)

    async def _verdict(self, token: str) -> Verdict | _Refusal:
        try:
            if len(self._under_way) > _AT_A_TIME:
                raise RateLimited("Too many new tokens are being checked", 1.0)
            async with asyncio.timeout(self._patience):
                return await self._checked(token)
        except FabricError as error:
            return _Refusal(error)
        except TimeoutError:
            return _Refusal(RateLimited("Who is calling cannot be checked now: it took too long", 5.0))

    async def _checked(self, token: str) -> Verdict:
        if len(token) > _LONGEST or not token.isascii():
            raise AuthInvalid
        try:
            name = issuer_of(token)
        except Unsigned:
            return await self._asked(token, [each.opaque for each in self._issuers.values() if each.opaque is not None])
        issuer = self._issuers.get(name or "")
        if issuer is None:
            raise AuthInvalid("The token's issuer (`iss`) is not trusted on this node")
        return await self._asked(token, [each for each in (issuer.signed or issuer.opaque,) if each is not None])

    async def _asked(self, token: str, checkers: Sequence[Checker]) -> Verdict:
        """Of the first to know it. If nobody does, whoever could not tell has the word."""
        refusals: list[FabricError] = []
        for checker in checkers:
            try:
                return await checker.check(token)
            except FabricError as error:
                refusals.append(error)
        raise next((each for each in refusals if isinstance(each, RateLimited)), (refusals or [AuthInvalid()])[0])


class _Refusal:
    """Told again and again, each time by an error of its own."""

    def __init__(self, error: FabricError) -> None:
        self._message = error.message
        self._kind = AuthExpired if isinstance(error, AuthExpired) else AuthInvalid
        self._patience = error.retry_after if isinstance(error, RateLimited) else None
        self.fresh = time.time() + min(_REFUSED_SECONDS, self._patience or _REFUSED_SECONDS)

    @property
    def error(self) -> FabricError:
        return self._kind(self._message) if self._patience is None else RateLimited(self._message, self._patience)
