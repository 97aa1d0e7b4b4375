"""Runtimes whose modules take long to import: other packages', found by their entry points."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline, CallTimeout
from a2a_fabric.core.retry import BreakerPolicy
from a2a_fabric.registry.runtime_pool import RuntimeLoader, RuntimePool
from a2a_fabric.testing import ScriptedRuntime
from tests.fixtures.node import WAIT_TIMEOUT, running
from tests.unit.made import agent, call

SLOW = """
import pathlib, time
here = pathlib.Path(__file__).parent
(here / "begun").touch()
ends_at = time.monotonic() + 30
while not (here / "gate").exists() and time.monotonic() < ends_at:
    time.sleep(0.01)

from a2a_fabric.testing import ScriptedRuntime

def build(manifest, context):
    return ScriptedRuntime(manifest, [{"answer": "worth waiting for"}])
"""


def plug_in(folder: Path, name: str, source: str) -> dict[str, Any]:
    """An installed package with a runtime of that name, and an agent behind it."""
    about = folder / f"{name}_runtime-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}_runtime\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[a2a_fabric.runtimes]\n{name} = {name}_runtime:build\n")
    (folder / f"{name}_runtime.py").write_text(source)
    return {"agent_id": name, "runtime": name, "endpoint": {"uri": "test:"}, "capabilities": [{"name": "wait"}]}


def percy() -> Agent:
    percy = Agent("percy")

    @percy.capability
    async def reason(task: str) -> dict[str, Any]:
        return {"answer": "at once"}

    return percy


async def test_while_one_runtime_is_imported_the_node_answers_and_other_agents_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = plug_in(tmp_path, "sluggish", SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    async with running(percy(), manifests=[slow]) as node:
        waiting = [asyncio.ensure_future(node.ask("sluggish", "wait")) for _ in range(3)]
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110  # files send no events
                await asyncio.sleep(0.01)
        assert (await node.ask("percy", "reason"))["result"]["answer"] == "at once"
        assert (await node.send("GET", "/health")).status == 200
        assert not any(task.done() for task in waiting)
        (tmp_path / "gate").touch()
        answers = [envelope["result"]["answer"] for envelope in await asyncio.gather(*waiting)]
        assert answers == ["worth waiting for"] * 3


async def test_a_slow_module_of_another_package_does_not_hold_up_built_in_runtimes() -> None:
    yard = Yard()
    waiting = asyncio.ensure_future(yard.fleet.find_handler(agent("ann", "x", runtime="slow"))(call(), ignore_event))
    await asyncio.to_thread(yard.begun.wait, WAIT_TIMEOUT)
    async with asyncio.timeout(WAIT_TIMEOUT / 2):
        await yard.fleet.find_handler(agent("bob", "x", runtime="quick"))(call(), ignore_event)
    assert not waiting.done()
    yard.gate.set()
    await waiting
    assert yard.loaded == ["slow", "quick"]


class Yard:
    """A fleet whose runtimes are there when the gate is open."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.loaded: list[str] = []
        self._error = error
        self.fleet = RuntimePool(
            ScriptedRuntime,
            loader=RuntimeLoader(lambda manifest: manifest.runtime or "quick", self._load, {"quick"}),
            breaker=BreakerPolicy(),
            calls_per_agent=10,
            drain_timeout=1.0,
        )

    def _load(self, kind: str) -> None:
        self.loaded.append(kind)
        if kind == "slow":
            self.begun.set()
            self.gate.wait(WAIT_TIMEOUT)
        if self._error is not None:
            raise self._error


async def test_a_runtime_is_imported_once_however_many_agents_and_calls_wait_for_it() -> None:
    yard = Yard()
    agents = [agent(name, "x", runtime="slow") for name in ("ann", "bob")]
    calls = [asyncio.ensure_future(yard.fleet.find_handler(each)(call(), ignore_event)) for each in agents * 3]
    await asyncio.to_thread(yard.begun.wait, WAIT_TIMEOUT)
    yard.gate.set()
    await asyncio.gather(*calls)
    assert yard.loaded == ["slow"]
    assert yard.fleet.find_handler(agents[0]) is yard.fleet.get_live_runtime(agents[0]).handler  # no wait any more


async def test_who_cannot_wait_for_the_import_is_told_so_in_time_and_the_import_goes_on() -> None:
    yard = Yard()
    slow = agent("ann", "x", runtime="slow")
    with pytest.raises(CallTimeout):
        await yard.fleet.find_handler(slow)(call(timeout_ms=20), ignore_event)
    yard.gate.set()
    await yard.fleet.find_handler(slow)(call(), ignore_event)
    assert yard.loaded == ["slow"]


@pytest.mark.parametrize("error", [ImportError("no such library"), RuntimeError("an odd module")])
async def test_what_cannot_be_imported_takes_its_agent_offline_and_is_tried_again(error: Exception) -> None:
    yard = Yard(error)
    broken = agent("ann", "x", runtime="broken")
    for _ in range(2):
        with pytest.raises(AgentOffline) as caught:
            await yard.fleet.find_handler(broken)(call(), ignore_event)
        assert str(error) in caught.value.full_message
    assert yard.loaded == ["broken", "broken"]


async def test_closing_waits_for_no_import() -> None:
    yard = Yard()
    calling = asyncio.ensure_future(yard.fleet.find_handler(agent("ann", "x", runtime="slow"))(call(), ignore_event))
    await asyncio.to_thread(yard.begun.wait, WAIT_TIMEOUT)
    try:
        async with asyncio.timeout(WAIT_TIMEOUT / 2):
            await yard.fleet.aclose()
            await asyncio.gather(calling, return_exceptions=True)
        assert not yard.gate.is_set()
    finally:
        yard.gate.set()
