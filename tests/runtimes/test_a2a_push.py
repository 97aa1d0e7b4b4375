"""A2A agents that tell by themselves how a task goes on: their word arrives where polling would come far too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.callbacks import CALLBACK_PATH, Callback, Callbacks
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Answer
from a2a_fabric.protocols.a2a.decode import parse_push
from a2a_fabric.protocols.a2a.models import A2AMessage, A2APushConfig, A2ATask, SendOptions, TaskStatusUpdate
from a2a_fabric.runtimes.a2a.client import RequestOptions
from a2a_fabric.runtimes.a2a.connection import A2AEndpoint, connect
from a2a_fabric.runtimes.a2a.messages import parts_from_call
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from a2a_fabric.web.asgi import WebApp
from a2a_fabric.web.server import HttpServer, bind_socket
from tests.fixtures.agents.a2a_serving import Pushing, Served, serving, serving_v03
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.node import running
from tests.runtimes.a2a_bench import LINES, NEW_LINES, Bench, answering, card_at, wired_to

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_TIMEOUT = 30.0
NEVER = 3600.0  # seconds between two looks: whatever arrives was pushed
ALL_LINES = [*LINES, "jsonrpc-elder", "http-elder", "grpc-elder"]


@asynccontextmanager
async def listening(callbacks: Callbacks) -> AsyncIterator[Callbacks]:
    """As a node does, with no door but this."""
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    server = HttpServer(WebApp([], [], callbacks, BodyLimit(20_000)), [listener], drain_timeout=1, connections=100)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield callbacks
    finally:
        server.should_exit = True
        async with asyncio.timeout(WAIT_TIMEOUT):
            await running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def callbacks() -> AsyncIterator[Callbacks]:
    async with listening(Callbacks()) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def newer() -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3"), streaming=False, pushing="yes") as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def elder() -> AsyncIterator[Served]:
    async with serving_v03(plain=True, pushing=True) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as found:
        yield found


@pytest.fixture
def bench(stack: AsyncExitStack, callbacks: Callbacks) -> Bench:
    return Bench(stack, callbacks=callbacks)


@pytest.fixture(params=ALL_LINES)
def agent(request: pytest.FixtureRequest, bench: Bench, newer: Served, elder: Served) -> A2ARuntime:
    """One that is not polled unless it says so."""
    binding, _, version = request.param.partition("-")
    served, version = (elder, "0.3") if version == "elder" else (newer, version)
    return bench.runtime(uri=served.url, binding=binding, version=version, blocking=False, look_seconds=NEVER)


async def test_the_answer_arrives_by_push(agent: A2ARuntime, callbacks: Callbacks, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("count", words=["one ", "two"], go_on=str(go_on)), ignore_event))
    await until(lambda: callbacks.open_count == 1, WAIT_TIMEOUT)
    go_on.touch()
    assert (await asking).data == {"answer": "one two", "counted": 2}
    assert callbacks.open_count == 0


async def test_what_happens_on_the_way_is_pushed_too(agent: A2ARuntime, tmp_path: Path) -> None:
    heard, go_on = Heard(), tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("count", words=["one ", "two"], go_on=str(go_on), stream=True), heard))
    await until(lambda: "artifact" in heard.kinds, WAIT_TIMEOUT)  # the first word, while the agent waits for the file
    go_on.touch()
    assert (await asking).data == {"answer": "one two", "counted": 2}


async def test_questions_are_pushed(agent: A2ARuntime) -> None:
    call = call_of("paint")
    asked = await agent(call, ignore_event)
    assert asked.asked is not None
    assert asked.asked.message == "Which colour?"
    again = await agent(answering(call, asked, Answer(action="accept", content={"answer": "red"})), ignore_event)
    assert again.asked is not None or "red" in again.data["answer"]


async def begun(bench: Bench, line: str, served: Served, place: A2APushConfig, go_on: Path) -> str:
    """A task of which the agent learns only afterwards where to push."""
    binding, _, version = line.partition("-")
    version = "0.3" if version == "elder" else version
    endpoint = A2AEndpoint(uri=served.url, binding=binding, version=version)  # type: ignore[arg-type]  # of those
    contact = await connect(endpoint, bench.context)
    options = RequestOptions(timeout=WAIT_TIMEOUT)
    parts = parts_from_call(call_of("count", words=["one"], go_on=str(go_on)), None, takes_json=True)
    message = A2AMessage(id=new_id(), role="user", parts=parts, metadata={"skill": "count"})
    try:
        said = await contact.client.send(message, SendOptions(blocking=False), options)
        assert isinstance(said, A2ATask)
        await contact.client.register_push(msgspec.structs.replace(place, task_id=said.id), options)
    finally:
        await contact.client.aclose()
    return said.task_id


@pytest.mark.parametrize("line", ALL_LINES)
async def test_one_can_ask_for_pushes_afterwards(
    line: str, bench: Bench, callbacks: Callbacks, newer: Served, elder: Served, tmp_path: Path
) -> None:
    go_on = tmp_path / "go_on"
    with callbacks.open_callback(is_local=True) as callback:
        assert callback is not None
        token = callback.token
        place = A2APushConfig(id="ours", url=callback.url, token=token, scheme="Bearer", credentials=token)
        task_id = await begun(bench, line, elder if line.endswith("elder") else newer, place, go_on)
        go_on.touch()
        states: list[str] = []
        while "completed" not in states:
            said = [parse_push(note) for note in await callback.receive(WAIT_TIMEOUT)]
            assert said
            assert {getattr(each, "task_id", None) for each in said} == {task_id}
            states += [each.status.state for each in said if isinstance(each, A2ATask | TaskStatusUpdate)]


@pytest.mark.parametrize("line", NEW_LINES)
async def test_a_connection_that_breaks_is_no_loss(
    line: str, stack: AsyncExitStack, bench: Bench, newer: Served, tmp_path: Path
) -> None:
    """The call waits for its reply, loses it, finds the task, and asks for pushes then."""
    binding = line.partition("-")[0]
    place, path, scheme = {
        "jsonrpc": (newer.url, "/rpc", "http"),
        "http": (newer.url, "/rest", "http"),
        "grpc": (newer.grpc, "", "grpc"),
    }[binding]
    wire = await stack.enter_async_context(wired_to(int(place.rpartition(":")[2])))
    able = {"streaming": False, "pushNotifications": True}
    card = card_at(f"{scheme}://127.0.0.1:{wire.port}{path}", line, capabilities=able)
    agent, go_on, sent = bench.runtime(card=card, look_seconds=NEVER), tmp_path / "go_on", len(newer.executor.sent)
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on)), ignore_event))
    await until(lambda: len(newer.executor.sent) > sent, WAIT_TIMEOUT)
    asked = len(newer.requests)
    wire.cut()
    if binding != "grpc":  # found, looked at, asked to push, looked at
        await until(lambda: len(newer.requests) >= asked + 4, WAIT_TIMEOUT)
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}


@pytest.mark.parametrize("line", ["jsonrpc-0.3", "http-0.3"])
async def test_a_push_names_a_task_whose_reply_was_lost(
    line: str, stack: AsyncExitStack, bench: Bench, newer: Served, tmp_path: Path
) -> None:
    """In 0.3 there is no other way to learn of it."""
    wire = await stack.enter_async_context(wired_to(int(newer.url.rpartition(":")[2])))
    path = "/rpc" if "rpc" in line else "/rest"
    able = {"streaming": False, "pushNotifications": True}
    card = card_at(f"http://127.0.0.1:{wire.port}{path}", line, capabilities=able)
    agent, go_on, sent = bench.runtime(card=card, look_seconds=NEVER), tmp_path / "go_on", len(newer.executor.sent)
    wire.is_mute = True
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on)), ignore_event))
    await until(lambda: len(newer.executor.sent) > sent, WAIT_TIMEOUT)
    wire.is_mute = False
    wire.cut()
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}


@pytest.mark.parametrize("line", NEW_LINES)
async def test_a_listener_hears_of_an_agent_that_cannot_stream(
    line: str, bench: Bench, newer: Served, tmp_path: Path
) -> None:
    agent, heard, go_on = bench.on(line, newer.url, look_seconds=NEVER), Heard(), tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on), stream=True), heard))
    await until(lambda: {"status", "artifact"} <= set(heard.kinds), WAIT_TIMEOUT)
    assert "begun" in [event.data.get("message") for event in heard.events if event.kind == "status"]
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}


@asynccontextmanager
async def one_that(pushing: Pushing) -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3"), streaming=False, pushing=pushing) as found:
        yield found


async def test_pushes_that_get_lost_are_made_up_for_by_looking(
    stack: AsyncExitStack, bench: Bench, tmp_path: Path
) -> None:
    served = await stack.enter_async_context(one_that("in vain"))
    agent = bench.on("jsonrpc-1.0", served.url, blocking=False, look_seconds=0.5)
    (go_on := tmp_path / "go_on").touch()
    assert (await agent(call_of("wait", go_on=str(go_on)), ignore_event)).data == {"answer": "half and half"}
    assert len(served.executor.sent) == 1


@pytest.mark.parametrize("line", LINES)
async def test_an_agent_that_does_not_like_our_address_is_polled(
    line: str, stack: AsyncExitStack, bench: Bench, tmp_path: Path
) -> None:
    served = await stack.enter_async_context(one_that("nowhere"))
    agent = bench.on(line, served.url, blocking=False, look_seconds=NEVER)
    (go_on := tmp_path / "go_on").touch()
    for _ in range(2):
        assert (await agent(call_of("wait", go_on=str(go_on)), ignore_event)).data == {"answer": "half and half"}
    assert len(served.executor.sent) == 2


async def test_without_an_address_of_ours_the_agent_is_polled(
    stack: AsyncExitStack, newer: Served, tmp_path: Path
) -> None:
    full = Callbacks("http://127.0.0.1:1", limit=0)
    (go_on := tmp_path / "go_on").touch()
    for each in (Callbacks(), full):
        agent = Bench(stack, callbacks=each).on("jsonrpc-1.0", newer.url, blocking=False, look_seconds=NEVER)
        assert (await agent(call_of("wait", go_on=str(go_on)), ignore_event)).data == {"answer": "half and half"}


async def test_a_cancelled_call_leaves_no_callback(agent: A2ARuntime, callbacks: Callbacks, tmp_path: Path) -> None:
    note = tmp_path / "note"
    asking = asyncio.create_task(agent(call_of("sleep", note=str(note)), ignore_event))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)
    assert callbacks.open_count == 0


async def left(url: str, token: str | None, body: bytes = b"{}", *, as_bearer: bool = False) -> int:
    header = "Authorization" if as_bearer else "X-A2A-Notification-Token"
    headers = {header: f"Bearer {token}" if as_bearer else token} if token is not None else {}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        aiohttp.ClientSession() as client,
        client.post(url, data=body, headers=headers) as reply,
    ):
        return reply.status


async def is_woken(callback: Callback) -> bool:
    return bool(await callback.receive(0.0))


async def test_only_the_right_token_wakes_a_call(callbacks: Callbacks) -> None:
    with callbacks.open_callback(is_local=True) as callback, callbacks.open_callback(is_local=True) as other:
        assert callback is not None
        assert other is not None
        for wrong in (None, "", "x", other.token, callback.token[:-1], callback.token + "x"):
            assert await left(callback.url, wrong) == 404
            assert await left(callback.url, wrong, as_bearer=True) == 404
        assert await left(callback.url.rpartition("/")[0] + "/nobody", callback.token) == 404
        assert not await is_woken(callback)
        assert await left(callback.url, callback.token) == 204
        assert await left(callback.url, callback.token, as_bearer=True) == 204
        assert await callback.receive(WAIT_TIMEOUT) == [b"{}", b"{}"]
        assert not await is_woken(other)


async def test_what_is_left_is_bounded(callbacks: Callbacks) -> None:
    with callbacks.open_callback(is_local=True) as callback:
        assert callback is not None
        assert await left(callback.url, callback.token, b"x" * 10_000) == 204
        assert await left(callback.url, callback.token, b"x" * 100_000) == 413
        assert await callback.receive(WAIT_TIMEOUT) == [b"", b""]  # there was something
        for number in range(100):
            callback.deliver(str(number).encode())
        kept = await callback.receive(WAIT_TIMEOUT)
        assert (len(kept), kept[-1]) == (16, b"99")
    assert await left(callback.url, callback.token) == 204  # a late notification does no harm
    assert await callback.receive(WAIT_TIMEOUT) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1]",
        b'"completed"',
        b'{"statusUpdate": 7}',
        b'{"statusUpdate": {"taskId": "another", "status": {"state": "TASK_STATE_COMPLETED"}}}',
        b'{"task": {"id": "forged", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": []}}',
        b"[" * 100_000,
    ],
)
async def test_nonsense_with_the_right_token_changes_no_answer(
    body: bytes, stack: AsyncExitStack, newer: Served, tmp_path: Path
) -> None:
    seen: list[Callback] = []

    class Watched(Callbacks):
        def find(self, key: str, token: str) -> Callback | None:
            found = super().find(key, token)
            seen.extend([found] if found is not None else [])
            return found

    callbacks = await stack.enter_async_context(listening(Watched()))
    agent = Bench(stack, callbacks=callbacks).on("jsonrpc-1.0", newer.url, blocking=False, look_seconds=NEVER)
    go_on = tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on)), ignore_event))
    await until(lambda: bool(seen), WAIT_TIMEOUT)
    assert await left(seen[0].url, seen[0].token, body) in (204, 413)
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}


async def test_an_address_is_given_only_to_those_who_can_reach_it() -> None:
    def url(callbacks: Callbacks, *, is_near: bool) -> str | None:
        with callbacks.open_callback(is_local=is_near) as callback:
            return None if callback is None else callback.url.partition(CALLBACK_PATH)[0]

    nowhere, own, wide, public = Callbacks(), Callbacks(), Callbacks(), Callbacks("https://fabric.example/node/")
    own.set_listen_url("http://127.0.0.1:8000")
    wide.set_listen_url("http://0.0.0.0:8000")
    public.set_listen_url("http://127.0.0.1:8000")
    assert [url(each, is_near=True) for each in (nowhere, own, wide, public)] == [
        None,
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8000",
        "https://fabric.example/node",
    ]
    assert [url(each, is_near=False) for each in (nowhere, own, wide, public)] == [
        None,
        None,
        None,
        "https://fabric.example/node",
    ]
    own.set_listen_url("http://192.0.2.7:8000")
    assert url(own, is_near=False) == "http://192.0.2.7:8000"


async def test_a_node_listens_for_the_pushes_of_its_agents(newer: Served, tmp_path: Path) -> None:
    endpoint = {"uri": newer.url, "blocking": False, "look_seconds": NEVER}
    go_on = tmp_path / "go_on"
    async with running(manifests=[{"agent_id": "pusher", "runtime": "a2a", "endpoint": endpoint}]) as node:
        asking = asyncio.create_task(node.ask("pusher", "wait", context={"go_on": str(go_on)}))
        sent = len(newer.executor.sent)
        await until(lambda: len(newer.executor.sent) > sent, WAIT_TIMEOUT)
        go_on.touch()
        assert (await asking)["result"]["answer"] == "half and half"
        assert (await node.send("POST", f"{CALLBACK_PATH}nobody", json={})).status == 404
