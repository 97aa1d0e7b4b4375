"""Access rules and delegation chains hold at the node that carries out a call of another one, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.propagation import make_chain_entry
from a2a_fabric.core.rules import PolicyRule
from tests.fixtures.mcp_raw import modern
from tests.fixtures.nats import NatsServer
from tests.fixtures.node import Node, eventually, running
from tests.fixtures.percy import Percy

OTHER_RULE = {"name": "something-else", "effect": "deny", "agents": ["nothing"]}


@asynccontextmanager
async def joined(nats: NatsServer, name: str, at: str, *agents: Any, **config: Any) -> AsyncIterator[Node]:
    more = config.pop("mesh", {})
    settings = {"nats": f"nats://127.0.0.1:{nats.port}", "name": at, "heartbeat_seconds": 5, **more}
    async with running(*agents, config={"node_id": name, "mesh": settings, **config}) as node:
        yield node


async def wait_until_online(node: Node, agent_id: str) -> None:
    async def is_online() -> bool:
        return node.fabric.registry.health.get(agent_id).status == "online"

    await eventually(is_online)


@pytest.mark.parametrize("has_rules", [False, True], ids=["no-rules-at-the-entry", "rules-at-the-entry"])
async def test_rules_that_name_doors_and_origins_hold_for_calls_of_other_nodes(
    nats: NatsServer, *, has_rules: bool
) -> None:
    mesh = f"rules-{int(has_rules)}"
    entry_rules = {"policy": [OTHER_RULE]} if has_rules else {}
    async with joined(nats, "near", mesh, **entry_rules) as near, joined(nats, "far", mesh, Percy().agent) as far:
        await wait_until_online(near, "percy")
        named: list[tuple[dict[str, list[str]], bool]] = [
            ({"doors": ["fabric"]}, True),
            ({"doors": ["mcp"]}, False),
            ({"origins": ["127.0.0.0/8"]}, True),
            ({"origins": ["10.0.0.0/8"]}, False),
        ]
        for facts, is_refused in named:
            rule = {"name": "closed", "effect": "deny", **facts}
            far.fabric.active_policy.replace([msgspec.convert(rule, PolicyRule)])
            envelope = await near.ask("percy", "reason")
            assert envelope["ok"] != is_refused, (facts, envelope)
            if is_refused:
                assert (envelope["error_code"], envelope["error_details"]["rule"]) == ("AUTH_DENIED", "closed")
            task = {"agent_id": "percy", "capability": "reason", "task": "go", "async": True}
            as_job = await near.operation("fabric.call", task)
            question = {"job_id": as_job["result"]["job_id"], "wait_ms": 20_000}
            ended = await near.operation("fabric.job.result", question)
            assert ended["ok"] != is_refused, (facts, ended)


async def test_a_client_that_names_a_node_of_another_site_reaches_nothing_that_this_site_does_not_export(
    nats: NatsServer,
) -> None:
    percy, hidden = Percy(), Percy("hidden")
    async with (
        joined(nats, "near", "border") as near,
        joined(
            nats, "far", "border", percy.agent, hidden.agent, mesh={"site": "plant", "exports": {"agents": ["percy"]}}
        ),
    ):
        await wait_until_online(near, "percy")
        assert near.fabric.registry.catalog.get("hidden") is None
        task = {"agent_id": "hidden", "capability": "reason", "task": "?"}
        body = {"name": "fabric.call", "arguments": task}
        await near.send("POST", "/mcp/call?session_id=x~far", json=body)
        for path, tool in (("/mcp", "hidden_reason"), ("/agents/hidden/mcp", "reason")):
            ways: list[tuple[dict[str, Any], str]] = [({}, "x~far"), ({"requestState": "x~far"}, "")]
            for more, header in ways:
                params: dict[str, Any] = {"name": tool, "arguments": {"task": "?"}, **more}
                given: dict[str, str] = {"Mcp_Session_Id": header} if header else {}
                headers, message = modern("tools/call", params, meta=None, **given)
                await near.send("POST", path, json=message, headers=headers)
                assert hidden.calls == [], (path, more, header)
        listing = modern("tools/list", {"requestState": "x~far"})
        reply = await near.send("POST", "/agents/hidden/mcp", json=listing[1], headers=listing[0])
        assert reply.status == 404, reply
        assert hidden.calls == []


async def test_an_agent_that_was_called_by_another_node_is_called_by_no_detour_again(nats: NatsServer) -> None:
    percy = Percy()
    async with joined(nats, "near", "chain") as near, joined(nats, "far", "chain", percy.agent) as far:
        await wait_until_online(near, "percy")
        assert (await near.ask("percy", "reason"))["ok"]
        chain = percy.calls[-1].delegation_chain
        assert chain == (make_chain_entry("near", "percy"), make_chain_entry("far", "percy"))
        for node in (far, near):  # what percy calls in turn
            envelope = await node.ask("percy", "reason", delegation_chain=list(chain))
            assert envelope["error_code"] == "AUTH_DENIED", envelope
            assert envelope["error_details"]["reason"] == "LOOP", envelope
        assert len(percy.calls) == 1
