"""Tasks of document 002: sent, repeated, watched, cancelled, passed on from agent to agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Part
from tests.doors.directory_clients import OUTCOME, exactly, post, rpc
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import NOWHERE, listening

BOB, READER = "the-key-of-bob", "the-key-of-dave"
CONFIG: dict[str, Any] = {
    "doors": [{"kind": "fabric"}, {"kind": "directory"}],
    "auth": {"keys": [{"id": "bob", "key": BOB}, {"id": "dave", "key": READER, "scopes": ["agent:nobody"]}]},
    "jobs": {"retry": {"pause_seconds": 0.01}},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Worker:
    """An agent whose doings can be seen and held up."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.stopped = asyncio.Event()
        self.runs: list[str] = []

    def agent(self, agent_id: str = "worker") -> Agent:
        agent = Agent(agent_id)
        for each in (self.shout, self.double, self.measure, self.wait, self.count, self.bare, self.draw, self.look):
            agent.capability(each)
        agent.capability(idempotent=False)(self.refuse)
        agent.capability(idempotent=False)(self.crash)
        return agent

    async def shout(self, text: str) -> dict[str, str]:
        self.runs.append(text)
        return {"text": text.upper()}

    async def double(self, text: str, times: int = 2) -> dict[str, str]:
        return {"text": text * times}

    async def measure(self, text: str) -> dict[str, int]:
        return {"length": len(text)}

    async def wait(self, text: str = "") -> dict[str, str]:
        self.runs.append(text)
        self.began.set()
        try:
            await self.may_go_on.wait()
        finally:
            self.stopped.set()
        return {"waited": text}

    async def count(self, upto: int) -> AsyncIterator[str | dict[str, int]]:
        for number in range(1, upto + 1):
            yield str(number)
            if number == 2:
                self.began.set()
                await self.may_go_on.wait()
        yield {"counted": upto}

    async def bare(self) -> str:
        return "only words"

    async def draw(self) -> list[Part]:
        return [Part(kind="image", blob="aGk=", mime_type="image/png", name="hi.png")]

    async def look(self, attachments: list[Part]) -> dict[str, Any]:
        return {"seen": [[part.kind, part.name, part.blob] for part in attachments]}

    async def refuse(self, text: str) -> dict[str, str]:
        raise BadInput(f"not {text}")

    async def crash(self, text: str) -> dict[str, str]:
        raise RuntimeError(text)


@asynccontextmanager
async def working(**config: Any) -> AsyncIterator[tuple[Node, Worker]]:
    worker = Worker()
    away = {"agent_id": "away", "runtime": "rpc", "endpoint": {"uri": NOWHERE}, "capabilities": [{"name": "vanish"}]}
    async with running(worker.agent(), manifests=[away], config={**CONFIG, **config}) as node:
        yield node, worker
        worker.may_go_on.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[Node, Worker]]:
    async with working() as found:
        yield found


@pytest.fixture
def node(shared: tuple[Node, Worker]) -> Node:
    return shared[0]


@pytest.fixture
def worker(shared: tuple[Node, Worker]) -> Worker:
    """With nothing remembered of earlier tests."""
    worker = shared[1]
    worker.runs.clear()
    for event in (worker.began, worker.may_go_on, worker.stopped):
        event.clear()
    return worker


_numbers = iter(range(10**9))


def task(action: str, given: Any = None, **more: Any) -> dict[str, Any]:
    params = {"taskId": f"task-{next(_numbers)}", "action": action, "sender": "tester", "input": given or {}}
    return {**params, **more}


def chain(*hops: Any, **given: Any) -> dict[str, Any]:
    return {"taskId": f"task-{next(_numbers)}", "chain": list(hops), "sender": "tester", "input": given}


async def call(node: Node, method: str, params: Any, token: str = PSK) -> Any:
    _, reply = await post(node, "/a2a", rpc(method, params), token=token)
    return reply


async def failure(node: Node, params: Any, method: str = "a2a/task") -> dict[str, Any]:
    error: dict[str, Any] = (await call(node, method, params))["error"]
    return error


