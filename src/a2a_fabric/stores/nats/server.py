"""What the server must offer, checked before the store is used; and the two streams, created by the first node."""

from __future__ import annotations

import asyncio
import logging
import re
from http.client import HTTPException
from typing import Any
from urllib.request import ProxyHandler, build_opener

import msgspec

from a2a_fabric.core.errors import StoreUnusable
from a2a_fabric.nats.connection import NatsUnavailable
from a2a_fabric.stores.nats.errors import MAJORITY_ADVICE, STREAM_NOT_FOUND, JetStreamRefused, build_without_jetstream
from a2a_fabric.stores.nats.log import JetStream, StreamInfo

_log = logging.getLogger(__name__)

_OLDEST_SERVER = (2, 10)
_SMALLEST_PAYLOAD = 64 << 10
_CLUSTER_REPLICAS = 3
_DISCOVERY_TIME = 2.0
_CREATION_TIME = 5.0
_MONITOR_TIMEOUT = 2.0
_MONITOR_BYTES = 1 << 20
_SECOND = 1_000_000_000
_VERSION = re.compile(r"(\d+)\.(\d+)")


class _Created(msgspec.Struct, frozen=True):
    did_create: bool = False


class _Config(msgspec.Struct, frozen=True):
    sync_always: bool = False
    sync_interval: int = 0  # nanoseconds


class _JetStream(msgspec.Struct, frozen=True):
    config: _Config = _Config()


class _Variables(msgspec.Struct, frozen=True):
    server_name: str = ""
    jetstream: _JetStream = _JetStream()


class StreamNames(msgspec.Struct, frozen=True):
    """The streams and subjects of a store, all under its name."""

    name: str

    @property
    def log(self) -> str:
        return f"{self.name}_log"

    @property
    def log_subject(self) -> str:
        return f"{self.name}.log"

    @property
    def snapshots(self) -> str:
        return f"{self.name}_snapshots"

    @property
    def snapshots_subject(self) -> str:
        return f"{self.name}.snapshots"


