"""The runtime `acp` in front of servers that do what the SDK's own never would: bare sockets, one habit per path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.acp.client import RUNS_PATH, ACPClient, ACPRunRequest
from a2a_fabric.runtimes.acp.runtime import RunFollower, RunProgress, build
from a2a_fabric.runtimes.remote_work import BackgroundCancels
from a2a_fabric.runtimes.upstream import JSONAPIClient
from tests.fixtures.agents.calling import HERE, Heard, until
from tests.marks import requirement
from tests.runtimes.http_agents import Agents, Behaviour, Exchange, agents, dead_port
from tests.runtimes.remote_bench import WAIT_TIMEOUT, Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

ID = "11111111-1111-4111-8111-111111111111"
HELLO = {"role": "agent/x", "parts": [{"content_type": "text/plain", "content": "hello"}]}


def run(status: str, **more: Any) -> dict[str, Any]:
    return {"run_id": ID, "agent_name": "x", "status": status, **more}


CREATED = {"type": "run.created", "run": run("created")}
PART = {"type": "message.part", "part": HELLO["parts"][0]}
MORE = {"type": "message.part", "part": {"content_type": "text/plain", "content": " again"}}
DONE = {"type": "run.completed", "run": run("completed", output=[HELLO])}


async def say(x: Exchange, *events: dict[str, Any]) -> None:
    for event in events:
        await x.send(b"data: " + json.dumps(event).encode() + b"\n\n")


class Server:
    """What all of them have in common; `looks` counts how often the run was looked at."""

    looks = 0
    cancelled = 0

    async def __call__(self, x: Exchange) -> None:
        method, path = x.request.method, "/" + x.request.path.strip("/").partition("/")[2]
        if (method, path) == ("POST", "/runs"):
            await self.start(x)
        elif path == f"/runs/{ID}/cancel":
            self.cancelled += 1
            await x.reply(run("cancelling"), "202 Accepted")
        elif path.startswith(f"/runs/{ID}"):
            self.looks += 1
            await (self.events(x) if path.endswith("/events") else self.look(x))
        else:
            await x.reply({"code": "not_found", "message": path}, "404 Not Found")

    async def start(self, x: Exchange) -> None:
        await x.reply(run("in-progress"), "202 Accepted")

    async def look(self, x: Exchange) -> None:
        await x.reply(run("completed", output=[HELLO]) if self.looks > 2 else run("in-progress"))

    async def events(self, x: Exchange) -> None:
        await x.reply({"events": [CREATED, PART, MORE, DONE][: self.looks + 1]})


class Cut(Server):
    """The stream ends in the middle; the run goes on."""

    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, CREATED, PART)


class Reset(Server):
    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, CREATED, PART)
        x.reset()


class Silent(Server):
    """The run is done, and its stream does not say so."""

    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, CREATED, PART)
        await x.until_gateway_leaves()


class Nameless(Server):
    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, {"type": "generic", "generic": "hm"})


class Garbled(Server):
    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, CREATED)
        await x.send(b"data: {{{ not json\n\n")


class Endless(Server):
    """Always under way."""

    async def look(self, x: Exchange) -> None:
        await x.reply(run("in-progress"))


class Numbers(Server):
    """Parts with numbers that are slow to read, each of which would be decoded alone."""

    async def start(self, x: Exchange) -> None:
        part = {"content_type": "application/json", "content": f"[{','.join(['1e300'] * 900)}]"}
        await x.reply(run("completed", output=[{"role": "agent/x", "parts": [part] * 3}]), "202 Accepted")


class Chattering(Server):
    """Words without end."""

    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        await say(x, CREATED)
        try:
            while True:
                await say(x, {"type": "message.part", "part": {"content": "x" * 8000}})
        except ConnectionError:
            x.agents.left.set()


class Odd(Server):
    async def start(self, x: Exchange) -> None:
        await x.reply(run("meditating"))


class Vanishing(Server):
    """The server is gone once the run has begun."""

    async def look(self, x: Exchange) -> None:
        x.reset()


class Forgetful(Server):
    async def look(self, x: Exchange) -> None:
        await x.reply({"code": "not_found", "message": "Run not found"}, "404 Not Found")


class Slow(Server):
    """Says what the run is called only when it is told to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def start(self, x: Exchange) -> None:
        await self.answer.wait()
        await x.reply(run("in-progress"), "202 Accepted")


