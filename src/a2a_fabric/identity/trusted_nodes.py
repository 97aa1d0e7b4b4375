"""The nodes whose signed identities count here, and the callers that must send one.

An identity says nothing about what its sender may do: the key that comes with it does. It proves which node sent the
request, for whom, and that the body is what that node wrote. A mandate in it narrows what the key allows, and makes the
call one of the principal who gave it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthInvalid, ConfigError, FabricError
from a2a_fabric.core.keys import UsedTokenStore
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.stores import call_store
from a2a_fabric.identity.forwarded import (
    ForwardedIdentity,
    SeenIdentities,
    check_content,
    check_identity,
    read_identity,
)
from a2a_fabric.identity.mandates import CLOCK_SKEW
from a2a_fabric.identity.resolver import Credentials, Resolver, combine_credentials
from a2a_fabric.identity.settings import TrustedNodeSettings
from a2a_fabric.identity.signing import ALGORITHM
from a2a_fabric.identity.token_verifiers import IssuerMetadata, IssuerUnavailable, KeySet, is_secure_url
from a2a_fabric.identity.trusted_issuers import RefusedToken
from a2a_fabric.outbound.port import HTTPClient

_FILE_SECONDS = 5.0  # a file of keys is read again after so long


class TrustedNode(NamedTuple):
    settings: TrustedNodeSettings
    audience: tuple[str, ...]
    keys: KeySet


class TrustedNodes:
    """Resolves callers as `resolver` does, with what the verified identity of their request says.

    `verify` is awaited before a request is resolved. What it returns is the `identity` of the request's credentials; it
    is forgotten with the request.
    """

    def __init__(
        self,
        nodes: Sequence[TrustedNode],
        resolver: Resolver,
        clock: Callable[[], float] = time.time,
        used_tokens: UsedTokenStore | None = None,
    ) -> None:
        """`used_tokens` remembers used identities for all nodes that share a store, and over restarts."""
        self.replace(nodes)
        self._resolver = resolver
        self._clock = clock
        self._seen = SeenIdentities()
        self._used_tokens = used_tokens
        self._kept: dict[str, ForwardedIdentity | RefusedToken] = {}  # as many as requests are under way

    def replace(self, nodes: Sequence[TrustedNode]) -> None:
        """Other nodes count from now on. What was used before stays used."""
        self._nodes = {node.settings.name: node for node in nodes}
        self._required = {caller: node.settings.name for node in nodes for caller in node.settings.callers}

    async def verify(self, token: str, read_body: Callable[[], Awaitable[bytes]], trace_id: str | None = None) -> str:
        """Where the verified identity, or the reason for its refusal, is kept. The body of a request whose identity is
        not valid is not read. `trace_id` is the trace that the request names in its headers, if it names one.
        """
        outcome: ForwardedIdentity | RefusedToken
        try:
            outcome = await self._check(token, read_body, trace_id)
        except FabricError as error:
            outcome = RefusedToken(error)
        return self._keep(outcome)

    def keep_unusable(self) -> str:
        """For an identity of a request whose body cannot be compared with it."""
        reason = "The signed identity cannot be checked: the body of the request is not at hand"
        return self._keep(RefusedToken(AuthInvalid(reason)))

    def forget(self, kept_at: str) -> None:
        self._kept.pop(kept_at, None)

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises what the resolver raises, and AuthInvalid for a request without the identity that its caller needs."""
        if credentials.identity is None:
            principal = self._resolver(credentials)
            node = self._required.get(principal.principal_id or "")
            if node is not None:
                raise AuthInvalid(
                    f"Requests of '{principal.principal_id}' must carry an identity signed by node '{node}' "
                    "(`identity` in the endpoint there, `auth.nodes` here)"
                )
            return principal
        outcome = self._kept.get(credentials.identity)
        if not isinstance(outcome, ForwardedIdentity):
            raise AuthInvalid if outcome is None else outcome.error
        principal = self._resolver(msgspec.structs.replace(credentials, identity=None))
        return self._apply(outcome, principal)

    def narrow(self, principal: Principal, credentials: Credentials) -> Principal:
        return self._resolver.narrow(principal, credentials)

    async def _check(
        self, token: str, read_body: Callable[[], Awaitable[bytes]], trace_id: str | None
    ) -> ForwardedIdentity:
        identity, signed = read_identity(token)
        key_id = signed.key_id or ""
        node = self._nodes.get(identity.iss)
        if node is None:
            raise AuthInvalid(f"The identity was signed by '{identity.iss[:200]}', which is not in `auth.nodes`")
        key = (await node.keys.find_key(key_id, ALGORITHM)).key
        if not isinstance(key, Ed25519PublicKey):
            raise AuthInvalid(f"The key '{key_id[:64]}' is not an Ed25519 key")
        now = self._clock()
        check_identity(identity, signed, key, audience=node.audience, now=now)
        if trace_id is not None and identity.trace_id not in (None, trace_id):
            raise AuthInvalid("The identity was signed for another trace")
        self._seen.add(identity, now)  # before anything is awaited, so that none of two at a time gets through twice
        check_content(identity, await read_body())
        await self._use_once(identity, now)
        if identity.mandate is not None:
            await self._resolver.verify_token(_as_bearer(identity.mandate))
        return identity

    async def _use_once(self, identity: ForwardedIdentity, now: float) -> None:
        """Raises AuthInvalid for an identity that another node of the store has seen, and StoreError."""
        if self._used_tokens is None:
            return
        digest = hashlib.sha256(f"{identity.iss}\n{identity.jti}".encode()).digest()
        seconds = identity.exp + CLOCK_SKEW - now
        if not await call_store(self._used_tokens.add, digest, seconds):
            raise AuthInvalid("The identity was used before")

    def _apply(self, identity: ForwardedIdentity, principal: Principal) -> Principal:
        node = self._nodes.get(identity.iss)
        if node is None:  # the settings have changed since it was checked
            raise AuthInvalid(f"The identity was signed by '{identity.iss[:200]}', which is no longer in `auth.nodes`")
        callers = node.settings.callers
        if callers and principal.principal_id not in callers:
            raise AuthInvalid(
                f"The identity was signed by node '{identity.iss[:200]}', and the credentials belong to "
                f"'{principal.principal_id}'. Send only one of them, or two of the same caller"
            )
        if identity.mandate is not None:
            principal = combine_credentials(principal, self._resolver(_as_bearer(identity.mandate)))
        actors = identity.actors
        return msgspec.structs.replace(principal, actors=(identity.sub, *actors)) if actors else principal

    def _keep(self, outcome: ForwardedIdentity | RefusedToken) -> str:
        kept_at = new_id()
        self._kept[kept_at] = outcome
        return kept_at


