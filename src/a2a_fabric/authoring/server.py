"""`agent.run()`: serves an agent as its own process, on a port or on its standard streams."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

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
    listener = _listen(host, port)
    bound_port = listener.getsockname()[1]
    display_host = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"{agent.agent_id} listens on http://{display_host}:{bound_port}\n")
    sys.stderr.flush()
    config = uvicorn.Config(
        HTTPApp(agent), lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_GRACE
    )
    signal.signal(signal.SIGTERM, _ignore_repeated_signal)
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise SystemExit(f"Cannot listen on {host}:{port}: {exc.strerror}") from exc


def _ignore_repeated_signal(signum: int, frame: FrameType | None) -> None:
    """uvicorn raises the signal again after its shutdown, which is ignored. A second signal stops at once."""
    signal.signal(signum, signal.SIG_DFL)
