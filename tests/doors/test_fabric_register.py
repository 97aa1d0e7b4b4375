"""Agents that register while nodes run: over HTTP, as clients of the documents do, on one node and on several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.authoring.http import HTTPApp
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.registry.registration_policy import RegistrationTerms, add_terms
from a2a_fabric.registry.sources.store import LeaseExpirer
from tests.contracts.stores import ENGINES, SHARED
from tests.fixtures.app_server import serve_app
from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import PSK, Node, check_envelope, running
from tests.fixtures.postgres import Server
from tests.marks import requirement

WAIT_TIMEOUT = 30.0
BOB, ORG, READER, GUEST = "the-key-of-bob", "the-key-of-carol", "the-key-of-dave", "the-key-of-a-guest"
KEYS = [
    {"id": "bob", "key": BOB},
    {"id": "carol", "key": ORG, "trust": "org"},
    {"id": "dave", "key": READER, "scopes": ["agent:*"]},
    {"id": "guest", "key": GUEST, "trust": "public"},
]
REGISTER = "/mcp/register_agent"


@asynccontextmanager
async def echo(agent_id: str = "echo") -> AsyncIterator[str]:
    """An agent with a server of its own; yields its address."""
    agent = Agent(agent_id, description="Says it again.", version="3.1.4")

    @agent.capability
    async def say(task: str) -> dict[str, Any]:
        """Say it again."""
        return {"answer": task}

    async with serve_app(HTTPApp(agent), lifespan="off") as url:
        yield url


@asynccontextmanager
async def node_on(store: str, *agents: Agent, **config: Any) -> AsyncIterator[Node]:
    async with running(*agents, config={"store": store, "auth": {"keys": KEYS}, **config}) as node:
        yield node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with node_on("memory:", Agent("percy", description="declared")) as found:
        yield found


@pytest.fixture(params=SHARED)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of each kind of store that nodes can share."""
    return ENGINES[request.param](tmp_path).address


def as_clients_send_it(agent_id: str, uri: str) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "display_name": "Echo",
        "version": "1.0.0",
        "capabilities": [{"name": "say", "description": "Say it again"}],
        "endpoint": {"transport": "http", "uri": uri},
    }


