"""The server process: sockets, signals, and a shutdown that lets running calls finish.

SIGTERM drains the node. First it says that it is not ready and serves on, so that load balancers send no more
requests; each reply ends its connection meanwhile. Then it closes its port and waits for the calls in flight. SIGINT
leaves out the first part, since a person waits. A second signal stops at once. SIGHUP reads the configuration again.

SIGHUP and SIGUSR1 that come before or after that do not end the process (`core/held_signals.py`)."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.held_signals import hand_over_signals, hold_signals
from a2a_fabric.core.ports import load_module
from a2a_fabric.doors.tls import ServerTLS
from a2a_fabric.web.asgi import WebApp
from a2a_fabric.web.garbage import GarbageCollection
from a2a_fabric.web.protocol import HttpProtocol

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
_PORTS_TRIED = 50
_NOT_READY_SECONDS = 5.0
_BACKLOG = 2048
_MAX_WAITING = 2 * _BACKLOG  # connections that the system has accepted and the node has not
_RESERVED_FILES = 1024  # open files besides connections of clients and for calls: programs, stores


def _build_websocket_protocol(**settings: Any) -> asyncio.Protocol:
    """Most nodes never serve a WebSocket, so the library is loaded by the first one."""
    protocol: asyncio.Protocol = load_module("a2a_fabric.web.websocket_protocol").WebSocketProtocol(**settings)
    return protocol


class HttpServer(uvicorn.Server):
    """Uvicorn with other signal handling and sockets that are already open."""

    def __init__(
        self,
        app: WebApp,
        sockets: list[socket.socket],
        *,
        drain_timeout: float,
        connections: int,
        message_bytes: int = 4 * 1024 * 1024,
        request_seconds: float = 10.0,
        unread_seconds: float = 60.0,
        not_ready_seconds: float | None = None,
        tls: ServerTLS | None = None,
    ) -> None:
        """`not_ready_seconds`: how long a drain says that the node is not ready before its port is closed; None: a
        few seconds if a load balancer asks for readiness.
        """
        class_attributes = {
            "hot": app.hot_urls,
            "waiting": {},
            "request_seconds": request_seconds,
            "unread_seconds": unread_seconds,
            "asks_certificate": tls is not None and tls.asks_certificate,
        }
        config = uvicorn.Config(
            app,
            http=type("HotProtocol", (HttpProtocol,), class_attributes),
            ws=_build_websocket_protocol,  # type: ignore[arg-type]  # uvicorn only calls it
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
            timeout_graceful_shutdown=max(1, round(drain_timeout)),
            timeout_keep_alive=75,
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        if tls is not None:
            config.load()
            config.ssl = tls.context  # already checked; uvicorn would read the files only when it serves
        self._handshake_seconds = request_seconds
        self._listen_sockets = sockets
        self._web = app
        self._not_ready_seconds = not_ready_seconds
        self._is_stopping = False
        app.on_middleware_change = self._forget_heads
        if sockets:
            app.set_listen_url(url_from_socket(sockets[0], is_secure=tls is not None))

    def set_limits(
        self,
        *,
        drain_timeout: float,
        connections: int,
        message_bytes: int,
        request_seconds: float,
        unread_seconds: float,
        not_ready_seconds: float | None,
    ) -> None:
        """Open connections take over the times; the number of connections is compared with each new one. WebSockets
        that are open keep the size of their messages.
        """
        self.config.ws_max_size = message_bytes
        self.config.limit_concurrency = connections
        self.config.timeout_graceful_shutdown = max(1, round(drain_timeout))
        protocol: Any = self.config.http_protocol_class
        protocol.request_seconds, protocol.unread_seconds = request_seconds, unread_seconds
        self._handshake_seconds = request_seconds
        self._not_ready_seconds = not_ready_seconds

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in `run_until_stopped`."""
        yield

    async def run_until_stopped(
        self, on_hangup: Callable[[], None] | None = None, on_user_signal: Callable[[], None] | None = None
    ) -> None:
        """Serve until a signal or `stop`. `on_user_signal` is for SIGUSR1."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {signal.SIGINT: self.stop, signal.SIGTERM: self.drain}
        if on_hangup is not None and sys.platform != "win32":
            handlers[signal.SIGHUP] = on_hangup
        if on_user_signal is not None and sys.platform != "win32":
            handlers[signal.SIGUSR1] = on_user_signal
        handled_signals = tuple(handlers)
        try:
            for number, handler in handlers.items():
                loop.add_signal_handler(number, handler)
            hand_over_signals(handlers)
        except (NotImplementedError, RuntimeError, ValueError):
            handled_signals = ()  # not the main thread: the starting code calls `stop`
        garbage_task = asyncio.ensure_future(GarbageCollection(lambda: not self.server_state.tasks).run())
        try:
            await self.serve(sockets=self._listen_sockets)
        finally:
            garbage_task.cancel()
            for number in handled_signals:
                loop.remove_signal_handler(number)
            if handled_signals:
                hold_signals()  # while the node closes its store

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does for open sockets, but with a time limit for TLS handshakes."""
        if self.config.ssl is None or sockets is None:
            await super().startup(sockets)
            return
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._make_protocol,
                sock=each,
                ssl=self.config.ssl,
                backlog=self.config.backlog,
                ssl_handshake_timeout=self._handshake_seconds,
            )
            for each in sockets
        ]
        self.started = True

    def _make_protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        instance: asyncio.Protocol = protocol(config=self.config, server_state=self.server_state, app_state={})
        return instance

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._web.stop()
        self._end_connections_after_replies()
        await self._close_listeners()
        await super().shutdown(sockets)

    async def _close_listeners(self) -> None:
        """Close the port, but serve the connections that the system has accepted for it: they would be reset."""
        spare = [each.dup() for each in self._listen_sockets if each.fileno() >= 0]
        for server in self.servers:
            server.close()
        for each in self._listen_sockets:
            each.close()
        accepted = [connection for each in spare for connection in _accept_waiting(each)]
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        connecting = [loop.connect_accepted_socket(self._make_protocol, each, ssl=tls) for each in accepted]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*connecting, return_exceptions=True), self._handshake_seconds)

    def drain(self) -> None:
        """Say that the node is not ready, serve on for a while, then stop."""
        health = self._web.health
        pause = self._not_ready_seconds
        if pause is None:
            pause = _NOT_READY_SECONDS if health.is_watched else 0.0
        if self._is_stopping or not pause:
            self.stop()
            return
        self._is_stopping = True
        _log.info("draining: not ready for %g s, then running calls may finish; stop again to end them", pause)
        health.start_draining()
        self._end_connections_after_replies()
        asyncio.get_running_loop().call_later(pause, self._close_port)

    def _forget_heads(self) -> None:
        """Open connections remember the application that answered their last request; others count now."""
        for connection in self.server_state.connections:
            if isinstance(connection, HttpProtocol):
                connection.forget_head()

    def _end_connections_after_replies(self) -> None:
        """A client that keeps its connection would send its next request just when the connection is closed."""
        protocol: Any = self.config.http_protocol_class
        protocol.hot = {}  # the fast path does not look
        protocol.is_draining = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.end_after_reply()

    def _close_port(self) -> None:
        self.should_exit = True

    def stop(self) -> None:
        if not self._is_stopping and not self.should_exit:
            self._is_stopping = True
            calls = len(self.server_state.tasks)
            _log.info("stopping: %d running calls may finish; stop again to end them", calls)
            self.should_exit = True
        else:
            self.should_exit = True
            self.force_exit = True
            # Uvicorn would log each cancelled call as a bug.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            for task in self.server_state.tasks:
                task.cancel()


