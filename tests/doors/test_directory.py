"""The directory of document 002: agents register, are found, and are called, by every client that it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import (
    ENTRY,
    OUTCOME,
    ClientError,
    GoClient,
    PythonClient,
    StrictClient,
    TypeScriptClient,
    exactly,
    go_time,
    post,
    rpc,
)
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.mcp_client import client as mcp_client
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

BOB, ORG, GUEST, READER = "the-key-of-bob", "the-key-of-carol", "the-key-of-a-guest", "the-key-of-dave"
KEYS = [
    {"id": "bob", "key": BOB},
    {"id": "carol", "key": ORG, "trust": "org"},
    {"id": "guest", "key": GUEST, "trust": "public", "scopes": ["register", "agent:*"]},
    {"id": "dave", "key": READER, "scopes": ["agent:percy"]},
]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def directory(*agents: Agent, door: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Node]:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "directory", **(door or {})}]
    async with running(*agents, config={"doors": doors, "auth": {"keys": KEYS}, **config}) as node:
        yield node


def percy() -> Agent:
    agent = Agent("percy", display_name="Percy")

    @agent.capability
    async def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with directory(percy(), registration={"max_per_owner": 100_000}) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent() -> AsyncIterator[tuple[RPCAgent, str]]:
    made = RPCAgent()
    async with listening(made) as url:
        yield made, url


_numbers = iter(range(10**9))


def entry(url: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    """As the document shows it, under a free id."""
    agent_id = f"agent-{next(_numbers)}"
    return {"agentId": agent_id, "name": "An Agent", "capabilities": capabilities or ["echo"], "endpoint": url, **more}


async def call(node: Node, method: str, params: Any, **more: Any) -> Any:
    _, reply = await post(node, "/a2a", rpc(method, params), **more)
    return reply


@requirement("002-01", "002-02", "002-03", "002-04", "002-05", "002-11")
async def test_the_document_s_own_requests_get_the_document_s_own_replies(node: Node, agent: tuple[Any, str]) -> None:
    given = entry(agent[1], "research", "search", "analysis")
    for path in ("/a2a", "/a2a/register"):
        status, reply = await post(node, path, rpc("a2a/register", given, "reg-1"))
        assert status == 200
        result = {"status": "registered", "agentId": given["agentId"]}
        assert reply == {"jsonrpc": "2.0", "id": "reg-1", "result": result}
    for path in ("/a2a", "/a2a/discover"):
        status, reply = await post(node, path, rpc("a2a/discover", {"capabilities": ["research"]}, "disc-1"))
        [found] = reply["result"]["agents"]
        assert (status, reply["id"], set(reply)) == (200, "disc-1", {"jsonrpc", "id", "result"})
        assert exactly(found, ENTRY)["capabilities"] == ["research", "search", "analysis"]
        assert found["name"] == "An Agent"
        assert abs(go_time(found["registeredAt"]).timestamp() - time.time()) < 60
        assert found["registeredAt"].endswith("Z")


@requirement("002-02")
@pytest.mark.parametrize("missing", ["agentId", "name", "capabilities", "endpoint"])
async def test_each_of_the_four_fields_is_needed(node: Node, agent: tuple[Any, str], missing: str) -> None:
    given = entry(agent[1])
    del given[missing]
    reply = await call(node, "a2a/register", given)
    assert reply["error"]["code"] == -32602
    assert missing in reply["error"]["message"]
    status, bare = await post(node, "/a2a/register", given)
    assert (status, missing in bare["error"]) == (400, True)
    if missing != "agentId":
        assert (await node.send("GET", f"/a2a/agents/{given['agentId']}")).status == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"agentId": ""}, {"agentId": 5}, {"agentId": "a\nb"}, {"agentId": "x" * 300}, {"name": None}, {"name": ""},
        {"capabilities": "echo"}, {"capabilities": [1]}, {"capabilities": [""]}, {"endpoint": "ftp://127.0.0.1/"},
        {"endpoint": "localhost:9001"}, {"endpoint": {}}, {"leaseSeconds": -1}, {"trustTier": "best"},
        {"endpoint": "http://user:secret@127.0.0.1:9/"}, {"endpoint": "http://"}, {"endpoint": "http://[::1"},
        {"endpoint": "http://127.0.0.1:99999/"},
    ],
)  # fmt: skip
async def test_a_wrong_field_is_refused_and_nothing_is_registered(
    node: Node, agent: tuple[Any, str], wrong: dict[str, Any]
) -> None:
    before = (await node.send("GET", "/a2a/agents")).json
    reply = await call(node, "a2a/register", {**entry(agent[1]), **wrong})
    assert reply["error"]["code"] == -32602, reply
    assert (await node.send("GET", "/a2a/agents")).json == before


@requirement("002-04", "002-06", "002-15")
async def test_any_capability_that_matches_is_enough_however_it_is_spelled(node: Node, agent: tuple[Any, str]) -> None:
    one, two, three = entry(agent[1], "any-a", "any-b"), entry(agent[1], "any_b", "any-c"), entry(agent[1], "any d")
    for each in (one, two, three):
        assert "result" in await call(node, "a2a/register", each)

    async def found(*capabilities: str) -> list[str]:
        reply = await call(node, "a2a/discover", {"capabilities": capabilities})
        return [each["agentId"] for each in reply["result"]["agents"]]

    ids = [each["agentId"] for each in (one, two, three)]
    assert await found("any-a") == ids[:1]
    assert await found("Any_B") == ids[:2]
    assert await found("any-c", "any-a") == ids[:2]
    assert await found("any-a", "any_d", "nothing") == [ids[0], ids[2]]
    assert await found("nothing") == []


@requirement("002-12")
async def test_the_pages_list_all_agents_and_show_one(node: Node, agent: tuple[Any, str]) -> None:
    given = entry(agent[1])
    await call(node, "a2a/register", given)
    listed = await node.send("GET", "/a2a/agents")
    assert (listed.status, set(listed.json)) == (200, {"agents"})
    ids = [exactly(each, ENTRY)["agentId"] for each in listed.json["agents"]]
    assert {"percy", given["agentId"]} <= set(ids)
    one = await node.send("GET", f"/a2a/agents/{given['agentId']}")
    assert one.status == 200
    assert exactly(one.json, ENTRY)["agentId"] == given["agentId"]
    gone = await node.send("GET", "/a2a/agents/nobody")
    assert (gone.status, "not found" in gone.json["error"]) == (404, True)
    assert (await node.send("GET", "/a2a/agents/math.calculate")).status == 404  # a tool is no agent
    few = await node.send("GET", "/a2a/agents?capabilities=shout,nothing&limit=1")
    assert [each["agentId"] for each in few.json["agents"]] == ["percy"]


async def test_clients_with_bare_bodies_find_and_call_agents(node: Node, agent: tuple[Any, str]) -> None:
    python, typescript = PythonClient(node), TypeScriptClient(node)
    mine, theirs = entry(agent[1], "bare-p", "echo"), entry(agent[1], "bare-t")
    assert await python.register(mine) == {"status": "registered", "agentId": mine["agentId"]}
    assert await typescript.register(theirs) == {"status": "registered", "agentId": theirs["agentId"]}
    [found] = await python.discover("bare-p")
    assert found["agentId"] == mine["agentId"]
    reply = await python.send_task(found["endpoint"], "bare-1", "echo", {"query": "news"})
    assert reply["result"] == {"taskId": "bare-1", "status": "completed", "output": {"seen": {"query": "news"}}}
    [found] = await typescript.discover("bare-t")
    assert found == await typescript.agent(theirs["agentId"])
    assert found in await typescript.agents()


async def test_clients_with_bare_bodies_notice_errors_each_in_its_own_way(node: Node) -> None:
    wrong = {"agentId": "x"}
    with pytest.raises(ClientError, match="name"):
        await PythonClient(node).register(wrong)
    with pytest.raises(ClientError, match="HTTP 400"):
        await TypeScriptClient(node).register(wrong)
    with pytest.raises(ClientError, match="HTTP 404"):
        await TypeScriptClient(node).agent("nobody")


@requirement("002-08", "002-12")
async def test_a_strict_client_meets_no_key_that_it_does_not_know(node: Node, agent: tuple[Any, str]) -> None:
    strict, given = StrictClient(node), entry(agent[1], "strict", "echo", "fail")
    await strict.register(given)
    [found] = await strict.discover("strict")
    assert await strict.agent(given["agentId"]) == found
    done = await strict.send_task(found["endpoint"], "strict-1", "echo", {})
    assert exactly(done, OUTCOME)["status"] == "completed"
    with pytest.raises(ClientError, match="Task failed"):
        await strict.send_task(found["endpoint"], "strict-2", "fail", {"reason": "x"})


async def test_a_client_that_always_says_register_works_where_the_path_wins(agent: tuple[Any, str], node: Node) -> None:
    with pytest.raises(ClientError):
        await GoClient(node).discover("echo")
    async with directory(door={"path_wins": True}) as tolerant:
        go = GoClient(tolerant)
        await go.register(entry(agent[1], "go"))
        assert [abs(when.timestamp() - time.time()) < 60 for when in await go.discover("go")] == [True]
        task = {"taskId": "go-1", "action": "go", "sender": "go", "input": {}}
        _, reply = await post(tolerant, "/a2a/task", rpc("a2a/register", task))
        assert reply["error"]["code"] == -32001  # it reached the agent, which has no such action
        assert "result" in await call(tolerant, "a2a/discover", {})  # at /a2a the method is all there is


@requirement("002-11")
async def test_the_address_that_is_given_away_takes_tasks_exactly_as_it_stands(node: Node) -> None:
    [found] = await StrictClient(node).discover("shout")
    assert found["endpoint"] == f"{node.url}/a2a/agents/percy/rpc"
    task = {"taskId": "exact-1", "action": "shout", "sender": "me", "input": {"text": "hi"}}
    status, reply = await post(node, found["endpoint"], rpc("a2a/task", task))
    assert (status, reply["result"]["output"]) == (200, {"text": "HI"})
    _, bare = await post(node, found["endpoint"], {**task, "taskId": "exact-2"})
    assert bare == {"taskId": "exact-2", "status": "completed", "output": {"text": "HI"}}
    assert (await node.send("GET", found["endpoint"].removeprefix(node.url))).json == found
    _, other = await post(node, found["endpoint"], rpc("a2a/discover", {}))
    assert other["error"]["code"] == -32601


async def test_an_agent_s_own_address_is_given_away_only_where_the_operator_says_so(agent: tuple[Any, str]) -> None:
    url = f"{agent[1]}/exactly/here/"
    async with directory(percy(), door={"direct": ["*"]}, public_url="https://fabric.example/") as node:
        await call(node, "a2a/register", entry(url, "direct"))
        [own] = (await call(node, "a2a/discover", {"capabilities": ["direct"]}))["result"]["agents"]
        [ours] = (await call(node, "a2a/discover", {"capabilities": ["shout"]}))["result"]["agents"]
        assert own["endpoint"] == url
        assert ours["endpoint"] == "https://fabric.example/a2a/agents/percy/rpc"
        _, reply = await post(node, "/a2a/task", {"taskId": "d", "action": "direct", "sender": "", "input": {}})
        assert "error" in reply  # it has no such action; but it was asked, and exactly there
        assert agent[0].paths[-1] == "/exactly/here/"


@pytest.mark.parametrize("agent_id", ["team/agent one", "a%2Fb", "ünï/çødé?#&", "..", "x/rpc", "100%", "-dash", "."])
async def test_an_id_may_hold_anything(node: Node, agent: tuple[Any, str], agent_id: str) -> None:
    given = {**entry(agent[1], f"odd{next(_numbers)}", "echo"), "agentId": agent_id}
    assert (await call(node, "a2a/register", given))["result"] == {"status": "registered", "agentId": agent_id}
    [found] = (await call(node, "a2a/discover", {"capabilities": given["capabilities"][:1]}))["result"]["agents"]
    assert found["agentId"] == agent_id
    if agent_id not in ("..", "."):  # which clients resolve before they ask
        path = "".join(f"%{byte:02X}" for byte in agent_id.encode())
        one = await raw_get(node, f"/a2a/agents/{path}")
        assert f'"agentId":"{agent_id}"' in one
    task = {"taskId": f"odd {agent_id}", "action": "echo", "sender": "me", "input": {"a": 1}}
    _, reply = await post(node, found["endpoint"], rpc("a2a/task", task))
    assert reply["result"]["output"] == {"seen": {"a": 1}}
    by_id = {**task, "taskId": f"by id {agent_id}", "agentId": agent_id}
    assert (await call(node, "a2a/task", by_id))["result"]["status"] == "completed"
    assert (await call(node, "a2a/unregister", {"agentId": agent_id}))["result"]["status"] == "unregistered"


async def raw_get(node: Node, path: str) -> str:
    """No client library between, which would encode once more or less."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {BOB}\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(head.encode()) as (reader, _):
        return (await reader.read()).decode()


