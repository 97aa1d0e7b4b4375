"""The demo fleet as a source of agents. The HTTP one is a process of ours, started and stopped with the node."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
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
_LISTENS = re.compile(rb"listens on (http://\S+)")
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0

_log = logging.getLogger(__name__)


class DemoFleet:
    """`async with DemoFleet() as fleet:` starts what must run; as an agent source it tells where everybody is."""

    name = "the demo fleet"

    def __init__(self) -> None:
        self._process: Process | None = None
        self._uri = ""
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
        programs = await asyncio.to_thread(program_manifests)
        if self._process is not None and not self._uri:
            try:
                self._uri = await asyncio.wait_for(self._where(self._process), _START_SECONDS)
            except TimeoutError as exc:
                raise AgentOffline(f"scribe did not start within {_START_SECONDS:g} s") from exc
        return [scribe_manifest(self._uri), *programs]

    async def watch(self, changed: object) -> None:
        """They never change."""

    async def _where(self, process: Process) -> str:
        assert process.stderr is not None  # noqa: S101
        heard = b""
        while line := await process.stderr.readline():
            heard = line
            if match := _LISTENS.search(line):
                self._listening = asyncio.ensure_future(_drain(process.stderr))
                return match[1].decode()
        raise AgentOffline(f"scribe did not start: {heard.decode(errors='replace').strip()[:300]}")


def scribe_manifest(uri: str) -> Manifest:
    """Everything but its address is asked of the agent itself."""
    endpoint: dict[str, Any] = {"transport": "http", "uri": uri or "http://127.0.0.1:0"}
    return Manifest(agent_id="scribe", runtime="http", endpoint=endpoint, fallbacks=("percy",))


def program_manifests() -> list[Manifest]:
    return [_placed(manifest) for manifest in read_manifests(_HERE / "agents.yaml")]


def _placed(manifest: Manifest) -> Manifest:
    """With this interpreter, in the folder where the programs are."""
    _, *arguments = manifest.endpoint["command"]
    endpoint = {**manifest.endpoint, "command": [sys.executable, *arguments], "cwd": str(_HERE)}
    return msgspec.structs.replace(manifest, endpoint=endpoint)


async def _drain(stderr: asyncio.StreamReader) -> None:
    """What it says goes to our log."""
    with suppress(ValueError):
        while line := await stderr.readline():
            _log.info("scribe: %s", line.decode(errors="replace").rstrip())
