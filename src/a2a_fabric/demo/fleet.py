"""The demo fleet as a source of agents. Those that listen share a process, started and stopped with the node."""

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
from a2a_fabric.registry.files import read_manifests

MOUNTED = (percy,)  # these live in the node's own process

_HERE = Path(__file__).parent
_SERVE = (sys.executable, "-m", "a2a_fabric.demo.serve")
_START_SECONDS = 60.0  # on a busy machine; two on an idle one
_STOP_SECONDS = 5.0
_NOWHERE = "http://127.0.0.1:0"

# Everything else is asked of the agents themselves, as far as their protocols have words for it.
_LISTENING: dict[str, dict[str, Any]] = {
    "scribe": {"runtime": "http", "fallbacks": ("percy",)},
    "units": {"runtime": "mcp"},
    "almanac": {"runtime": "a2a"},
    "morse": {"runtime": "acp"},
    "roman": {"runtime": "rpc", "description": "Writes numbers in Roman numerals, and reads them."},
    "palette": {"runtime": "rest"},
    "lab": {"runtime": "fabric", "description": "Another node; its agents are here too."},
    "primes": {"runtime": "grpc"},
}

_LAST = ("mcp", "agent-client")  # nobody should wait for the libraries that take longest

_log = logging.getLogger(__name__)


class DemoFleet:
    """`async with DemoFleet() as fleet:` starts what must run; as an agent source it tells where everybody is."""

    name = "the demo fleet"

    def __init__(self) -> None:
        self._process: Process | None = None
        self._places: dict[str, str] = {}
        self._listening: asyncio.Task[None] | None = None

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
        if self._listening is not None:
            await asyncio.wait({self._listening}, timeout=1)
            self._listening.cancel()

    async def load(self) -> Sequence[Manifest]:
        if self._process is not None and not self._places:
            try:
                self._places = await asyncio.wait_for(self._where(self._process), _START_SECONDS)
            except TimeoutError as exc:
                raise AgentOffline(f"the demo's agents did not start within {_START_SECONDS:g} s") from exc
        return await asyncio.to_thread(manifests, self._places)

    async def watch(self, changed: object) -> None:
        """They never change."""

    async def _where(self, process: Process) -> dict[str, str]:
        """The line that says where all are; what libraries complain of before it goes to our log."""
        assert process.stderr is not None  # noqa: S101
        said = deque[str](maxlen=5)
        while line := await process.stderr.readline():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                places = msgspec.json.decode(line, type=dict[str, str])
                self._listening = asyncio.ensure_future(_drain(process.stderr))
                return places
            said.append(line.decode(errors="replace").rstrip())
            _log.debug("demo: %s", said[-1])
        raise AgentOffline(f"the demo's agents did not start: {' '.join(said)[-300:]}")


def manifests(places: Mapping[str, str] | None = None) -> list[Manifest]:
    """Of all but those that are mounted; whoever listens is at its place, or nowhere while nothing is started."""
    given = places or {name: _NOWHERE for name in _LISTENING if name != "primes"}
    listening = [
        Manifest(agent_id=name, endpoint={"uri": given[name]}, tags=("demo",), **about)
        for name, about in _LISTENING.items()
        if name in given
    ]
    programs = [_placed(manifest) for manifest in read_manifests(_HERE / "agents.yaml")]
    return sorted([*listening, *programs], key=lambda manifest: manifest.runtime in _LAST)


def _placed(manifest: Manifest) -> Manifest:
    """With this interpreter, in the folder where the programs are."""
    _, *arguments = manifest.endpoint["command"]
    folder = "cwd" if manifest.runtime == "process" else "path"
    endpoint = {**manifest.endpoint, "command": [sys.executable, *arguments], folder: str(_HERE)}
    return msgspec.structs.replace(manifest, endpoint=endpoint)


async def _drain(stderr: asyncio.StreamReader) -> None:
    """What they say goes to our log; the lines of the node among them that all goes well are for who looks closely."""
    with suppress(ValueError):
        while line := await stderr.readline():
            level = logging.DEBUG if b'"level":"info"' in line else logging.INFO
            _log.log(level, "demo: %s", line.decode(errors="replace").rstrip())
