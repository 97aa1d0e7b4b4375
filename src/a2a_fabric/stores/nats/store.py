"""The NATS store: the SQLite store's tables on every node, kept alike by one log in JetStream.

Reads are local, so they cost what they cost with SQLite, and they go on while NATS is away. Another node's write is
seen within milliseconds. A read that finds nothing asks the log before it says so: a caller may come to this node with
an id that it got from another one a moment ago."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from a2a_fabric.core.errors import ConfigError, JobNotFound, StoreFull, StoreUnusable
from a2a_fabric.core.job import EventPage, HoldRequest, Job
from a2a_fabric.core.logins import LoginRecord
from a2a_fabric.core.message import Message
from a2a_fabric.core.ports import StorePlugin
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.stores import PAGE_BYTES, StoreStatus
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.nats.address import NatsSettings, parse_nats_address
from a2a_fabric.nats.connection import NatsConnection, NatsRefused, NatsUnavailable
from a2a_fabric.stores.address import redact_address
from a2a_fabric.stores.migrate import SchemaStatus, check_schema
from a2a_fabric.stores.nats.errors import NO_PEERS, STARTUP_ADVICE, JetStreamRefused, build_full_at_start, translate
from a2a_fabric.stores.nats.log import JetStream, StreamLog
from a2a_fabric.stores.nats.replica import Replica
from a2a_fabric.stores.nats.server import StreamNames, check_server, check_writes_are_synced, ensure_streams, find_log
from a2a_fabric.stores.nats.snapshots import Snapshots, Snapshotter
from a2a_fabric.stores.nats.writer import ReplicatedWriter
from a2a_fabric.stores.sqlite.connections import read_applied
from a2a_fabric.stores.sqlite.database import Writer
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from a2a_fabric.stores.sqlite.logins import SqliteLogins
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.stores.sqlite.registrations import SqliteRegistrations
from a2a_fabric.stores.sqlite.store import SqlitePorts

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULT_NAME = "a2a_fabric"
_MONITOR = re.compile(r"https?://[^/?#@,\s]+/?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OPTIONS = ("replicas", "max_bytes", "timeout", "folder", "monitor", "snapshot_messages", "snapshot_bytes")
_OPEN_TIMEOUT = 120.0  # to read the whole log, or a large snapshot


class NatsStoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    connection: NatsSettings
    name: str = _DEFAULT_NAME  # of the store; several stores may share one account
    replicas: int | None = None
    max_bytes: int | None = None  # of the log; beyond that, writes are refused
    timeout: float = 10.0  # seconds in which a lost server may come back before callers get an error
    folder: Path | None = None  # for the local copy
    monitor: str = ""  # addresses of the servers' monitoring, with commas
    snapshot_messages: int = 20_000
    snapshot_bytes: int = 128 << 20

    @property
    def monitors(self) -> tuple[str, ...]:
        return tuple(self.monitor.split(",")) if self.monitor else ()

    @property
    def safe_address(self) -> str:
        """The address without its secrets, for messages."""
        return redact_address(self.address)


def settings_from_address(address: str) -> NatsStoreSettings:
    """`nats://USER:PASSWORD@HOST/NAME?replicas=3&max_bytes=…&timeout=…&folder=…`. Raises ConfigError."""
    parsed = parse_nats_address(address)
    options: dict[str, object] = {**parsed.options}
    for name in options.keys() - _OPTIONS:
        raise ConfigError(f"store: a NATS address has no option `{name}`; it has {', '.join(_OPTIONS[:5])}")
    if not _NAME.fullmatch(parsed.name or _DEFAULT_NAME):
        raise ConfigError("store: the name of a store on NATS has letters, digits, - and _ only, at most 40")
    options |= {"address": address, "name": parsed.name or _DEFAULT_NAME}
    try:
        settings = msgspec.convert({**options, "connection": parsed.settings}, NatsStoreSettings, strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"store: an option of the NATS address is wrong: {exc}") from exc
    if settings.replicas is not None and settings.replicas not in (1, 3, 5):
        raise ConfigError("store: replicas is 1, 3 or 5")
    if settings.timeout <= 0:
        raise ConfigError("store: timeout is a number of seconds")
    if not all(_MONITOR.fullmatch(each) for each in settings.monitors):
        raise ConfigError("store: monitor names the monitoring of servers, as in monitor=http://HOST:8222")
    return settings


async def _read_log(writer: Writer) -> None:
    """Returns when the copy has all that was in the log at the time of this call. Raises StoreError."""
    await writer.run(lambda tx: None)


async def _find(writer: Writer, read: Callable[P, Awaitable[T | None]], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What the copy has; if that is nothing, what it has at the end of the log."""
    found = await read(*args, **kwargs)
    if not found:
        await _read_log(writer)
        found = await read(*args, **kwargs)
    return found


class NatsJobs(SqliteJobs):
    async def get(self, job_id: str) -> Job | None:
        return await _find(self._writer, super().get, job_id)

    async def find(self, owner: str, key: str) -> Job | None:
        return await _find(self._writer, super().find, owner, key)

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        try:
            return await super().events(job_id, after=after, limit=limit, max_bytes=max_bytes)
        except JobNotFound:
            await _read_log(self._writer)
            return await super().events(job_id, after=after, limit=limit, max_bytes=max_bytes)

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        return await _find(self._writer, super().take_over, hold, limit) or []