@asynccontextmanager
async def streaming(node: Node, params: Any, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Frames as they arrive: their event, their id, and what they hold."""
    wanted = {"Authorization": f"Bearer {PSK}", **headers}
    body = rpc("a2a/stream", params, "stream-1")
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        node.client.post(f"{node.url}/a2a", json=body, headers=wanted) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream"), await response.read()
        yield frames(response.content)
        response.close()


async def frames(lines: Any) -> AsyncIterator[dict[str, Any]]:
    frame: dict[str, Any] = {}
    async for raw in lines:
        line = raw.decode().rstrip("\n")
        key, _, value = line.partition(": ")
        if key:
            frame[key] = value
        elif "data" in frame:
            yield {**frame, "data": json.loads(frame["data"])}
            frame = {}
        if not line:
            frame = {}


async def all_frames(node: Node, params: Any, **headers: str) -> list[dict[str, Any]]:
    async with streaming(node, params, **headers) as coming:
        return [frame async for frame in coming]


@requirement("002-07", "002-08", "002-10", "002-11", "002-15")
async def test_a_task_with_no_target_is_matched_by_its_action(node: Node) -> None:
    params = task("Shout", {"text": "hi"})
    status, reply = await post(node, "/a2a/task", rpc("a2a/task", params, "task-123"))
    assert status == 200
    result = {"taskId": params["taskId"], "status": "completed", "output": {"text": "HI"}}
    assert reply == {"jsonrpc": "2.0", "id": "task-123", "result": result}
    bare = await post(node, "/a2a/task", {**params, "taskId": "another"})
    assert bare == (200, {**result, "taskId": "another"})
    words = (await call(node, "a2a/task", task("bare")))["result"]
    assert exactly(words, OUTCOME)["output"] == {"answer": "only words"}


@requirement("002-07")
@pytest.mark.parametrize(
    "wrong",
    [
        {"taskId": ""}, {"taskId": None}, {"taskId": 5}, {"taskId": "x" * 300}, {"action": ""}, {"action": 7},
        {"input": "text"}, {"input": []}, {"sender": {}}, {"timeoutMs": 0}, {"timeoutMs": "soon"}, {"agentId": ""},
        {"action": "nobody does this"}, {"agentId": "nobody"}, {"input": {"text": 5}}, {"input": {}}, {"chain": ["x"]},
        {"agentId": "worker", "action": "nothing"}, {"async": "yes"},
    ],
)  # fmt: skip
async def test_a_wrong_task_is_refused_and_not_written_down(node: Node, wrong: dict[str, Any]) -> None:
    before = (await node.operation("fabric.job.list"))["result"]["count"]
    error = await failure(node, {**task("shout", {"text": "x"}), **wrong})
    assert error["code"] == -32602, error
    assert error["message"].startswith("Invalid params: ")
    status, bare = await post(node, "/a2a/task", {**task("shout", {"text": "x"}), **wrong})
    assert (400 <= status < 500, "error" in bare) == (True, True)
    assert (await node.operation("fabric.job.list"))["result"]["count"] == before


@requirement("002-09", "002-14")
async def test_a_task_that_fails_says_so_with_its_reason(node: Node) -> None:
    params = task("crash", {"text": "out of luck"})
    error = await failure(node, params)
    assert (error["code"], error["message"]) == (-32001, "Task failed")
    assert {"reason": "failed", "taskId": params["taskId"]}.items() <= error["data"].items()
    offline = await failure(node, task("vanish"))
    assert (offline["code"], offline["message"], offline["data"]["reason"]) == (-32001, "Task failed", "offline")
    refused = await failure(node, task("refuse", {"text": "today"}))
    assert (refused["code"], refused["data"]["detail"]) == (-32602, "not today")
    status, bare = await post(node, "/a2a/task", task("vanish"))
    assert (status, "error" in bare) == (503, True)


@requirement("002-09", "002-10", "002-14")
async def test_a_task_that_takes_too_long_is_a_timeout_to_who_waits_and_to_who_looks(
    node: Node, worker: Worker
) -> None:
    params = task("wait", timeoutMs=500)
    error = await failure(node, params)
    assert (error["code"], error["message"]) == (-32002, "Task timeout")
    assert {"reason": "timeout", "taskId": params["taskId"]}.items() <= error["data"].items()

    async def seen_as_timeout() -> bool:
        looked = (await call(node, "a2a/status", {"taskId": params["taskId"]}))["result"]
        return bool(exactly(looked, OUTCOME)["status"] == "timeout")

    await eventually(seen_as_timeout)
    assert worker.stopped.is_set() or not worker.began.is_set()
    assert (await all_frames(node, {"taskId": params["taskId"]}))[-1]["data"]["result"]["status"] == "timeout"


@requirement("002-10")
async def test_each_way_to_end_has_its_status(node: Node, worker: Worker) -> None:
    completed, failed, cancelled = task("shout", {"text": "x"}), task("crash", {"text": "x"}), task("wait")
    await call(node, "a2a/task", completed)
    await call(node, "a2a/task", failed)
    began = await call(node, "a2a/task", {**cancelled, "async": True})
    assert exactly(began["result"], OUTCOME)["status"] in ("queued", "running")
    await call(node, "a2a/cancel", {"taskId": cancelled["taskId"]})
    seen = [
        (await call(node, "a2a/status", {"taskId": each["taskId"]}))["result"]
        for each in (completed, failed, cancelled)
    ]
    assert [each["status"] for each in seen] == ["completed", "failed", "cancelled"]
    assert seen[0]["output"] == {"text": "X"}
    assert seen[1]["output"]["error"]["code"] == "UPSTREAM_ERROR"


async def test_the_same_id_for_the_same_again_is_one_task(node: Node, worker: Worker) -> None:
    params = task("wait", {"text": "once"})
    sent = [asyncio.ensure_future(call(node, "a2a/task", params)) for _ in range(5)]
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    worker.may_go_on.set()
    replies = await asyncio.gather(*sent)
    assert {json.dumps(reply) for reply in replies} == {json.dumps(replies[0])}
    assert replies[0]["result"]["output"] == {"waited": "once"}
    assert await call(node, "a2a/task", {**params, "sender": "somebody else"}) == replies[0]
    assert worker.runs == ["once"]


async def test_the_same_id_for_something_else_is_refused(node: Node, worker: Worker) -> None:
    params = task("shout", {"text": "one"})
    first = await call(node, "a2a/task", params)
    for other in ({"input": {"text": "two"}}, {"action": "double"}, {"agentId": "worker"}):
        error = await failure(node, {**params, **other})
        assert (error["code"], error["data"]["reason"]) == (-32602, "conflict")
    assert await call(node, "a2a/task", params) == first
    assert (await post(node, "/a2a/task", {**params, "action": "double"}))[0] == 409
    assert worker.runs == ["one"]


async def test_a_failure_is_told_again_and_not_tried_again(node: Node, worker: Worker) -> None:
    params = task("crash", {"text": "once is enough"})
    first, second = await failure(node, params), await failure(node, params)
    assert (first["code"], first["data"]["detail"]) == (second["code"], second["data"]["detail"])


async def test_ids_belong_to_their_caller(node: Node, worker: Worker) -> None:
    mine, theirs = task("shout", {"text": "mine"}), {}
    await call(node, "a2a/task", mine)
    theirs = {**mine, "input": {"text": "theirs"}}
    assert (await call(node, "a2a/task", theirs, token=BOB))["result"]["output"] == {"text": "THEIRS"}
    assert (await call(node, "a2a/status", {"taskId": mine["taskId"]}))["result"]["output"] == {"text": "MINE"}
    private = task("shout", {"text": "private"})
    await call(node, "a2a/task", private)
    for method in ("a2a/status", "a2a/cancel", "a2a/stream"):
        error = (await call(node, method, {"taskId": private["taskId"]}, token=BOB))["error"]
        assert (error["code"], error["data"]["reason"]) == (-32602, "job_not_found")


async def test_a_task_outlives_the_connection_of_who_sent_it(node: Node, worker: Worker) -> None:
    params = task("wait", {"text": "later"})
    sent = asyncio.ensure_future(call(node, "a2a/task", params))
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    sent.cancel()
    await asyncio.wait({sent})
    worker.may_go_on.set()
    assert (await call(node, "a2a/task", params))["result"]["output"] == {"waited": "later"}
    assert worker.runs == ["later"]


async def test_a_task_outlives_the_node(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    params, hops = task("shout", {"text": "kept"}), chain("shout", "measure", text="abc")
    async with working(store=store) as (node, _):
        first = await call(node, "a2a/task", params)
        second = await call(node, "a2a/task", hops)
    async with working(store=store) as (node, worker):
        assert await call(node, "a2a/task", params) == first
        assert await call(node, "a2a/task", hops) == second
        assert (await call(node, "a2a/status", {"taskId": hops["taskId"]}))["result"]["output"] == {"length": 3}
        assert worker.runs == []


async def test_tasks_of_this_door_are_jobs_of_every_door(node: Node, worker: Worker) -> None:
    started = await node.ask("worker", "wait", "job", **{"async": True})
    job_id = started["result"]["job_id"]
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    assert (await call(node, "a2a/status", {"taskId": job_id}))["result"]["status"] == "running"
    assert (await call(node, "a2a/cancel", {"taskId": job_id}))["result"]["status"] == "cancelled"
    listed = (await node.operation("fabric.job.list"))["result"]["jobs"]
    assert next(job for job in listed if job["job_id"] == job_id)["state"] == "cancelled"


async def test_a_task_for_agents_that_the_caller_may_not_ask_is_forbidden(node: Node) -> None:
    status, reply = await post(node, "/a2a", rpc("a2a/task", task("shout", {"text": "x"})), token=READER)
    assert (status, reply["error"]["code"]) == (403, -32001)
    named = task("shout", {"text": "x"}, agentId="worker")
    assert (await post(node, "/a2a", rpc("a2a/task", named), token=READER))[0] == 403


async def test_a_built_in_tool_takes_tasks_by_its_name(node: Node) -> None:
    done = await call(node, "a2a/task", task("eval", {"expression": "6 * 7"}, agentId="math.calculate"))
    assert done["result"]["output"]["result"] == 42


async def test_calls_beyond_the_limit_are_told_to_wait() -> None:
    async with working(limits={"calls_per_minute": 1}) as (node, _):
        await call(node, "a2a/task", task("shout", {"text": "x"}))
        refused = await node.send("POST", "/a2a", json=rpc("a2a/task", task("shout", {"text": "y"}, timeoutMs=5000)))
        assert (refused.status, refused.json["error"]["code"]) == (429, -32001)
        assert refused.json["error"]["data"]["reason"] == "rate_limited"
        assert int(refused.headers["retry-after"]) >= 1


@requirement("002-16")
async def test_cancelling_stops_the_agent_and_who_waits_is_told(node: Node, worker: Worker) -> None:
    params = task("wait")
    sent = asyncio.ensure_future(call(node, "a2a/task", params))
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    cancelled = await call(node, "a2a/cancel", {"taskId": params["taskId"]})
    expected = {"taskId": params["taskId"], "status": "cancelled", "output": {}}
    assert cancelled["result"] == expected
    assert (await sent)["result"] == expected
    assert worker.stopped.is_set()
    again = await call(node, "a2a/cancel", {"taskId": params["taskId"]})
    assert again["result"] == expected


@requirement("002-16")
async def test_cancelling_what_has_ended_or_never_was_changes_nothing(node: Node) -> None:
    params = task("shout", {"text": "x"})
    done = await call(node, "a2a/task", params)
    assert (await call(node, "a2a/cancel", {"taskId": params["taskId"]}))["result"] == done["result"]
    error = await failure(node, {"taskId": "never was"}, "a2a/cancel")
    assert error["code"] == -32602


@requirement("002-16")
async def test_cancelling_reaches_an_agent_of_the_same_document(node: Node, tmp_path: Path) -> None:
    agent, note = RPCAgent(), tmp_path / "note"
    async with listening(agent) as url:
        entry = {"agentId": "sleeper", "name": "Sleeper", "capabilities": ["sleep"], "endpoint": url}
        await call(node, "a2a/register", entry)
        params = task("sleep", {"note": str(note)})
        await call(node, "a2a/task", {**params, "async": True})

        async def asleep() -> bool:
            return note.exists()

        await eventually(asleep)
        assert (await call(node, "a2a/cancel", {"taskId": params["taskId"]}))["result"]["status"] == "cancelled"
        await asyncio.wait_for(agent.cancelled.wait(), WAIT_TIMEOUT)
        assert [request["method"] for request in agent.requests] == ["a2a/task", "a2a/cancel"]


@requirement("002-17")
async def test_a_stream_tells_events_as_they_happen_and_ends_with_the_answer(node: Node, worker: Worker) -> None:
    params = task("count", {"upto": 4})
    heard: list[str] = []
    async with streaming(node, params) as coming:
        async for frame in coming:
            body = frame["data"]
            if frame["event"] == "token":
                assert (body["jsonrpc"], body["method"], "id" in body) == ("2.0", "a2a/stream", False)
                assert body["params"]["taskId"] == params["taskId"]
                heard.append(body["params"]["data"]["text"])
            if heard == ["1", "2"]:
                worker.may_go_on.set()  # the agent says no more before two words were heard here
    assert heard == ["1", "2", "3", "4"]
    result = {"taskId": params["taskId"], "status": "completed", "output": {"counted": 4}}
    assert (frame["event"], body) == ("final", {"jsonrpc": "2.0", "id": "stream-1", "result": result})


@requirement("002-17")
async def test_a_stream_goes_on_after_any_number_without_gap_or_repeat(node: Node, worker: Worker) -> None:
    params = task("count", {"upto": 5})
    first: list[dict[str, Any]] = []
    async with streaming(node, params) as coming:
        async for frame in coming:
            first.append(frame)
            if worker.began.is_set() and frame["event"] == "token" and frame["data"]["params"]["data"]["text"] == "2":
                break
    worker.may_go_on.set()
    rest = await all_frames(node, {"taskId": params["taskId"]}, **{"Last-Event-ID": first[-1]["id"]})
    numbers = [int(frame["id"]) for frame in (*first, *rest) if "id" in frame]
    assert numbers == list(range(1, len(numbers) + 1))
    again = await all_frames(node, {"taskId": params["taskId"], "after": int(first[-1]["id"])})
    assert again == rest


@requirement("002-17")
async def test_a_browser_follows_a_task_by_a_get(node: Node, worker: Worker) -> None:
    params = task("shout", {"text": "x"})
    await call(node, "a2a/task", params)
    reply = await node.send("GET", f"/a2a/stream?taskId={params['taskId']}&after=1")
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, final = reply.body.decode().strip().split("\n\n")
    assert [event.split("\n")[1] for event in events] == ["id: 2", "id: 3"]
    told = json.loads(final.split("data: ")[1])
    assert told == {"taskId": params["taskId"], "status": "completed", "output": {"text": "X"}}
    assert (await node.send("GET", "/a2a/stream?taskId=nobody")).status == 404


@requirement("002-17")
async def test_a_client_that_takes_no_events_gets_the_answer_alone(node: Node) -> None:
    params = task("shout", {"text": "x"})
    body = rpc("a2a/stream", params)
    reply = await node.send("POST", "/a2a/stream", json=body, headers={"Accept": "application/json"})
    assert reply.json["result"] == {"taskId": params["taskId"], "status": "completed", "output": {"text": "X"}}


async def test_a_quiet_stream_is_kept_open_by_comments() -> None:
    async with working(doors=[{"kind": "directory", "keep_alive": 0.05}]) as (node, worker):
        headers = {"Authorization": f"Bearer {PSK}"}
        body = rpc("a2a/stream", task("wait"))
        async with (
            asyncio.timeout(WAIT_TIMEOUT),
            node.client.post(f"{node.url}/a2a", json=body, headers=headers) as response,
        ):
            async for line in response.content:
                if line.startswith(b": "):
                    worker.may_go_on.set()
        assert worker.stopped.is_set()


@requirement("002-20")
async def test_the_output_of_each_hop_is_the_input_of_the_next(node: Node) -> None:
    params = chain("shout", {"action": "double", "input": {"times": 3}}, "measure", text="ab")
    reply = await call(node, "a2a/task", params)
    assert reply["result"] == {"taskId": params["taskId"], "status": "completed", "output": {"length": 6}}
    named = {**params, "taskId": "named", "actions": params["chain"]}
    del named["chain"]
    assert (await call(node, "a2a/task", named))["result"]["output"] == {"length": 6}


@requirement("002-20")
async def test_words_and_pictures_are_passed_on_too(node: Node) -> None:
    said = await call(node, "a2a/task", chain("bare", {"action": "double", "input": {"times": 3}}, "measure"))
    assert said["result"]["output"] == {"length": 3 * len("only words")}
    seen = await call(node, "a2a/task", chain("draw", "look"))
    assert seen["result"]["output"] == {"seen": [["image", "hi.png", "aGk="]]}


@requirement("002-20")
async def test_each_hop_is_routed_to_an_agent_that_has_the_action(node: Node) -> None:
    agent = RPCAgent()
    async with listening(agent) as url:
        entry = {"agentId": "elsewhere", "name": "Elsewhere", "capabilities": ["echo"], "endpoint": url}
        await call(node, "a2a/register", entry)
        hops = chain("shout", {"action": "echo", "agentId": "elsewhere"}, text="hop")
        reply = await call(node, "a2a/task", hops)
        assert reply["result"]["output"] == {"seen": {"text": "HOP"}}
        await call(node, "a2a/unregister", {"agentId": "elsewhere"})


@requirement("002-20")
async def test_a_hop_that_fails_is_named_with_what_came_before_it(node: Node) -> None:
    params = chain("shout", "double", "crash", "measure", text="ab")
    error = await failure(node, params)
    assert (error["code"], error["message"]) == (-32001, "Task failed")
    assert {"hop": 3, "action": "crash", "taskId": params["taskId"]}.items() <= error["data"].items()
    assert error["data"]["completed"] == [
        {"hop": 1, "action": "shout", "agentId": "worker", "output": {"text": "AB"}},
        {"hop": 2, "action": "double", "agentId": "worker", "output": {"text": "ABAB"}},
    ]
    looked = (await call(node, "a2a/status", {"taskId": params["taskId"]}))["result"]
    assert (looked["status"], looked["output"]["error"]["hop"]) == ("failed", 3)
    assert len(looked["output"]["error"]["completed"]) == 2


@requirement("002-20")
async def test_an_output_that_does_not_fit_the_next_hop_ends_the_task_there(node: Node, worker: Worker) -> None:
    params = chain("measure", "shout", text="ab")
    error = await failure(node, params)
    assert (error["code"], error["data"]["hop"], error["data"]["code"]) == (-32001, 2, "BAD_INPUT")
    assert error["data"]["completed"][0]["output"] == {"length": 2}
    assert (await call(node, "a2a/status", {"taskId": params["taskId"]}))["result"]["status"] == "failed"
    assert (await failure(node, params))["data"]["hop"] == 2
    assert worker.runs == []


@requirement("002-20")
async def test_a_chain_with_a_hop_that_no_agent_has_is_not_even_begun(node: Node, worker: Worker) -> None:
    for hops in (
        chain("shout", "unheard-of", text="x"),
        chain("shout", {"action": "x", "agentId": "nobody"}, text="x"),
    ):
        error = await failure(node, hops)
        assert (error["code"], "hop" in error["data"]) == (-32602, False)
    for wrong in (chain(), chain(5), chain({"agentId": "worker"}), chain(*["shout"] * 17, text="x")):
        assert (await failure(node, wrong))["code"] == -32602
    assert worker.runs == []


@requirement("002-20")
async def test_one_deadline_stands_over_all_hops(node: Node, worker: Worker) -> None:
    params = {**chain("shout", "wait", "measure", text="x"), "timeoutMs": 3000}
    error = await failure(node, params)
    assert (error["code"], error["data"]["hop"], error["data"]["action"]) == (-32002, 2, "wait")
    assert error["data"]["completed"][0]["output"] == {"text": "X"}


@requirement("002-16", "002-20")
async def test_cancelling_a_chain_ends_the_hop_under_way_and_begins_no_other(node: Node, worker: Worker) -> None:
    params = {**chain("wait", "shout", text="x"), "async": True}
    await call(node, "a2a/task", params)
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    assert (await call(node, "a2a/cancel", {"taskId": params["taskId"]}))["result"]["status"] == "cancelled"
    assert (await call(node, "a2a/status", {"taskId": params["taskId"]}))["result"]["status"] == "cancelled"
    assert worker.runs == ["x"]


@requirement("002-17", "002-20")
async def test_a_stream_of_a_chain_tells_of_all_hops_and_goes_on_after_any_number(node: Node) -> None:
    params = chain("shout", "double", "measure", text="x")
    told = await all_frames(node, params)
    assert told[-1]["data"]["result"]["output"] == {"length": 2}
    numbers = [int(frame["id"]) for frame in told[:-1]]
    assert numbers == sorted(set(numbers))
    assert [frame["data"]["params"]["hop"] for frame in told[:-1]] == sorted(
        frame["data"]["params"]["hop"] for frame in told[:-1]
    )
    assert {frame["data"]["params"]["action"] for frame in told[:-1]} == {"shout", "double", "measure"}
    for at in (1, len(numbers) // 2, len(numbers) - 1):
        rest = await all_frames(node, {"taskId": params["taskId"]}, **{"Last-Event-ID": str(numbers[at])})
        assert rest == told[at + 1 :]


@requirement("002-20")
async def test_a_chain_goes_on_by_itself_when_its_sender_has_left(node: Node, worker: Worker) -> None:
    params = chain("wait", {"action": "shout", "input": {"text": "second"}}, text="first")
    sent = asyncio.ensure_future(call(node, "a2a/task", params))
    await asyncio.wait_for(worker.began.wait(), WAIT_TIMEOUT)
    sent.cancel()
    await asyncio.wait({sent})
    worker.may_go_on.set()

    async def done() -> bool:
        return worker.runs == ["first", "second"]  # no client has asked for the second one

    await eventually(done)


@requirement("002-20")
async def test_a_chain_whose_node_is_gone_goes_on_when_a_client_asks_for_it(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    params = {**chain("shout", "double", "measure", text="ab"), "async": True}
    async with working(store=store, jobs={"concurrent": 0}) as (node, _):  # which accepts, and does nothing
        assert (await call(node, "a2a/task", params))["result"]["status"] == "queued"
    async with working(store=store) as (node, worker):

        async def first_hop_done() -> bool:
            return worker.runs == ["ab"]

        async def completed() -> bool:
            looked = (await call(node, "a2a/status", {"taskId": params["taskId"]}))["result"]
            return bool(looked["status"] == "completed" and looked["output"] == {"length": 4})

        await eventually(first_hop_done)
        await eventually(completed)
        assert worker.runs == ["ab"]


async def test_an_agent_that_asks_gets_its_answer(node: Node) -> None:
    async with listening(RPCAgent()) as url:
        entry = {"agentId": "asker", "name": "Asker", "capabilities": ["ask"], "endpoint": url}
        await call(node, "a2a/register", entry)
        params = task("ask")
        asked = (await call(node, "a2a/task", params))["result"]
        assert (asked["status"], set(asked)) == ("input_required", OUTCOME)
        assert asked["output"]["input_required"]["message"] == "Which one?"
        answers = {"which": {"content": "this one"}}
        done = (await call(node, "a2a/answer", {"taskId": params["taskId"], "answers": answers}))["result"]
        assert (done["status"], done["output"]) == ("completed", {"said": {"which": "this one"}})
        await call(node, "a2a/unregister", {"agentId": "asker"})
