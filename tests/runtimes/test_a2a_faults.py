"""A2A agents that break, hang, lie and flood: a typed error each time, naming agent and cause; nothing stays behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.tasks import Deadline
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.runtimes import http_agents
from tests.runtimes.a2a_bench import Bench, card_at, our_tasks
from tests.runtimes.http_agents import Agents, Exchange, agents, dead_port, head

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_TIMEOUT = 30.0
LIMIT = 100_000


def _status(state: str, **more: Any) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": state}, **more}}


def _task(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "t1", "contextId": "c1", "status": {"state": state}, **more}


def _piece(text: str, **more: Any) -> dict[str, Any]:
    return {"artifactUpdate": {"taskId": "t1", "artifact": {"artifactId": "a", "parts": [{"text": text}]}, **more}}


async def _say(x: Exchange, result: Any) -> None:
    await x.send(b"data: " + json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode() + b"\r\n\r\n")


async def _reply(x: Exchange, result: Any) -> None:
    await x.reply({"jsonrpc": "2.0", "id": x.request.json["id"], "result": result})


async def endless(x: Exchange) -> None:
    await x.open_stream()
    with suppress(ConnectionError):
        while True:
            await _say(x, _piece("x" * 8000, append=True))
    x.agents.left.set()


async def sleepy(x: Exchange) -> None:
    """Begins, and then says nothing more; remembers that it was cancelled."""
    if x.request.json["method"] != "SendStreamingMessage":
        await _reply(x, _task("canceled"))
        return
    await x.open_stream()
    await _say(x, {"task": _task("working")})
    await x.until_gateway_leaves()


async def deaf(x: Exchange) -> None:
    """The same, but it does not listen to who cancels it."""
    if x.request.json["method"] == "SendStreamingMessage":
        await sleepy(x)
    else:
        await x.until_gateway_leaves()


async def forgetful(x: Exchange) -> None:
    """Begins a task, breaks, and knows nothing of it."""
    if x.request.json["method"] == "SendStreamingMessage":
        await x.open_stream()
        await _say(x, {"task": _task("working")})
        x.reset()
    else:
        await x.reply({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "Task not found"}})


async def mute(x: Exchange) -> None:
    await x.open_stream()


async def slow(x: Exchange) -> None:
    """Answers that it has begun, and is done when it is asked for the third time."""
    if x.request.json["method"] in ("SendMessage", "message/send"):
        await _reply(x, {"task": _task("submitted")})
        return
    looks = sum(call.json["method"] in ("GetTask", "tasks/get") for call in x.agents.calls)
    state = "completed" if looks >= 3 else "pondering"
    said = [{"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "in the end"}]}]
    is_asked = "historyLength" not in x.request.json["params"]
    await _reply(x, _task(state, history=said if is_asked else []))


async def promising(x: Exchange) -> None:
    """Has a card that promises streams."""
    if x.request.json["method"] == "SendStreamingMessage":
        await x.reply({"jsonrpc": "2.0", "id": 1, "error": {"code": -32004, "message": "Streaming is not supported"}})
    else:
        await _reply(x, {"message": {"parts": [{"text": "plainly"}]}})


async def plain_in_stream(x: Exchange) -> None:
    """Asked for a stream, answers with one reply."""
    await _reply(x, {"message": {"parts": [{"text": "at once"}]}})


async def odd_end(x: Exchange) -> None:
    """Ends a stream with a state of its own."""
    await x.open_stream()
    await x.send(b": hello\n\nevent: message\n")
    await _say(x, _piece("so far "))
    await _say(x, _piece("so good", append=True))
    await _say(x, _status("finished", final=True))


async def unlisted(x: Exchange) -> None:
    """Does not tell which tasks it has, and takes its time unless it streams."""
    match x.request.json["method"]:
        case "ListTasks":
            await x.reply({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}})
        case "SendMessage":
            await x.until_gateway_leaves()
        case _:
            await plain_in_stream(x)


async def busy(x: Exchange) -> None:
    await x.reply(b"", "429 Too Many Requests", "text/plain")


async def silent_task(x: Exchange) -> None:
    await _reply(x, {"task": {"status": {"state": "working"}}})


async def huge(x: Exchange) -> None:
    await http_agents.huge_reply(x)


async def cut(x: Exchange) -> None:
    await x.send(head("200 OK", "application/json", "Content-Length: 1000") + b'{"jsonrpc": "2.0", "res')


async def failing_stream(x: Exchange) -> None:
    await x.open_stream()
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "I broke"}}
    await x.send(b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n")


OURS = (
    endless, sleepy, deaf, forgetful, mute, slow, promising, plain_in_stream, odd_end, busy, silent_task, huge, cut,
    failing_stream, unlisted,
)  # fmt: skip
BEHAVIOURS = {**http_agents.BEHAVIOURS, **{behaviour.__name__: behaviour for behaviour in OURS}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind() -> AsyncIterator[Agents]:
    async with agents(BEHAVIOURS) as found:
        yield found


@pytest.fixture
def wild(behind: Agents) -> Agents:
    behind.calls.clear()
    behind.left.clear()
    return behind


@pytest_asyncio.fixture(loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Bench(stack, reply_bytes=LIMIT)
    await until(lambda: not our_tasks(), WAIT_TIMEOUT)


def agent_like(bench: Bench, wild: Agents, behaviour: str, **card: Any) -> Any:
    return bench.runtime(card=card_at(wild.url(f"/{behaviour}"), "jsonrpc-1.0", **card))


FAULTS: list[tuple[str, type[FabricError], str | None]] = [
    ("reset", UpstreamInterrupted, None),
    ("reset_in_body", UpstreamInterrupted, None),
    ("cut", UpstreamInterrupted, None),
    ("truncated", UpstreamFailed, "is not JSON"),
    ("web_page", UpstreamFailed, "is not JSON"),
    ("broken_page", UpstreamFailed, "HTTP 500"),
    ("unavailable", AgentOffline, "HTTP 503"),
    ("bad_gateway", UpstreamInterrupted, "HTTP 502"),
    ("busy", AgentBusy, "HTTP 429"),
    ("redirect", UpstreamFailed, "HTTP 307"),
    ("not_http", UpstreamInterrupted, None),
    ("nested", UpstreamFailed, "is not JSON"),
    ("huge", UpstreamRefused, "larger than"),
    ("slow_numbers", UpstreamRefused, "slow to read"),
]


@pytest.mark.parametrize(("behaviour", "kind", "words"), FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_broken_agent_is_an_error_that_says_what_broke(
    bench: Bench, wild: Agents, behaviour: str, kind: type[FabricError], words: str | None, *, stream: bool
) -> None:
    with pytest.raises(kind, match=words) as caught:
        await agent_like(bench, wild, behaviour)(call_of("act", stream=stream), ignore_event)
    assert type(caught.value) is kind
    assert caught.value.details["agent_id"] == "tested"


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        ("garbage_events", UpstreamFailed, "is not JSON"),
        ("endless", UpstreamRefused, "larger than this node accepts"),
        ("huge_event", UpstreamRefused, "larger than"),
        ("slow_numbers_event", UpstreamRefused, "slow to read"),
        ("mute", UpstreamInterrupted, "before its answer"),
        ("forgetful", UpstreamInterrupted, "no longer knows"),
        ("failing_stream", UpstreamRefused, "I broke"),
    ],
)
async def test_a_broken_stream_is_an_error_that_says_what_broke(
    bench: Bench, wild: Agents, behaviour: str, kind: type[FabricError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await agent_like(bench, wild, behaviour)(call_of("act", stream=True), ignore_event)


async def test_an_agent_that_hangs_ends_with_its_deadline_and_is_told(bench: Bench, wild: Agents) -> None:
    async def timed_out(behaviour: str) -> None:
        with pytest.raises(CallTimeout), Deadline(1.0):
            await agent_like(bench, wild, behaviour)(call_of("act", stream=True), ignore_event)

    await asyncio.gather(*map(timed_out, ("hang", "sleepy", "deaf")))
    await until(lambda: len(wild.calls) == 5, WAIT_TIMEOUT)
    told = {call.path for call in wild.calls if call.json["method"] == "CancelTask"}
    assert told == {"/sleepy", "/deaf"}  # which task the third had begun is unknown


async def test_an_agent_that_does_not_list_its_tasks_is_listened_to_from_then_on(bench: Bench, wild: Agents) -> None:
    """Since its task could not be cancelled otherwise."""
    agent = agent_like(bench, wild, "unlisted")
    with pytest.raises(CallTimeout), Deadline(0.5):
        await agent(call_of("act"), ignore_event)
    await until(lambda: len(wild.calls) == 2, WAIT_TIMEOUT)
    await until(lambda: not our_tasks(), WAIT_TIMEOUT)
    assert (await agent(call_of("act"), ignore_event)).data == {"answer": "at once"}
    methods = [call.json["method"] for call in wild.calls]
    assert methods == ["SendMessage", "ListTasks", "SendStreamingMessage"]


async def test_all_who_look_for_a_card_at_once_share_one_look(bench: Bench, wild: Agents) -> None:
    agent = bench.runtime(uri="http://127.0.0.1:9/", card=wild.url("/hang"))
    asking = [asyncio.create_task(agent(call_of("act"), ignore_event)) for _ in range(5)]
    await until(lambda: bool(wild.calls), WAIT_TIMEOUT)
    asking[0].cancel()
    await agent.aclose()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert len(wild.calls) == 1
    assert all(isinstance(result, asyncio.CancelledError) for result in results)


async def test_an_agent_that_has_only_begun_is_asked_until_it_is_done(bench: Bench, wild: Agents) -> None:
    result = await agent_like(bench, wild, "slow", streaming=False)(call_of("act"), ignore_event)
    assert result.data == {"answer": "in the end"}  # which stands only in its history
    methods = [call.json["method"] for call in wild.calls]
    assert methods == ["SendMessage", *["GetTask"] * 4]


async def test_a_task_without_an_id_cannot_be_followed(bench: Bench, wild: Agents) -> None:
    with pytest.raises(UpstreamFailed, match="has no id"):
        await agent_like(bench, wild, "silent_task", streaming=False)(call_of("act"), ignore_event)


@pytest.mark.parametrize(("behaviour", "answer"), [("promising", "plainly"), ("plain_in_stream", "at once")])
async def test_an_agent_that_does_not_stream_after_all_is_heard_all_the_same(
    bench: Bench, wild: Agents, behaviour: str, answer: str
) -> None:
    assert (await agent_like(bench, wild, behaviour)(call_of("act", stream=True), ignore_event)).data == {
        "answer": answer
    }


async def test_an_unknown_last_state_ends_the_task(bench: Bench, wild: Agents) -> None:
    heard = Heard()
    result = await agent_like(bench, wild, "odd_end")(call_of("act", stream=True), heard)
    assert result.data == {"answer": "so far so good"}
    assert heard.kinds == ["token", "token"]


async def test_a_dead_port_is_an_agent_that_is_offline(bench: Bench) -> None:
    for line, scheme in (("jsonrpc-1.0", "http"), ("http-0.3", "http"), ("grpc-1.0", "grpc")):
        agent = bench.runtime(card=card_at(f"{scheme}://127.0.0.1:{dead_port()}", line))
        for stream in (False, True):
            with pytest.raises(AgentOffline):
                await agent(call_of("act", stream=stream), ignore_event)
