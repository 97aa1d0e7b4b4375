"""Task graphs at the Fabric wire: order, results as inputs, conditions, failures, retries, deadlines, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.graphs import runner
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement


class Workshop:
    """Agents that record what they were asked."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.together = asyncio.Barrier(2)
        self.failures = 0
        self.stopped = asyncio.Event()
        self.agent = Agent("shop")

        @self.agent.capability(side_effects="none")
        async def say(task: str) -> dict[str, Any]:
            self.began.append(task)
            return {"answer": task, "length": len(task)}

        @self.agent.capability(side_effects="none")
        async def add(first: int, second: int) -> dict[str, int]:
            return {"sum": first + second}

        @self.agent.capability(side_effects="none")
        async def meet(task: str) -> dict[str, str]:
            """Ends only if two of them run at the same time."""
            async with asyncio.timeout(WAIT_TIMEOUT):
                await self.together.wait()
            return {"answer": task}

        @self.agent.capability(side_effects="none")
        async def fail_once(task: str) -> dict[str, str]:
            self.failures += 1
            if self.failures == 1:
                raise AgentOffline("not yet")
            return {"answer": "at last"}

        @self.agent.capability(side_effects="writes")
        async def refuse(task: str) -> dict[str, str]:
            raise ValueError("never")

        @self.agent.capability(side_effects="none")
        async def hang(task: str) -> dict[str, str]:
            self.began.append("hang")
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
            return {}


@pytest.fixture
async def shop() -> Workshop:
    return Workshop()


@pytest.fixture
async def node(shop: Workshop) -> AsyncIterator[Node]:
    keys = [{"id": "narrow", "key": "a-narrow-key-of-a-test", "scopes": ["agent:other"]}]
    async with running(shop.agent, config={"auth": {"keys": keys}}) as found:
        yield found


def step(node_id: str, capability: str = "say", task: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": node_id, "agent": "shop", "capability": capability, "task": task, **more}


async def run(node: Node, *nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    envelope = await node.operation("fabric.graph.run", {"graph": {"nodes": list(nodes)}, "timeout_ms": 60_000, **more})
    assert envelope["ok"], envelope
    return dict(envelope["result"])


@requirement("003-40")
async def test_results_of_nodes_are_inputs_of_others(node: Node, shop: Workshop) -> None:
    done = await run(
        node,
        step("total", "add", "", input={"first": "${a.length}", "second": "${b.length}"}),
        step("a", task="four"),
        step("b", task="seven 7"),
        step("text", task="the sum of ${a} and ${b.answer} is ${total.sum}"),
    )
    assert done["status"] == "completed"
    assert done["nodes"]["total"]["result"] == {"sum": 11}
    assert done["nodes"]["text"]["result"]["answer"] == "the sum of four and seven 7 is 11"
    assert shop.began[-1].startswith("the sum")
    job = (await node.operation("fabric.job.status", {"job_id": done["nodes"]["a"]["job_id"]}))["result"]
    assert (job["state"], job["agent_id"]) == ("completed", "shop")


@requirement("003-40")
async def test_independent_nodes_run_at_the_same_time(node: Node) -> None:
    done = await run(node, step("a", "meet"), step("b", "meet"))
    assert done["counts"] == {"completed": 2}
    assert "error" not in done


@requirement("003-40")
async def test_a_condition_skips_a_node_and_what_needs_it(node: Node) -> None:
    done = await run(
        node,
        step("a", task="four"),
        step("long", when="a.length > `10`"),
        step("short", when="a.length < `10`"),
        step("after", depends_on=["long"]),
    )
    states = {name: each["state"] for name, each in done["nodes"].items()}
    assert states == {"a": "completed", "long": "skipped", "short": "completed", "after": "skipped"}
    assert done["nodes"]["after"]["reason"] == "it needs 'long', which was skipped"
    assert done["status"] == "completed"


@requirement("003-40")
async def test_a_failed_node_is_reported_and_the_rest_goes_on(node: Node) -> None:
    done = await run(node, step("bad", "refuse"), step("after", depends_on=["bad"]), step("good"))
    assert done["status"] == "partial"
    assert done["nodes"]["bad"]["state"] == "failed"
    assert "Node 'bad'" in done["nodes"]["bad"]["error"]["message"]
    assert done["nodes"]["after"]["reason"] == "it needs 'bad', which failed"
    assert done["nodes"]["good"]["state"] == "completed"
    assert done["answer"] == "1 of 3 nodes are completed. Failed: bad."
    assert done["nodes"]["bad"]["error"]["recoverable"] is False
    assert done["error"] == {"code": "COORDINATION_FAILED", "message": done["answer"], "recoverable": False}


async def test_an_answer_that_does_not_fit_a_condition_fails_its_node_only(node: Node) -> None:
    """The agent answered with a text where the condition expects a number."""
    done = await run(node, step("a"), step("b", when="a.answer > `5`"), step("c", when="a.length < `5`"))
    assert done["counts"] == {"completed": 2, "failed": 1}
    assert "cannot be evaluated" in done["nodes"]["b"]["error"]["message"]


async def test_a_node_is_retried_as_it_says(node: Node, shop: Workshop) -> None:
    done = await run(node, step("a", "fail_once", retry={"max_attempts": 3, "pause_seconds": 0}))
    assert done["nodes"]["a"]["result"] == {"answer": "at last"}
    shop.failures = 0
    once = await run(node, step("a", "fail_once", retry={"max_attempts": 1}))
    assert once["status"] == "failed"


@requirement("003-40")
async def test_a_node_that_never_ends_fails_at_its_deadline(node: Node, shop: Workshop) -> None:
    done = await run(
        node, step("slow", "hang", timeout_ms=50, retry={"max_attempts": 1}), step("after", task="${slow}")
    )
    assert done["nodes"]["slow"]["error"]["code"] == "TIMEOUT"
    assert done["error"]["recoverable"] is True
    assert "Node 'slow'" in done["nodes"]["slow"]["error"]["message"]
    assert done["nodes"]["after"]["state"] == "skipped"
    await asyncio.wait_for(shop.stopped.wait(), WAIT_TIMEOUT)


async def test_a_result_that_does_not_fit_names_node_and_field(node: Node) -> None:
    done = await run(
        node,
        step("a", task="four"),
        step("text", "add", "", input={"first": "${a.answer}", "second": 1}),
        step("gone", "add", "", input={"first": "${a.nothing.here}", "second": 1}),
    )
    assert done["nodes"]["text"]["error"]["message"].startswith("Node 'text', input")
    assert "first" in done["nodes"]["text"]["error"]["message"]
    gone = done["nodes"]["gone"]["error"]
    assert gone["message"] == "Node 'gone', input.first: '${a.nothing.here}' finds nothing in the result of 'a'"
    assert gone["details"] == {"node": "gone", "field": "input.first"}


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([step("a", task="${b}"), step("b", depends_on=["a"])], "the graph has a cycle: a -> b -> a"),
        ([step("a", depends_on=["a"])], "the graph has a cycle: a -> a"),
        ([{**step("a"), "agent": "shopp"}], "Node 'a', agent: there is no agent 'shopp' (nearest: shop)"),
        ([step("a", "sayy")], "Node 'a', capability: 'shop' has no capability 'sayy' (nearest: say)"),
        ([step("first"), step("b", depends_on=["frist"])], "Node 'b', depends_on: there is no node 'frist'"),
        ([step("a", task="${nobody.x}")], "Node 'a', task: 'nobody.x' names 'nobody', and there is no such node"),
        ([step("a", input={"x": [{"y": "${]}"}]})], "Node 'a', input.x[0].y: ']' is not a JMESPath expression"),
        ([step("a"), step("a")], "Node 'a', id: there are two nodes 'a'"),
        ([step("a", when="a..b")], "Node 'a', when: 'a..b' is not a JMESPath expression"),
        ([], "graph.nodes"),
        ([step("not an id")], "graph.nodes[0].id"),
        ([step("a", unknown=1)], "unknown"),
    ],
)
async def test_a_bad_graph_is_refused_before_anything_runs(
    node: Node, shop: Workshop, nodes: list[dict[str, Any]], problem: str
) -> None:
    for operation in ("fabric.graph.plan", "fabric.graph.run"):
        envelope = await node.operation(operation, {"graph": {"nodes": nodes}})
        assert (envelope["ok"], envelope["error_code"]) == (False, "BAD_INPUT")
        assert problem in envelope["error"]
    assert shop.began == []


