"""Callers who give an agent less time than a probe has say nothing about it, whatever its runtime."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.retry import CLOSED_BREAKER
from tests.fixtures.faulty import FAULTS
from tests.fixtures.node import running
from tests.marks import requirement
from tests.runtimes.faults.reached import A_PROGRAM, AT_AN_ADDRESS, CAPABILITY

OFFERED = [{"name": CAPABILITY}]
QUIET = {"health": {"interval": 0}}


@requirement("001-47")
async def test_a_call_without_time_says_nothing_about_an_agent_of_any_runtime() -> None:
    async with FAULTS["read hang"].standing() as place:
        slow = [each.manifest(place.url, "slow") for each in AT_AN_ADDRESS]
        slow += [each.manifest(["sh", "-c", "sleep 60"], "slow") for each in A_PROGRAM]
        manifests = [{**manifest, "capabilities": OFFERED} for manifest in slow]
        async with running(manifests=manifests, config=QUIET) as node:
            before = {
                each["agent_id"]: node.fabric.registry.health.get(each["agent_id"]).failures for each in manifests
            }
            for timeout_ms in (1, 20, 200):
                asked = (node.ask(each["agent_id"], CAPABILITY, timeout_ms=timeout_ms) for each in manifests * 6)
                replies = await asyncio.gather(*asked)
                assert not any(reply["ok"] for reply in replies)
            for agent_id, failures in before.items():
                health = node.fabric.registry.health.get(agent_id)
                told = [r for r in replies if (r["error_details"] or {}).get("agent_id") == agent_id]
                assert health.failures <= failures + 1, (agent_id, health, told)  # one by the first look, if any
                manifest = node.fabric.registry.catalog.get(agent_id)
                assert manifest is not None
                live_runtime = node.fabric.runtime_pool.get_live_runtime(manifest)
                assert live_runtime.gate.breaker is CLOSED_BREAKER, (agent_id, live_runtime.gate.breaker, told)
