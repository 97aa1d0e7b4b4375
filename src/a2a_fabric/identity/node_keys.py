"""The keys with which a node signs: the current one in a file that only its user can read, and the ones before it.

The public keys stand beside the private one (`identity.key`, `identity.jwks.json`) and are published at
`/.well-known/jwks.json`. Rotating puts a new key into the file. The old one stays published for a while (its `exp`), so
that what it has signed can still be checked. A running node notices the change."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import lock_folder
from a2a_fabric.identity.signing import SigningKey, create_key_file, read_key_file

DEFAULT_NAME = "identity.key"
_CHECK_SECONDS = 1.0  # between two looks at the file
_MAX_RETIRED = 100


class PublicKeySet(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...] = ()


class NodeKeys:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._key: SigningKey | None = None
        self._version: tuple[int, int] | None = None
        self._checked_at = 0.0

    @property
    def public_path(self) -> Path:
        return self.path.with_suffix(".jwks.json")

    def get(self) -> SigningKey:
        """The key that signs now; it is made if there is none. Raises ConfigError."""
        now = self._clock()
        if self._key is None or not 0 <= now - self._checked_at < _CHECK_SECONDS:
            self._checked_at = now
            self._load()
        assert self._key is not None  # noqa: S101  # loaded above
        return self._key

    def list_public(self) -> list[dict[str, Any]]:
        """The public keys that count now, the current one first; none if the node has no key."""
        now = self._clock()
        return [key for key in self.list_all() if key.get("exp", now + 1) > now]

    def list_all(self) -> list[dict[str, Any]]:
        """The same with keys whose time is over, for what they have signed before, such as receipts."""
        if self._key is None and not self.path.exists():
            return []
        current = self.get()
        retired = [
            key
            for key in _read_public_keys(self.public_path)
            if key.get("kid") != current.key_id and isinstance(key.get("exp"), int | float)
        ]
        return [current.public_jwk, *retired]

    def rotate(self, overlap: float) -> SigningKey:
        """A new key signs from now on; the old one stays published for `overlap` seconds. Raises ConfigError,
        and Conflict while another command changes it.
        """
        with lock_folder(self.path):  # another command would lose the key that this one publishes
            key = self._replace_key(int(self._clock() + overlap))
        self._key, self._version = key, None
        return key

    def _replace_key(self, expires_at: int) -> SigningKey:
        published = self.list_all()
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        key = create_key_file(draft)
        try:
            retired = [{"exp": expires_at, **each} for each in published]  # those before have their time already
            _write_public_keys(self.public_path, [key.public_jwk, *retired[:_MAX_RETIRED]])
            os.replace(draft, self.path)
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be written: {exc.strerror}") from exc
        finally:
            draft.unlink(missing_ok=True)
        return key

    def _load(self) -> None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._create()
            status = os.stat(self.path)
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be read: {exc.strerror}") from exc
        version = (status.st_mtime_ns, status.st_ino)
        if self._key is None or version != self._version:
            self._key = read_key_file(self.path)
            self._version = version

    def _create(self) -> None:
        """The file appears complete or not at all; if another process was faster, its key is used."""
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = create_key_file(draft)
            os.link(draft, self.path)
            _write_public_keys(self.public_path, [key.public_jwk])
        except FileExistsError:
            pass
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be written: {exc.strerror}") from exc
        finally:
            draft.unlink(missing_ok=True)


def _read_public_keys(path: Path) -> tuple[dict[str, Any], ...]:
    """Raises ConfigError."""
    try:
        content = path.read_bytes()
        # A shell empties the file of `identity show --json > FILE` before the command reads it.
        return msgspec.json.decode(content, type=PublicKeySet).keys if content else ()
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: the public keys of the node cannot be read: {exc}") from exc


def _write_public_keys(path: Path, keys: list[dict[str, Any]]) -> None:
    """Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(PublicKeySet(tuple(keys))), indent=2) + b"\n")
    os.replace(draft, path)
