"""10,000 agents: a scrape, a list, a search or an edit never holds the event loop, whatever the machine is doing.

Time cannot show that, so the work is counted: the lines of Python that run in one step of the event loop, the bytes of
one reply, which are encoded at once, and the objects that one garbage collection looks at. Work for each of 10,000
agents is at least 10,000 lines; a step that is bounded stays far below, however many agents there are.
"""

from __future__ import annotations

import asyncio
import difflib
import gc
import sys
from asyncio.events import Handle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.client import FabricClient
from a2a_fabric.web.garbage import GarbageCollection
from tests.fixtures.mcp_raw import Session, modern
from tests.fixtures.node import PSK, Node, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBER = 10_000
MAX_LINES = 6000  # of one step of the event loop
MAX_BYTES = 3 << 20  # of one reply
MAX_OBJECTS = 30_000  # of one garbage collection
SAME_FOR_ALL_FLEETS = difflib.__file__  # an error compares a name with at most 100 others
NARROW = "the-key-of-a-narrow-caller"
VIEWED = "the-key-of-a-caller-with-a-view"
ECHO = Agent("echo")


@ECHO.capability
async def echo(task: str) -> dict[str, Any]:
    return {"echo": task}


class Steps:
    """Counts the lines of Python in each step of the event loop of this thread."""

    def __init__(self) -> None:
        self.longest = 0
        self.number = 0
        self._lines = 0
        self._where: dict[str, int] = {}
        self.longest_where: dict[str, int] = {}

    def on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is Handle._run.__code__:
            self._end_step()
        return None if frame.f_code.co_filename.startswith(SAME_FOR_ALL_FLEETS) else self.on_line

    def on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._lines += 1
            place = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
            self._where[place] = self._where.get(place, 0) + 1
        return self.on_line

    def _end_step(self) -> None:
        if self._lines > self.longest:
            self.longest, self.longest_where = self._lines, self._where
        self._lines, self._where = 0, {}
        self.number += 1

    @property
    def explanation(self) -> str:
        busiest = sorted(self.longest_where.items(), key=lambda item: -item[1])[:8]
        return f"{self.longest} lines in one step: {busiest}"


@contextmanager
def counting_steps() -> Iterator[Steps]:
    steps, previous = Steps(), sys.gettrace()
    sys.settrace(steps.on_call)
    try:
        yield steps
    finally:
        sys.settrace(previous)


def manifest(number: int, words: str = "") -> dict[str, Any]:
    return {
        "agent_id": f"agent-{number:05}",
        "runtime": "python",
        "endpoint": {"uri": "python:tests.system.test_many_agents:ECHO"},
        "description": f"agent number {number} {words}",
        "tags": ["many"],
        "capabilities": [{"name": "echo", "description": f"Echo number {number}"}],
    }


def write_agents(folder: Path, changed: int | None = None) -> None:
    """One entry of the file may have other words; the others stay as they are."""
    entries = [manifest(number, "in other words" if number == changed else "") for number in range(NUMBER)]
    new = folder / "agents.new"
    new.write_bytes(b"".join(b"- " + msgspec.json.encode(entry) + b"\n" for entry in entries))
    new.rename(folder / "agents.yaml")


