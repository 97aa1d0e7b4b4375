"""Pre-shared keys: kept as hashes, compared in constant time, each with a name, scopes and a trust tier."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal

_HASHED = re.compile("sha256:([0-9a-fA-F]{64})")


class SharedKey(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is the key, or `sha256:` and its hash, for files that shall not hold it."""

    principal_id: str
    secret: str
    scopes: tuple[str, ...] | None = None
    trust: TrustTier = "local"

    @property
    def digest(self) -> bytes:
        hashed = _HASHED.fullmatch(self.secret)
        return bytes.fromhex(hashed[1]) if hashed else _digest(self.secret)


class SharedKeys:
    def __init__(self, keys: Iterable[SharedKey]) -> None:
        self._by_hash = {key.digest: _principal(key) for key in keys}

    def __len__(self) -> int:
        return len(self._by_hash)

    def principal(self, token: str) -> Principal | None:
        """Looking up a hash tells an attacker nothing of the key; the comparison settles it in constant time."""
        digest = _digest(token)
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(known, digest):
                return principal
        return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _principal(key: SharedKey) -> Principal:
    return Principal(mode="psk", principal_id=key.principal_id, scp=key.scopes, trust=key.trust)
