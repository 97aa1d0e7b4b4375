"""Google's ADK through the node: its RemoteA2aAgent in front, an agent of its `to_a2a` behind."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.a2a_agents import percy
from tests.fixtures.agents.a2a_serving import serving
from tests.fixtures.environments import NotInstalled, python_of
from tests.fixtures.node import PSK, Node, running
from tests.fixtures.peers import peer

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENVIRONMENT = "google-adk"
CLIENT = Path(__file__).parent / "adk_client.py"
PROGRAM = Path(__file__).parents[1] / "fixtures" / "agents" / "adk_program.py"
WAIT_TIMEOUT = 90.0  # for a program with a large SDK


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places() -> AsyncIterator[tuple[Node, str]]:
    """A node, and the address of the ADK agent behind it."""
    try:
        await asyncio.to_thread(python_of, ENVIRONMENT)
    except NotInstalled as exc:
        pytest.skip(f"the environment of google-adk cannot be made: {exc}")
    async with AsyncExitStack() as stack:
        adk = await stack.enter_async_context(peer(ENVIRONMENT, PROGRAM))
        sdk = await stack.enter_async_context(serving("jsonrpc"))
        manifests = [
            {"agent_id": "adk", "runtime": "a2a", "endpoint": {"uri": adk}},
            {"agent_id": "everyday", "runtime": "a2a", "endpoint": {"uri": sdk.url}},
        ]
        config = {"doors": [{"kind": kind} for kind in ("fabric", "a2a")]}
        node = await stack.enter_async_context(running(percy(), manifests=manifests, config=config))
        yield node, adk


async def take_turns(url: str, *texts: str) -> list[dict[str, Any]]:
    """What ADK's session has of each turn."""
    interpreter = await asyncio.to_thread(python_of, ENVIRONMENT)
    process = await asyncio.create_subprocess_exec(interpreter, str(CLIENT), url, PSK, *texts, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(WAIT_TIMEOUT):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    turns: list[dict[str, Any]] = json.loads(out)
    assert [turn["errors"] for turn in turns] == [[]] * len(texts)
    return turns


async def test_the_client_of_adk_talks_to_agents_with_several_skills(places: tuple[Node, str]) -> None:
    node, _ = places
    percys, everydays, gateways = await asyncio.gather(
        take_turns(f"{node.url}/agents/percy", "please shout this", "paint a door", "red"),
        take_turns(f"{node.url}/agents/everyday", "you"),
        take_turns(node.url, "please shout that"),
    )
    assert [("PLEASE SHOUT THIS" in str(turn["data"])) for turn in percys] == [True, False, False]
    assert ["Which colour?" in str(turn) for turn in percys] == [False, True, False]
    assert ["Which size?" in str(turn) for turn in percys] == [False, False, True]  # the answer reached the same task
    assert everydays[0]["texts"] == ["heard you"]
    assert "PLEASE SHOUT THAT" in str(gateways[0]["data"])


async def test_an_agent_of_adk_is_the_same_behind_the_node(places: tuple[Node, str]) -> None:
    node, adk = places
    texts = ("please add 3 and 4", "and thank you")
    direct, through = await asyncio.gather(take_turns(adk, *texts), take_turns(f"{node.url}/agents/adk", *texts))
    for turn in (*direct, *through):
        for call in turn["data"]:
            call.pop("id")
    assert through == direct
    assert [turn["texts"] for turn in through] == [["The sum is 7."], ["Hello! You said: and thank you"]]
    assert [call["name"] for call in through[0]["data"]] == ["add"]


async def test_an_agent_of_adk_answers_at_the_fabric_door(places: tuple[Node, str]) -> None:
    node, _ = places
    card = (await node.send("GET", "/agents/adk/.well-known/agent-card.json")).json
    skill = next(each["id"] for each in card["skills"] if "add" in each["id"])
    given = {"agent_id": "adk", "capability": skill, "task": "add 5 and 6"}
    assert (await node.operation("fabric.call", given))["result"]["answer"] == "The sum is 11."
