"""The logins of a node's principals: started, finished, used, renewed, removed.

Invariants:
- Tokens are found only under the principal that signed in. What is written to the store is encrypted and bound to
  that principal and the agent.
- A `state` is random, expires, and is used once. The store knows it only as part of a hash that also covers who may
  finish the login: the principal that started it, or the browser that began on this node's page. So a stolen `state`
  alone finds nothing, and does not use up the login either.
- At most one renewal per principal and agent is under way. On a node a lock sees to it. Of several nodes, the one that
  writes its claim first renews the token, and the others wait for what it writes.
- What an agent offers a principal is in memory under that principal alone, and only while there is such a login.
- No token, code or `state` is in a log line or an error."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.errors import BadInput, ConfigError, FabricError, RateLimited
from a2a_fabric.core.logins import LoginAttempt, LoginRecord, LoginRequired, LoginStore
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.logins.cipher import LoginCipher, WrongKey
from a2a_fabric.logins.listings import LoginListings
from a2a_fabric.logins.oauth import (
    ClientIdentity,
    Discovery,
    GrantRefused,
    LoginTarget,
    OAuthClient,
    Tokens,
    build_authorization_url,
    check_response_issuer,
    make_verifier,
)

CALLBACK_PATH = "/logins/callback"
START_PATH = "/logins/start"
_ATTEMPT_SECONDS = 600.0
_MAX_ATTEMPTS = 20  # of one principal at a time
MAX_STARTS = 10  # of one principal in a minute: each is several requests to the agent's servers
_MAX_COUNTED = 10_000  # principals whose starts are counted
_CACHE_SECONDS = 5.0  # after which a logout on another node is noticed
_MAX_CACHED = 1000
_RENEW_SHARE, _RENEW_SECONDS = 0.1, 60.0  # a token is renewed before its last tenth, and its last minute
_CLAIM_SECONDS = 30.0  # longer than a request to the server may take
_CLAIM_PAUSE = 0.1
_POLL_SECONDS = 0.5
_MAX_PARAMETER = 4096  # characters of a code or a state
_ENDED = ("invalid_grant", "invalid_client", "unauthorized_client")
_STILL_WAITING = ("authorization_pending", "slow_down")
_UNKNOWN_STATE = "This login is not known: it was finished before, has expired, or was started by another caller"

_log = logging.getLogger(__name__)

T = TypeVar("T")
OnLogin = Callable[[str, str], Awaitable[None]]


class StartedLogin(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has to do now: open a page, or open one and type a code there."""

    agent_id: str
    issuer: str
    state: str
    url: str
    user_code: str | None = None
    interval: float | None = None
    expires_in: float = _ATTEMPT_SECONDS


class _AttemptSecret(msgspec.Struct, frozen=True, kw_only=True):
    discovery: Discovery
    client: ClientIdentity
    redirect_uri: str = ""
    verifier: str = ""
    device_code: str | None = None
    interval: float = 5.0