def new_key(number: int) -> str:
    """The key of a caller whose view was never built: each is used by one request only."""
    return f"the-key-of-newcomer-{number}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("many")
    write_agents(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(folder: Path) -> AsyncIterator[Node]:
    newcomers = [
        {"id": f"newcomer-{number}", "key": new_key(number), "scopes": [f"agent:agent-0{number}*"]}
        for number in range(10)
    ]
    config = {
        "health": {"interval": 0},
        "views": [{"name": "some", "tools": ["agent-0*.echo"]}],
        "auth": {
            "keys": [
                {"id": "narrow", "key": NARROW, "scopes": ["agent:agent-00*"]},
                {"id": "viewed", "key": VIEWED, "view": "some"},
                *newcomers,
            ]
        },
    }
    async with running(base=folder, config=config, from_files=True) as started:

        async def all_are_online() -> bool:
            health = (await started.operation("fabric.health"))["result"]
            return bool(health["runtimes"]["online"] == NUMBER)

        await eventually(all_are_online)
        for name in ("overview", "settings"):  # what is loaded when an operator first looks is the same for all fleets
            assert (await started.operation(f"fabric.admin.{name}"))["ok"]
        for operation in started.fabric.operations:
            assert operation.input_schema  # made when it is first needed, and the same for all fleets
        yield started


async def scrape(node: Node) -> None:
    text = (await node.send("GET", "/metrics")).body.decode()
    assert text.count("\nfabric_agent_status{") == NUMBER


async def list_all(node: Node) -> None:
    async with FabricClient(node.url, PSK) as client:
        agents = await client.agents()
    assert len(set(map(itemgetter("agent_id"), agents))) == len(agents) == NUMBER


async def list_narrow(node: Node) -> None:
    """A view of a caller that was never here, and its first list."""
    page = (await node.operation("fabric.agent.list", {"tag": "many"}, token=NARROW))["result"]
    assert page["total"] == page["count"] == 1000


async def look_for_words(node: Node) -> None:
    page = (await node.operation("fabric.agent.list", {"query": "number 777"}))["result"]
    assert page["total"] == 19  # those with 777 in their numbers


async def list_tools(node: Node) -> None:
    page = (await node.operation("fabric.tool.list", {"query": "echo"}))["result"]
    assert (page["count"], page["total"]) == (1000, NUMBER)


async def ask_mcp(node: Node, method: str, token: str = PSK, **more: Any) -> Any:
    """A request of the stateless era, answered without the SDK."""
    headers, body = modern(method, **more)
    headers["Authorization"] = f"Bearer {token}"
    reply = await node.send("POST", "/mcp", token=None, headers=headers, json=body)
    assert reply.status == 200, reply.body
    assert len(reply.body) <= MAX_BYTES
    return reply.json["result"]


async def list_mcp_tools(node: Node) -> None:
    """The first list ever, and the first one after a change."""
    await ask_mcp(node, "server/discover")
    first = (await ask_mcp(node, "tools/list"))["tools"]
    assert [tool["name"] for tool in first[:2]] == ["agent_00000_echo", "agent_00001_echo"]
    await register(node)
    assert (await ask_mcp(node, "tools/list"))["tools"] == first
    await register(node)
    name = {"name": "agent_09999_echo", "arguments": {"task": "hello"}}
    assert (await ask_mcp(node, "tools/call", params=name))["structuredContent"] == {"echo": "hello"}


async def list_all_mcp_tools(node: Node) -> None:
    """In pages, for a client that wants them all."""
    cursor: dict[str, Any] = {}
    names: list[str] = []
    while True:
        page = await ask_mcp(node, "tools/list", params=cursor, X_Fabric_Tools="all")
        names += [tool["name"] for tool in page["tools"] if tool["name"].startswith("agent_")]
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
        await register(node)  # between two pages an agent comes and leaves
    assert len(set(names)) == len(names) == NUMBER


async def list_mcp_tools_of_newcomers(node: Node) -> None:
    """Callers with scopes or a view that were never here: their introduction, and their first list."""
    for token in (new_key(1), VIEWED):
        assert "hidden" not in (await ask_mcp(node, "server/discover", token))
        listed = [tool["name"] for tool in (await ask_mcp(node, "tools/list", token))["tools"]]
        assert sum(name.startswith("agent_0") for name in listed) == 250
    async with Session(node, token=new_key(2)) as session:
        listed = (await session.answer({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}))["result"]["tools"]
        assert listed[0]["name"] == "agent_02000_echo"


async def list_mcp_tools_by_the_sdk(node: Node) -> None:
    async with Session(node) as session:
        wanted = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": {"progressToken": 1}}}
        listed = (await session.answer(wanted, **{"X-Fabric-Tools": "all"}))["result"]
        assert len(listed["tools"]) == 1000
        assert listed["nextCursor"]


async def search(node: Node) -> None:
    """All at once, by words, by words and a tag that all agents have, and of a caller that was never here."""
    everything = (await node.operation("fabric.agent.search", {"limit": 100}))["result"]
    assert (everything["count"], everything["total"]) == (100, NUMBER)
    by_words = (await node.operation("fabric.agent.search", {"query": "echo number 4711"}))["result"]
    assert by_words["results"][0]["agent_id"] == "agent-04711"
    by_tag = (await node.operation("fabric.agent.search", {"query": "echo 4711", "tag": "many"}))["result"]
    assert (by_tag["results"][0]["agent_id"], by_tag["total"]) == ("agent-04711", NUMBER)
    found = (await node.send("GET", "/search?q=echo", token=new_key(3))).json
    assert found["results"][0]["agent_id"].startswith("agent-03")


async def preview_routes(node: Node) -> None:
    """Of an agent, of one that does not exist, and of a caller that was never here."""
    for agent_id, token, is_allowed in (
        ("agent-04711", PSK, True), ("agent-x4711", PSK, None), ("agent-04711", new_key(4), True),
        ("agent-x4711", new_key(5), False), ("agent-x4711", VIEWED, False),
    ):  # fmt: skip
        asked = {"agent_id": agent_id, "capability": "echo"}
        reply = await node.operation("fabric.route.preview", asked, token=token)
        assert (reply["result"]["policy"]["allowed"] if reply["ok"] else None) is is_allowed
    unknown = await node.operation("fabric.agent.describe", {"agent_id": "agent-06x"}, token=new_key(6))
    assert unknown["error_code"] == "AGENT_NOT_FOUND"


async def route_words(node: Node) -> None:
    for text, token in (("please ask agent 4711 to echo", PSK), ("echo this", new_key(7))):
        assert (await node.operation("fabric.route", {"text": text}, token=token))["ok"]


async def look_for_resources(node: Node) -> None:
    """By a client for which the SDK is loaded, so that its server has to be told of each change."""
    async with Session(node) as session:
        assert "result" in await session.answer({"jsonrpc": "2.0", "id": 2, "method": "resources/list"})
        await register(node)
        assert "result" in await session.answer({"jsonrpc": "2.0", "id": 3, "method": "prompts/list"})


async def show_health(node: Node) -> None:
    assert (await node.operation("fabric.health"))["result"]["agents"]["count"] == NUMBER


async def show_cards(node: Node) -> None:
    card = (await node.send("GET", "/.well-known/agent-card.json")).json
    assert [skill["id"] for skill in card["skills"]] == ["echo"]


async def discover(node: Node) -> None:
    """At the directory, and as the RPC client does: both with a cursor for the rest."""
    reply = (await node.send("GET", "/a2a/agents")).json
    assert (len(reply["agents"]), reply["total"]) == (1000, NUMBER)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "a2a/discover", "params": {"capabilities": ["echo"]}}
    assert len((await node.send("POST", "/a2a", json=asked)).json["result"]["agents"]) == 1000
    page: dict[str, Any] = {}
    found: list[str] = []
    while not found or "nextCursor" in page:
        params = {"cursor": page["nextCursor"]} if page else {}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "discover", "params": params}
        page = (await node.send("POST", "/", json=asked)).json["result"]
        found += [card["id"] for card in page["agents"]]
    assert len(set(found)) == len(found) == NUMBER


