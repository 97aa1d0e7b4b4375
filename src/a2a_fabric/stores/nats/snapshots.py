"""Snapshots of the state in a second stream, so that the log stays short and a new node need not read all of it.

A snapshot is a copy of the database, compressed, in numbered chunks under a subject of its own, which names the last
sequence in it. Its last message, the manifest, makes it count. Two nodes may write snapshots at the same time: each has
its own subject, and the newest complete one is used."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import sqlite3
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

import msgspec

from a2a_fabric.core.errors import StoreCorrupt
from a2a_fabric.nats.connection import NatsUnavailable
from a2a_fabric.stores.nats.errors import JetStreamRefused
from a2a_fabric.stores.nats.log import JetStream
from a2a_fabric.stores.nats.replica import Replica

T = TypeVar("T")
InThread = Callable[..., Awaitable[Any]]

_log = logging.getLogger(__name__)

_READ_SIZE = 1 << 20
_MAX_CHUNK = 512 << 10
_ATTEMPTS = 5  # for one chunk, while a leader is elected
_PAUSE = 1.0
_INTERVAL, _FULL_INTERVAL = 5.0, 1.0  # seconds between two snapshots, at least


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    token: str
    chunks: int
    size: int
    digest: str  # SHA-256 of the compressed bytes


class Snapshots:
    def __init__(self, jetstream: JetStream, stream: str, subject: str, address: str, folder: Path | None) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._address = address
        self._folder = folder

    async def find_newest(self) -> SnapshotManifest | None:
        """Raises NatsUnavailable, JetStreamRefused."""
        while newest := max(await self._list(), default=None):
            subject = self._build_subject(*newest, "manifest")
            message = await self._jetstream.read_message(self._stream, last_by_subj=subject)
            if message is not None:  # else a newer one has just replaced it
                return msgspec.json.decode(message.data, type=SnapshotManifest)
        return None

    async def write(self, copy_to: Callable[[Path], int]) -> SnapshotManifest:
        """Make a copy, and store it. Raises NatsUnavailable, JetStreamRefused; then the chunks are removed again."""
        with tempfile.TemporaryDirectory(prefix="a2a-fabric-", dir=self._folder, ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "snapshot.db"
            sequence = await asyncio.to_thread(copy_to, path)
            token = uuid4().hex[:12]
            try:
                return await self._upload(path, sequence, token)
            except BaseException:
                await self._remove(sequence, token)
                raise

    async def read(self, manifest: SnapshotManifest, load: Callable[[Path], Awaitable[None]]) -> None:
        """Fetch a snapshot and hand its file to `load`. Raises StoreCorrupt, NatsUnavailable, JetStreamRefused."""
        with tempfile.TemporaryDirectory(prefix="a2a-fabric-", dir=self._folder, ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "snapshot.db"
            with path.open("wb") as file:
                await self._download(manifest, file)
            await load(path)

    async def shorten(self, log_stream: str, manifest: SnapshotManifest, kept: int) -> None:
        """Remove what this snapshot replaces: older snapshots, and the log before it, except for `kept` messages."""
        first = manifest.sequence + 1 - kept
        if first > 1:
            await self._jetstream.purge(log_stream, seq=first)
        for sequence, token in await self._list():
            if sequence < manifest.sequence:
                await self._remove(sequence, token)

    async def _list(self) -> list[tuple[int, str]]:
        info = await self._jetstream.read_info(self._stream, subjects_filter=f"{self._subject}.*.*.manifest")
        pattern = re.compile(rf"{re.escape(self._subject)}\.(\d+)\.([0-9a-f]+)\.manifest")
        return [(int(match[1]), match[2]) for match in map(pattern.fullmatch, info.state.subjects) if match]

    def _build_subject(self, sequence: int, token: str, last: str) -> str:
        return f"{self._subject}.{sequence}.{token}.{last}"

    async def _upload(self, path: Path, sequence: int, token: str) -> SnapshotManifest:
        digest = hashlib.sha256()
        count = size = 0
        async for chunk in self._compress(path):
            digest.update(chunk)
            size += len(chunk)
            await self._publish(self._build_subject(sequence, token, str(count)), chunk)
            count += 1
        manifest = SnapshotManifest(sequence=sequence, token=token, chunks=count, size=size, digest=digest.hexdigest())
        await self._publish(self._build_subject(sequence, token, "manifest"), msgspec.json.encode(manifest))
        return manifest

    async def _compress(self, path: Path) -> AsyncIterator[bytes]:
        chunk_size = min(_MAX_CHUNK, int(self._jetstream.connection.server_info["max_payload"]) - 4096)
        compressor = zlib.compressobj(1)
        pending = b""
        with path.open("rb") as file:
            while plain := await asyncio.to_thread(file.read, _READ_SIZE):
                pending += await asyncio.to_thread(compressor.compress, plain)
                while len(pending) >= chunk_size:
                    yield pending[:chunk_size]
                    pending = pending[chunk_size:]
        pending += compressor.flush()
        for start in range(0, len(pending), chunk_size):
            yield pending[start : start + chunk_size]

    async def _download(self, manifest: SnapshotManifest, file: IO[bytes]) -> None:
        digest, decompressor = hashlib.sha256(), zlib.decompressobj()
        for number in range(manifest.chunks):
            subject = self._build_subject(manifest.sequence, manifest.token, str(number))
            message = await _repeat(lambda: self._jetstream.read_message(self._stream, last_by_subj=subject))  # noqa: B023
            if message is None:
                raise StoreCorrupt(self._address, f"chunk {number} of snapshot {manifest.sequence} is missing")
            digest.update(message.data)
            await asyncio.to_thread(file.write, decompressor.decompress(message.data))
        file.write(decompressor.flush())
        if digest.hexdigest() != manifest.digest:
            raise StoreCorrupt(self._address, f"snapshot {manifest.sequence} differs from its checksum")

    async def _publish(self, subject: str, data: bytes) -> None:
        """Publishing twice does no harm: the last message of a subject counts."""
        await _repeat(lambda: self._jetstream.publish(subject, data))

    async def _remove(self, sequence: int, token: str) -> None:
        try:
            # The manifest first, so that no node finds a snapshot whose chunks are going.
            await self._jetstream.purge(self._stream, filter=self._build_subject(sequence, token, "manifest"))
            await self._jetstream.purge(self._stream, filter=self._build_subject(sequence, token, "*"))
        except Exception as exc:
            _log.info("snapshot %d could not be removed: %s", sequence, exc)


class Snapshotter:
    """Writes a snapshot of the copy whenever the log has grown enough, and shortens the log."""

    def __init__(
        self, snapshots: Snapshots, replica: Replica, log_stream: str, max_messages: int, max_bytes: int
    ) -> None:
        self._snapshots = snapshots
        self._replica = replica
        self._log_stream = log_stream
        # Nodes reach the limits at different times, so mostly one of them does the work.
        self._max_messages = int(max_messages * random.uniform(1, 1.5))
        self._max_bytes = int(max_bytes * random.uniform(1, 1.5))
        self._kept = max_messages // 20  # for nodes that are a little behind
        self._last = 0  # sequence of the newest snapshot that is known
        self._last_size = 0
        self._bytes = 0  # of the log since then
        self._is_requested = False
        self._not_before = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def add_bytes(self, size: int) -> None:
        self._bytes += size

    def request(self) -> None:
        """The log is full: write one as soon as possible."""
        self._is_requested = True

    def start_if_due(self) -> None:
        sequence, now = self._replica.sequence, asyncio.get_running_loop().time()
        is_long = sequence - self._last >= self._max_messages or self._bytes >= max(
            self._max_bytes, 2 * self._last_size
        )
        is_busy = self._task is not None and not self._task.done()
        if (is_long or self._is_requested) and sequence > self._last and not is_busy and now >= self._not_before:
            self._not_before = now + (_FULL_INTERVAL if self._is_requested else _INTERVAL)
            self._task = asyncio.create_task(self._write())

    async def load(self, in_thread: InThread) -> bool:
        """The newest snapshot into the copy; False if there is none. Raises as `Snapshots.read` does.

        A snapshot may be removed while it is read, because a newer one was written.
        """
        for attempt in range(_ATTEMPTS):
            manifest = await self._snapshots.find_newest()
            if manifest is None:
                return False
            try:
                await self._snapshots.read(manifest, lambda path: in_thread(self._replica.load, path))
            except StoreCorrupt:
                if attempt == _ATTEMPTS - 1 or manifest == await self._snapshots.find_newest():
                    raise
            else:
                self._note(manifest)
                return True
        return False

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        try:
            newest = await self._snapshots.find_newest()
            if newest is None or newest.sequence <= self._last or self._is_requested:
                newest = await self._snapshots.write(self._replica.copy_to)
                _log.info("snapshot of the store up to %d: %d bytes", newest.sequence, newest.size)
                await self._snapshots.shorten(self._log_stream, newest, 0 if self._is_requested else self._kept)
            self._note(newest)
        except (StoreCorrupt, NatsUnavailable, JetStreamRefused, sqlite3.Error, OSError) as exc:
            _log.warning("a snapshot of the store failed, and is tried again: %s", exc)

    def _note(self, manifest: SnapshotManifest) -> None:
        self._last, self._last_size, self._bytes, self._is_requested = manifest.sequence, manifest.size, 0, False


async def _repeat(operation: Callable[[], Awaitable[T]]) -> T:
    for _ in range(_ATTEMPTS - 1):
        try:
            return await operation()
        except NatsUnavailable:
            await asyncio.sleep(_PAUSE)
    return await operation()
