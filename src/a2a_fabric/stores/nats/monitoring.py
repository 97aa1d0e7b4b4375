"""Whether servers write to disk before they confirm: asked at their monitoring port, since clients are not told.

Only for addresses with `monitor=http://HOST:8222,…`. A server that says that it confirms first is refused. One that
does not answer is told of and stops nothing: a node must start while a server of its cluster is down."""

from __future__ import annotations

import asyncio
import logging
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

import msgspec

from a2a_fabric.core.errors import StoreUnusable

_log = logging.getLogger(__name__)

_TIMEOUT = 2.0
_MAX_BYTES = 1 << 20
_SECOND = 1_000_000_000


class _Config(msgspec.Struct, frozen=True):
    sync_always: bool = False
    sync_interval: int = 0  # nanoseconds


class _JetStream(msgspec.Struct, frozen=True):
    config: _Config = _Config()


class _Variables(msgspec.Struct, frozen=True):
    server_name: str = ""
    jetstream: _JetStream = _JetStream()


async def check_writes_are_synced(monitors: tuple[str, ...], address: str) -> None:
    """Raises StoreUnusable."""
    replies = await asyncio.gather(*(asyncio.to_thread(_read, monitor) for monitor in monitors), return_exceptions=True)
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


def _read(monitor: str) -> _Variables:
    opener = build_opener(ProxyHandler({}))
    with opener.open(f"{monitor.rstrip('/')}/varz", timeout=_TIMEOUT) as reply:
        return msgspec.json.decode(reply.read(_MAX_BYTES), type=_Variables)
