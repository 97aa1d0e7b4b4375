"""The runtime `agentzero` by FastA2A, in front of servers that break the rules: bare sockets, one habit each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.errors import (
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.agentzero import build
from tests.fixtures.agents.calling import HERE, until
from tests.marks import requirement
from tests.runtimes.http_agents import Agents, Exchange, agents
from tests.runtimes.remote_bench import WAIT_TIMEOUT, Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")


def task(state: str, *said: str, **more: Any) -> dict[str, Any]:
    """With a moment that has no zone, as these servers write it."""
    spoken = [{"role": "agent", "parts": [{"kind": "text", "text": text}], "messageId": "m"} for text in said]
    status = {"state": state, "timestamp": "2026-11-16T04:00:00.123456"}
    asked = {"role": "user", "parts": [], "messageId": "q"}
    return {"kind": "task", "id": "t1", "contextId": "c1", "status": status, "history": [asked, *spoken], **more}


class Server:
    """Answers each method with a result, or with whatever a habit says."""

    def __init__(self, **habits: Any) -> None:
        self.habits = {"send": task("submitted"), "get": task("completed", "first", "hello"), **habits}
        self.asked: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, x: Exchange) -> None:
        request = x.request.json
        self.asked.append(request)
        method = request["method"].partition("/")[2]
        habit = self.habits.get(method, task("canceled"))
        if method == "send" and self.habits.get("waits"):
            await self.go_on.wait()
        if isinstance(habit, bytes):
            await x.reply(habit, self.habits.get("status", "200 OK"), "text/html")
        elif habit is None:
            x.reset()
        else:
            told = {"error": habit["error"]} if "error" in habit else {"result": habit}
            await x.reply({"jsonrpc": "2.0", "id": request["id"], **told})

    def count(self, method: str) -> int:
        return [request["method"] for request in self.asked].count(method)


class Wild:
    def __init__(self, bench: Bench, servers: Agents) -> None:
        self._bench = bench
        self._servers = servers

    async def ask(self, server: Server, **more: Any) -> Result:
        name = f"s{len(self._servers.behaviours)}"
        self._servers.behaviours[name] = server
        return await self._bench(uri=self._servers.url(f"/{name}")).ask("x", "go", **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wild() -> AsyncIterator[Wild]:
    async with agents({}) as servers, AsyncExitStack() as stack:
        yield Wild(Bench(stack, build, HERE), servers)


@requirement("001-14")
async def test_the_request_is_what_this_version_of_a2a_asks_for(wild: Wild) -> None:
    server = Server()
    assert await wild.ask(server) == Result(data={"answer": "hello"})
    send, get = server.asked
    params = send["params"]
    assert params["configuration"]["acceptedOutputModes"]
    assert params["configuration"]["blocking"] is False
    assert (params["message"]["role"], params["message"]["kind"]) == ("user", "message")
    assert params["message"]["messageId"]
    assert params["message"]["parts"] == [{"kind": "text", "text": "go"}]
    assert get["params"] == {"id": "t1"}


async def test_an_agent_that_answers_with_a_message_is_not_looked_at(wild: Wild) -> None:
    said = {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "hello"}]}
    server = Server(send=said)
    assert (await wild.ask(server)).data == {"answer": "hello"}
    assert server.count("tasks/get") == 0


@requirement("001-14")
@pytest.mark.parametrize(
    ("habits", "kind", "why"),
    [
        ({"get": task("meditating")}, UpstreamFailed, "does not know"),
        ({"get": task("unknown")}, UpstreamFailed, "does not know"),
        ({"get": task("failed")}, UpstreamRefused, "failed without saying why"),
        ({"get": task("rejected", "no")}, UpstreamRefused, "rejected: no"),
        ({"get": task("auth-required", "who?")}, UpstreamRefused, "auth-required: who"),
        ({"get": {"kind": "task", "id": "t1"}}, UpstreamFailed, "neither a message nor a task"),
        ({"get": b'{"jsonrpc": "2.0", "res'}, UpstreamFailed, "not JSON"),
        ({"send": b"<html>", "status": "500 Internal Server Error"}, UpstreamFailed, "500"),
        ({"send": b"<html>It works!</html>"}, UpstreamFailed, "not JSON"),
        ({"send": {"error": {"code": -32602, "message": "no such part"}}}, BadInput, "no such part"),
        ({"send": {"error": {"code": -32603, "message": "broken"}}}, UpstreamRefused, "broken"),
        ({"send": None}, UpstreamInterrupted, "reset|closed|broke"),
    ],
    ids=range(12),
)
async def test_a_bad_reply_is_a_typed_error(
    wild: Wild, habits: dict[str, Any], kind: type[FabricError], why: str
) -> None:
    with pytest.raises(kind, match=why):
        await wild.ask(Server(**habits))


@requirement("001-14", "001-44")
async def test_looking_without_end_ends_at_the_deadline_and_cancels_the_task(wild: Wild) -> None:
    server = Server(get=task("working"))
    with pytest.raises(CallTimeout):
        await wild.ask(server, timeout=1)
    await until(lambda: server.count("tasks/cancel") == 1, WAIT_TIMEOUT)
    assert 2 < server.count("tasks/get") < 15  # ever less often


async def test_a_task_that_is_lost_sight_of_may_have_run(wild: Wild) -> None:
    async def lose(habit: Any) -> None:
        with pytest.raises(UpstreamInterrupted, match="Lost contact"):
            await wild.ask(Server(get=habit))

    await asyncio.gather(lose(None), lose({"error": {"code": -32001, "message": "Task not found"}}))


@requirement("001-14")
async def test_a_task_is_cancelled_though_its_caller_left_before_it_had_a_name(wild: Wild) -> None:
    server = Server(waits=True, get=task("working"))
    asking = asyncio.ensure_future(wild.ask(server))
    await until(lambda: server.count("message/send") == 1, WAIT_TIMEOUT)
    asking.cancel()
    await asyncio.wait({asking})
    server.go_on.set()
    await until(lambda: server.count("tasks/cancel") == 1, WAIT_TIMEOUT)
    assert server.asked[-1]["params"] == {"id": "t1"}
