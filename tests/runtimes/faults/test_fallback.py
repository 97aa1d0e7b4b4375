"""When an agent of any runtime fails, one of another answers; and all the second attempts together stay few."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import FabricError, Forbidden
from tests.fixtures.faulty import FAULTS, Asked
from tests.fixtures.node import PSK, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.faults.reached import A_PROGRAM, AT_AN_ADDRESS, CAPABILITY, Reached

ANSWER = {"answer": "instead"}
OFFERED = [{"name": CAPABILITY}]


def stand_in(agent_id: str = "stand-in", **about: Any) -> Agent:
    agent = Agent(agent_id, **about)

    @agent.capability(name=CAPABILITY)
    async def act(task: str) -> str:
        return "instead"

    return agent


def failing(reached: Reached, place: str | list[str], wrong: str) -> dict[str, Any]:
    """Nothing is said about repeating its work, and the operator names who else can do it."""
    manifest = reached.manifest(place, wrong)
    return {**manifest, "capabilities": OFFERED, "fallbacks": ["stand-in"]}


def used(envelope: dict[str, Any]) -> tuple[str, ...]:
    assert envelope["ok"], envelope
    assert envelope["result"] == ANSWER
    fallback = envelope["fallback"]
    return fallback["requested"], fallback["used"], fallback["reason"]


async def answers(manifests: Sequence[dict[str, Any]], timeout_ms: int) -> list[Any]:
    """Of all at once. The stand-in is Python in the node itself."""
    config = {"routing": {"retries": {"floor": 1000}}, "health": {"interval": 0}}
    async with running(stand_in(), manifests=manifests, config=config) as node:
        asked = (node.ask(each["agent_id"], CAPABILITY, "go", timeout_ms=timeout_ms) for each in manifests)
        return list(await asyncio.gather(*asked))


@requirement("001-38", "001-39", "001-41")
async def test_from_an_agent_that_is_not_there_of_every_runtime_to_one_of_another() -> None:
    async with FAULTS["refused connection"].standing() as place:
        gone = [failing(each, place.url, "gone") for each in AT_AN_ADDRESS]
        gone += [failing(each, ["./no-such-program"], "gone") for each in A_PROGRAM]
        for manifest, envelope in zip(gone, await answers(gone, 20_000), strict=True):
            assert used(envelope)[:2] == (manifest["agent_id"], "stand-in")
            assert "offline" in used(envelope)[2]
            assert envelope["fallback"]["attempts"][-1] == "stand-in@local: ok"


@requirement("001-38", "001-39")
async def test_from_an_agent_in_the_node_to_one_behind_http() -> None:
    async with listening(stand_in().app) as url:
        other = {"agent_id": "stand-in", "runtime": "http", "endpoint": {"uri": url}}
        nowhere = {"agent_id": "gone", "runtime": "python", "endpoint": {"uri": "python:nobody_wrote_this:agent"}}
        gone = {**nowhere, "capabilities": OFFERED, "fallbacks": ["stand-in"]}
        async with running(manifests=[gone, other]) as node:
            assert used(await node.ask("gone", CAPABILITY))[:2] == ("gone", "stand-in")


@requirement("001-38", "001-39", "001-44")
async def test_from_an_agent_that_takes_too_long_of_every_runtime_to_one_of_another() -> None:
    async with FAULTS["read hang"].standing() as place:
        slow = [failing(each, place.url, "slow") for each in AT_AN_ADDRESS]
        for manifest, envelope in zip(slow, await answers(slow, 3_000), strict=True):
            assert used(envelope)[:2] == (manifest["agent_id"], "stand-in")
            assert used(envelope)[2] in ("timeout", "offline", f"{manifest['agent_id']} is offline")


@requirement("001-38", "001-39")
async def test_from_an_agent_that_breaks_of_every_runtime_to_one_of_another() -> None:
    async with AsyncExitStack() as stack:
        broken = []
        for each in AT_AN_ADDRESS:
            place = await stack.enter_async_context(FAULTS["500 with HTML"].standing(each.greeting))
            broken.append(failing(each, place.url, "broken"))
        for manifest, envelope in zip(broken, await answers(broken, 20_000), strict=True):
            assert used(envelope)[:2] == (manifest["agent_id"], "stand-in")


def plainly(asked: Asked) -> tuple[int, Any] | None:
    """An agent whose streams break, and whose plain replies do not."""
    wants_events = "event-stream" in asked.headers.get("accept", "")
    return None if wants_events else (200, {"ok": True, "result": {"answer": "in one piece"}})


@requirement("001-41")
async def test_a_stream_that_breaks_becomes_a_plain_reply_of_the_same_agent() -> None:
    async with FAULTS["reset in mid-stream"].standing(plainly) as place:
        capability = {"name": CAPABILITY, "streaming": True, "idempotent": True}
        agent = {"agent_id": "a", "runtime": "http", "endpoint": {"uri": place.url}, "capabilities": [capability]}
        async with running(manifests=[agent]) as node:
            events = await node.events("a", CAPABILITY)
    final = events[-1]["data"]
    assert final["result"] == {"answer": "in one piece"}
    assert final["fallback"]["degraded"] == "non-streaming"
    assert final["fallback"]["attempts"] == ["a@local: interrupted", "a@local: ok"]
    assert "without streaming" in events[1]["data"]["message"]


@requirement("001-41")
async def test_callers_of_untrusted_origin_are_refused_and_work_never_moves_to_less_trusted_agents() -> None:
    async with FAULTS["refused connection"].standing() as place:
        trusted = {
            "agent_id": "trusted",
            "runtime": "http",
            "endpoint": {"uri": place.url},
            "capabilities": [{"name": CAPABILITY, "idempotent": True}],
            "trust_tier": "org",
        }
        keys = [{"id": "stranger", "key": "the-key-of-a-stranger", "trust": "public"}]
        config = {"auth": {"keys": keys}, "routing": {"peers": "capability"}}
        async with running(stand_in(trust_tier="public"), manifests=[trusted], config=config) as node:
            alone = await node.ask("trusted", CAPABILITY)
            preview = await node.operation("fabric.route.preview", {"agent_id": "trusted", "capability": CAPABILITY})
            async with FabricClient(node.url, "the-key-of-a-stranger") as stranger:
                with pytest.raises(Forbidden, match="trust tier"):
                    await stranger.call("trusted", CAPABILITY, "go")
                assert (await stranger.call("stand-in", CAPABILITY, "go")).data == ANSWER
    assert alone["error_code"] == "AGENT_OFFLINE"
    assert alone["error_details"]["agent_id"] == "trusted"
    (refused,) = preview["result"]["refused"]
    assert refused["agent_id"] == "stand-in"
    assert "public" in refused["reason"]


@requirement("001-38")
async def test_the_retries_of_clients_and_the_fallbacks_of_the_gateway_do_not_multiply() -> None:
    """Three agents that all fail after having worked: many calls by a client that itself tries again where it may."""
    calls, floor, share = 60, 5, 0.2
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(FAULTS["500 with HTML"].standing(count_of)) for _ in range(3)]
        manifests = [
            {
                "agent_id": f"a{n}",
                "runtime": "http",
                "endpoint": {"uri": each.url},
                "capabilities": OFFERED,
                "fallbacks": ["a1", "a2"],
            }
            for n, each in enumerate(places)
        ]
        retries = {"floor": floor, "share": share, "seconds": 3600}  # so that on a slow machine all are recent as well
        patient = {"health": {"interval": 0, "failures": 100_000}, "breaker": {"failures": 100_000}}
        config = {"routing": {"retries": retries}, **patient}
        node = await stack.enter_async_context(running(manifests=manifests, config=config))
        fabric = await stack.enter_async_context(FabricClient(node.url, PSK))
        before = sum(asked.values())
        failures = [await failure(fabric) for _ in range(calls)]
        attempts = sum(asked.values()) - before
        metrics = (await node.send("GET", "/metrics")).body.decode()
    assert calls < attempts <= calls * (1 + share) + floor
    assert "retry budget of agent 'a0' is used up" in failures[-1].message
    assert failures[-1].details["not_retried"]
    assert 'fabric_retries_total{status="refused",target_id="a0"}' in metrics


asked: dict[str, int] = {}


def count_of(request: Asked) -> tuple[int, Any] | None:
    """Counts the calls, and lets them fail; looks at its health are none."""
    if request.method != "POST":
        return 200, {}
    asked[request.place] = asked.get(request.place, 0) + 1
    return None


async def failure(fabric: FabricClient) -> FabricError:
    with pytest.raises(FabricError) as caught:
        await fabric.call("a0", CAPABILITY, "go")
    return caught.value
