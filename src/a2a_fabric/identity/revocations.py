"""Revocation lists of issuers: the ids of passports and mandates that no longer count.

A list is JSON: `{"revoked": [{"id": "pp-…", "at": "…", "reason": "…"}]}`. A file is read again when it changes, so a
revocation takes effect with the next request. A list at a URL is fetched again after 30 seconds. If a list cannot be
read, the last one stays in use for an hour; after that, what its issuer signed is refused.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from a2a_fabric.core.errors import ConfigError, FabricError, RateLimited
from a2a_fabric.core.files import lock_folder, replace_text

LIST_SECONDS = 30.0  # between two fetches
MAX_LIST_AGE = 3600.0
_MAX_BYTES = 16 * 1024 * 1024
_RETRY_AFTER = 5.0
_EMPTY_LIST = '{"revoked": []}'
_UNREADABLE = "the revocation list cannot be read"

_log = logging.getLogger(__name__)


class RevokedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    at: str = ""
    reason: str = ""


class RevocationDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    revoked: tuple[RevokedEntry, ...] = ()


class RevocationList(Protocol):
    """`refresh` is awaited before a credential is verified; `find_revoked` is asked with every request."""

    refresh_seconds: float  # after so long a verified credential has to be verified again

    async def refresh(self) -> None: ...

    def find_revoked(self, ids: Iterable[str]) -> str | None:
        """One of the ids that is revoked. Raises RateLimited if the list is too old."""
        ...


class _Revocations:
    """The last list that could be read, and its age."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._ids: frozenset[str] = frozenset()
        self._read_at: float | None = None

    def load(self, document: bytes) -> None:
        """Raises ValueError."""
        self._ids = frozenset(entry.id for entry in parse_revocations(document).revoked)
        self._read_at = time.monotonic()

    def touch(self) -> None:
        """The list was looked at, and has not changed."""
        self._read_at = time.monotonic()

    @property
    def age(self) -> float:
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def find(self, ids: Iterable[str]) -> str | None:
        if self.age > MAX_LIST_AGE:
            raise RateLimited(
                f"The credentials cannot be checked now: the revocation list {self._where} could not be read for "
                f"{MAX_LIST_AGE / 60:.0f} minutes. Try again later",
                _RETRY_AFTER,
            )
        return next((each for each in ids if each in self._ids), None)


class FileRevocations:
    def __init__(self, path: Path) -> None:
        """Raises ConfigError if there is no such list."""
        self.refresh_seconds = float("inf")
        self._path = path
        self._revocations = _Revocations(path.name)
        self._version: tuple[int, int, int] | None = None
        self._warned = ""
        try:
            self._load()
        except (OSError, ValueError) as exc:
            hint = (
                f". Make an empty one: echo '{_EMPTY_LIST}' > {path.name}" if isinstance(exc, FileNotFoundError) else ""
            )
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"{path}: {_UNREADABLE}: {reason}{hint}") from exc

    async def refresh(self) -> None:
        """A file is looked at with every request."""

    def find_revoked(self, ids: Iterable[str]) -> str | None:
        try:
            self._load()
            self._warned = ""
        except (OSError, ValueError) as exc:
            if str(exc) != self._warned:  # once, not with every request
                self._warned = str(exc)
                _log.warning("%s: %s, so the last list stays in use: %s", self._path, _UNREADABLE, exc)
        return self._revocations.find(ids)

    def _load(self) -> None:
        status = os.stat(self._path)
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == self._version:
            self._revocations.touch()
            return
        self._version = None
        self._revocations.load(read_list(self._path))
        self._version = version


class FetchedRevocations:
    """`fetch` returns the document, or raises FabricError."""

    def __init__(self, url: str, fetch: Callable[[], Awaitable[bytes]]) -> None:
        self.refresh_seconds = LIST_SECONDS
        self._url = url
        self._fetch = fetch
        self._revocations = _Revocations(url)
        self._tried_at = -LIST_SECONDS

    async def refresh(self) -> None:
        now = time.monotonic()
        if now - self._tried_at < LIST_SECONDS and self._revocations.age < MAX_LIST_AGE:
            return
        self._tried_at = now
        try:
            self._revocations.load(await self._fetch())
        except (FabricError, ValueError) as exc:
            _log.warning("%s: %s, so the last list stays in use: %s", self._url, _UNREADABLE, exc)

    def find_revoked(self, ids: Iterable[str]) -> str | None:
        return self._revocations.find(ids)


def parse_revocations(document: bytes) -> RevocationDocument:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(document, type=RevocationDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"it is not a revocation list: {exc}") from exc


def read_list(path: Path) -> bytes:
    """Raises OSError, and ValueError for a file that is too large."""
    with path.open("rb") as file:
        document = file.read(_MAX_BYTES + 1)
    if len(document) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MB")
    return document


def add_revocation(path: Path, credential_id: str, reason: str = "") -> bool:
    """Add an id to the list, which is created if there is none; false if it was there. Raises ConfigError,
    and Conflict while another command changes it.
    """
    with lock_folder(path):
        try:
            entries = parse_revocations(read_list(path)).revoked
        except FileNotFoundError:
            entries = ()
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
        if any(entry.id == credential_id for entry in entries):
            return False
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        document = RevocationDocument(revoked=(*entries, RevokedEntry(id=credential_id, at=at, reason=reason)))
        replace_text(path, msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    return True