async def read_catalog(node: Node) -> None:
    for token in (PSK, new_key(8)):
        document = await node.send("GET", "/.well-known/ai-catalog.json?part=1", token=token)
        assert document.status == 200
        assert len(document.body) <= MAX_BYTES
    card = (await node.send("GET", "/.well-known/agent.json", token=new_key(9))).json
    assert card["capabilities"] == ["echo"]


async def list_pages(node: Node) -> None:
    """The same lists at the plain addresses."""
    for path, key in (("/mcp/list_agents", "agents"), ("/mcp/list_tools", "tools"), ("/v1/agents", "agents")):
        reply = await node.send("GET", path)
        assert len(reply.body) <= MAX_BYTES
        assert len(reply.json[key]) == 1000


async def list_rest(node: Node) -> None:
    reply = (await node.send("GET", "/v1/agents?limit=100&tag=many")).json
    assert len(reply["agents"]) == 100


async def show_one(node: Node) -> None:
    """One agent at each door that shows one, and one that does not exist."""
    for path in ("/v1/agents/", "/a2a/agents/", "/mcp/agent/"):
        assert (await node.send("GET", f"{path}agent-04711")).status == 200
    for path in ("/v1/agents/", "/mcp/agent/"):
        assert (await node.send("GET", f"{path}agent-x4711")).status == 404
    assert (await node.send("GET", "/agents/agent-04711/.well-known/agent-card.json")).json["name"] == "agent-04711"


