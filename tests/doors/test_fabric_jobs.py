"""Jobs through the Fabric door: a real node, its store in memory and in a file, real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.errors import AgentOffline, StoreUnavailable
from a2a_fabric.core.result import Question, Result, make_input_required
from a2a_fabric.stores.sqlite.store import build
from tests.fixtures import nats
from tests.fixtures.node import PSK, Node, eventually, running
from tests.fixtures.postgres import shared
from tests.marks import requirement

OTHER = "the-key-of-somebody-else"


class Desk(Agent):
    """An agent that does what the tests ask, and shows what happened to it."""

    def __init__(self) -> None:
        super().__init__("desk")
        self.begun = 0
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()
        self.failures = 0
        self.answers: list[Any] = []
        self.capability(self.words)
        self.capability(idempotent=False)(self.patient)
        self.capability(idempotent=True)(self.flaky)
        self.capability(idempotent=True)(self.stammering)
        self.capability(self.chatty)
        self.capability(self.curious)

    async def words(self, task: str) -> AsyncIterator[Any]:
        """Say the words one by one."""
        self.begun += 1
        for word in task.split():
            yield word
        yield {"answer": task}

    async def patient(self, task: str) -> AsyncIterator[Any]:
        """Say a word, wait for the gate, say another."""
        self.begun += 1
        try:
            yield "first"
            await self.gate.wait()
            yield "second"
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise
        yield {"answer": task}

    async def flaky(self, task: str) -> dict[str, Any]:
        """Fail as often as it was told."""
        self.begun += 1
        if self.failures:
            self.failures -= 1
            raise AgentOffline("not now")
        return {"answer": task}

    async def stammering(self, task: str) -> AsyncIterator[Any]:
        """Begin to speak, and fail as often as it was told."""
        yield task
        if self.failures:
            self.failures -= 1
            raise AgentOffline("not now")
        yield {"answer": task}

    async def chatty(self, task: str) -> AsyncIterator[Any]:
        """Never stop talking."""
        while True:
            yield "x" * 1000

    async def curious(self, task: str, call: Call) -> Any:
        """Ask before answering."""
        if not call.answers:
            return make_input_required({"name": Question(kind="form", message="Who are you?")}, "c1")
        self.answers.append(call.answers.answers["name"].content)
        return {"answer": f"hello {self.answers[-1]}"}


_ADDRESSES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory:",
    "sqlite": lambda folder: f"sqlite:{folder / 'fabric.db'}",
    "postgresql": lambda folder: shared().database(),
    "nats": lambda folder: nats.shared().address(),
}


def settings(store: str, folder: Path, **jobs: Any) -> dict[str, Any]:
    retry = {"pause_seconds": 0.05}
    return {
        "store": _ADDRESSES[store](folder),
        "jobs": {"lease_seconds": 2.0, "retry": retry, **jobs},
        "auth": {"keys": [{"id": "other", "key": OTHER}]},
    }


@pytest.fixture(params=["memory", "sqlite", "postgresql", "nats"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """`async with at(agent) as node:` on each kind of store."""

    @asynccontextmanager
    async def start(*agents: Agent, **jobs: Any) -> AsyncIterator[Node]:
        async with running(*agents, config=settings(request.param, tmp_path, **jobs)) as node:
            yield node

    return start


Start = Callable[..., Any]


async def begin(node: Node, capability: str = "words", task: str = "one two three", **more: Any) -> dict[str, Any]:
    reply = await node.ask("desk", capability, task, **{"async": True, **more})
    assert reply["ok"], reply
    job: dict[str, Any] = reply["result"]
    return job


async def status(node: Node, job_id: str) -> dict[str, Any]:
    reply = await node.operation("fabric.job.status", {"job_id": job_id})
    assert reply["ok"], reply
    job: dict[str, Any] = reply["result"]
    return job


def reached(node: Node, job_id: str, *states: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await status(node, job_id))["state"] in states

    return look


async def followed(node: Node, job_id: str, after: int = 0, **headers: str) -> list[dict[str, Any]]:
    given = {"job_id": job_id, "after": after}
    async with asyncio.timeout(20), node.stream("fabric.job.stream", given, **headers) as events:
        return [event async for event in events]


async def owner_of(node: Node, job_id: str) -> Principal:
    job = await node.fabric.store.jobs.get(job_id)
    assert job is not None
    return job.call.auth


def text(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["text"] for event in events if event["event"] == "token"]


@requirement("001-04", "001-07", "001-19")
async def test_an_async_call_answers_at_once_with_a_job_whose_result_comes_later(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "patient", "later")
        assert job["state"] in ("queued", "running")
        assert not agent.gate.is_set()
        refused = await node.operation("fabric.job.result", {"job_id": job["job_id"]})
        assert refused["error_code"] == "CONFLICT"
        agent.gate.set()
        reply = await node.operation("fabric.job.result", {"job_id": job["job_id"], "wait_ms": 20_000})
        assert reply["result"] == {"answer": "later"}
        ended = await status(node, job["job_id"])
        assert (ended["state"], ended["status"], ended["attempt"]) == ("completed", "complete", 1)


@requirement("001-07")
async def test_a_job_is_followed_from_any_number_live_and_replayed_without_gap_or_repeat(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "patient")
        live = asyncio.ensure_future(followed(node, job["job_id"]))
        await eventually(reached(node, job["job_id"], "running"))
        agent.gate.set()
        whole = await live
        assert text(whole) == ["first", "second"]
        assert [event["id"] for event in whole[:-1]] == list(range(1, len(whole)))
        assert [event["number"] for event in whole[:-1]] == list(range(1, len(whole)))
        moments = [event["at"] for event in whole[:-1]]
        assert moments == sorted(moments)
        assert job["created_at"] <= moments[0] <= moments[-1] <= (await status(node, job["job_id"]))["ended_at"]
        assert whole[-1]["event"] == "final"
        assert whole[-1]["data"]["result"]["answer"]
        for after in range(len(whole) + 2):
            rest = await followed(node, job["job_id"], after)
            assert [e["id"] for e in rest[:-1]] == [e["id"] for e in whole[:-1] if e["id"] > after]
        header = await followed(node, job["job_id"], 0, **{"Last-Event-ID": "2"})
        assert header[0]["id"] == 3


async def test_the_last_id_of_a_stream_is_the_last_number_so_that_coming_back_with_it_misses_nothing(at: Start) -> None:
    async with at(Desk()) as node:
        job = await begin(node, "curious")
        parked = await followed(node, job["job_id"])
        assert parked[-1]["data"]["result"]["state"] == "input_required"
        answered = await node.operation(
            "fabric.job.answer", {"job_id": job["job_id"], "answers": {"name": {"content": "Ann"}}}
        )
        assert answered["ok"], answered
        rest = await followed(node, job["job_id"], 0, **{"Last-Event-ID": str(parked[-1]["id"])})
        assert rest[0]["id"] == parked[-1]["id"] + 1
        assert rest[-1]["data"]["result"] == {"answer": "hello Ann"}


async def test_a_job_that_waits_for_an_answer_holds_no_worker_and_the_answer_continues_it(at: Start) -> None:
    async with at(agent := Desk(), concurrent=1) as node:
        job = await begin(node, "curious")
        await eventually(reached(node, job["job_id"], "input_required"))
        shown = (await status(node, job["job_id"]))["input_required"]
        assert shown["questions"]["name"]["message"] == "Who are you?"
        other = await begin(node, "words")
        await eventually(reached(node, other["job_id"], "completed"))
        given = {"job_id": job["job_id"], "answers": {"name": {"content": "Bob"}}}
        assert (await node.operation("fabric.job.answer", given))["ok"]
        await eventually(reached(node, job["job_id"], "completed"))
        assert agent.answers == ["Bob"]
        assert (await node.operation("fabric.job.answer", given))["error_code"] == "CONFLICT"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"nam": {"content": "Bob"}}, "there is no question 'nam' (nearest: name)"),
        ({"name": {"content": "Bob"}, "age": {"content": 7}}, "there is no question 'age'"),
    ],
)
async def test_an_answer_to_what_was_not_asked_is_refused_and_the_job_still_waits(
    at: Start, answers: Any, words: str
) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "curious")
        await eventually(reached(node, job["job_id"], "input_required"))
        refused = await node.operation("fabric.job.answer", {"job_id": job["job_id"], "answers": answers})
        assert refused["error_code"] == "BAD_INPUT"
        assert words in refused["error"]
        given = {"job_id": job["job_id"], "answers": {"name": {"content": "Bob"}}}
        assert (await node.operation("fabric.job.answer", given))["ok"]
        await eventually(reached(node, job["job_id"], "completed"))
        assert agent.answers == ["Bob"]


@requirement("001-07")
async def test_cancelling_reaches_the_agent_and_twice_changes_nothing(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "patient")
        await eventually(reached(node, job["job_id"], "running"))
        async with node.stream("fabric.job.stream", {"job_id": job["job_id"]}) as events:
            async for event in events:
                if event["event"] == "token":
                    break
        assert (await node.operation("fabric.job.cancel", {"job_id": job["job_id"]}))["ok"]
        async with asyncio.timeout(20):
            await agent.cancelled.wait()
        await eventually(reached(node, job["job_id"], "cancelled"))
        again = await node.operation("fabric.job.cancel", {"job_id": job["job_id"]})
        assert again["result"]["state"] == "cancelled"
        final = (await followed(node, job["job_id"]))[-1]
        assert final["data"]["error"]["code"] == "CANCELLED"
        answer = {"job_id": job["job_id"], "answers": {"name": {"content": "too late"}}}
        assert (await node.operation("fabric.job.answer", answer))["error_code"] == "CONFLICT"


async def test_a_waiting_job_is_cancelled_at_once(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, run_at=time.time() + 3600)
        cancelled = await node.operation("fabric.job.cancel", {"job_id": job["job_id"]})
        assert cancelled["result"]["state"] == "cancelled"
        assert agent.begun == 0

        async def is_logged() -> bool:
            lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
            told = [line["status"] for line in lines if line["event"] == "job" and line["job_id"] == job["job_id"]]
            return told == ["accepted", "cancelled"]

        await eventually(is_logged)


async def test_another_callers_job_and_an_unknown_one_are_not_found(at: Start) -> None:
    async with at(Desk()) as node:
        job = await begin(node)
        for name in ("status", "stream", "result", "cancel", "retry", "answer"):
            given: dict[str, Any] = {"job_id": job["job_id"], "stream": False}
            if name == "answer":
                given["answers"] = {"name": {"content": "Eve"}}
            foreign = await node.operation(f"fabric.job.{name}", given, token=OTHER)
            assert foreign["error_code"] == "JOB_NOT_FOUND", name
        for unknown in ("job_0", "", "x" * 500, "no\u0000"):
            assert (await node.operation("fabric.job.status", {"job_id": unknown}))["error_code"] == "JOB_NOT_FOUND"
        assert (await node.operation("fabric.job.list", {}, token=OTHER))["result"]["jobs"] == []
        assert len((await node.operation("fabric.job.list", {}))["result"]["jobs"]) == 1


async def test_what_can_be_refused_is_refused_before_a_job_is_written(at: Start) -> None:
    async with at(Desk()) as node:
        assert (await node.ask("nobody", "words", **{"async": True}))["error_code"] == "AGENT_NOT_FOUND"
        assert (await node.ask("desk", "nothing", **{"async": True}))["error_code"] == "CAPABILITY_NOT_FOUND"
        bad = await node.ask("desk", "words", **{"async": True, "context": {"task": 1}})
        assert bad["error_code"] == "BAD_INPUT"
        for wrong in ({"priority": "now"}, {"run_at": 1e12}, {"webhook": {"url": "ftp://x"}}, {"idempotency_key": ""}):
            assert (await node.ask("desk", "words", **{"async": True, **wrong}))["error_code"] == "BAD_INPUT", wrong
        assert (await node.operation("fabric.job.list", {}))["result"]["count"] == 0


async def test_no_caller_has_more_jobs_waiting_than_the_node_allows(at: Start) -> None:
    async with at(Desk(), concurrent=0, waiting_per_principal=3) as node:
        jobs = [await begin(node) for _ in range(3)]
        refused = await node.ask("desk", "words", "one too many", **{"async": True})
        assert (refused["error_code"], refused["error_details"]["retry_after"]) == ("RATE_LIMITED", 2.0)
        theirs = {"agent_id": "desk", "capability": "words", "task": "x", "async": True}
        assert (await node.operation("fabric.call", theirs, token=OTHER))["ok"], "another caller pays for it"
        await node.operation("fabric.job.cancel", {"job_id": jobs[0]["job_id"]})

        async def has_room() -> bool:
            return bool((await node.ask("desk", "words", "now", **{"async": True}))["ok"])

        await eventually(has_room)


async def test_coming_and_going_of_a_job_are_logged_with_its_id_and_its_trace(at: Start) -> None:
    desk = Desk()
    desk.failures = 1
    async with at(desk) as node:
        job = await begin(node, "flaky", "x")
        lines: list[dict[str, Any]] = []

        async def are_all_there() -> bool:
            written = [json.loads(line) for line in node.log.getvalue().splitlines()]
            lines[:] = [line for line in written if line["event"] == "job" and line["job_id"] == job["job_id"]]
            return bool(lines) and lines[-1]["status"] == "completed"

        await eventually(are_all_there)
        accepted, *left = lines
        assert (accepted["event"], accepted["status"], accepted["owner"]) == ("job", "accepted", "psk:psk")
        assert [(line["status"], line["attempt"]) for line in left] == [("queued", 1), ("completed", 2)]
        assert {line["trace_id"] for line in (accepted, *left)} == {job["trace_id"]}
        assert {(line["target"], line["capability"]) for line in (accepted, *left)} == {("desk", "flaky")}
        assert left[-1]["duration_ms"] >= 0


async def test_the_same_key_is_the_same_job_and_with_other_input_a_conflict(at: Start) -> None:
    async with at(agent := Desk()) as node:
        first = await begin(node, idempotency_key="k1")
        again = await begin(node, idempotency_key="k1")
        assert again["job_id"] == first["job_id"]
        other = await node.ask("desk", "words", "other", **{"async": True, "idempotency_key": "k1"})
        assert other["error_code"] == "CONFLICT"
        waited = await node.ask("desk", "words", "one two three", idempotency_key="k1")
        assert waited["result"] == {"answer": "one two three"}
        assert agent.begun == 1


@requirement("001-04")
async def test_a_call_that_outlives_job_after_becomes_a_job_with_its_events_from_the_first_on(at: Start) -> None:
    async with at(agent := Desk()) as node:
        reply = await node.ask("desk", "patient", "long", job_after_ms=100)
        job = reply["result"]
        assert job["state"] == "running"
        agent.gate.set()
        events = await followed(node, job["job_id"])
        assert text(events) == ["first", "second"]
        assert events[-1]["data"]["result"]["answer"] == "long"
        assert agent.begun == 1
        quick = await node.ask("desk", "words", "quick", job_after_ms=20_000)
        assert quick["result"] == {"answer": "quick"}
        assert (await node.operation("fabric.job.list", {}))["result"]["count"] == 1


async def test_a_stream_that_is_handed_over_ends_with_the_job_and_the_job_goes_on_after_its_last_event(
    at: Start,
) -> None:
    async with at(agent := Desk()) as node:
        heard = await node.events("desk", "patient", job_after_ms=300)
        handle = heard[-1]["data"]["result"]
        assert heard[-2]["id"] == handle["events"]
        agent.gate.set()
        rest = await followed(node, handle["job_id"], heard[-2]["id"])
        assert text(heard) + text(rest) == ["first", "second"]
        assert rest[0]["id"] == heard[-2]["id"] + 1


async def test_job_after_may_be_the_nodes_own_rule_and_leaving_early_still_cancels(at: Start) -> None:
    async with at(agent := Desk(), job_after_ms=5000) as node:
        async with node.stream("fabric.call", {"agent_id": "desk", "capability": "patient", "task": "x"}) as events:
            async for event in events:
                if event["event"] == "token":
                    break
        async with asyncio.timeout(20):
            await agent.cancelled.wait()
        assert (await node.operation("fabric.job.list", {}))["result"]["count"] == 0


async def test_what_failed_without_having_run_is_tried_again(at: Start) -> None:
    async with at(agent := Desk()) as node:
        agent.failures = 2
        job = await begin(node, "flaky", "again")
        await eventually(reached(node, job["job_id"], "completed", "failed"))
        ended = await status(node, job["job_id"])
        assert (ended["state"], ended["attempt"]) == ("completed", 3)
        agent.failures = 99
        hopeless = await begin(node, "flaky", "in vain", priority="high")
        await eventually(reached(node, hopeless["job_id"], "completed", "failed"))
        failed = await status(node, hopeless["job_id"])
        assert (failed["state"], failed["attempt"], failed["error"]["code"]) == ("failed", 3, "AGENT_OFFLINE")
        agent.failures = 0
        retried = (await node.operation("fabric.job.retry", {"job_id": hopeless["job_id"]}))["result"]
        assert retried["job_id"] != hopeless["job_id"]
        assert retried["priority"] == "high"
        await eventually(reached(node, retried["job_id"], "completed"))


async def test_another_attempt_tells_readers_to_forget_the_words_of_the_one_before(at: Start) -> None:
    async with at(agent := Desk()) as node:
        agent.failures = 1
        job = await begin(node, "stammering", "well")
        events = await followed(node, job["job_id"])
        told = [event["data"].get("reset") or event["data"].get("text") for event in events]
        assert [each for each in told if each] == ["well", True, "well"]


async def test_an_agent_that_sends_without_end_is_stopped_with_a_typed_end(at: Start) -> None:
    async with at(Desk(), event_bytes=200_000) as node:
        job = await begin(node, "chatty")
        await eventually(reached(node, job["job_id"], "failed"))
        error = (await status(node, job["job_id"]))["error"]
        assert (error["code"], error["details"]["reason"]) == ("UPSTREAM_ERROR", "events_too_large")


async def test_a_job_begins_at_its_moment_and_ends_as_timeout_if_it_cannot(at: Start) -> None:
    async with at(agent := Desk()) as node:
        soon = await begin(node, run_at=time.time() + 0.3)
        assert soon["state"] == "queued"
        await eventually(reached(node, soon["job_id"], "completed"))
        late = await begin(node, run_at=time.time() + 3600, ttl_ms=100)
        await eventually(reached(node, late["job_id"], "timeout"))
        assert agent.begun == 1


async def test_urgent_jobs_go_first_and_no_agent_gets_more_at_a_time_than_allowed(at: Start) -> None:
    async with at(agent := Desk(), concurrent_per_agent=1) as node:
        first = await begin(node, "patient", "gate")
        await eventually(reached(node, first["job_id"], "running"))
        low = await begin(node, "words", "low", priority="low")
        urgent = await begin(node, "words", "urgent", priority="urgent")
        assert (await status(node, low["job_id"]))["state"] == "queued"
        agent.gate.set()
        await eventually(reached(node, low["job_id"], "completed"))
        begun = {j: (await status(node, j))["started_at"] for j in (low["job_id"], urgent["job_id"])}
        assert begun[urgent["job_id"]] <= begun[low["job_id"]]


async def test_jobs_are_listed_newest_first_page_by_page_and_by_state(at: Start) -> None:
    async with at(Desk()) as node:
        made = [(await begin(node, task=f"t{i}"))["job_id"] for i in range(5)]
        for job_id in made:
            await eventually(reached(node, job_id, "completed"))
        page = (await node.operation("fabric.job.list", {"limit": 3}))["result"]
        rest = (await node.operation("fabric.job.list", {"limit": 3, "cursor": page["cursor"]}))["result"]
        assert [job["job_id"] for job in page["jobs"] + rest["jobs"]] == made[::-1]
        assert rest["cursor"] is None
        assert (await node.operation("fabric.job.list", {"state": "failed"}))["result"]["count"] == 0
        assert (await node.operation("fabric.job.list", {"state": ["failed", "completed"]}))["result"]["count"] == 5
        assert (await node.operation("fabric.job.list", {"cursor": "?"}))["error_code"] == "BAD_INPUT"


async def test_a_job_is_followed_over_a_web_socket_too(at: Start) -> None:
    async with at(agent := Desk()) as node:
        agent.gate.set()
        job = await begin(node, "patient")
        headers = {"Authorization": f"Bearer {PSK}"}
        async with node.client.ws_connect(f"{node.url}/mcp/call", headers=headers) as socket:
            arguments = {"job_id": job["job_id"], "after": 1}
            await socket.send_json({"id": 7, "name": "fabric.job.stream", "arguments": arguments})
            heard: list[dict[str, Any]] = []
            async with asyncio.timeout(20):
                while not heard or heard[-1]["event"] != "final":
                    heard.append(await socket.receive_json())
        assert [event["number"] for event in heard[:-1]] == list(range(2, len(heard) + 1))
        assert heard[-1]["data"]["ok"]


async def test_many_readers_of_one_job_all_hear_everything(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "patient")
        owner = await owner_of(node, job["job_id"])

        async def read() -> list[int]:
            return [line.number async for line in node.fabric.jobs.events(owner, job["job_id"])]

        readers = [asyncio.ensure_future(read()) for _ in range(500)]
        agent.gate.set()
        async with asyncio.timeout(30):
            heard = await asyncio.gather(*readers)
        last = (await status(node, job["job_id"]))["events"]
        assert all(numbers == list(range(1, last + 1)) for numbers in heard)


async def test_an_answer_that_is_no_json_fails_the_job_and_nothing_else(at: Start) -> None:
    agent = Agent("desk")

    @agent.capability
    async def odd(task: str) -> Any:
        return Result(data={"answer": object()})

    async with at(agent) as node:
        job = await begin(node, "odd", "x")
        await eventually(reached(node, job["job_id"], "failed"))
        assert (await status(node, job["job_id"]))["error"]["code"] == "UPSTREAM_ERROR"


@pytest.mark.parametrize("name", ["words"])
async def test_a_plain_call_touches_no_store(tmp_path: Path, name: str) -> None:
    async with running(Desk(), config=settings("sqlite", tmp_path)) as node:
        await node.fabric.store.aclose()
        assert (await node.ask("desk", name, "still here"))["result"] == {"answer": "still here"}


async def test_a_node_with_room_begins_a_job_in_the_very_write_that_accepts_it(tmp_path: Path) -> None:
    async with running(Desk(), config=settings("sqlite", tmp_path)) as node:
        for _ in range(5):
            job_id = (await begin(node))["job_id"]
            await eventually(reached(node, job_id, "completed"))
            await asyncio.sleep(0.05)  # nothing is left to do
        job = await node.fabric.store.jobs.get(job_id)
        assert job is not None
        assert job.started_at == job.created_at  # each write has a moment of its own


async def test_jobs_survive_the_node(tmp_path: Path) -> None:
    config = settings("sqlite", tmp_path)
    async with running(Desk(), config=config) as node:
        done = await begin(node, task="before")
        await eventually(reached(node, done["job_id"], "completed"))
        waiting = await begin(node, run_at=time.time() + 0.5)
    async with running(Desk(), config=config) as node:
        events = await followed(node, done["job_id"])
        assert events[-1]["data"]["result"] == {"answer": "before"}
        await eventually(reached(node, waiting["job_id"], "completed"))


async def test_what_still_runs_when_the_node_stops_ends_as_interrupted_unless_it_may_be_repeated(
    tmp_path: Path,
) -> None:
    config = {**settings("sqlite", tmp_path), "limits": {"drain_seconds": 0}}
    agent = Agent("desk")

    @agent.capability(idempotent=True)
    async def repeatable(task: str) -> dict[str, Any]:
        return {"answer": await asyncio.sleep(0 if again else 3600, task)}

    @agent.capability
    async def once(task: str) -> dict[str, Any]:
        return {"answer": await asyncio.sleep(3600, task)}

    again = False
    async with running(agent, config=config) as node:
        jobs = [(await begin(node, name, "x"))["job_id"] for name in ("repeatable", "once")]
        for job_id in jobs:
            await eventually(reached(node, job_id, "running"))
    left = await build(config["store"])
    assert [job.state for job_id in jobs if (job := await left.jobs.get(job_id))] == ["queued", "failed"]  # already
    await left.aclose()
    again = True
    async with running(agent, config=config) as node:
        await eventually(reached(node, jobs[0], "completed"))
        ended = await status(node, jobs[1])
        assert (ended["state"], ended["error"]["details"]["reason"]) == ("failed", "interrupted")


async def test_readers_are_sent_away_when_the_node_stops(at: Start) -> None:
    async with at(agent := Desk()) as node:
        job = await begin(node, "patient")
        reading = node.fabric.jobs.events(await owner_of(node, job["job_id"]), job["job_id"])
        assert (await anext(reading)).number == 1
        node.fabric.app.stop()

        async def to_the_end() -> None:
            async with asyncio.timeout(20):
                async for _ in reading:
                    pass

        with pytest.raises(StoreUnavailable):
            await to_the_end()
        agent.gate.set()
