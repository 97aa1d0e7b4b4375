"""The server process: sockets, signals, and a stop that lets running calls finish.

The first SIGINT or SIGTERM takes no new connection and waits for the calls in
flight; the second stops at once.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.web.asgi import Web
from a2a_fabric.web.protocol import Protocol

_log = logging.getLogger(__name__)
_PORTS_TRIED = 50


class Server(uvicorn.Server):
    """Uvicorn with our signals and our sockets."""

    def __init__(
        self,
        app: Web,
        sockets: list[socket.socket],
        *,
        drain: float,
        connections: int,
        message_bytes: int = 4 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        hot = {path.encode(): (path, door) for path, door in app.hot.items()}
        config = uvicorn.Config(
            app,
            http=type("HotProtocol", (Protocol,), {"hot": hot}),
            ws="websockets-sansio",
            ws_max_size=message_bytes,
            ws_ping_interval=20,
            ws_ping_timeout=20,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,
            limit_concurrency=connections,
            timeout_graceful_shutdown=max(1, round(drain)),
            timeout_keep_alive=75,
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        if tls is not None:
            config.load()
            config.ssl = tls  # read and checked already; uvicorn would read the files when it serves
        self._own_sockets = sockets
        self._web = app
        if sockets:
            app.served_at(url_of(sockets[0], is_secure=tls is not None))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in `run_until_stopped`."""
        yield

    async def run_until_stopped(self) -> None:
        """Serve until a signal or `stop`."""
        loop = asyncio.get_running_loop()
        watched: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in watched:
                loop.add_signal_handler(number, self.stop)
        except (NotImplementedError, RuntimeError, ValueError):
            watched = ()  # not the main thread: whoever started us stops us
        _settle_memory()
        try:
            await self.serve(sockets=self._own_sockets)
        finally:
            for number in watched:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._web.stop()
        await super().shutdown(sockets)

    def stop(self) -> None:
        if not self.should_exit:
            calls = len(self.server_state.tasks)
            _log.info("stopping: %d running calls may finish; stop again to end them", calls)
            self.should_exit = True
        else:
            self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would log each call we end as a bug
            for task in self.server_state.tasks:
                task.cancel()


def _settle_memory() -> None:
    """What the start made stays; looking through it again and again for garbage costs a tenth of every call."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def bind(host: str, port: int, *, exactly: bool) -> socket.socket:
    """A listening socket; unless `exactly` this port is wanted, the next free one. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for candidate in [port] if exactly or port == 0 else range(port, min(port + _PORTS_TRIED, 65536)):
        # The protocol must be named: asyncio turns Nagle's delay off only for sockets that say they are TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(2048)
        except OSError as exc:
            listener.close()
            last = exc
            continue
        listener.setblocking(False)
        return listener
    hint = ". Stop who listens there, or choose another port; 0 is any free one" if _is_taken(last) else ""
    raise ConfigError(f"cannot listen on {host}:{port}: {last.strerror if last else 'no port'}{hint}")


def _is_taken(error: OSError | None) -> bool:
    return error is not None and error.errno == errno.EADDRINUSE


def certificate(cert: Path, key: Path, password: str | None = None) -> ssl.SSLContext:
    """What a server needs to speak TLS. Raises ConfigError naming the file that is no good."""
    for file in (cert, key):
        try:
            file.open("rb").close()
        except OSError as exc:
            raise ConfigError(f"tls: {file}: {exc.strerror}") from exc
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password or "")
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(f"tls: {cert} and {key} are no certificate with its key: {exc}") from exc
    return context


def url_of(listener: socket.socket, *, is_secure: bool = False) -> str:
    address: Any = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'https' if is_secure else 'http'}://{host}:{address[1]}"
