"""The demo agents as a registry source. Network agents share one process, which starts and stops with the node."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.demo.percy import percy
from a2a_fabric.registry.sources.files import read_manifests

MOUNTED = (percy,)  # in the node's own process
UNSTARTED_URL = "http://127.0.0.1:0"

_HERE = Path(__file__).parent
_SERVE = (sys.executable, "-m", "a2a_fabric.demo.serve")
_START_SECONDS = 60.0  # on a busy machine; an idle one needs two
_STOP_SECONDS = 5.0

# The agents describe the rest themselves, as far as their protocols can.
_NETWORK_AGENTS: dict[str, dict[str, Any]] = {
    "scribe": {"runtime": "http", "fallbacks": ("percy",)},
    "units": {"runtime": "mcp"},
    "almanac": {"runtime": "a2a"},
    "morse": {"runtime": "acp"},
    "roman": {"runtime": "rpc", "description": "Writes numbers in Roman numerals, and reads them."},
    "palette": {"runtime": "rest"},
    "lab": {"runtime": "fabric", "description": "Another node, whose agents can be called here."},
    "primes": {"runtime": "grpc"},
}

_SLOW_RUNTIMES = ("mcp", "agent-client")  # their libraries load slowly, so they come last

_log = logging.getLogger(__name__)


class DemoAgents:
    """An agent source. `async with DemoAgents() as source:` starts the process of the network agents."""

    name = "the demo agents"

    def __init__(self) -> None:
        self._process: Process | None = None
        self._urls: dict[str, str] = {}
        self._log_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *_SERVE, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, start_new_session=True
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._log_task is not None:
            await asyncio.wait({self._log_task}, timeout=1)
            self._log_task.cancel()

    async def load(self) -> Sequence[Manifest]:
        if self._process is not None and not self._urls:
            try:
                self._urls = await asyncio.wait_for(self._read_urls(self._process), _START_SECONDS)
            except TimeoutError as exc:
                raise AgentOffline(f"The demo agents did not start within {_START_SECONDS:g} s") from exc
        return await asyncio.to_thread(build_manifests, self._urls)

    async def watch(self, on_change: object) -> None:
        """The demo agents never change."""

    async def _read_urls(self, process: Process) -> dict[str, str]:
        """Read the line with the URLs; warnings of libraries before it go to the log."""
        assert process.stderr is not None  # noqa: S101
        output = deque[str](maxlen=5)
        while line := await process.stderr.readline():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                urls = msgspec.json.decode(line, type=dict[str, str])
                self._log_task = asyncio.ensure_future(_forward_log(process.stderr))
                return urls
            output.append(line.decode(errors="replace").rstrip())
            _log.debug("demo: %s", output[-1])
        raise AgentOffline(f"The demo agents did not start: {' '.join(output)[-300:]}")


def build_manifests(urls: Mapping[str, str] | None = None) -> list[Manifest]:
    """The manifests of all demo agents that are not mounted. Without `urls` the network agents get a dummy address."""
    agent_urls = urls or {name: UNSTARTED_URL for name in _NETWORK_AGENTS if name != "primes"}
    network_agents = [
        Manifest(agent_id=name, endpoint={"uri": agent_urls[name]}, tags=("demo",), **fields)
        for name, fields in _NETWORK_AGENTS.items()
        if name in agent_urls
    ]
    programs = [_with_interpreter(manifest) for manifest in read_manifests(_HERE / "agents.yaml")]
    return sorted([*network_agents, *programs], key=lambda manifest: manifest.runtime in _SLOW_RUNTIMES)


def _with_interpreter(manifest: Manifest) -> Manifest:
    """The manifest of a program with this interpreter and the folder of the demo."""
    _, *arguments = manifest.endpoint["command"]
    folder = "cwd" if manifest.runtime == "process" else "path"
    endpoint = {**manifest.endpoint, "command": [sys.executable, *arguments], folder: str(_HERE)}
    return msgspec.structs.replace(manifest, endpoint=endpoint)


async def _forward_log(stderr: asyncio.StreamReader) -> None:
    """Log what the agents print; lines of level info are logged as debug."""
    with suppress(ValueError):
        while line := await stderr.readline():
            level = logging.DEBUG if b'"level":"info"' in line else logging.INFO
            _log.log(level, "demo: %s", line.decode(errors="replace").rstrip())