async def search_with_mcp(node: Node) -> None:
    """With the tools by which a model finds what its list does not show."""
    async with Session(node) as session:
        for name, arguments in (
            ("fabric.agent.search", {"query": "echo number 4711"}),
            ("fabric.tool.list", {"query": "echo"}),
            ("fabric.route.preview", {"agent_id": "agent-04711", "capability": "echo"}),
        ):
            params = {"name": name, "arguments": arguments}
            called = await session.answer({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
            assert not called["result"].get("isError"), called


async def administer(node: Node) -> None:
    """What the console asks for: its lists, one agent, and one that does not exist."""
    for name, arguments in (
        ("overview", {}), ("agents.live", {"agent_ids": [f"agent-{number:05}" for number in range(200)]}),
        ("agent", {"agent_id": "agent-04711"}), ("jobs", {}), ("keys", {}), ("views", {}), ("messages", {}),
        ("settings", {}), ("tools.changed", {}), ("tools.changed", {"agent_id": "agent-04711"}),
    ):  # fmt: skip
        reply = await node.operation(f"fabric.admin.{name}", arguments)
        assert reply["ok"], reply
    listed = (await node.operation("fabric.admin.agents"))["result"]
    names = list(map(itemgetter("agent_id"), listed["agents"]))
    assert names == sorted(set(names))
    assert len(names) == listed["count"] == NUMBER
    assert "unchanged" in (await node.operation("fabric.admin.agents", {"known": listed["stamp"]}))["result"]
    for name in ("agent", "agent.probe", "tools.changed"):
        unknown = await node.operation(f"fabric.admin.{name}", {"agent_id": "agent-x4711"})
        assert unknown["error_code"] == "AGENT_NOT_FOUND"


async def register(node: Node) -> None:
    endpoint = {"agent_id": "newcomer", "endpoint": "http://127.0.0.1:9/", "capabilities": ["echo"]}
    assert (await node.operation("fabric.agent.register", endpoint))["ok"]
    assert node.fabric.registry.catalog.get("newcomer") is not None
    assert (await node.operation("fabric.agent.unregister", {"agent_id": "newcomer"}))["ok"]
    assert node.fabric.registry.catalog.get("newcomer") is None


@pytest.mark.parametrize(
    "work",
    [
        scrape, list_all, list_narrow, look_for_words, list_tools, show_health, show_cards, discover, list_rest,
        list_pages, read_catalog, register, list_mcp_tools, list_all_mcp_tools, list_mcp_tools_of_newcomers,
        list_mcp_tools_by_the_sdk, search, search_with_mcp, preview_routes, route_words, look_for_resources, show_one,
        administer,
    ],
    ids=lambda work: work.__name__,
)  # fmt: skip
async def test_no_request_holds_the_loop(node: Node, work: Callable[[Node], Awaitable[None]]) -> None:
    with counting_steps() as steps:
        await work(node)
    assert steps.longest <= MAX_LINES, steps.explanation


async def test_a_changed_entry_of_a_file_does_not_hold_the_loop(node: Node, folder: Path) -> None:
    await asyncio.to_thread(write_agents, folder, 4711)

    async def is_changed() -> bool:
        known = node.fabric.registry.catalog.get("agent-04711")
        return known is not None and "in other words" in known.description

    before = node.fabric.registry.catalog
    with counting_steps() as steps:
        await eventually(is_changed)
    assert steps.longest <= MAX_LINES, steps.explanation
    assert node.fabric.registry.catalog.changes_since(before) == {"agent-04711"}


async def test_a_list_that_is_made_while_agents_change_is_not_kept_for_those_that_came(node: Node) -> None:
    """Also of a caller with scopes, whose view is made in slices while the table of tools is brought up to date."""

    async def list_names() -> set[str]:
        page = await ask_mcp(node, "tools/list", NARROW, X_Fabric_Tools="all")
        return {tool["name"] for tool in page["tools"] if tool["name"].startswith("agent_")}

    before = await list_names()
    for number in range(5):
        newcomer = {"agent_id": f"agent-00x{number}", "endpoint": "http://127.0.0.1:9/", "capabilities": ["echo"]}
        await asyncio.gather(list_names(), node.operation("fabric.agent.register", newcomer), list_names())
        assert await list_names() == before | {f"agent_00x{number}_echo"}
        left = node.operation("fabric.agent.unregister", {"agent_id": newcomer["agent_id"]})
        await asyncio.gather(list_names(), left, list_names())
        assert await list_names() == before


@pytest.fixture(scope="module")
def examined() -> Iterator[list[int]]:
    """How many objects each garbage collection looked at."""
    numbers: list[int] = []

    def on_collection(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            numbers.append(sum(len(gc.get_objects(generation=each)) for each in generations))

    gc.callbacks.append(on_collection)
    yield numbers
    gc.callbacks.remove(on_collection)


async def call_all_agents(node: Node) -> None:
    async def call(numbers: range) -> None:
        for number in numbers:
            assert (await node.ask(f"agent-{number:05}", "echo", "hello"))["ok"]

    await asyncio.gather(*(call(range(first, NUMBER, 16)) for first in range(16)))


async def open_and_leave_sessions(node: Node) -> None:
    """Of clients that need the SDK, some of which send no DELETE."""
    for number in range(50):
        session = await Session(node).__aenter__()
        assert "result" in await session.answer({"jsonrpc": "2.0", "id": 2, "method": "resources/list"})
        if number % 2:
            await session.__aexit__()


async def test_no_garbage_collection_looks_at_all_agents(node: Node, examined: list[int]) -> None:
    """Not even when each agent was called, which leaves most of what is kept for them, and the node is idle."""
    gc.collect()  # looks at all agents, which must not put off the next ones
    examined.clear()
    collection = GarbageCollection(lambda: True)
    collecting = asyncio.ensure_future(collection.run())
    await asyncio.sleep(0)
    try:
        for work in (scrape, list_mcp_tools, search, route_words, register, call_all_agents, open_and_leave_sessions):
            await work(node)
        gc.collect()
        await collection.collect_all_if_it_pays()
    finally:
        collecting.cancel()
        gc.unfreeze()
    assert len(examined) > 5
    assert max(examined) <= MAX_OBJECTS, sorted(examined)[-9:]
    agents = node.fabric.registry.catalog.agents
    assert not any(map(gc.is_tracked, agents))
    assert not any(gc.is_tracked(capability) for manifest in agents for capability in manifest.capabilities)


async def test_callers_go_on_beside_a_scrape_a_list_and_an_edit(node: Node) -> None:
    """Each of them gives way after every few agents, so the steps of a call come between theirs."""
    done = asyncio.Event()

    async def call() -> int:
        answered = 0
        while not done.is_set():
            assert (await node.ask("agent-00042", "echo", "hello"))["ok"]
            answered += 1
        return answered

    with counting_steps() as steps:
        caller = asyncio.ensure_future(call())
        await asyncio.gather(scrape(node), list_all(node), register(node))
        done.set()
        answered = await caller
    assert steps.longest <= MAX_LINES, steps.explanation
    assert answered >= 5