async def test_an_agent_that_the_caller_may_not_call_is_like_one_that_does_not_exist(node: Node) -> None:
    graph = {"nodes": [step("a")]}
    envelope = await node.operation("fabric.graph.run", {"graph": graph}, token="a-narrow-key-of-a-test")
    assert envelope["error"] == "Node 'a', agent: there is no agent 'shop'"


@requirement("003-40")
async def test_cancelling_a_graph_reaches_all_its_nodes(node: Node, shop: Workshop) -> None:
    graph = {"nodes": [step("a", "hang"), step("b", task="${a}")]}
    started = (await node.operation("fabric.graph.run", {"graph": graph, "async": True}))["result"]

    async def has_begun() -> bool:
        return "hang" in shop.began

    await eventually(has_begun)
    await node.operation("fabric.job.cancel", {"job_id": started["job_id"]})
    await asyncio.wait_for(shop.stopped.wait(), WAIT_TIMEOUT)

    async def are_cancelled() -> bool:
        jobs = (await node.operation("fabric.job.list", {}))["result"]["jobs"]
        return len(jobs) == 2 and all(job["state"] == "cancelled" for job in jobs)

    await eventually(are_cancelled)


async def test_results_beyond_what_a_graph_keeps_fail_their_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_RESULT_BYTES", 60)
    done = await run(node, step("a", task="small"), step("b", task="large " * 20, depends_on=["a"]))
    assert done["status"] == "partial"
    assert done["nodes"]["b"]["error"]["message"] == "Node 'b', result: all results have more than 60 bytes together"


async def test_the_same_key_is_the_same_graph(node: Node, shop: Workshop) -> None:
    first = await run(node, step("a"), idempotency_key="once")
    second = await run(node, step("a"), idempotency_key="once")
    assert first["nodes"]["a"]["job_id"] == second["nodes"]["a"]["job_id"]
    assert shop.began == ["x"]


async def test_events_name_the_node_that_changed(node: Node) -> None:
    arguments = {"graph": {"nodes": [step("a"), step("b", depends_on=["a"])]}}
    async with node.stream("fabric.graph.run", arguments) as events:
        changes = [event["data"] async for event in events if event["event"] == "progress"]
    ended = [(change["node"], change["state"]) for change in changes if change["state"] != "running"]
    assert ended == [("a", "completed"), ("b", "completed")]
    assert changes[-1]["percent"] == 100.0
