from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.health_monitor import HealthMonitor
from a2a_fabric.registry.registry import Registry
from a2a_fabric.testing import ScriptedRuntime
from tests.marks import requirement
from tests.unit.made import Listed, agent, until


class Post:
    """A watch over scripted agents."""

    def __init__(self, *runtimes: ScriptedRuntime, interval: float = 0, unbuildable: FabricError | None = None) -> None:
        self.runtimes = {runtime.manifest.agent_id: runtime for runtime in runtimes}
        self.unbuildable = unbuildable
        policy = HealthPolicy(interval=interval, timeout=0.05, failures=2)
        self.source = Listed("test", [runtime.manifest for runtime in runtimes])
        self.registry = Registry([self.source], [], HealthTracker(policy))
        self.watch = HealthMonitor(self.registry, self._runtime_of, policy)

    async def _runtime_of(self, manifest: Manifest) -> Runtime:
        if self.unbuildable is not None and manifest.agent_id == "broken":
            raise self.unbuildable
        return self.runtimes[manifest.agent_id]

    async def look(self) -> None:
        await self.registry.load(self.source)
        async with asyncio.timeout(30):
            await self.watch.probe_due()

    def status(self, agent_id: str) -> str:
        return self.registry.health.get(agent_id).status


@requirement("001-47")
async def test_an_agent_that_answers_its_probe_is_online() -> None:
    post = Post(ScriptedRuntime(agent("percy", "reason")))
    await post.look()
    assert post.status("percy") == "online"


@requirement("001-09", "001-47")
async def test_an_agent_of_unknown_runtime_is_listed_offline_with_the_reason_and_others_work() -> None:
    post = Post(
        ScriptedRuntime(agent("broken", "x", runtime="htp")),
        ScriptedRuntime(agent("percy", "reason")),
        unbuildable=AgentOffline("no runtime of kind 'htp' (nearest: http)"),
    )
    await post.look()
    assert [m.agent_id for m in post.registry.list_agents()] == ["broken", "percy"]
    assert (post.status("broken"), post.status("percy")) == ("offline", "online")
    assert post.registry.health.get("broken").error == "no runtime of kind 'htp' (nearest: http)"


@pytest.mark.parametrize("said", [AgentOffline("refused"), BadInput("what?"), "offline"])
async def test_a_probe_that_fails_in_any_way_counts_against_the_agent(said: Any) -> None:
    post = Post(ScriptedRuntime(agent("percy", "reason"), health=[said]))
    await post.look()
    assert post.registry.health.get("percy").failures == 1
    assert post.registry.health.get("percy").error


async def test_an_agent_that_says_it_is_degraded_is_not_offline_however_often_it_says_so() -> None:
    post = Post(ScriptedRuntime(agent("percy", "reason"), health=["degraded"]), interval=0.01)
    await post.registry.load(post.source)
    task = asyncio.ensure_future(post.watch.run())
    await until(lambda: post.runtimes["percy"].probes > 5)
    task.cancel()
    assert post.status("percy") == "degraded"
    assert post.registry.health.get("percy").error == "the agent says it is degraded"


async def test_a_probe_that_never_ends_is_ended() -> None:
    class Silent(ScriptedRuntime):
        async def health(self) -> Any:
            await asyncio.sleep(60)

    post = Post(Silent(agent("percy", "reason")), ScriptedRuntime(agent("coder", "code")))
    await post.look()
    assert post.registry.health.get("percy").error == "No answer within 0.05 s"
    assert post.status("coder") == "online"


async def test_a_runtime_that_breaks_its_contract_does_not_stop_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    class Wild(ScriptedRuntime):
        async def health(self) -> Any:
            raise ZeroDivisionError

    post = Post(Wild(agent("percy", "reason")), ScriptedRuntime(agent("coder", "code")))
    await post.look()
    assert post.status("coder") == "online"
    assert "probing agent percy failed" in caplog.text


async def test_an_agent_that_declared_nothing_is_asked_once_what_it_offers() -> None:
    post = Post(ScriptedRuntime(agent("percy"), publishes=agent("percy", "reason")))
    await post.look()
    await until(lambda: post.registry.find_by_capability("reason"))


@pytest.mark.parametrize("error", ["No answer within 0.05 s", "nobody listens"])
async def test_an_agent_that_starts_later_than_the_node_is_soon_asked_again(error: str) -> None:
    class Starting(ScriptedRuntime):
        started = asyncio.Event()

        async def describe(self) -> Manifest:
            if not self.started.is_set() and error == "nobody listens":
                raise AgentOffline(error)
            await self.started.wait()
            return await super().describe()

    percy = Starting(agent("percy"), publishes=agent("percy", "reason"))
    post = Post(percy, interval=3600)
    await post.registry.load(post.source)
    task = asyncio.ensure_future(post.watch.run())
    await until(lambda: post.registry.health.get("percy").error == error)
    percy.started.set()
    await until(lambda: post.registry.find_by_capability("reason"))
    await until(lambda: post.status("percy") == "online")
    task.cancel()


async def test_no_agent_is_probed_twice_in_a_round_and_new_ones_are_soon() -> None:
    post = Post(ScriptedRuntime(agent("percy", "reason")))
    await post.registry.load(post.source)
    post.registry.add_listener(post.watch.on_catalog_changed)
    task = asyncio.ensure_future(post.watch.run())
    await until(lambda: post.runtimes["percy"].probes)
    newcomer = ScriptedRuntime(agent("coder", "code"))
    post.runtimes["coder"] = newcomer
    post.registry.register_agent(newcomer.manifest)
    await until(lambda: newcomer.probes)
    task.cancel()
    assert post.runtimes["percy"].probes == 1