class NatsMessages(SqliteMessages):
    async def get(self, message_id: str) -> Message | None:
        return await _find(self._writer, super().get, message_id)

    async def find(self, owner: str, key: str) -> Message | None:
        return await _find(self._writer, super().find, owner, key)


class NatsRegistrations(SqliteRegistrations):
    async def get(self, agent_id: str) -> Registration | None:
        return await _find(self._writer, super().get, agent_id)


class NatsLogins(SqliteLogins):
    async def get(self, owner: str, agent_id: str) -> LoginRecord | None:
        return await _find(self._writer, super().get, owner, agent_id)


class StoreParts(msgspec.Struct, frozen=True):
    """What a store is made of, closed together."""

    address: str
    jetstream: JetStream
    replica: Replica
    writer: ReplicatedWriter
    notices: TopicSignals

    async def aclose(self) -> None:
        await self.writer.aclose()
        await self.jetstream.connection.aclose()
        self.replica.close()


class NatsStore(SqlitePorts):
    """All ports over one log. Belongs to the event loop in which it was opened."""

    kind = "nats"

    def __init__(self, parts: StoreParts) -> None:
        writer, clock = parts.writer, parts.writer.clock
        super().__init__(parts.replica.build_connections(), parts.address, writer, parts.notices, clock)
        self.jobs: SqliteJobs = NatsJobs(writer, self.reader, clock)
        self.messages: SqliteMessages = NatsMessages(writer, self.reader, clock)
        self.registrations: SqliteRegistrations = NatsRegistrations(writer, self.reader, clock)
        self.logins: SqliteLogins = NatsLogins(writer, self.reader, clock)
        self._parts = parts

    @classmethod
    async def open(cls, settings: NatsStoreSettings) -> NatsStore:
        """Raises StoreError; then the log is as it was."""
        parts = await _connect(settings)
        try:
            with _translated(settings):
                names = StreamNames(settings.name)
                await _retry(
                    settings,
                    lambda: ensure_streams(
                        parts.jetstream, names, settings.replicas, settings.max_bytes, settings.safe_address
                    ),
                )
                await parts.writer.open(asyncio.get_running_loop().time() + _OPEN_TIMEOUT)
        except StoreFull as exc:
            await parts.aclose()
            raise build_full_at_start(settings.safe_address) from exc
        except BaseException:
            await parts.aclose()
            raise
        return cls(parts)

    async def status(self) -> StoreStatus:
        await _read_log(self.writer)
        return await super().status()

    async def aclose(self) -> None:
        await self._parts.aclose()

    def _measure(self) -> int:
        return self._parts.replica.measure()


async def _connect(settings: NatsStoreSettings) -> StoreParts:
    """Connect, and check the server. Raises StoreError."""
    address, names, node = settings.safe_address, StreamNames(settings.name), f"{socket.gethostname()}:{os.getpid()}"
    with _translated(settings):
        # No caller waits for an answer yet, so the server gets twice the time.
        connection = await NatsConnection.open(settings.connection, f"a2a-fabric store {node}", 2 * settings.timeout)
        jetstream = JetStream(connection)
        try:
            await _retry(settings, lambda: check_server(jetstream, address))
            await check_writes_are_synced(settings.monitors, address)
            replica = await asyncio.to_thread(Replica, address, settings.folder)
        except OSError as exc:
            await connection.aclose()
            raise StoreUnusable(f"{address}: the local copy cannot be created ({exc})", store=address) from exc
        except BaseException:
            await connection.aclose()
            raise
    notices = TopicSignals()
    snapshots = Snapshots(jetstream, names.snapshots, names.snapshots_subject, address, settings.folder)
    snapshotter = Snapshotter(snapshots, replica, names.log, settings.snapshot_messages, settings.snapshot_bytes)
    writer = ReplicatedWriter(
        replica,
        StreamLog(jetstream, names.log, names.log_subject),
        snapshotter,
        address,
        node,
        settings.timeout,
        notices.post_all,
    )
    return StoreParts(address, jetstream, replica, writer, notices)


async def _retry(settings: NatsStoreSettings, operation: Callable[[], Awaitable[T]]) -> T:
    """A cluster that has just started has no leader for some seconds, and does not answer."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + 2 * settings.timeout
    while True:
        try:
            return await operation()
        except (NatsUnavailable, JetStreamRefused) as exc:
            if loop.time() >= ends_at or (isinstance(exc, JetStreamRefused) and exc.err_code != NO_PEERS):
                raise
        await asyncio.sleep(0.2)


@contextmanager
def _translated(settings: NatsStoreSettings) -> Iterator[None]:
    try:
        yield
    except (NatsUnavailable, NatsRefused, JetStreamRefused) as exc:
        raise translate(exc, settings.safe_address, STARTUP_ADVICE) from exc


async def inspect_schema(address: str) -> SchemaStatus | None:
    """The schema, read without changing it; None if there is no store of this name. Raises StoreError."""
    settings = settings_from_address(address)
    parts = await _connect(settings)
    try:
        with _translated(settings):
            if await find_log(parts.jetstream, StreamNames(settings.name)) is None:
                return None
            await parts.writer.read_log(asyncio.get_running_loop().time() + _OPEN_TIMEOUT)
        return check_schema("sqlite", read_applied(parts.replica.reader), settings.safe_address)
    finally:
        await parts.aclose()


async def build(address: str) -> NatsStore:
    """The store at `nats://HOST/NAME`. Raises ConfigError, StoreError."""
    return await NatsStore.open(settings_from_address(address))


plugin = StorePlugin(build=build)