async def until(node: Node, agent_id: str, check: Any) -> Any:
    """What `check` finds in the agent's description, None if there is no such agent."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            reply = await node.operation("fabric.agent.describe", {"agent_id": agent_id})
            if found := check(reply["result"]["agent"] if reply["ok"] else None):
                return found
            await asyncio.sleep(0.01)


async def database_is(node: Node, word: str) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        while (await node.send("GET", "/monitoring/health")).json["checks"]["database"] != word:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@requirement("000-14", "001-37")
async def test_an_agent_registers_as_existing_clients_do_and_is_called_at_once(node: Node) -> None:
    async with echo() as uri:
        reply = await node.send("POST", REGISTER, json=as_clients_send_it("echo", uri))
        assert reply.status == 200, reply.body
        check_envelope(reply.json)
        assert {"success": True, "agent_id": "echo", "secret": None}.items() <= reply.json.items()
        assert reply.json["registration"]["owner"] == "psk:psk"
        answer = await node.ask("echo", "say", "hello")
        assert answer["result"]["answer"] == "hello"
        listed = (await node.send("GET", "/mcp/list_agents")).json["agents"]
        assert [a["agent_id"] for a in listed] == ["percy", "echo"]
        assert (await node.send("GET", "/mcp/agent/echo")).json["display_name"] == "Echo"


async def test_the_least_registration_is_an_id_and_an_address_and_the_rest_is_asked_of_the_agent(node: Node) -> None:
    async with echo() as uri:
        reply = await node.send("POST", REGISTER, json={"agent_id": "echo", "endpoint": uri, "status": "online"})
        assert reply.json["ignored"] == ["status"]
        found = await until(node, "echo", lambda agent: agent and agent["capabilities"] and agent)
        assert (found["version"], found["description"]) == ("3.1.4", "Says it again.")
        assert (await node.ask("echo", "say", "hi"))["result"]["answer"] == "hi"


@requirement("001-37")
async def test_the_runtime_of_an_agent_that_named_none_is_listed_and_filtered_by_as_it_turned_out(node: Node) -> None:
    def found(runtime: str | None) -> Any:
        return lambda agent: agent and agent["runtime"] == runtime

    async with echo() as uri, serving("both") as server:
        for agent_id, address in (("echo", uri), ("tools", server.url)):
            await node.send("POST", REGISTER, json={"agent_id": agent_id, "endpoint": address})
        await until(node, "echo", found("http"))
        await until(node, "tools", found("mcp"))
        for runtime, ids in (("http", ["echo"]), ("mcp", ["tools"]), ("a2a", [])):
            listed = (await node.operation("fabric.agent.list", {"runtime": runtime}))["agents"]
            assert [agent["agent_id"] for agent in listed] == ids
        route = {"agent_id": "tools", "capability": "add"}
        await until(node, "tools", lambda agent: agent["capabilities"])
        plan = await node.operation("fabric.route.preview", route)
        assert plan["selected_runtime"]["adapter"] == "mcp"
        moved = {"agent_id": "tools", "endpoint": uri}
        assert (await node.send("POST", REGISTER, json=moved)).status == 200
        await until(node, "tools", found("http"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"runtime": "htp"}, "there is no runtime 'htp' (nearest: http)"),
        ({"runtime": "a2a"}, "see `registration.runtimes`"),
        ({"endpoint": {"command": ["ls"]}}, "see `registration.programs`"),
        ({"endpoint": "127.0.0.1:9001"}, "'127.0.0.1:9001' is not an address such as http://"),
        ({"agent_id": "a b"}, "Expected `str` of letters, digits, '.', '_' and '-', the first one a letter or a digit"),
        ({"lease_seconds": 10**9}, "lease_seconds must be between 1 and 2592000"),
    ],
)
async def test_a_mistake_in_a_registration_is_named_in_words(node: Node, change: dict[str, Any], said: str) -> None:
    given = {"agent_id": "echo", "endpoint": "http://127.0.0.1:9001", **change}
    reply = await node.send("POST", REGISTER, json=given)
    assert said in reply.json["error"]
    assert "regex" not in reply.json["error"]


@requirement("001-11", "001-37")
async def test_what_a_heartbeat_says_of_the_agent_is_shown_and_stands_in_its_history(node: Node) -> None:
    async with echo() as uri:
        await node.send("POST", REGISTER, json=as_clients_send_it("echo", uri))
        await until(node, "echo", lambda agent: agent["status"] == "online")
        told = {"agent_id": "echo", "status": "degraded", "error": "hot", "lease_seconds": 500}
        reply = await node.operation("fabric.agent.heartbeat", told)
        assert (reply["ok"], reply["result"]["registration"]["lease_seconds"]) == (True, 500)
        history = (await node.operation("fabric.agent.health", {"agent_id": "echo"}))["result"]["checks"]
        assert {("degraded", "hot"), ("online", None)} <= {(check["status"], check["error"]) for check in history}


async def test_what_a_file_declares_is_neither_renewed_nor_removed_and_no_other_id_is_asked_for(node: Node) -> None:
    for verb in ("heartbeat", "unregister"):
        reply = await node.operation(f"fabric.agent.{verb}", {"agent_id": "percy"})
        assert (reply["error_code"], reply["error"]) == (
            "CONFLICT",
            "'percy' is declared in this node's configuration and can only be changed there: it was not registered",
        )


@pytest.mark.parametrize(
    ("change", "token", "status", "code"),
    [
        ({}, None, 401, "AUTH_DENIED"),
        ({}, "nonsense", 401, "AUTH_INVALID"),
        ({}, READER, 403, "AUTH_DENIED"),
        ({}, GUEST, 403, "AUTH_DENIED"),
        ({}, ORG, 403, "AUTH_DENIED"),  # loopback is not for everybody
        ({"endpoint": {"command": ["touch", "owned"]}}, PSK, 403, "AUTH_DENIED"),
        ({"endpoint": "python:os:getcwd"}, PSK, 403, "AUTH_DENIED"),
        ({"endpoint": "http://169.254.169.254/latest"}, PSK, 403, "AUTH_DENIED"),
        ({"endpoint": {"uri": "http://127.0.0.1:9", "headers": {"a": "env:PATH"}}}, PSK, 403, "AUTH_DENIED"),
        ({"agent_id": "percy"}, PSK, 409, "CONFLICT"),
        ({"agent_id": "math.calculate"}, PSK, 409, "CONFLICT"),
        ({"agent_id": "no/slash"}, PSK, 400, "BAD_INPUT"),
        ({"agent_id": 7}, PSK, 400, "BAD_INPUT"),
        ({"agent_id": None}, PSK, 400, "BAD_INPUT"),
        ({"endpoint": ""}, PSK, 400, "BAD_INPUT"),
        ({"endpoint": {"uri": "http://127.0.0.1:99999/"}}, PSK, 400, "BAD_INPUT"),
        ({"capabilities": [{"nam": "x"}]}, PSK, 400, "BAD_INPUT"),
        ({"capabilities": "say"}, PSK, 400, "BAD_INPUT"),
        ({"trust_tier": "divine"}, PSK, 400, "BAD_INPUT"),
        ({"lease_seconds": 0}, PSK, 400, "BAD_INPUT"),
    ],
)
async def test_what_may_not_register_is_told_why(
    node: Node, change: dict[str, Any], token: str | None, status: int, code: str
) -> None:
    body = {**as_clients_send_it("echo", "http://127.0.0.1:9/"), **change}
    reply = await node.send("POST", REGISTER, json=body, token=token)
    assert (reply.status, reply.json["error_code"]) == (status, code), reply.body
    check_envelope(reply.json)
    assert reply.json["detail"] == reply.json["error"]
    listed = (await node.send("GET", "/mcp/list_agents")).json["agents"]
    assert [a["agent_id"] for a in listed] == ["percy"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'"x"', b"null"])
async def test_a_body_that_is_no_object_is_bad_input(node: Node, body: bytes) -> None:
    reply = await node.send("POST", REGISTER, data=body, headers={"content-type": "application/json"})
    assert (reply.status, reply.json["error_code"]) == (400, "BAD_INPUT")


async def test_only_the_owner_changes_renews_or_removes_and_then_it_is_gone(node: Node) -> None:
    manifest = as_clients_send_it("echo", "http://127.0.0.1:9/")
    assert (await node.operation("fabric.agent.register", manifest))["ok"]
    for name, arguments in [
        ("fabric.agent.register", manifest),
        ("fabric.agent.heartbeat", {"agent_id": "echo"}),
        ("fabric.agent.unregister", {"agent_id": "echo"}),
    ]:
        reply = await node.operation(name, arguments, token=BOB)
        assert (reply["ok"], reply["error_code"]) == (False, "AUTH_DENIED")
    assert (await node.operation("fabric.agent.unregister", {"agent_id": "echo"}))["ok"]
    for name in ("fabric.agent.unregister", "fabric.agent.heartbeat"):
        assert (await node.operation(name, {"agent_id": "echo"}))["error_code"] == "AGENT_NOT_FOUND"
        assert (await node.operation(name, {"agent_id": "percy"}))["error_code"] == "CONFLICT"
    assert (await node.ask("echo", "say"))["error_code"] == "AGENT_NOT_FOUND"


async def test_the_operator_removes_anybodys_agent_but_changes_none(node: Node) -> None:
    manifest = as_clients_send_it("echo", "http://127.0.0.1:9/")
    assert (await node.operation("fabric.agent.register", manifest, token=BOB))["ok"]
    for name, arguments in (("fabric.agent.register", manifest), ("fabric.agent.heartbeat", {"agent_id": "echo"})):
        assert (await node.operation(name, arguments))["error_code"] == "AUTH_DENIED"
    assert (await node.operation("fabric.agent.unregister", {"agent_id": "echo"}))["ok"]
    assert (await node.ask("echo", "say"))["error_code"] == "AGENT_NOT_FOUND"


async def test_registrations_are_counted(node: Node) -> None:
    for agent_id in ("a", "b", "a"):
        manifest = as_clients_send_it(agent_id, "http://127.0.0.1:9/")
        assert (await node.operation("fabric.agent.register", manifest))["ok"]
    assert (await node.send("POST", REGISTER, json={"agent_id": "percy"})).json["ok"] is False
    metrics = (await node.send("GET", "/metrics")).body.decode()
    assert "fabric_agent_registrations_total 3.0" in metrics


@requirement("001-37")
async def test_an_agent_whose_lease_runs_out_is_taken_out_and_a_heartbeat_keeps_it(node: Node) -> None:
    manifest = as_clients_send_it("echo", "http://127.0.0.1:9/")
    await node.operation("fabric.agent.register", {**manifest, "lease_seconds": 600})
    await node.operation("fabric.agent.register", {**manifest, "agent_id": "brief", "lease_seconds": 600})
    kept = await node.operation("fabric.agent.heartbeat", {"agent_id": "echo", "status": "degraded", "error": "tired"})
    assert kept["result"]["registration"]["lease_seconds"] == 600
    last = await node.operation("fabric.agent.heartbeat", {"agent_id": "brief", "lease_seconds": 1})
    assert last["result"]["registration"]["lease_until"] <= time.time() + 1
    assert await until(node, "brief", lambda agent: agent is None)
    assert time.time() >= last["result"]["registration"]["lease_until"]
    assert (await node.operation("fabric.agent.describe", {"agent_id": "echo"}))["ok"]


@requirement("001-11")
async def test_registered_agents_come_back_after_a_restart_and_files_keep_the_last_word(store: str) -> None:
    async with echo() as uri:
        async with node_on(store) as node:
            for name in ("echo", "percy"):
                reply = await node.operation("fabric.agent.register", as_clients_send_it(name, uri))
                assert reply["ok"], reply
            before = (await node.operation("fabric.agent.describe", {"agent_id": "echo"}))["result"]["agent"]
        declared = Agent("percy", description="declared")
        async with node_on(store, declared) as node:
            assert (await node.ask("echo", "say", "still here"))["result"]["answer"] == "still here"
            after = (await node.operation("fabric.agent.describe", {"agent_id": "echo"}))["result"]["agent"]
            assert after["registration"]["registered_at"] == before["registration"]["registered_at"]
            assert after["capabilities"] == before["capabilities"]
            percy = (await node.operation("fabric.agent.describe", {"agent_id": "percy"}))["result"]["agent"]
            assert percy["description"] == "declared"
            assert "registration" not in percy
        async with node_on(store) as node:
            percy = (await node.operation("fabric.agent.describe", {"agent_id": "percy"}))["result"]["agent"]
            assert percy["registration"]["owner"] == "psk:psk"


@requirement("001-11", "001-51")
async def test_two_nodes_on_one_store_see_the_same_agents_within_about_a_second(store: str) -> None:
    delays = []
    async with echo() as uri, node_on(store, node_id="a") as one, node_on(store, node_id="b") as two:
        for number in range(5):
            name = f"echo-{number}"
            assert (await one.operation("fabric.agent.register", as_clients_send_it(name, uri)))["ok"]
            began_at = time.monotonic()
            await until(two, name, lambda agent: agent)
            delays.append(time.monotonic() - began_at)
            assert (await two.ask(name, "say", "hi"))["result"]["answer"] == "hi"
        assert (await two.operation("fabric.agent.unregister", {"agent_id": "echo-0"}))["ok"]
        await until(one, "echo-0", lambda agent: agent is None)
        taken = await two.operation("fabric.agent.register", as_clients_send_it("echo-1", uri), token=BOB)
        assert taken["error_code"] == "AUTH_DENIED"
    assert min(delays) < 2.0, delays  # the machine may be busy; the way itself is quick


@requirement("001-11")
async def test_an_agents_health_has_a_history_with_uptime_that_outlives_the_node(store: str) -> None:
    quick = {"interval": 0.1, "failures": 1, "history_interval": 0.2}
    async with node_on(store, health=quick) as node:
        async with echo() as uri:
            await node.operation("fabric.agent.register", as_clients_send_it("echo", uri))
            await until(node, "echo", lambda agent: agent and agent["status"] == "online")
        await until(node, "echo", lambda agent: agent and agent["status"] == "offline")
        shown = (await node.operation("fabric.agent.health", {"agent_id": "echo"}))["result"]
        statuses = [each["status"] for each in shown["checks"]]
        assert shown["status"] == "offline" == statuses[0]
        assert "online" in statuses
        assert shown["checks"][-1]["latency_ms"] > 0
        assert shown["checks"][0]["error"]
        assert 0 < shown["uptime"]["up_seconds"] <= shown["uptime"]["observed_seconds"]
        assert 0 < shown["uptime"]["ratio"] < 1
    async with node_on(store, health={"interval": 0}) as node:
        again = (await node.operation("fabric.agent.health", {"agent_id": "echo", "limit": 1000}))["result"]
        assert {each["checked_at"] for each in shown["checks"]} <= {each["checked_at"] for each in again["checks"]}
        unknown = await node.operation("fabric.agent.health", {"agent_id": "nobody"})
        assert unknown["error_code"] == "AGENT_NOT_FOUND"


@requirement("001-45")
async def test_every_field_of_the_manifest_is_shown_and_can_be_filtered_by(node: Node) -> None:
    capability = {
        "name": "say", "description": "Say it again", "streaming": True, "modalities": ["text", "audio"],
        "input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "max_timeout_ms": 1234,
    }  # fmt: skip
    asked = {
        "node_id": "node-7", "delegate_id": "d-1", "cog_id": "c-1", "realm": "master", "version": "2.0.0",
        "runtime": "http", "trust_tier": "public",
    }  # fmt: skip
    about = {"display_name": "Full", "description": "everything", "tags": ["x"], "metadata": {"k": [1]}}
    full = {**as_clients_send_it("full", "http://127.0.0.1:9/"), **asked, **about, "capabilities": [capability]}
    assert (await node.operation("fabric.agent.register", full))["ok"]
    shown = (await node.operation("fabric.agent.describe", {"agent_id": "full"}))["result"]["agent"]
    assert {**asked, **about, "agent_id": "full"}.items() <= shown.items()
    assert shown["endpoint"] == {"transport": "http", "uri": "http://127.0.0.1:9/"}
    assert capability.items() <= shown["capabilities"][0].items()
    times = shown["registration"]
    assert times["registered_at"] <= times["updated_at"] <= times["last_seen_at"] <= time.time()
    for name, value in {**asked, "tag": "x", "transport": "http", "owner": "psk:psk", "query": "everything"}.items():
        found = (await node.operation("fabric.agent.list", {name: value}))["result"]["agents"]
        assert [a["agent_id"] for a in found] == ["full"], name
        nested = (await node.operation("fabric.agent.list", {"filter": {name: value}}))["result"]["agents"]
        assert [a["agent_id"] for a in nested] == ["full"], name  # its status may have changed meanwhile
    for name in asked.keys() - {"trust_tier"}:
        found = (await node.operation("fabric.agent.list", {name: "something else"}))["result"]["agents"]
        assert "full" not in [a["agent_id"] for a in found]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_registered_mcp_server_serves_its_tools(node: Node, era: Any) -> None:
    async with serving(era) as server:
        manifest = {"agent_id": "every", "runtime": "mcp", "endpoint": {"uri": server.url}}
        assert (await node.operation("fabric.agent.register", manifest))["ok"]
        found = await until(node, "every", lambda agent: agent and agent["capabilities"] and agent)
        assert "add" in [capability["name"] for capability in found["capabilities"]]
        reply = await node.ask("every", "add", "", context={"a": 2, "b": 3})
        assert reply["ok"], reply
        async with client(node, path="/agents/every/mcp") as connected:
            assert "add" in [tool.name for tool in (await connected.list_tools()).tools]


async def test_an_agent_of_another_platform_registers_by_its_card_s_address(node: Node) -> None:
    agent = Agent("shouter")

    @agent.capability
    async def shout(text: str) -> dict[str, str]:
        return {"answer": text.upper()}

    async with running(agent, config={"doors": [{"kind": "fabric"}, {"kind": "rest"}]}) as platform:
        endpoint = {"uri": f"{platform.url}/v1/agents/shouter", "token": PSK}
        manifest = {"agent_id": "far", "runtime": "rest", "endpoint": endpoint}
        assert (await node.operation("fabric.agent.register", manifest))["ok"]
        await until(node, "far", lambda agent: agent and agent["capabilities"])
        reply = await node.ask("far", "shout", "", context={"text": "hi"})
        assert reply["result"]["answer"] == "HI", reply


@pytest.mark.parametrize("runtime", ["http", "mcp", "rest", "rpc"])
async def test_an_agent_whose_address_has_become_private_is_not_connected_to(node: Node, runtime: str) -> None:
    """As after its name was pointed elsewhere: what was fit when it registered is judged again each time."""
    async with echo() as uri, serving("both") as server:
        there = server.url if runtime == "mcp" else uri
        manifest = Manifest(
            agent_id="moved", runtime=runtime, endpoint={"uri": there}, capabilities=(Capability(name="say"),)
        )
        await node.fabric.store.registrations.register(
            add_terms(manifest, RegistrationTerms(trust="org", lease=600)), "psk:x"
        )
        found = await until(node, "moved", lambda agent: agent and agent["status"] == "offline" and agent)
        assert "not a public address" in found["error"]
        reply = await node.ask("moved", "say", "hello")
        assert reply["error_code"] == "AGENT_OFFLINE"
        assert server.gate.methods == []


async def test_with_the_store_away_known_agents_are_called_and_registering_waits_for_its_return() -> None:
    server = Server("fabric-register")
    server.create()
    server.start()
    try:
        async with echo() as uri, node_on(server.line()) as node:
            assert (await node.operation("fabric.agent.register", as_clients_send_it("echo", uri)))["ok"]
            await asyncio.to_thread(server.stop)
            reply = await node.send("POST", REGISTER, json=as_clients_send_it("late", uri))
            assert (reply.status, reply.json["error_code"]) == (503, StoreUnavailable.code), reply.body
            assert (await node.ask("echo", "say", "still"))["result"]["answer"] == "still"
            assert (await node.operation("fabric.agent.describe", {"agent_id": "echo"}))["ok"]
            await database_is(node, "down")
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(WAIT_TIMEOUT):
                while not (await node.operation("fabric.agent.register", as_clients_send_it("late", uri)))["ok"]:
                    pass  # each takes its time
            assert (await node.ask("late", "say", "here"))["result"]["answer"] == "here"
            await database_is(node, "ok")
    finally:
        await asyncio.to_thread(server.remove)


async def test_the_expirer_of_leases_ends_with_the_node() -> None:
    async with node_on("memory:") as node:
        keepers = [task for task in asyncio.all_tasks() if LeaseExpirer.run.__qualname__ in str(task.get_coro())]
        assert len(keepers) == 1
        assert node.fabric is not None
    assert keepers[0].done()