async def check_server(jetstream: JetStream, address: str) -> None:
    """Raises StoreUnusable, NatsUnavailable, JetStreamRefused."""
    info = jetstream.connection.server_info
    version = str(info.get("version", "0"))
    numbers = _VERSION.match(version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        raise StoreUnusable(f"{address} is nats-server {version}; the store needs {oldest} or newer", store=address)
    if int(info.get("max_payload", 0)) < _SMALLEST_PAYLOAD:
        raise StoreUnusable(
            f"{address} takes messages of {info.get('max_payload', 0)} bytes only: set `max_payload` of the server to "
            f"{_SMALLEST_PAYLOAD} or more; 1 MB is usual",
            store=address,
        )
    try:
        await jetstream.ask("INFO")
    except NatsUnavailable as exc:
        if not info.get("jetstream") and "responds" in str(exc):
            raise build_without_jetstream(address) from exc
        if info.get("cluster") and jetstream.connection.is_connected:
            raise NatsUnavailable(f"its JetStream does not answer; {MAJORITY_ADVICE}") from exc
        raise


async def check_writes_are_synced(monitors: tuple[str, ...], address: str) -> None:
    """Ask servers at their monitoring whether they write to disk before they confirm. Raises StoreUnusable.

    A server that does not answer stops nothing: a node must start while a server of its cluster is down.
    """
    replies = await asyncio.gather(
        *(asyncio.to_thread(_read_variables, monitor) for monitor in monitors), return_exceptions=True
    )
    for monitor, reply in zip(monitors, replies, strict=True):
        if isinstance(reply, OSError | HTTPException | msgspec.MsgspecError):
            _log.warning("%s cannot be asked for `sync_interval` of its server: %s", monitor, reply)
        elif isinstance(reply, BaseException):
            raise reply
        elif not reply.jetstream.config.sync_always:
            raise StoreUnusable(
                f"{address}: the server {reply.server_name} confirms writes before they are on disk (it syncs every "
                f"{reply.jetstream.config.sync_interval / _SECOND:g} s), so a power cut may take confirmed writes. Set "
                "`sync_interval: always` under `jetstream` in its configuration, or remove `monitor` from the address",
                store=address,
            )


def _read_variables(monitor: str) -> _Variables:
    opener = build_opener(ProxyHandler({}))
    with opener.open(f"{monitor.rstrip('/')}/varz", timeout=_MONITOR_TIMEOUT) as reply:
        return msgspec.json.decode(reply.read(_MONITOR_BYTES), type=_Variables)


async def find_log(jetstream: JetStream, names: StreamNames) -> StreamInfo | None:
    """The stream of the log, if there is such a store."""
    try:
        return await jetstream.read_info(names.log)
    except JetStreamRefused as exc:
        if exc.err_code == STREAM_NOT_FOUND:
            return None
        raise


async def ensure_streams(
    jetstream: JetStream, names: StreamNames, replicas: int | None, max_bytes: int | None, address: str
) -> None:
    """Create the streams, or give existing ones more replicas. Raises StoreUnusable, and as `JetStream.ask`.

    Without `replicas` there are three in a cluster of three or more servers, else one; never fewer than before.
    """
    wanted = replicas or await _choose_replicas(jetstream, names)
    log_config = {
        "name": names.log,
        "description": "the log of an a2a-fabric store: do not change or delete messages",
        "subjects": [names.log_subject],
        "storage": "file",
        "retention": "limits",
        "discard": "new",  # a full log refuses writes, and never drops them
        "max_bytes": max_bytes or -1,
        "num_replicas": wanted,
        "deny_delete": True,
        "compression": "s2",
    }
    snapshots_config = {
        "name": names.snapshots,
        "description": "snapshots of an a2a-fabric store",
        "subjects": [f"{names.snapshots_subject}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "num_replicas": wanted,
    }
    await _ensure_stream(jetstream, snapshots_config, replicas is not None, address)
    if await _ensure_stream(jetstream, log_config, replicas is not None, address):
        _log.warning(
            "created the store %s (replicas: %d). Every server needs `sync_interval: always` under `jetstream`, or a "
            "power cut may take confirmed writes; servers do not tell clients whether they have it",
            names.name,
            wanted,
        )
    if wanted == 1 and jetstream.connection.server_info.get("cluster"):
        _log.warning("%s keeps one replica only: the store stops with the server that holds it", address)


async def _ensure_stream(jetstream: JetStream, config: dict[str, Any], is_explicit: bool, address: str) -> bool:
    """Whether it was created."""
    try:
        info = await jetstream.read_info(config["name"])
    except JetStreamRefused as exc:
        if exc.err_code != STREAM_NOT_FOUND:
            raise
        reply = await jetstream.ask(f"STREAM.CREATE.{config['name']}", config, timeout=10.0)
        await _wait_until_known(jetstream, config["name"])
        return msgspec.json.decode(reply, type=_Created).did_create
    existing = info.config
    differences = [key for key in ("subjects", "storage", "discard", "retention") if existing.get(key) != config[key]]
    if differences:
        raise StoreUnusable(
            f"{address}: the stream {config['name']} was not made by this program ({', '.join(differences)} differ); "
            "name another store: nats://HOST/NAME",
            store=address,
        )
    has, wanted = int(existing.get("num_replicas", 1)), int(config["num_replicas"])
    changed = {"num_replicas": wanted} if wanted > has or (is_explicit and wanted != has) else {}
    if config.get("max_bytes", -1) > 0 and existing.get("max_bytes") != config["max_bytes"]:
        changed["max_bytes"] = config["max_bytes"]
    if changed:
        await jetstream.ask(f"STREAM.UPDATE.{config['name']}", {**existing, **changed}, timeout=10.0)
    return False


async def _wait_until_known(jetstream: JetStream, stream: str) -> None:
    """A cluster confirms a stream that another node has asked for before all its servers know of it."""
    ends_at = asyncio.get_running_loop().time() + _CREATION_TIME
    while True:
        try:
            await jetstream.read_info(stream)
            return
        except JetStreamRefused as exc:
            if exc.err_code != STREAM_NOT_FOUND or asyncio.get_running_loop().time() > ends_at:
                raise
        await asyncio.sleep(0.05)


async def _choose_replicas(jetstream: JetStream, names: StreamNames) -> int:
    """The servers of a cluster that has just started get to know each other within a moment, so a new store waits."""
    connection = jetstream.connection
    if not connection.server_info.get("cluster"):
        return 1
    ends_at = asyncio.get_running_loop().time() + _DISCOVERY_TIME
    if connection.known_servers < _CLUSTER_REPLICAS and await find_log(jetstream, names) is None:
        while connection.known_servers < _CLUSTER_REPLICAS and asyncio.get_running_loop().time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return _CLUSTER_REPLICAS if connection.known_servers >= _CLUSTER_REPLICAS else 1