class _Ticket(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    agent_id: str
    expires_at: float


class _CachedLogin(msgspec.Struct, frozen=True):
    tokens: Tokens
    revision: int
    read_at: float


class LoginPending(Exception):
    """The person has not decided yet; ask again after `interval` seconds."""

    def __init__(self, interval: float) -> None:
        super().__init__("The login is not finished yet")
        self.interval = interval


class Logins:
    """`load_cipher` is called on first use, so that a node without logins makes no key.

    `find_target` finds an agent that wants logins; `base_url` is where browsers reach this node, if they can.
    """

    def __init__(
        self,
        store: LoginStore,
        oauth: OAuthClient,
        load_cipher: Callable[[], LoginCipher],
        find_target: Callable[[str], LoginTarget | None],
        base_url: Callable[[], str | None],
        listings: LoginListings,
    ) -> None:
        self._store = store
        self._oauth = oauth
        self._load_cipher = load_cipher
        self._find_target = find_target
        self._base_url = base_url
        self.listings = listings
        self._loaded_cipher: LoginCipher | None = None
        self._cache: OrderedDict[tuple[str, str], _CachedLogin] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._listeners: list[OnLogin] = []
        self._login_listeners: list[OnLogin] = []
        self._starts: OrderedDict[str, deque[float]] = OrderedDict()  # moments of the last minute, by owner

    def add_listener(self, on_change: OnLogin) -> None:
        """It is called with the owner and the agent, after a login or a logout on this node, and does not raise."""
        self._listeners.append(on_change)

    def add_login_listener(self, on_login: OnLogin) -> None:
        """It is called with the owner and the agent after a login on this node, and does not raise. What the agent
        offers the owner is known then, unless the agent takes long to say so.
        """
        self._login_listeners.append(on_login)

    # Signing in

    async def start(self, owner: str, agent_id: str, redirect_uri: str) -> StartedLogin:
        """A login that the same principal finishes, with what its browser brings to `redirect_uri`.

        Raises FabricError.
        """
        _check_redirect(redirect_uri)
        return await self._start(owner, agent_id, redirect_uri, f"owner:{owner}")

    async def start_device(self, owner: str, agent_id: str) -> StartedLogin:
        """A login without a browser on this machine: a person types a code elsewhere. Raises FabricError."""
        target = self._get_target(agent_id)
        self._count_start(owner)
        discovery = await self._oauth.discover(target)
        client = await self._oauth.identify(target, discovery.server, "http://127.0.0.1/")
        device = await self._oauth.start_device(target, discovery, client)
        interval = max(1.0, min(device.interval, 60.0))
        secret = _AttemptSecret(discovery=discovery, client=client, device_code=device.device_code, interval=interval)
        state = secrets.token_urlsafe(32)
        await self._add_attempt(owner, agent_id, state, f"owner:{owner}", secret)
        return StartedLogin(
            agent_id=agent_id,
            issuer=discovery.server.issuer,
            state=state,
            url=_check_page(device.verification_uri),
            user_code=device.user_code[:64],
            interval=interval,
            expires_in=min(device.expires_in, _ATTEMPT_SECONDS),
        )

    async def start_in_browser(self, ticket: str, browser: str) -> StartedLogin:
        """A login that this browser finishes, at this node's own page. Raises FabricError."""
        opened = self.open_ticket(ticket)
        base_url = self._base_url()
        if base_url is None:
            raise BadInput("This node has no address that a browser can return to. Set `public_url`")
        redirect_uri = base_url.rstrip("/") + CALLBACK_PATH
        return await self._start(opened.owner, opened.agent_id, redirect_uri, f"browser:{browser}")

    async def _start(self, owner: str, agent_id: str, redirect_uri: str, binding: str) -> StartedLogin:
        target = self._get_target(agent_id)
        self._count_start(owner)
        discovery = await self._oauth.discover(target)
        client = await self._oauth.identify(target, discovery.server, redirect_uri)
        state, verifier = secrets.token_urlsafe(32), make_verifier()
        url = _check_page(build_authorization_url(discovery, client, redirect_uri, state, verifier))
        secret = _AttemptSecret(discovery=discovery, client=client, redirect_uri=redirect_uri, verifier=verifier)
        await self._add_attempt(owner, agent_id, state, binding, secret)
        return StartedLogin(agent_id=agent_id, issuer=discovery.server.issuer, state=state, url=url)

    def _count_start(self, owner: str) -> None:
        """Raises RateLimited."""
        now = time.monotonic()
        moments = self._starts.setdefault(owner, deque())
        self._starts.move_to_end(owner)
        while len(self._starts) > _MAX_COUNTED:
            self._starts.popitem(last=False)
        while moments and moments[0] <= now - 60.0:
            moments.popleft()
        if len(moments) >= MAX_STARTS:
            raise RateLimited("Too many logins were started in the last minute; wait a moment", moments[0] + 60.0 - now)
        moments.append(now)

    async def finish(
        self, owner: str, state: str, code: str | None, issuer: str | None = None, error: str | None = None
    ) -> LoginRecord:
        """Raises LoginPending for a device whose person has not decided yet, and FabricError."""
        return await self._finish(f"owner:{owner}", state, code, issuer, error)

    async def finish_in_browser(
        self, browser: str, state: str, code: str | None, issuer: str | None, error: str | None
    ) -> LoginRecord:
        return await self._finish(f"browser:{browser}", state, code, issuer, error)

    async def _finish(
        self, binding: str, state: str, code: str | None, issuer: str | None, error: str | None
    ) -> LoginRecord:
        if not 0 < len(state) <= _MAX_PARAMETER or len(code or "") > _MAX_PARAMETER:
            raise BadInput(_UNKNOWN_STATE, field="state")
        attempt = await self._store.take_attempt(_hash_attempt(state, binding))
        if attempt is None:
            raise BadInput(f"{_UNKNOWN_STATE}. Start again with: a2a-fabric login AGENT", field="state")
        target = self._get_target(attempt.agent_id)
        secret = self._decrypt(attempt.secret, _name_attempt(attempt.attempt_id), _AttemptSecret, attempt.agent_id)
        check_response_issuer(secret.discovery.server, issuer) if secret.device_code is None else None
        if error is not None:
            raise GrantRefused(secret.discovery.server.issuer, error if error.isidentifier() else "an error")
        if secret.device_code is not None:
            tokens = await self._poll_device(target, attempt, secret, secret.device_code)
        elif code:
            tokens = await self._oauth.exchange_code(
                target, secret.discovery, secret.client, code, secret.verifier, secret.redirect_uri
            )
        else:
            raise BadInput("The login brought no code", field="code")
        return await self._store_login(attempt.owner, attempt.agent_id, tokens)

    async def _poll_device(
        self, target: LoginTarget, attempt: LoginAttempt, secret: _AttemptSecret, device_code: str
    ) -> Tokens:
        try:
            return await self._oauth.poll_device(target, secret.discovery, secret.client, device_code)
        except FabricError as exc:
            is_waiting = isinstance(exc, GrantRefused) and exc.error_code in _STILL_WAITING
            if isinstance(exc, GrantRefused) and not is_waiting:
                raise
            await self._store.add_attempt(attempt, _MAX_ATTEMPTS)  # the person may still decide
            if not is_waiting:
                raise
            extra = 5.0 if isinstance(exc, GrantRefused) and exc.error_code == "slow_down" else 0.0
            raise LoginPending(secret.interval + extra) from exc

    async def _store_login(self, owner: str, agent_id: str, tokens: Tokens) -> LoginRecord:
        record = LoginRecord(
            owner=owner,
            agent_id=agent_id,
            issuer=tokens.issuer,
            scopes=tokens.scopes,
            secret=self._encrypt(tokens, _name_login(owner, agent_id)),
            revision=secrets.randbits(48),
        )
        await self._store.put(record)
        self._cache.pop((owner, agent_id), None)
        _log.info("%s signed in to agent %s at %s", owner, agent_id, tokens.issuer)
        self.listings.remove(owner, agent_id)  # it is perhaps of another account
        for listener in self._listeners:
            await listener(owner, agent_id)
        await self.listings.learn(owner, [agent_id])
        for listener in self._login_listeners:
            await listener(owner, agent_id)
        return record

    async def _add_attempt(self, owner: str, agent_id: str, state: str, binding: str, secret: _AttemptSecret) -> None:
        attempt_id = _hash_attempt(state, binding)
        encrypted = self._encrypt(secret, _name_attempt(attempt_id))
        expires_at = time.time() + _ATTEMPT_SECONDS
        attempt = LoginAttempt(
            attempt_id=attempt_id, owner=owner, agent_id=agent_id, secret=encrypted, expires_at=expires_at
        )
        await self._store.add_attempt(attempt, _MAX_ATTEMPTS)

    # A page of this node, for clients that can show their user one

    def make_page_url(self, owner: str, agent_id: str) -> str | None:
        """A page at which the person behind this principal can sign in; None if browsers cannot reach this node."""
        base_url = self._base_url()
        if base_url is None:
            return None
        ticket = _Ticket(owner=owner, agent_id=agent_id, expires_at=time.time() + _ATTEMPT_SECONDS)
        sealed = base64.urlsafe_b64encode(self._encrypt(ticket, "ticket")).decode().rstrip("=")
        return f"{base_url.rstrip('/')}{START_PATH}?ticket={sealed}"

    def open_ticket(self, ticket: str) -> _Ticket:
        """Raises BadInput for a ticket that this node has not made, or that has expired."""
        try:
            sealed = base64.urlsafe_b64decode(ticket[:_MAX_PARAMETER] + "==")
            opened = msgspec.json.decode(self._cipher.decrypt(sealed, "ticket"), type=_Ticket)
        except (WrongKey, binascii.Error, ValueError) as exc:
            raise BadInput("This address is not complete, or was made by another node") from exc
        if opened.expires_at <= time.time():
            raise BadInput("This address has expired. Repeat the call to get a new one")
        return opened

    # Logins that exist

    async def list(self, owner: str) -> Sequence[tuple[LoginRecord, float | None]]:
        """The principal's logins, and when each token expires, if it is known."""
        return [(record, self._read_expiry(record)) for record in await self._store.list(owner)]

    async def remove(self, owner: str, agent_id: str) -> tuple[bool, bool]:
        """Whether there was a login, and whether its server was told that the tokens are no longer needed."""
        record = await self._store.get(owner, agent_id)
        removed = await self._store.remove(owner, agent_id)
        self._forget(owner, agent_id)
        for listener in self._listeners:
            await listener(owner, agent_id)
        target = self._find_target(agent_id)
        if record is None or target is None:
            return removed, False
        try:
            tokens = self._decrypt(record.secret, _name_login(owner, agent_id), Tokens, agent_id)
            return removed, await self._oauth.revoke(target, tokens)
        except FabricError:
            return removed, False

    async def wait_for_login(self, owner: str, agent_id: str, timeout: float) -> bool:
        """Whether the principal is signed in within `timeout` seconds; on whichever node."""
        ends_at = time.monotonic() + timeout
        while await self._store.get(owner, agent_id) is None:
            if time.monotonic() >= ends_at:
                return False
            await asyncio.sleep(min(_POLL_SECONDS, max(0.0, ends_at - time.monotonic())))
        return True

    def _forget(self, owner: str, agent_id: str) -> None:
        self._cache.pop((owner, agent_id), None)
        self.listings.remove(owner, agent_id)

    # Tokens

    async def get_token(self, owner: str, agent_id: str) -> str:
        """A token that is good for a while, renewed if needed. Raises LoginRequired, and AgentOffline."""
        cached = self._cache.get((owner, agent_id))
        if cached is None or time.monotonic() - cached.read_at > _CACHE_SECONDS:
            cached = await self._read(owner, agent_id)
        if not _is_due(cached.tokens):
            return cached.tokens.access_token
        return await self._renew(owner, agent_id, cached.tokens.access_token)

    async def renew(self, owner: str, agent_id: str, rejected: str) -> str:
        """A token other than the one that the agent rejected. Raises LoginRequired, and AgentOffline."""
        return await self._renew(owner, agent_id, rejected)

    async def _renew(self, owner: str, agent_id: str, old_token: str) -> str:
        key = (owner, agent_id)
        lock = self._locks.get(key) or self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            current = await self._claim(owner, agent_id, old_token)
            if current.tokens.access_token != old_token:  # another call or another node has renewed it
                return current.tokens.access_token
            try:
                renewed = await self._oauth.refresh(self._get_target(agent_id), current.tokens)
            except GrantRefused as exc:
                if exc.error_code in _ENDED:
                    raise await self._end(owner, agent_id, current) from exc
                await self._replace(owner, agent_id, current, replace(current.tokens, claimed_until=0.0))
                raise
            except FabricError:  # the server is away: the next call may try again
                await self._replace(owner, agent_id, current, replace(current.tokens, claimed_until=0.0))
                raise
            if await self._replace(owner, agent_id, current, renewed) is None:  # signed out or in meanwhile
                return (await self._read(owner, agent_id)).tokens.access_token
            return renewed.access_token

    async def _claim(self, owner: str, agent_id: str, old_token: str) -> _CachedLogin:
        """The login, which this node may renew; or, with another token, as it was renewed. Raises LoginRequired."""
        while True:
            current = await self._read(owner, agent_id)
            if current.tokens.access_token != old_token:
                return current
            if current.tokens.refresh_token is None:
                raise await self._end(owner, agent_id, current)
            now = time.time()
            if current.tokens.claimed_until <= now:
                claimed = replace(current.tokens, claimed_until=now + _CLAIM_SECONDS)
                if (own := await self._replace(owner, agent_id, current, claimed)) is not None:
                    return own
            await asyncio.sleep(_CLAIM_PAUSE)

    async def _replace(self, owner: str, agent_id: str, current: _CachedLogin, tokens: Tokens) -> _CachedLogin | None:
        """The login with these tokens; None if it is no longer as it was read."""
        record = LoginRecord(
            owner=owner,
            agent_id=agent_id,
            issuer=tokens.issuer,
            scopes=tokens.scopes,
            secret=self._encrypt(tokens, _name_login(owner, agent_id)),
            revision=current.revision,
        )
        if not await self._store.put(record, current.revision):
            return None
        login = _CachedLogin(tokens, current.revision + 1, time.monotonic())
        self._keep(owner, agent_id, login)
        return login

    async def _end(self, owner: str, agent_id: str, current: _CachedLogin) -> LoginRequired:
        """Remove a login that its server no longer accepts, unless it was replaced meanwhile."""
        record = await self._store.get(owner, agent_id)
        if record is not None and record.revision == current.revision:
            await self._store.remove(owner, agent_id)
            self.listings.remove(owner, agent_id)
        self._cache.pop((owner, agent_id), None)
        _log.info("the login of %s at agent %s has ended", owner, agent_id)
        return self.make_required(owner, agent_id, f"Your login at agent '{agent_id}' has ended: sign in again")

    def make_required(self, owner: str, agent_id: str, why: str = "") -> LoginRequired:
        return LoginRequired(agent_id, why, url=self.make_page_url(owner, agent_id))

    async def _read(self, owner: str, agent_id: str) -> _CachedLogin:
        """Raises LoginRequired."""
        record = await self._store.get(owner, agent_id)
        if record is None:
            self._forget(owner, agent_id)
            raise self.make_required(owner, agent_id)
        tokens = self._decrypt(record.secret, _name_login(owner, agent_id), Tokens, agent_id)
        login = _CachedLogin(tokens, record.revision, time.monotonic())
        self._keep(owner, agent_id, login)
        return login

    def _keep(self, owner: str, agent_id: str, login: _CachedLogin) -> None:
        self._cache[owner, agent_id] = login
        self._cache.move_to_end((owner, agent_id))
        while len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)

    def _read_expiry(self, record: LoginRecord) -> float | None:
        try:
            tokens = self._decrypt(record.secret, _name_login(record.owner, record.agent_id), Tokens, record.agent_id)
        except FabricError:
            return None
        return tokens.expires_at

    def _get_target(self, agent_id: str) -> LoginTarget:
        target = self._find_target(agent_id)
        if target is None:
            raise BadInput(
                f"Agent '{agent_id[:128]}' wants no login. An agent that does has `auth: oauth` in its endpoint",
                agent_id=agent_id[:128],
            )
        return target

    @property
    def _cipher(self) -> LoginCipher:
        if self._loaded_cipher is None:
            self._loaded_cipher = self._load_cipher()
        return self._loaded_cipher

    def _encrypt(self, value: msgspec.Struct, name: str) -> bytes:
        return self._cipher.encrypt(msgspec.json.encode(value), name)

    def _decrypt(self, secret: bytes, name: str, kind: type[T], agent_id: str) -> T:
        """Raises ConfigError if this node has another key than the one that encrypted it."""
        try:
            return msgspec.json.decode(self._cipher.decrypt(secret, name), type=kind)
        except (WrongKey, msgspec.DecodeError) as exc:
            raise ConfigError(
                f"The login at agent '{agent_id}' was encrypted with another key. Nodes that share a store need the "
                f"same FABRIC_LOGIN_KEY; if the key is lost, run: a2a-fabric login {agent_id}"
            ) from exc


