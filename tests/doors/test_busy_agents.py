"""An agent that works on all the calls it takes at a time is busy: every door says so, and none calls it offline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from a2a_fabric.client import FabricClient
from tests.doors.a2a_clients import message, rpc
from tests.doors.test_health_evidence import changes, has_status, listed
from tests.fixtures.mcp_client import client, words
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.fabric_nodes import entry
from tests.runtimes.fabric_nodes import listed as listed_from_afar

JSONL = [sys.executable, str(Path(__file__).parents[1] / "fixtures" / "agents" / "jsonl_program.py")]
ONE_AT_A_TIME = {"limits": {"concurrent_calls_per_agent": 1}}


@asynccontextmanager
async def busy_percy(**config: Any) -> AsyncIterator[tuple[Node, Percy]]:
    """A node whose percy works on the one call it takes; afterwards that call is answered."""
    percy = Percy()
    async with running(percy.agent, config={**ONE_AT_A_TIME, **config}) as node:
        await has_status(node, "online")
        held = asyncio.ensure_future(node.ask("percy", "hold"))
        await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        yield node, percy
        percy.may_go_on.set()
        assert (await held)["ok"]
        assert (await node.ask("percy", "reason"))["ok"]
    assert [each["to"] for each in changes(node)] == ["online"]


@requirement("001-47")
async def test_the_fabric_door_says_busy_and_when_to_come_again() -> None:
    async with busy_percy() as (node, _):
        given = {"agent_id": "percy", "capability": "reason", "task": "go"}
        reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": given})
        assert (reply.status, reply.json["error_code"]) == (429, "RATE_LIMITED")
        assert "busy with 1 calls" in reply.json["error"]
        assert reply.json["error_details"]["reason"] == "busy"
        assert int(reply.headers["retry-after"]) >= 1
        assert (await listed(node))["status"] == "online"


async def test_the_python_client_knows_a_busy_agent_and_waits_for_it() -> None:
    async with busy_percy() as (node, percy), FabricClient(node.url, PSK) as fabric:
        call = asyncio.ensure_future(fabric.call("percy", "reason", "go"))

        async def was_refused() -> bool:
            return '"RATE_LIMITED"' in node.log.getvalue()

        await eventually(was_refused)
        percy.may_go_on.set()
        assert (await asyncio.wait_for(call, WAIT_TIMEOUT)).data["answer"] == "go"


async def test_a_model_reads_that_the_agent_is_busy() -> None:
    async with busy_percy() as (node, _), client(node) as connected:
        refused = await connected.call_tool("percy_reason", {"task": "go"})
        assert refused.is_error
        assert words(refused).startswith("RATE_LIMITED: Agent 'percy' is busy")
        assert (refused.structured_content or {})["error"]["details"]["reason"] == "busy"


async def test_a_task_for_a_busy_agent_waits_until_it_is_free() -> None:
    async with busy_percy() as (node, percy):
        sending = rpc(node, "SendMessage", {"message": message("go", skill="reason")})
        task = asyncio.ensure_future(sending)

        async def was_refused() -> bool:
            return '"RATE_LIMITED"' in node.log.getvalue()

        await eventually(was_refused)
        percy.may_go_on.set()
        reply = await asyncio.wait_for(task, WAIT_TIMEOUT)
        assert reply["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@requirement("001-38")
async def test_a_declared_fallback_answers_for_a_busy_agent_and_says_so() -> None:
    percy, other = Percy(fallbacks=["other"]), Percy("other")
    async with running(percy.agent, other.agent, config=ONE_AT_A_TIME) as node:
        held = asyncio.ensure_future(node.ask("percy", "hold"))
        await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        reply = await node.ask("percy", "reason")
        assert (reply["fallback"]["used"], reply["fallback"]["reason"]) == ("other", "busy")
        percy.may_go_on.set()
        await held


async def test_a_program_with_all_the_calls_it_takes_is_busy_and_online() -> None:
    manifest = {
        "agent_id": "percy",
        "runtime": "process",
        "endpoint": {"command": JSONL, "max_pending": 1},
        "capabilities": [{"name": "echo"}, {"name": "silence", "streaming": True}],
    }
    async with running(manifests=[manifest], config={"health": {"interval": 0.02}}) as node:
        assert (await node.ask("percy", "echo"))["ok"]
        given = {"agent_id": "percy", "capability": "silence", "task": "go"}
        async with node.stream("fabric.call", given) as events:
            reading = aiter(events)
            for _ in range(2):
                await asyncio.wait_for(anext(reading), WAIT_TIMEOUT)
            for _ in range(5):
                reply = await node.ask("percy", "echo")
                assert (reply["error_code"], reply["error_details"]["reason"]) == ("RATE_LIMITED", "busy")
            assert (await listed(node))["status"] == "online"
    assert [each["to"] for each in changes(node)] == ["online"]


SILENT_ABOUT_HEALTH = """
import json, pathlib, sys
for text in sys.stdin:
    asked = json.loads(text)
    if asked.get("name") == "echo":
        print(json.dumps({"id": asked["id"], "ok": True, "result": {}}), flush=True)
    elif asked.get("name") == "fabric.health":
        pathlib.Path(sys.argv[1]).touch()
