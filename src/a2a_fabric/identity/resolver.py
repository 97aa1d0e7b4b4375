"""Resolves the credentials of a request to a principal: shared keys, tokens of issuers, anonymous callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET

from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import TRUST_RANK
from a2a_fabric.core.call import AuthMode, Principal, bind_call
from a2a_fabric.core.errors import AuthInvalid, BadInput, FabricError, Forbidden, OutOfScope, Unauthenticated
from a2a_fabric.core.policy import has_no_rights, is_limited, is_loopback
from a2a_fabric.core.recording import CallOrigin, current_origin
from a2a_fabric.core.view import View
from a2a_fabric.identity.certificates import CertificateCallers
from a2a_fabric.identity.peer import NO_PEER, Peer
from a2a_fabric.identity.shared_keys import SharedKeys

_SCHEMES = ("bearer", "apikey")
_SENDER_MODES = ("psk", "none")  # they say who sends a request, not for whom


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Raw and untrusted; never logged."""

    authorization: str | None = None
    api_key: str | None = None
    host: str | None = None  # the host name that the client used
    origin: str | None = None  # the site whose script sends the request, if a browser does
    passport: str | None = None  # of `X-Agent-Passport`
    identity: str | None = None  # under which `TrustedNodes` keeps the verified identity of this request
    is_forwarded: bool = False  # whether a proxy sent the request on, for a client that may be anywhere
    view: str | None = None  # the views to which the request narrows itself, separated by commas
    peer: Peer = NO_PEER  # the other end of the connection

    @property
    def bearer(self) -> str | None:
        """The token of `Authorization: Bearer TOKEN`, also called `ApiKey`, or of `X-API-Key`."""
        if self.authorization is not None:
            scheme, _, token = self.authorization.partition(" ")
            return token.strip() if scheme.lower() in _SCHEMES else None
        return self.api_key

    @property
    def is_single(self) -> bool:
        """Whether `authorization` is all that identifies the caller."""
        is_alone = self.passport is None and self.peer.certificate is None
        return is_alone and (self.api_key is None or self.authorization is None)

    @property
    def has_header(self) -> bool:
        """Whether the request itself brings credentials."""
        return self.authorization is not None or self.api_key is not None or self.passport is not None

    @property
    def is_from_other_page(self) -> bool:
        """Whether a page makes the browser send this request to another site than its own."""
        return self.origin is not None and self.origin.rpartition("//")[2].lower() != (self.host or "").lower()

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether the request may have begun on another machine: Host or Origin is not this one, or a proxy sent it."""
        names = [name for name in (self.host, self.origin) if name is not None]
        return self.is_forwarded or any(not _is_local_name(name) for name in names)


def _is_local_name(name: str) -> bool:
    host = name.rpartition("//")[2]
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(host)


def combine_credentials(token: Principal, passport: Principal) -> Principal:
    """The holder of the passport or mandate, with what both credentials allow.

    A token names a principal, which must be that of the passport. A key, or a connection without credentials, says only
    who sends the request, so its holder may send it for any principal who gave it a passport. Raises AuthInvalid.
    """
    is_sender = token.mode in _SENDER_MODES or (
        token.mode == "mtls" and (passport.mode == "passport" or token.principal_id == passport.delegate_id)
    )
    if not is_sender and token.principal_id != passport.principal_id:
        raise AuthInvalid(
            f"The credentials belong to '{token.principal_id}', the {passport.mode} to '{passport.principal_id}'. "
            "Send only one of them, or two of the same principal"
        )
    scope_lists = (token.scp, token.cap, *(token.narrowed_by or ()), *(passport.narrowed_by or ()))
    limits = tuple(scopes for scopes in scope_lists if scopes is not None)
    views = {view.name: view for view in (*(token.views or ()), *(passport.views or ()))}
    return msgspec.structs.replace(
        passport,
        trust=max(token.trust, passport.trust, key=TRUST_RANK.__getitem__),
        narrowed_by=limits or UNSET,
        views=tuple(views[name] for name in sorted(views)) or UNSET,
    )


_NO_ISSUER = "This node trusts no issuer of passports (`auth.issuers`)"
_MAX_CACHED = 10_000
_MAX_CACHED_HEADER = 1024  # characters; a caller may write its key in many ways, with any number of spaces before it
_MAX_VIEWS = 8  # that one request names

MessageCredential = tuple[Literal["passport", "mandate"], Any]  # its kind, and the text or object that was sent
CountOutcome = Callable[[str, str], None]


class TokenPrincipals(Protocol):
    """The tokens of trusted issuers; see `identity.trusted_issuers`."""

    def get_principal(self, token: str) -> Principal: ...
    def get_passport_principal(self, passport: str) -> Principal: ...
    def is_fresh(self, token: str) -> bool: ...
    async def verify(self, token: str) -> None: ...


class Resolver:
    """`anonymous` is the principal of callers without credentials, or None if they are refused.

    With `tokens`, the server awaits `verify_token` before each request, so that calling the resolver never waits.
    """

    def __init__(
        self,
        keys: SharedKeys,
        anonymous: Principal | None,
        count_outcome: CountOutcome,
        tokens: TokenPrincipals | None = None,
        views: Iterable[View] = (),
        certificates: CertificateCallers | None = None,
    ) -> None:
        self._keys = keys
        self._certificates = certificates or CertificateCallers(())
        self._anonymous = anonymous
        self._count_outcome = count_outcome
        self._tokens = tokens
        self._views = {view.name: view for view in views}
        self._narrowed: dict[tuple[int, str], tuple[Principal, Principal]] = {}
        self._cache: dict[str | None, Principal] = {}  # by header; of keys that do not expire
        keys.listeners.append(self._forget)

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid, AuthExpired, Forbidden, BadInput for a view that does not exist, and
        RateLimited if a token cannot be checked now.
        """
        principal = None
        if credentials.passport is None and credentials.api_key is None and credentials.peer.certificate is None:
            principal = self._cache.get(credentials.authorization)  # `is_single`, with a header that was remembered
        if principal is None:
            principal = self._identify(credentials)
        else:
            self._count_outcome(principal.mode, "success")
        view = credentials.view
        if view is None:
            return principal
        narrowed = self._narrowed.get((id(principal), view))  # as in `narrow`, without the call
        return self.narrow(principal, credentials) if narrowed is None else narrowed[1]

    @property
    def admits_anonymous(self) -> bool:
        return self._anonymous is not None

    def replace(
        self,
        anonymous: Principal | None,
        tokens: TokenPrincipals | None,
        certificates: CertificateCallers,
        views: Iterable[View],
    ) -> None:
        """Other settings count from now on."""
        self._views = {view.name: view for view in views}
        self._anonymous, self._tokens, self._certificates = anonymous, tokens, certificates
        self._forget()

    def _forget(self) -> None:
        self._cache.clear()
        self._narrowed.clear()

    def narrow(self, principal: Principal, credentials: Credentials) -> Principal:
        """The principal with the views that the request names, besides those of its key. Raises BadInput."""
        if credentials.view is None:
            return principal
        narrowed = self._narrowed.get((id(principal), credentials.view))
        if narrowed is not None:
            return narrowed[1]
        names = [name.strip() for name in credentials.view.split(",", _MAX_VIEWS)]
        unknown = next((name for name in names if name not in self._views), None)
        if unknown is not None:
            known = "" if is_limited(principal) else f". Its views are: {', '.join(self._views) or 'none'}"
            raise BadInput(f"This node has no view '{unknown[:64]}'{known}", view=unknown[:64])
        views = {view.name: view for view in (*(principal.views or ()), *(self._views[name] for name in names))}
        # In one order, so that callers with the same access share what is kept for it.
        narrowed = principal, msgspec.structs.replace(principal, views=tuple(views[name] for name in sorted(views)))
        is_lasting = principal.mode == "psk" or principal is self._anonymous  # others are made for each token
        if is_lasting and credentials.view in self._views and len(self._narrowed) < _MAX_CACHED:
            self._narrowed[id(principal), credentials.view] = narrowed  # keeps the principal, so its id stays its own
        return narrowed[1]

    def _identify(self, credentials: Credentials) -> Principal:
        try:
            principal = self._resolve(credentials)
            if has_no_rights(principal):
                raise OutOfScope("These credentials have no scopes on this node, so they may do nothing here")
        except FabricError:
            self._count_outcome("psk" if credentials.bearer else "none", "denied")
            raise
        self._count_outcome(principal.mode, "success")
        if principal.mode == "psk" and credentials.is_single:
            self._remember(credentials, principal)
        return principal

    def _remember(self, credentials: Credentials, principal: Principal) -> None:
        header = credentials.authorization
        if header is None or len(header) > _MAX_CACHED_HEADER or len(self._cache) >= _MAX_CACHED:
            return
        key = self._keys.find(credentials.bearer or "")
        if key is not None and key.expires_at is None:
            self._cache[header] = principal

    async def add_credentials(self, principal: Principal, credentials: Iterable[MessageCredential]) -> Principal:
        """The caller of a message that has passports or mandates in its metadata: with no more than `principal`, who
        sent the message, may do. Raises as `__call__`, and AuthInvalid if the credentials disagree.
        """
        kind: AuthMode = principal.mode
        try:
            for kind, text in credentials:
                principal = combine_credentials(principal, await self._find_holder(kind, text))
            if has_no_rights(principal):
                raise OutOfScope("These credentials have no scopes on this node, so they may do nothing here")
        except FabricError:
            self._count_outcome(kind, "denied")
            raise
        self._count_outcome(principal.mode, "success")
        return principal

    async def _find_holder(self, kind: AuthMode, text: Any) -> Principal:
        if kind == "passport" and isinstance(text, dict):
            text = msgspec.json.encode(text).decode()
        if not isinstance(text, str):
            raise AuthInvalid("A passport in metadata is an object or a text, a mandate is a text")
        if self._tokens is None:
            raise AuthInvalid(_NO_ISSUER)
        if not self._tokens.is_fresh(text):
            await self._tokens.verify(text)
        if kind == "passport":
            return self._tokens.get_passport_principal(text)
        holder = self._tokens.get_principal(text)
        if holder.mode != "mandate":
            raise AuthInvalid("The token is not a mandate")
        return holder

    async def verify_token(self, credentials: Credentials) -> None:
        """Verify a token ahead of `__call__`, which then only looks up the outcome."""
        if self._tokens is None:
            return
        passport = credentials.passport
        if passport is not None and not self._tokens.is_fresh(passport):
            await self._tokens.verify(passport)
        for token in {credentials.bearer, credentials.api_key}:
            if token and not self._tokens.is_fresh(token) and self._keys.find(token) is None:
                await self._tokens.verify(token)

    def _resolve(self, credentials: Credentials) -> Principal:
        certificate = credentials.peer.certificate
        if certificate is None or not self._certificates:
            return self._resolve_headers(credentials)
        holder = self._certificates.find_principal(certificate)
        if credentials.has_header:
            return self._certificates.combine(holder, self._resolve_headers(credentials))
        if credentials.is_from_other_page:
            raise Forbidden("A client certificate alone does not count for requests of pages of other sites")
        return holder

    def _resolve_headers(self, credentials: Credentials) -> Principal:
        if credentials.passport is None:
            return self._resolve_tokens(credentials)
        if self._tokens is None:
            raise AuthInvalid(_NO_ISSUER)
        holder = self._tokens.get_passport_principal(credentials.passport)
        if credentials.authorization is None and credentials.api_key is None:
            return holder
        return combine_credentials(self._resolve_tokens(credentials), holder)

    def _resolve_tokens(self, credentials: Credentials) -> Principal:
        token = credentials.bearer
        if token:
            principal = self._resolve_token(token)
            if credentials.api_key is not None and self._resolve_token(credentials.api_key) != principal:
                raise AuthInvalid("`Authorization` and `X-API-Key` belong to different callers. Send only one of them")
            return principal
        if credentials.authorization is not None:
            raise AuthInvalid("This node accepts only 'Authorization: Bearer TOKEN'")
        if self._anonymous is None:
            raise Unauthenticated
        if self._anonymous.trust == "local" and credentials.is_from_elsewhere:
            raise Forbidden(
                "Without credentials, only programs on this machine may call, not pages of other sites or proxies"
            )
        return self._anonymous

    def _resolve_token(self, token: str) -> Principal:
        key = self._keys.find(token)
        if key is not None:
            key.check_expiry()
            return key.principal
        if self._tokens is None:
            raise AuthInvalid
        return self._tokens.get_principal(token)