class Whole(Server):
    """Messages as a whole only, and an error event of its own."""

    async def start(self, x: Exchange) -> None:
        await x.open_stream()
        if "break" in x.request.body.decode():
            error = {"code": "server_error", "message": "out of cheese"}
            await say(x, CREATED, {"type": "error", "error": error})
        else:
            created = {"type": "message.created", "message": HELLO}
            await say(x, CREATED, created, {"type": "message.completed", "message": HELLO}, DONE)


class Locked(Server):
    async def start(self, x: Exchange) -> None:
        await x.reply(b"who are you?", "401 Unauthorized", "text/plain")


class Paged(Server):
    """Two agents to a page, whatever one asks for; knows its own key only."""

    NAMES = tuple(f"agent-{number}" for number in range(1500))

    async def __call__(self, x: Exchange) -> None:
        if x.request.headers.get("authorization") != "Bearer secret":
            await x.reply({"code": "x", "message": "who?"}, "401 Unauthorized")
            return
        query = dict(pair.split("=") for pair in x.request.path.partition("?")[2].split("&"))
        start = int(query["offset"])
        names = self.NAMES[start : start + int(query["limit"])]
        await x.reply({"agents": [{"name": name, "description": None} for name in names]})


class Habits(dict[str, Behaviour]):
    """Found by the first step of a path."""

    def __missing__(self, path: str) -> Behaviour:
        return self[path.split("?")[0].split("/")[0]]


