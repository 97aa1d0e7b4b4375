"""Serves an agent: as its own process, in a running event loop, or in a thread beside a program or a notebook."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

import uvicorn

from a2a_fabric.authoring.contract import ServedAgent
from a2a_fabric.authoring.http import HTTPApp
from a2a_fabric.authoring.jsonl import serve_jsonl

SHUTDOWN_GRACE = 5  # seconds that running calls have left after SIGTERM


def serve(agent: ServedAgent, *, port: int, host: str, stdio: bool, argv: Sequence[str] | None) -> None:
    flags, _ = _build_parser(agent.agent_id, port, host, stdio).parse_known_args(
        argv
    )  # the script may have arguments of its own
    if flags.stdio:
        asyncio.run(serve_jsonl(agent))
    else:
        _serve_http(agent, flags.host, flags.port)


def _build_parser(name: str, port: int, host: str, stdio: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"Serve the agent {name}.")
    parser.add_argument("--port", type=int, default=port, help="TCP port, 0 for any free one (default: %(default)s)")
    parser.add_argument("--host", default=host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--stdio", action="store_true", default=stdio, help="speak JSON lines on stdin and stdout")
    return parser


def _serve_http(agent: ServedAgent, host: str, port: int) -> None:
    try:
        listener = _listen(host, port)
    except OSError as exc:
        raise SystemExit(str(exc)) from exc
    _announce(agent, host, listener)
    signal.signal(signal.SIGTERM, _ignore_repeated_signal)
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(_build_config(agent)).run(sockets=[listener])


async def serve_in_loop(agent: ServedAgent, *, port: int, host: str) -> None:
    """Serve in the running event loop until this is cancelled; running calls may finish. Raises OSError."""
    listener = _listen(host, port)
    _announce(agent, host, listener)
    server = _QuietServer(_build_config(agent))
    with listener:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await asyncio.wait([serving], timeout=2 * SHUTDOWN_GRACE)


class _QuietServer(uvicorn.Server):
    """Leaves the signals to the program whose loop it shares."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RunningAgent:
    """An agent that `start` serves in a thread of its own. Use it as a context manager, or call `stop`."""

    def __init__(self, agent: ServedAgent, *, port: int, host: str) -> None:
        """Raises OSError if the port is taken."""
        self._listener = _listen(host, port)
        self.url = _build_url(host, self._listener)
        self._server = uvicorn.Server(_build_config(agent))
        options = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=options, name=agent.agent_id, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<agent at {self.url}>" if self._thread.is_alive() else "<agent, stopped>"

    def stop(self) -> None:
        """Running calls may finish for a few seconds. Stopping twice changes nothing."""
        self._server.should_exit = True
        self._thread.join(2 * SHUTDOWN_GRACE)
        self._listener.close()


def _build_config(agent: ServedAgent) -> uvicorn.Config:
    return uvicorn.Config(
        HTTPApp(agent), lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_GRACE
    )


def _announce(agent: ServedAgent, host: str, listener: socket.socket) -> None:
    sys.stderr.write(f"{agent.agent_id} listens on {_build_url(host, listener)}\n")
    sys.stderr.flush()


def _build_url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError with a sentence for the author."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise OSError(
            f"Cannot listen on {host}:{port}: {exc.strerror}. Choose another port; 0 takes a free one"
        ) from exc


def _ignore_repeated_signal(signum: int, frame: FrameType | None) -> None:
    """uvicorn raises the signal again after its shutdown, which is ignored. A second signal stops at once."""
    signal.signal(signum, signal.SIG_DFL)
