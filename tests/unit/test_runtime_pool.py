from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentBusy, AgentOffline, ConfigError, FabricError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.retry import BreakerPolicy
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.testing import ScriptedRuntime, Turn
from tests.marks import requirement
from tests.unit.made import agent, call, until


class Yard:
    """Builds scripted runtimes and remembers them."""

    def __init__(
        self, script: Any = ({},), *, build: Callable[[Manifest], Runtime] | None = None, most: int = 10
    ) -> None:
        self.built: list[ScriptedRuntime] = []
        self._script = script
        self.fleet = RuntimePool(build or self._build, breaker=BreakerPolicy(), calls_per_agent=most, drain_timeout=5.0)

    def _build(self, manifest: Manifest) -> Runtime:
        runtime = ScriptedRuntime(manifest, self._script)
        self.built.append(runtime)
        return runtime


PERCY = agent("percy", "reason")
MOVED = agent("percy", "reason", endpoint={"uri": "elsewhere"})


async def test_a_runtime_is_built_on_first_use_and_kept() -> None:
    yard = Yard()
    assert yard.built == []
    for _ in range(3):
        await yard.fleet.find_handler(PERCY)(call(), ignore_event)
    assert len(yard.built) == 1
    assert yard.fleet.get_runtime(PERCY) is yard.built[0]


async def test_another_description_does_not_restart_an_agent() -> None:
    yard = Yard()
    yard.fleet.find_handler(PERCY)
    yard.fleet.on_catalog_changed(Catalog([agent("percy", "reason", description="better words")]))
    assert yard.fleet.get_runtime(PERCY) is yard.built[0]
    assert yard.built[0].closed == 0


@requirement("001-10")
async def test_a_swap_lets_running_calls_finish_and_then_closes_the_old_runtime() -> None:
    yard = Yard([Turn(answer={"answer": "done"}, delay=0.1)])
    running = [asyncio.ensure_future(yard.fleet.find_handler(PERCY)(call(), ignore_event)) for _ in range(3)]
    await asyncio.sleep(0)
    old = yard.built[0]
    yard.fleet.on_catalog_changed(Catalog([MOVED]))
    assert yard.fleet.get_runtime(MOVED) is not old
    assert old.closed == 0
    results = await asyncio.gather(*running)
    assert [result.data for result in results] == [{"answer": "done"}] * 3
    await until(lambda: old.closed)
    assert (old.closed, len(old.calls)) == (1, 3)


async def test_a_runtime_that_was_replaced_is_freed_without_garbage_collection() -> None:
    yard = Yard()
    await yard.fleet.find_handler(PERCY)(call(), ignore_event)
    gate = weakref.ref(yard.fleet.find_handler(PERCY))
    yard.fleet.on_catalog_changed(Catalog())
    await until(lambda: yard.built[0].closed)
    gc.disable()
    try:
        await until(lambda: gate() is None)
    finally:
        gc.enable()


async def test_an_agent_that_left_is_closed_at_once_when_idle() -> None:
    yard = Yard()
    await yard.fleet.find_handler(PERCY)(call(), ignore_event)
    yard.fleet.on_catalog_changed(Catalog())
    await until(lambda: yard.built[0].closed)


async def test_a_call_with_an_old_plan_does_not_bring_back_an_old_runtime() -> None:
    yard = Yard()
    yard.fleet.on_catalog_changed(Catalog([MOVED]))
    yard.fleet.find_handler(PERCY)
    assert yard.built[0].manifest is MOVED
    yard.fleet.on_catalog_changed(Catalog())
    with pytest.raises(AgentOffline, match="has left"):
        yard.fleet.find_handler(PERCY)


@requirement("001-09")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("no runtime of kind 'htp' (nearest: http)"), "no runtime of kind 'htp'"),
        (TypeError("build() takes 1 argument"), "its runtime cannot be built: TypeError: build() takes 1 argument"),
    ],
)
async def test_a_runtime_that_cannot_be_built_takes_only_its_own_agent_offline(error: Exception, said: str) -> None:
    def build(manifest: Manifest) -> Runtime:
        if manifest.agent_id == "percy":
            raise error
        return ScriptedRuntime(manifest)

    yard = Yard(build=build)
    with pytest.raises(AgentOffline) as caught:
        yard.fleet.find_handler(PERCY)
    assert said in caught.value.full_message
    coder = agent("coder", "code")
    assert (await yard.fleet.find_handler(coder)(call("coder"), ignore_event)).data == {}


async def test_a_busy_agent_refuses_what_is_too_much_and_goes_on() -> None:
    yard = Yard([Turn(answer={}, delay=0.05)], most=2)

    async def ask() -> FabricError | None:
        try:
            await yard.fleet.find_handler(PERCY)(call(), ignore_event)
        except FabricError as error:
            return error
        return None

    outcomes = await asyncio.gather(*(ask() for _ in range(5)))
    assert [type(outcome) for outcome in outcomes].count(AgentBusy) == 3
    assert outcomes.count(None) == 2
    assert await ask() is None


async def test_closing_the_pool_closes_every_runtime_even_if_one_fails_to() -> None:
    class Stubborn(ScriptedRuntime):
        async def aclose(self) -> None:
            await super().aclose()
            raise RuntimeError("I will not")

    built: list[ScriptedRuntime] = []

    def build(manifest: Manifest) -> Runtime:
        built.append((Stubborn if manifest.agent_id == "percy" else ScriptedRuntime)(manifest))
        return built[-1]

    yard = Yard(build=build)
    for name in ("percy", "coder"):
        yard.fleet.find_handler(agent(name))
    async with asyncio.timeout(30):
        await yard.fleet.aclose()
    assert [runtime.closed for runtime in built] == [1, 1]