def _accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """The connections in the queue of a listener, which is closed then."""
    accepted: list[socket.socket] = []
    with listener:
        listener.setblocking(False)
        while len(accepted) < _MAX_WAITING:
            try:
                connection, _ = listener.accept()
            except OSError:  # none is left, or the system has no more files
                break
            connection.setblocking(False)
            accepted.append(connection)
    return accepted


def raise_file_limit(connections: int, calls: int) -> int:
    """Raise the limit of open files as far as the system allows; returns how many connections are possible.

    Each of `calls` may have a connection to its agent.
    """
    if resource is None:
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = calls + _RESERVED_FILES
    wanted = files = connections + reserved
    if hard != resource.RLIM_INFINITY:
        files = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        soft = files
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = max(soft - reserved, soft // 2)
    _log.warning(
        "the system allows %d open files: %d connections fit, not %d (limits.connections)", soft, allowed, connections
    )
    return allowed


def bind_socket(host: str, port: int, *, exact_port: bool, is_shared: bool = False) -> socket.socket:
    """A listening socket on this port or, unless `exact_port` is set, on the next free one. Raises ConfigError.

    `is_shared`: other sockets of this user may listen there, too, and share the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last_error: OSError | None = None
    for candidate in [port] if exact_port or port == 0 else range(port, min(port + _PORTS_TRIED, 65536)):
        # The protocol is explicit because asyncio disables Nagle's algorithm only for sockets that are marked as TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(_BACKLOG)
        except OSError as exc:
            listener.close()
            last_error = exc
            continue
        listener.setblocking(False)
        return listener
    is_in_use = last_error is not None and last_error.errno == errno.EADDRINUSE
    hint = ". Stop the program that listens there, or choose another port; 0 is any free one" if is_in_use else ""
    raise ConfigError(f"cannot listen on {host}:{port}: {last_error.strerror if last_error else 'no port'}{hint}")


def url_from_socket(listener: socket.socket, *, is_secure: bool = False) -> str:
    address: Any = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'https' if is_secure else 'http'}://{host}:{address[1]}"