def _is_due(tokens: Tokens) -> bool:
    """Whether the token is about to expire. Without a refresh token there is nothing to renew it with."""
    if tokens.expires_at is None or tokens.refresh_token is None:
        return tokens.expires_at is not None and tokens.expires_at <= time.time()
    return tokens.expires_at - time.time() < min(_RENEW_SECONDS, _RENEW_SHARE * (tokens.lifetime or 0.0))


def _check_redirect(redirect_uri: str) -> None:
    """Codes are only sent to this machine of the person, never to an address that a caller chooses."""
    try:
        parts = urlsplit(redirect_uri)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "") and parts.username is None
    except ValueError:
        is_local = False
    if not is_local or len(redirect_uri) > 512:
        raise BadInput(
            "A login returns to a loopback address only, such as http://127.0.0.1:PORT/callback", field="redirect_uri"
        )


def _check_page(url: str) -> str:
    """A page for a person's browser. Raises BadInput for any other kind of address, such as a script."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return url
    raise BadInput("The authorization server names a page that is neither HTTPS nor on this machine")


def _hash_attempt(state: str, binding: str) -> str:
    return hashlib.sha256(f"{state}\n{binding}".encode("utf-8", "replace")).hexdigest()


def _name_login(owner: str, agent_id: str) -> str:
    return f"login\n{owner}\n{agent_id}"


def _name_attempt(attempt_id: str) -> str:
    return f"attempt\n{attempt_id}"