AddCredentials = Callable[[Principal, Iterable[MessageCredential]], Awaitable[Principal]]


class CallerResolver(Protocol):
    """A resolver, or what checks the identities that other nodes forward and then asks a resolver."""

    def __call__(self, credentials: Credentials, /) -> Principal: ...

    def narrow(self, principal: Principal, credentials: Credentials, /) -> Principal: ...


class DoorResolver:
    """How one door identifies callers: as the node does, and with the operator's rules that hold at this door."""

    def __init__(
        self, door: str, resolver: CallerResolver, add_credentials: AddCredentials, active_policy: ActivePolicy
    ) -> None:
        self._door = door
        self._origin = CallOrigin(door=door, protocol=door)
        self._add_credentials = add_credentials
        self._active_policy = active_policy
        self.set_resolver(resolver)

    def set_resolver(self, resolver: CallerResolver) -> None:
        """Callers are identified in another way from now on."""
        self._resolver = resolver
        self._resolve = bind_call(resolver)

    def identify(self, credentials: Credentials) -> Principal:
        """Raises as the resolver does. The calls of this request are recorded as those of this door."""
        current_origin.set(self._origin)
        principal = self._resolve(credentials)
        return self._bind(principal, credentials) if self._active_policy.is_used else principal

    def narrow(self, principal: Principal, credentials: Credentials) -> Principal:
        """A principal that the door itself admits, with the views that the request names. Raises BadInput."""
        narrowed = self._resolver.narrow(principal, credentials)
        return self._bind(narrowed, credentials) if self._active_policy.is_used else narrowed

    async def add_credentials(self, principal: Principal, credentials: Iterable[MessageCredential]) -> Principal:
        """The caller of a message with passports or mandates of its own, sent by `principal`. Raises FabricError."""
        combined = await self._add_credentials(principal, credentials)
        if not self._active_policy.is_used or not principal.entry:
            return combined
        return self._active_policy.bind(combined, self._door, principal.entry.address, principal.entry.site)

    def _bind(self, principal: Principal, credentials: Credentials) -> Principal:
        return self._active_policy.bind(principal, self._door, credentials.peer.address, credentials.origin or "")
