"""FabricClient finds its node, and speaks the directory and REST: agents, tasks, messages and conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import UnsetType

from a2a_fabric import Agent, FabricClient
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentNotFound, AuthInvalid, BadInput, CallTimeout, FabricError, JobNotFound
from a2a_fabric.core.result import Question, Result, make_input_required
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG: dict[str, Any] = {"doors": [{"kind": "fabric"}, {"kind": "directory"}, {"kind": "rest"}]}


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def shout(text: str) -> Any:
        """Say it louder."""
        yield "…"
        yield {"answer": text.upper()}

    @agent.capability
    async def sleep(seconds: float = 60) -> str:
        """Take long."""
        await asyncio.sleep(seconds)
        return "awake"

    @agent.capability
    async def greet(call: Call) -> Result:
        """Ask for a name first."""
        if isinstance(call.answers, UnsetType):
            return make_input_required({"name": Question(kind="form", message="Your name?")}, "name")
        return Result(data={"answer": f"Hello, {call.answers.answers['name'].content}"})

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config=CONFIG) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fabric(node: Node) -> AsyncIterator[FabricClient]:
    async with FabricClient(node.url, PSK) as client:
        yield client


@requirement("002-21")
async def test_the_directory_registers_finds_and_gives_tasks(fabric: FabricClient) -> None:
    directory = fabric.directory
    async with listening(RPCAgent()) as url:
        assert (await directory.register("parrot", ["echo"], url, lease_seconds=60))["status"] == "registered"
        assert (await directory.heartbeat("parrot"))["status"] == "renewed"
        assert [each["agentId"] for each in await directory.discover(["echo"])] == ["parrot"]
        assert (await directory.agent("parrot"))["capabilities"] == ["echo"]
        assert (await directory.unregister("parrot"))["status"] == "unregistered"
    with pytest.raises(FabricError, match="parrot"):
        await directory.agent("parrot")
    task = await directory.task("shout", {"text": "hello"}, task_id="t-1", timeout=WAIT_TIMEOUT)
    assert (task["taskId"], task["status"], task["output"]) == ("t-1", "completed", {"answer": "HELLO"})
    assert (await directory.status("t-1"))["status"] == "completed"


@requirement("002-21")
async def test_the_directory_streams_cancels_and_tells_of_changes(fabric: FabricClient) -> None:
    directory = fabric.directory
    heard: list[dict[str, Any]] = []

    async def listen() -> None:
        async for change in directory.events(["task"]):
            heard.append(change)
            if change["type"] == "task.cancelled":
                return

    listener = asyncio.ensure_future(listen())
    events = [event async for event in directory.stream("shout", {"text": "hi"}, agent_id="percy")]
    assert "token" in [event["event"] for event in events]
    assert events[-1]["event"] == "final"
    assert events[-1]["data"]["output"] == {"answer": "HI"}
    started = await directory.task("sleep", {}, agent_id="percy", task_id="t-long", **{"async": True})
    assert started["status"] in ("queued", "running")
    await directory.cancel("t-long")
    await asyncio.wait_for(listener, WAIT_TIMEOUT)
    assert heard[-1]["taskId"] == "t-long"
    with pytest.raises(FabricError) as unknown:
        await directory.task("no-such-action", {})
    assert unknown.value.trace_id


@requirement("004-32")
async def test_messages_are_sent_answered_and_listed_by_conversation(fabric: FabricClient) -> None:
    sent = await fabric.messages.send("percy", "hello", conversation_id="talk-1", capability="shout")
    reply = await fabric.messages.reply(sent["id"], wait=WAIT_TIMEOUT)
    assert reply["metadata"]["in_reply_to"] == sent["id"]
    assert (await fabric.messages.get(sent["id"]))["metadata"]["delivery"]["status"] == "delivered"
    listed = await fabric.messages.conversation("talk-1")
    assert [each["id"] for each in listed] == [sent["id"], reply["id"]]
    followed = []
    async for event in fabric.messages.follow("talk-1"):
        followed.append(event)
        if len(followed) == 2:
            break
    with pytest.raises(AgentNotFound):
        await fabric.messages.send("nobody", "hello")
    json_sent = await fabric.messages.send("percy", [{"type": "json", "content": {"text": "x"}}], capability="shout")
    assert (await fabric.messages.reply(json_sent["id"]))["parts"]


@requirement("004-32")
async def test_tasks_are_created_followed_answered_and_cancelled(fabric: FabricClient) -> None:
    tasks = fabric.tasks
    task = await tasks.create("percy", {"text": "hello"}, capability="shout")
    assert (await tasks.result(task["id"], WAIT_TIMEOUT))["output"] == {"answer": "HELLO"}
    assert (await tasks.get(task["id"]))["status"] == "completed"
    assert task["id"] in [each["id"] for each in await tasks.list(agent_id="percy", limit=5)]
    numbers = [event.get("number", 0) async for event in tasks.events(task["id"])]
    assert numbers[:-1] == sorted(numbers[:-1])
    asking = await tasks.create("percy", {}, capability="greet")
    asked = await tasks.result(asking["id"], WAIT_TIMEOUT)
    assert "name" in asked["metadata"]["input_required"]["questions"]
    await tasks.answer(asking["id"], {"name": {"content": "Ann"}})
    assert (await tasks.result(asking["id"], WAIT_TIMEOUT))["output"] == {"answer": "Hello, Ann"}
    long = await tasks.create("percy", {}, capability="sleep")
    with pytest.raises(CallTimeout):
        await tasks.result(long["id"], 0.2)
    assert (await tasks.cancel(long["id"]))["id"] == long["id"]
    assert (await tasks.result(long["id"], WAIT_TIMEOUT))["status"] == "cancelled"
    with pytest.raises(JobNotFound):
        await tasks.get("no-such-task")


async def test_a_token_that_no_header_can_carry_is_refused_with_the_reason(node: Node) -> None:
    for token, reason in (("key\n", "line break"), ("a\x00b", "control"), ("kéy→", "'→'")):
        with pytest.raises(BadInput, match="cannot be sent") as refused:
            FabricClient(node.url, token)
        assert reason in refused.value.message
        assert token not in refused.value.message


async def test_an_address_without_a_scheme_is_taken(node: Node) -> None:
    bare = node.url.removeprefix("http://").replace("127.0.0.1", "localhost")
    async with FabricClient(bare, PSK) as fabric:
        assert fabric.url == f"http://{bare}"
        assert (await fabric.health())["node_id"]
    for wrong in ("nonsense", "ftp://x", "http//x", ""):
        with pytest.raises(BadInput):
            FabricClient(wrong)


async def test_without_arguments_the_client_finds_the_node_as_the_command_line_does(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path))
    monkeypatch.setenv("FABRIC_URL", node.url.removeprefix("http://"))
    monkeypatch.setenv("FABRIC_TOKEN", PSK)
    async with FabricClient() as fabric:
        assert (await fabric.agents())[0]["agent_id"] == "percy"
    monkeypatch.delenv("FABRIC_TOKEN")
    monkeypatch.delenv("FABRIC_PSK", raising=False)
    (tmp_path / "key").write_text(PSK)
    (tmp_path / "key").chmod(0o600)
    async with FabricClient() as fabric:
        assert await fabric.agents()
    async with FabricClient(node.url) as named:  # a node that is named gets no key that was not given
        with pytest.raises(FabricError, match="Credentials"):
            await named.agents()
    (tmp_path / "key").write_text("another-key")
    async with FabricClient() as fabric:
        with pytest.raises(AuthInvalid):
            await fabric.agents()
