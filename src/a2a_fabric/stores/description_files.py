"""Descriptions of agents as one file each in a folder, for nodes that keep nothing else.

`a2a-fabric mcp --agents FILE` starts such a node for each client, often several at once. A file is replaced as a
whole, so a reader finds the old description or the new one, and the last writer wins. The name of a file is the agent
and the connection; the time of the file is the moment at which the agent was last seen. Only this user can read it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.registration import StoredDescription
from a2a_fabric.stores.rows import DESCRIPTIONS_BYTES

T = TypeVar("T")

_SUFFIX = ".json"
_DRAFT = ".draft"
_SEPARATOR = "@"  # quoted in the names before and after it


class DescriptionFiles:
    """A `DescriptionStore`. The folder is created by the first `put`; without it nothing is remembered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, *, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[StoredDescription]:
        return await self._run(lambda: list(self._read(after, limit)))

    async def put(self, descriptions: Sequence[StoredDescription]) -> None:
        await self._run(lambda: self._put(descriptions))

    async def prune(self, before: float) -> int:
        return await self._run(lambda: self._prune(before))

    async def _run(self, work: Callable[[], T]) -> T:
        """In a thread: a home folder may be on a slow disk. Raises StoreError."""
        try:
            return await asyncio.to_thread(work)
        except OSError as exc:
            raise StoreError(f"{exc.filename or self._folder}: {exc.strerror}") from exc

    def _list_files(self) -> Iterator[tuple[tuple[str, str], Path]]:
        """The key and the path of each description."""
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                agent_id, separator, connection = path.name.removesuffix(_SUFFIX).partition(_SEPARATOR)
                if separator and path.name.endswith(_SUFFIX):
                    yield (unquote(agent_id), unquote(connection)), path

    def _read(self, after: tuple[str, str], limit: int) -> Iterator[StoredDescription]:
        size = count = 0
        for key, path in sorted(self._list_files()):
            if key <= after or count >= limit:
                continue
            try:
                body, seen_at = path.read_bytes(), path.stat().st_mtime
            except FileNotFoundError:  # another process has just removed it
                continue
            size, count = size + len(body), count + 1
            if count > 1 and size > DESCRIPTIONS_BYTES:
                return
            yield StoredDescription(agent_id=key[0], connection=key[1], body=body, seen_at=seen_at)

    def _put(self, descriptions: Sequence[StoredDescription]) -> None:
        for folder in (self._folder.parent, self._folder):  # the mode is that of the last one only
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in descriptions:
            name = _SEPARATOR.join(quote(part, safe="") for part in (each.agent_id, each.connection))
            draft = self._folder / f".{secrets.token_hex(8)}{_DRAFT}"
            try:
                with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(each.body)
                os.utime(draft, (each.seen_at, each.seen_at))
                draft.replace(self._folder / f"{name}{_SUFFIX}")
            finally:
                draft.unlink(missing_ok=True)

    def _prune(self, before: float) -> int:
        """Drafts of processes that were killed are removed, too."""
        count = 0
        for path in [*(path for _, path in self._list_files()), *self._folder.glob(f".*{_DRAFT}")]:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    count += 1
        return count
