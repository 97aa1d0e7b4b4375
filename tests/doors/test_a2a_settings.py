"""What an operator says about the A2A door is so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from a2a_fabric.agent import Agent
from tests.doors.a2a_agents import percy
from tests.doors.a2a_clients import message
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running

FROM_OUTSIDE = {"Host": "fabric.example"}


def greeter() -> Agent:
    """For everybody."""
    agent = Agent("greeter", trust_tier="public")

    @agent.capability
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return agent


def card(agent_id: str) -> str:
    return f"/agents/{agent_id}/.well-known/agent-card.json"


async def test_cards_of_public_agents_are_shown_to_everybody_and_no_others() -> None:
    async with running(percy(), greeter(), config={"doors": [{"kind": "a2a", "public_cards": True}]}) as node:
        shown = await node.send("GET", card("greeter"), token=None, headers=FROM_OUTSIDE)
        assert (shown.status, shown.json["name"]) == (200, "greeter")
        hidden = await node.send("GET", card("percy"), token=None, headers=FROM_OUTSIDE)
        assert hidden.status == 404
        own = await node.send("GET", "/.well-known/agent-card.json", token=None, headers=FROM_OUTSIDE)
        assert [skill["id"] for skill in own.json["skills"]] == ["greet"]
        body = {"message": message("Ada", skill="greet")}
        sent = await node.send("POST", "/agents/greeter/message:send", token=None, json=body, headers=FROM_OUTSIDE)
        assert sent.status == 401


async def test_a_proxy_on_the_same_machine_gets_no_cards_for_clients_without_a_key() -> None:
    async with running(percy(), config={"doors": [{"kind": "a2a"}]}) as node:
        for path in (card("percy"), "/.well-known/agent-card.json"):
            assert (await node.send("GET", path, token=None)).status == 200
            for proxy in ({"X-Forwarded-For": "203.0.113.9"}, {"X-Real-IP": "203.0.113.9"}, {"Forwarded": "for=_x"}):
                refused = await node.send("GET", path, token=None, headers=proxy)
                assert refused.status == 401
                assert b"percy" not in refused.body
                assert (await node.send("GET", path, headers=proxy)).status == 200, "with a key"


async def test_a_card_names_grpc_as_callers_reach_it_and_says_how_long_it_may_be_kept() -> None:
    door = {"kind": "a2a", "grpc": "127.0.0.1:0", "public_grpc": "grpc.example:443", "card_seconds": 7}
    async with running(percy(), config={"doors": [door]}) as node:
        reply = await node.send("GET", card("percy"))
        places = {each["protocolBinding"]: each["url"] for each in reply.json["supportedInterfaces"]}
        assert places["GRPC"] == "grpc.example:443"
        assert reply.headers["cache-control"] == "private, max-age=7"


async def test_a_quiet_stream_is_kept_open_by_comments(tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    headers = {"Authorization": f"Bearer {PSK}", "A2A-Version": "1.0"}
    body = {"message": message({"data": {"go_on": str(go_on)}}, skill="wait")}
    async with (
        running(percy(), config={"doors": [{"kind": "a2a", "keep_alive": 0.05}]}) as node,
        asyncio.timeout(WAIT_TIMEOUT),
        node.client.post(f"{node.url}/agents/percy/message:stream", json=body, headers=headers) as response,
    ):
        lines: list[bytes] = []
        async for line in response.content:
            lines.append(line)
            if line.startswith(b": "):
                go_on.touch()
        assert any(b"TASK_STATE_COMPLETED" in line for line in lines)
        assert go_on.exists()


async def test_a_node_without_push_says_so_on_its_cards() -> None:
    async with running(percy(), config={"doors": [{"kind": "a2a", "max_push_configs": 0}]}) as node:
        told = (await node.send("GET", card("percy"))).json["capabilities"]
        assert (told["streaming"], told["pushNotifications"]) == (True, False)