class Wild:
    """Servers by their habits, each for one test, and a bench to ask them from."""

    def __init__(self, bench: Bench, servers: Agents) -> None:
        self.bench = bench
        self.servers = servers

    def uri(self, server: Server) -> str:
        name = f"s{len(self.servers.behaviours)}"
        self.servers.behaviours[name] = server
        return self.servers.url(f"/{name}")

    async def ask(
        self, server: Server, task: str = "go", emit: Any = ignore_event, mode: str = "stream", **more: Any
    ) -> Any:
        return await self.bench(uri=self.uri(server), mode=mode).ask("x", task, emit, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wild() -> AsyncIterator[Wild]:
    async with agents(Habits()) as servers, AsyncExitStack() as stack:
        yield Wild(Bench(stack, build, HERE, reply_bytes=100_000), servers)


@requirement("001-15")
@pytest.mark.parametrize("habit", [Cut, Reset])
async def test_a_run_whose_stream_breaks_is_looked_after_until_it_is_done(wild: Wild, habit: type[Server]) -> None:
    server = habit()
    assert (await wild.ask(server)).data == {"answer": "hello"}
    assert (server.looks, server.cancelled) == (3, 0)


@pytest.mark.parametrize("habit", [Cut, Reset])
async def test_those_who_listen_hear_what_a_broken_stream_did_not_say_and_nothing_twice(
    wild: Wild, habit: type[Server]
) -> None:
    heard = Heard()
    await wild.ask(habit(), emit=heard, stream=True)
    assert [event.data["text"] for event in heard.events] == ["hello", " again"]


async def test_numbers_that_are_slow_to_read_are_counted_over_all_parts(wild: Wild) -> None:
    with pytest.raises(UpstreamRefused, match="slow to read"):
        await wild.ask(Numbers(), mode="sync")


async def test_a_stream_that_falls_silent_is_given_up_when_the_run_is_done(wild: Wild) -> None:
    server = Silent()
    async with asyncio.timeout(WAIT_TIMEOUT):
        http = OutboundClient()
        runs = ACPClient(JSONAPIClient(http, wild.uri(server), {}, 100_000))
        following = RunFollower(runs, "stream", BackgroundCancels("tested"), silence_timeout=0.05)
        start = ACPRunRequest(path=RUNS_PATH, body={}, timeout=WAIT_TIMEOUT, headers={})
        found = await following.follow(start, RunProgress(ignore_event))
        await http.aclose()
    assert found.status == "completed"
    assert server.cancelled == 0


async def test_a_stream_that_ends_before_the_run_has_a_name_is_an_interruption(wild: Wild) -> None:
    with pytest.raises(UpstreamInterrupted, match="ended before"):
        await wild.ask(Nameless())


@pytest.mark.parametrize("mode", ["stream", "async", "sync"])
async def test_an_unknown_state_is_a_failure(wild: Wild, mode: str) -> None:
    with pytest.raises(UpstreamFailed, match="does not define: 'meditating'"):
        await wild.ask(Odd(), mode=mode)


async def test_an_event_that_is_not_json_ends_the_call_and_cancels_the_run(wild: Wild) -> None:
    server = Garbled()
    with pytest.raises(UpstreamFailed, match="not JSON"):
        await wild.ask(server)
    await until(lambda: server.cancelled == 1, WAIT_TIMEOUT)


@requirement("001-15", "001-44")
async def test_looking_without_end_ends_at_the_deadline_and_cancels_the_run(wild: Wild) -> None:
    server = Endless()
    with pytest.raises(CallTimeout):
        await wild.ask(server, mode="async", timeout=0.5)
    assert server.looks > 2
    await until(lambda: server.cancelled == 1, WAIT_TIMEOUT)


async def test_words_without_end_are_cut_off_and_the_run_is_cancelled(wild: Wild) -> None:
    server = Chattering()
    with pytest.raises(UpstreamRefused, match="larger than"):
        await wild.ask(server, emit=Heard(), stream=True)
    await until(lambda: server.cancelled == 1, WAIT_TIMEOUT)


async def test_a_run_that_is_lost_sight_of_may_have_run(wild: Wild) -> None:
    """So it must not look like an agent that was never there."""

    async def lose(server: Server) -> None:
        with pytest.raises(UpstreamInterrupted, match="Lost contact"):
            await wild.ask(server, mode="async")

    await asyncio.gather(lose(Vanishing()), lose(Forgetful()))


async def test_a_server_that_is_not_there_has_surely_done_nothing(wild: Wild) -> None:
    with pytest.raises(AgentOffline):
        await wild.bench(uri=f"http://127.0.0.1:{dead_port()}").ask("x")


@requirement("001-15")
@pytest.mark.parametrize("mode", ["stream", "async"])
async def test_a_run_is_cancelled_though_its_caller_left_before_it_had_a_name(wild: Wild, mode: str) -> None:
    server = Slow()
    wild.servers.arrived.clear()
    asking = asyncio.ensure_future(wild.ask(server, mode=mode))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await wild.servers.arrived.wait()
    asking.cancel()
    await asyncio.wait({asking})
    assert server.cancelled == 0
    server.answer.set()
    await until(lambda: server.cancelled == 1, WAIT_TIMEOUT)


async def test_messages_that_come_as_a_whole_are_heard_as_a_whole(wild: Wild) -> None:
    heard = Heard()
    assert (await wild.ask(Whole(), emit=heard, stream=True)).data == {"answer": "hello"}
    assert [event.data["text"] for event in heard.events] == ["hello"]


async def test_an_error_event_is_the_calls_error(wild: Wild) -> None:
    with pytest.raises(UpstreamRefused, match="out of cheese"):
        await wild.ask(Whole(), "break")


async def test_a_server_that_does_not_know_us_says_so_without_the_token(wild: Wild) -> None:
    remote = wild.bench(uri=wild.uri(Locked()), token="hush")
    with pytest.raises(UpstreamRefused, match="credentials") as caught:
        await remote.ask("x")
    assert "hush" not in str(caught.value.details) + caught.value.message


async def test_agents_that_come_on_many_pages_are_all_found_with_the_right_key(wild: Wild) -> None:
    uri = wild.uri(Paged())
    manifest = await wild.bench(uri=uri, token="secret").runtime.describe()
    assert [capability.name for capability in manifest.capabilities] == list(Paged.NAMES)
    with pytest.raises(UpstreamRefused, match="credentials"):
        await wild.bench(uri=uri, token="wrong").runtime.describe()


async def test_an_address_with_a_password_in_it_is_refused(wild: Wild) -> None:
    with pytest.raises(BadInput, match="token"):
        wild.bench(uri="http://me:secret@127.0.0.1/")