def _as_bearer(mandate: str) -> Credentials:
    return Credentials(authorization=f"Bearer {mandate}")


def list_trusted_nodes(
    settings: Sequence[TrustedNodeSettings],
    own_names: tuple[str, ...],
    base: Path,
    http: HTTPClient,
) -> list[TrustedNode]:
    """Raises ConfigError."""
    names = [each.name for each in settings]
    if duplicate := next((each for each in names if names.count(each) > 1), None):
        raise ConfigError(f"auth.nodes: `name` {duplicate!r} is used twice")
    return [TrustedNode(each, each.audience or own_names, _build_key_set(each, base, http)) for each in settings]


def _build_key_set(settings: TrustedNodeSettings, base: Path, http: HTTPClient) -> KeySet:
    where = f"auth.nodes: {settings.name}"
    if (settings.jwks_file is None) == (settings.jwks_url is None):
        raise ConfigError(f"{where}: set `jwks_file` or `jwks_url`, and only one of them")
    if settings.jwks_url is not None:
        url, metadata = settings.jwks_url, IssuerMetadata(settings.name, http)
        if not is_secure_url(url):
            raise ConfigError(f"{where}: `jwks_url` must begin with https://, except on this machine")
        return KeySet(settings.name, lambda: metadata.get(url))
    path = base / str(settings.jwks_file)
    if not path.is_file():
        raise ConfigError(f"{where}: jwks_file: {settings.jwks_file}: there is no such file")

    async def read() -> bytes:
        try:
            return path.read_bytes()
        except OSError as exc:
            raise IssuerUnavailable(settings.name, f"has a key file that cannot be read: {exc.strerror}") from exc

    return KeySet(settings.name, read, _FILE_SECONDS, _FILE_SECONDS)