async def test_no_agent_pretends_to_be_another_one_by_its_metadata(node: Node, agent: tuple[Any, str]) -> None:
    registered = await node.operation(
        "fabric.agent.register",
        {"agent_id": "pretender", "endpoint": agent[1], "metadata": {"directory_id": "percy"}, "capabilities": ["x"]},
    )
    assert registered["ok"]
    assert (await node.send("GET", "/a2a/agents/pretender")).json["agentId"] == "pretender"


@requirement("002-15")
async def test_an_agent_that_registered_is_reached_through_every_other_door_at_once(
    node: Node, agent: tuple[RPCAgent, str]
) -> None:
    given = entry(agent[1], "echo")
    await call(node, "a2a/register", given)
    answer = await node.ask(given["agentId"], "echo", "some words", context={"a": 1})
    assert answer["result"] == {"seen": {"task": "some words", "a": 1}}
    async with mcp_client(node) as connected:
        tool = f"fabric.tool.agent.{given['agentId']}.echo"
        result = await connected.call_tool(tool, {"a": 2})
    assert result.structured_content == {"seen": {"a": 2}}


async def test_registering_again_keeps_the_time_of_the_first_and_is_a_sign_of_life(
    node: Node, agent: tuple[Any, str]
) -> None:
    given = entry(agent[1], "again", leaseSeconds=30)
    await call(node, "a2a/register", given)
    first = (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json
    until = (await described(node, given["agentId"]))["lease_until"]
    await call(node, "a2a/register", {**given, "name": "Renamed"})
    second = (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json
    assert second == {**first, "name": "Renamed"}
    assert (await described(node, given["agentId"]))["lease_until"] > until
    until = (await described(node, given["agentId"]))["lease_until"]
    beat = await call(node, "a2a/heartbeat", {"agentId": given["agentId"], "leaseSeconds": 600, "status": "online"})
    assert beat["result"] == {"status": "renewed", "agentId": given["agentId"]}
    assert (await described(node, given["agentId"]))["lease_until"] > until + 500


async def described(node: Node, agent_id: str) -> Any:
    return (await node.operation("fabric.agent.describe", {"agent_id": agent_id}))["result"]["agent"]["registration"]


async def test_an_agent_without_a_heartbeat_is_gone_when_its_lease_is(node: Node, agent: tuple[Any, str]) -> None:
    given = entry(agent[1], leaseSeconds=1)
    await call(node, "a2a/register", given)

    async def gone() -> bool:
        return (await node.send("GET", f"/a2a/agents/{given['agentId']}")).status == 404

    await eventually(gone)


async def test_no_caller_overwrites_renews_or_removes_another_caller_s_agent(
    node: Node, agent: tuple[Any, str]
) -> None:
    given = entry(agent[1], "mine")
    await call(node, "a2a/register", given)
    before = (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json
    stolen = {**given, "endpoint": "http://127.0.0.1:9/", "name": "Stolen"}
    for method, params in (
        ("a2a/register", stolen),
        ("a2a/heartbeat", {"agentId": given["agentId"]}),
        ("a2a/unregister", {"agentId": given["agentId"]}),
    ):
        status, reply = await post(node, "/a2a", rpc(method, params), token=BOB)
        assert (status, reply["error"]["code"]) == (403, -32001)
        assert reply["error"]["data"]["reason"] == "auth_denied"
    status, _ = await post(node, "/a2a/register", stolen, token=BOB)
    assert status == 403
    assert (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json == before
    reply = await call(node, "a2a/register", {**given, "agentId": "percy"})
    assert reply["error"]["code"] == -32602  # declared by the node itself
    assert (await call(node, "a2a/unregister", {"agentId": given["agentId"]}))["result"]["status"] == "unregistered"
    assert (await call(node, "a2a/unregister", {"agentId": given["agentId"]}))["error"]["code"] == -32602


@requirement("002-06")
async def test_the_dead_are_not_returned_first(node: Node, agent: tuple[Any, str]) -> None:
    dead, alive, trusted = (
        entry("http://127.0.0.1:9/", "mortal", "free"),
        entry(agent[1], "mortal", "free"),
        entry(agent[1], "mortal", trustTier="local"),
    )
    for each in (dead, alive, trusted):
        await call(node, "a2a/register", each)
    expected = [each["agentId"] for each in (trusted, alive, dead)]

    async def in_order() -> bool:
        found = (await call(node, "a2a/discover", {"capabilities": ["mortal"]}))["result"]["agents"]
        return [each["agentId"] for each in found] == expected

    await eventually(in_order)
    done = await call(node, "a2a/task", {"taskId": "to the living", "action": "free", "input": {"a": 1}})
    assert done["result"]["output"] == {"seen": {"a": 1}}  # and no other agent was asked before


async def test_a_caller_sees_only_agents_of_its_own_trust(node: Node, agent: tuple[Any, str]) -> None:
    secret, shared = entry(agent[1], "seen", trustTier="local"), entry(agent[1], "seen", trustTier="public")
    for each in (secret, shared):
        await call(node, "a2a/register", each)
    for token, expected in ((BOB, [secret, shared]), (ORG, [shared]), (GUEST, [shared])):
        found = (await call(node, "a2a/discover", {"capabilities": ["seen"]}, token=token))["result"]["agents"]
        assert [each["agentId"] for each in found] == [each["agentId"] for each in expected]
    assert (await node.send("GET", f"/a2a/agents/{secret['agentId']}", token=ORG)).status == 404
    task = {"taskId": "unseen", "action": "echo", "agentId": secret["agentId"]}
    reply = await call(node, "a2a/task", task, token=ORG)
    assert (reply["error"]["code"], reply["error"]["data"]["agentId"]) == (-32602, secret["agentId"])


async def test_a_guest_with_the_scope_registers_agents_for_guests_at_public_addresses_only(
    node: Node, agent: tuple[Any, str]
) -> None:
    status, reply = await post(node, "/a2a", rpc("a2a/register", entry(agent[1])), token=GUEST)
    assert (status, "address" in str(reply["error"])) == (403, True)
    status, _ = await post(node, "/a2a", rpc("a2a/register", entry(agent[1])), token=READER)
    assert status == 403


@requirement("002-13", "002-19")
async def test_without_credentials_nothing_is_to_be_had(node: Node, agent: tuple[Any, str]) -> None:
    status, reply = await post(node, "/a2a", rpc("a2a/discover", {}, "who"), token=None)
    assert (status, reply["id"], reply["error"]["code"]) == (401, None, -32001)
    assert reply["error"]["data"]["reason"] == "auth_denied"
    status, reply = await post(node, "/a2a/discover", {"capabilities": []}, token="not-a-key-of-ours")
    assert (status, "error" in reply) == (401, True)
    assert (await node.send("GET", "/a2a/agents", token=None)).status == 401
    assert (await node.send("GET", "/a2a/agents/percy", token=None)).status == 401
    refused = await node.send("POST", "/a2a/agents/percy/rpc", token=None, json={"taskId": "x", "action": "shout"})
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert (await post(node, "/a2a/register", entry(agent[1]), token=None))[0] == 401


@requirement("002-13")
async def test_open_by_configuration_it_asks_for_nothing_and_strangers_overwrite_no_agent(
    agent: tuple[Any, str],
) -> None:
    async with directory(percy(), door={"anonymous": "local"}) as node:
        given = entry(agent[1])
        assert (await post(node, "/a2a/register", given, token=None))[0] == 200
        mine = entry(agent[1])
        await call(node, "a2a/register", mine)
        status, _ = await post(node, "/a2a/register", {**mine, "name": "Stolen"}, token=None)
        assert status == 403
        assert (await node.send("GET", "/mcp/list_agents", token=None)).status == 401  # other doors stay shut
        assert (await post(node, "/a2a", rpc("a2a/discover", {}), token="not-a-key-of-ours"))[0] == 401


async def test_open_by_configuration_its_callers_are_not_the_operator(agent: tuple[Any, str]) -> None:
    """What they register is not the operator's: it must not look like his agents, or answer callers for them."""
    async with directory(percy(), door={"anonymous": "local"}) as node:
        status, refused = await post(node, "/a2a/register", {**entry(agent[1]), "agentId": "Per-cy"}, token=None)
        assert (status, "looks like agent 'percy'" in str(refused)) == (409, True)
        mine = {**entry(agent[1]), "agentId": "visitor", "capabilities": ["unheard-of"]}
        assert (await post(node, "/a2a/register", mine, token=None))[0] == 200
        task = {"taskId": "t", "action": "unheard-of", "input": {}}
        assert (await post(node, "/a2a/task", task))[0] == 404
        status, refused = await post(node, "/a2a/task", {**task, "action": "shuot"}, token=None)
        assert (status, "nearest: shout" in str(refused)) == (404, True)


@requirement("002-13", "002-19")
async def test_open_to_this_machine_it_stays_shut_to_other_sites_pages() -> None:
    async with directory(percy(), door={"anonymous": "local"}) as node:
        page = {"Origin": "https://evil.example"}
        refused = await node.send("POST", "/a2a", token=None, headers=page, json=rpc("a2a/discover", {}))
        assert (refused.status, refused.json["error"]["code"]) == (403, -32001)
        assert (await node.send("GET", "/a2a/agents", token=None)).status == 200


@requirement("002-13")
async def test_on_a_node_that_is_open_on_loopback_the_directory_is_open_too() -> None:
    async with directory(percy(), auth={"anonymous": True}) as node:
        assert (await node.send("GET", "/a2a/agents", token=None)).status == 200


async def test_too_many_registrations_of_one_caller_are_told_to_wait(agent: tuple[Any, str]) -> None:
    async with directory(registration={"max_per_owner": 1}) as node:
        await call(node, "a2a/register", entry(agent[1]))
        refused = await node.send("POST", "/a2a", json=rpc("a2a/register", entry(agent[1])))
        assert (refused.status, refused.json["error"]["code"]) == (429, -32001)
        assert int(refused.headers["retry-after"]) >= 1


async def test_the_registry_outlives_the_node(agent: tuple[Any, str], tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    given = entry(agent[1], "lasting")
    async with directory(store=store) as node:
        await call(node, "a2a/register", given)
        before = (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json
    async with directory(store=store) as node:
        after = (await node.send("GET", f"/a2a/agents/{given['agentId']}")).json
        assert {**after, "endpoint": ""} == {**before, "endpoint": ""}
        task = {"taskId": "after", "action": "lasting", "sender": "me", "input": {}}
        assert (await call(node, "a2a/task", task))["error"]["code"] == -32001  # asked, and it has no such action
