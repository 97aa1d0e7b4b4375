"""Shared keys: those of the configuration and those of the store, by their hashes.

A key is found by one lookup however many there are, and then compared in constant time. Stored keys can be added,
replaced and revoked while nodes run: each node follows the store's changes, and writes when keys were last used once
a minute, for all of them together."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET

from a2a_fabric.core.agent import Audience, TrustTier
from a2a_fabric.core.call import AuthMode, Principal
from a2a_fabric.core.errors import STORE_AWAY, AuthExpired, StoreError
from a2a_fabric.core.keys import KEYS_TOPIC, KeyStore, StoredKey
from a2a_fabric.core.stores import ChangeNotices, call_store
from a2a_fabric.core.view import View

KEY_PREFIX = "fabric_"  # so that secret scanners and people recognise a key
_SHA256_SECRET = re.compile("sha256:([0-9a-fA-F]{64})")
_WAIT_SECONDS = 5.0
_TOUCH_INTERVAL = 60.0

_log = logging.getLogger(__name__)


class SharedKey(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is the key itself, or `sha256:` and its hash, for files that should not hold the key."""

    principal_id: str
    secret: str
    scopes: tuple[str, ...] | None = None
    trust: TrustTier = "local"
    view: View | None = None
    audiences: tuple[Audience, ...] | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """Beyond which its holder sees nothing; audiences are a view like any other."""
        views = [] if self.view is None else [self.view]
        if self.audiences is not None:
            views.append(View(name=f"audiences-{'-'.join(self.audiences)}", audiences=self.audiences))
        return tuple(sorted(views, key=lambda each: each.name))

    @property
    def digest(self) -> bytes:
        match = _SHA256_SECRET.fullmatch(self.secret)
        return bytes.fromhex(match[1]) if match else hash_key(self.secret)


class KnownKey(msgspec.Struct, frozen=True):
    """`key_id` is that of a stored key. `expires_at` in seconds since 1970."""

    digest: bytes
    principal: Principal
    expires_at: float | None = None
    key_id: str | None = None

    def check_expiry(self) -> None:
        """Raises AuthExpired."""
        if self.expires_at is not None and self.expires_at <= time.time():
            raise AuthExpired("The key has expired. Ask the operator for its successor")


class SharedKeys:
    """`listeners` are called when a key that was found before may count no longer, or has to be found again."""

    def __init__(self, keys: Iterable[SharedKey] = ()) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._configured: dict[bytes, KnownKey] = {}
        self._stored: dict[bytes, KnownKey] = {}
        self._used: dict[str, float] = {}
        self.set_configured(keys)

    def __len__(self) -> int:
        return len(self._configured) + len(self._stored)

    @property
    def names(self) -> set[str]:
        """The callers that have a key."""
        known = (*self._configured.values(), *self._stored.values())
        return {key.principal.principal_id for key in known if key.principal.principal_id is not None}

    def set_configured(self, keys: Iterable[SharedKey]) -> None:
        self._configured = {
            key.digest: KnownKey(key.digest, make_principal(key.principal_id, key.scopes, key.trust, key.views))
            for key in keys
        }
        self._notify()

    def set_stored(self, keys: Iterable[KnownKey]) -> None:
        self._stored = {key.digest: key for key in keys}
        self._notify()

    def find(self, token: str) -> KnownKey | None:
        """A key that may have expired. Only the hash is looked up and compared, in constant time, so the time taken
        says nothing about any key."""
        digest = hash_key(token)
        key = self._configured.get(digest) or self._stored.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        if key.key_id is not None:
            self._used[key.key_id] = time.time()
        return key

    def take_used(self) -> dict[str, float]:
        """When stored keys were used since the last time. A key that is in use is found, and so noted, again."""
        used, self._used = self._used, {}
        if used:
            self._notify()
        return used

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()


def hash_key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def make_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def make_principal(
    name: str, scopes: tuple[str, ...] | None, trust: TrustTier, views: tuple[View, ...], mode: AuthMode = "psk"
) -> Principal:
    return Principal(mode=mode, principal_id=name, scp=scopes, trust=trust, views=views or UNSET)


class StoredKeysFollower:
    """Keeps `keys` in step with the store. While the store is unavailable, the keys read last count."""

    def __init__(
        self,
        store: KeyStore,
        notices: ChangeNotices,
        keys: SharedKeys,
        find_view: Callable[[str], View | None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._notices = notices
        self._keys = keys
        self._find_view = find_view
        self._on_change = on_change
        self._rows: list[StoredKey] = []
        self._touched_at = time.monotonic()

    async def load(self) -> None:
        """Raises StoreError."""
        rows = [
            msgspec.structs.replace(row, last_used_at=None)  # which is no change
            for row in await call_store(self._store.list)
            if row.revoked_at is None
        ]
        if rows == self._rows:
            return
        self._rows = rows
        self.apply_views()
        self._on_change()

    def apply_views(self) -> None:
        """Make the keys that count of those that were read, with the views as they are now."""
        self._keys.set_stored([key for row in self._rows if (key := self._to_known_key(row)) is not None])

    async def run(self) -> None:
        """Until cancelled."""
        was_available = has_changed = True
        with self._notices.watch(KEYS_TOPIC) as handle:
            while True:
                try:
                    if has_changed:
                        await self.load()
                    if time.monotonic() - self._touched_at >= _TOUCH_INTERVAL:
                        await self.write_last_used()
                    was_available = True
                except StoreError as exc:
                    if was_available:
                        _log.warning(
                            "keys of the store cannot be read now; those read last count: %s",
                            exc.message,
                            extra=STORE_AWAY,
                        )
                    was_available = False
                has_changed = await handle.wait(_WAIT_SECONDS) or not was_available

    async def write_last_used(self) -> None:
        """Raises StoreError."""
        self._touched_at = time.monotonic()
        used = self._keys.take_used()
        if used:
            await call_store(self._store.touch, used)

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self.write_last_used()
        except (StoreError, TimeoutError) as exc:
            _log.warning("when keys were last used could not be written: %s", exc)

    def _to_known_key(self, row: StoredKey) -> KnownKey | None:
        """None for a key whose view this node does not have: without it, its holder would see everything."""
        view = None if row.view is None else self._find_view(row.view)
        if row.view is not None and view is None:
            _log.warning(
                "the key of %s is refused: it is bound to the view '%s', which this node does not have",
                row.name,
                row.view,
            )
            return None
        principal = make_principal(row.name, row.scopes, row.trust, () if view is None else (view,))
        return KnownKey(row.digest, principal, row.expires_at, row.key_id)