"""


async def test_what_the_node_itself_asks_a_program_takes_no_callers_place(tmp_path: Path) -> None:
    note = tmp_path / "asked"
    manifest = {
        "agent_id": "percy",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", SILENT_ABOUT_HEALTH, str(note)], "max_pending": 1},
        "capabilities": [{"name": "echo"}],
    }
    async with running(manifests=[manifest], config={"health": {"interval": 0.02, "timeout": WAIT_TIMEOUT}}) as node:
        assert (await node.ask("percy", "echo"))["ok"]

        async def is_asked() -> bool:
            return note.exists()

        await eventually(is_asked)
        reply = await node.ask("percy", "echo")
        assert reply["ok"], reply


async def test_another_nodes_busy_agent_is_busy_here_too() -> None:
    async with busy_percy() as (there, _), running(manifests=[entry(there.url)]) as here:
        await listed_from_afar(here, "lab/percy")
        reply = await here.ask("lab/percy", "reason")
        assert (reply["error_code"], reply["error_details"]["reason"]) == ("RATE_LIMITED", "busy")
        assert (await listed(here, "lab/percy"))["status"] == "online"


@asynccontextmanager
async def refusing_agents(status: int, body: str, **headers: str) -> AsyncIterator[Node]:
    """A node with agents of three runtimes, behind whose address a real server refuses every request."""

    async def refuse(request: Request) -> Response:
        return PlainTextResponse(body, status, headers)

    app = Starlette(routes=[Route("/{path:path}", refuse, methods=["GET", "POST", "DELETE"])])
    async with listening(app) as url:
        quiet, offers = {"health": {"interval": 0}}, [{"name": "go"}]
        manifests: list[dict[str, Any]] = [
            {"agent_id": "plain", "runtime": "http", "endpoint": {"uri": f"{url}/plain"}, "capabilities": offers},
            {"agent_id": "zero", "runtime": "agentzero", "endpoint": {"uri": f"{url}/zero", "transport": "http"}},
            {"agent_id": "mcp", "runtime": "mcp", "endpoint": {"uri": f"{url}/mcp"}, "capabilities": offers},
        ]
        async with running(manifests=manifests, config=quiet) as node:
            yield node


@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        ("not on a Sunday\nand so on", "not on a Sunday"),
        ('{"detail": "not on a Sunday"}', "not on a Sunday"),
        ('{"error": {"message": "not on a Sunday"}}', "not on a Sunday"),
    ],
)
async def test_what_a_server_says_when_it_refuses_is_quoted(body: str, quoted: str) -> None:
    async with refusing_agents(403, body) as node:
        for agent_id, capability in (("plain", "go"), ("mcp", "go"), ("zero", "reason")):
            reply = await node.ask(agent_id, capability)
            assert reply["ok"] is False
            assert quoted in reply["error"], (agent_id, reply["error"])
            assert "and so on" not in reply["error"]


async def test_a_page_for_browsers_is_not_quoted_and_a_long_text_is_cut() -> None:
    async with refusing_agents(403, "<html><h1>Forbidden</h1></html>") as node:
        assert "html" not in (await node.ask("plain", "go"))["error"]
    async with refusing_agents(403, "x" * 5000) as node:
        assert 200 < len((await node.ask("plain", "go"))["error"]) < 500


async def test_a_server_that_says_when_to_come_again_is_busy_and_not_away() -> None:
    async with refusing_agents(503, "full", **{"retry-after": "7"}) as node:
        given = {"agent_id": "plain", "capability": "go", "task": "now"}
        reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": given})
        assert (reply.status, reply.json["error_code"]) == (429, "RATE_LIMITED")
        assert reply.headers["retry-after"] == "7"
    async with refusing_agents(503, "full") as node:
        assert (await node.ask("plain", "go"))["error_code"] != "RATE_LIMITED"
