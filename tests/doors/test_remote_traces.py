"""One trace over nodes that call each other with the runtime `fabric`: each tells what the asking node may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.node import PSK, Node, running
from tests.fixtures.percy import Percy

GUEST = {"id": "guest", "key": "the-key-of-a-guest", "scopes": ["agent:*"]}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def at_node(agent_id: str, url: str, key: str, agent: str) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "runtime": "fabric",
        "endpoint": {"uri": url, "psk": key, "agent": agent},
        "capabilities": [{"name": "reason"}],
    }


def settings(node_id: str) -> dict[str, Any]:
    return {"store": "memory:", "node_id": node_id, "health": {"interval": 0}, "auth": {"keys": [GUEST]}}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def first() -> AsyncIterator[Node]:
    """It calls the second node, which calls the third: as its operator, as a guest, and with a wrong key."""
    async with running(Percy().agent, config=settings("three")) as third:
        manifests = [at_node("far", third.url, PSK, "percy")]
        async with running(manifests=manifests, config=settings("two")) as second:
            manifests = [
                at_node("own", second.url, PSK, "far"),
                at_node("guest", second.url, GUEST["key"], "far"),  # type: ignore[arg-type]
                at_node("stranger", second.url, "no-key-of-that-node", "far"),
                at_node("away", "http://127.0.0.1:9", PSK, "far"),
            ]
            async with running(manifests=manifests, config=settings("one")) as node:
                yield node


async def trace_call(first: Node, agent_id: str, **arguments: Any) -> tuple[list[Any], list[Any]]:
    """The spans and the other nodes of a call."""
    envelope = await first.ask(agent_id, "reason", "why")
    asked = {"trace_id": envelope["trace"]["trace_id"], **arguments}
    trace = (await first.operation("fabric.trace.get", asked))["result"]
    return trace["spans"], trace.get("nodes", [])


async def test_a_call_over_three_nodes_is_one_tree(first: Node) -> None:
    spans, nodes = await trace_call(first, "own")
    assert [(span["node"], span["kind"]) for span in spans] == [
        (name, kind) for name in ("one", "two", "three") for kind in ("door", "attempt", "runtime")
    ]
    parents = {span["span_id"]: span["parent_span_id"] for span in spans}
    assert [parents[span["span_id"]] for span in spans[1:]] == [span["span_id"] for span in spans[:-1]]
    assert [(each["agent_id"], each["status"], each["spans"]) for each in nodes] == [
        ("own", "ok", 6),
        ("own > far", "ok", 3),
    ]


async def test_the_depth_bounds_how_far_nodes_are_asked(first: Node) -> None:
    assert {span["node"] for span in (await trace_call(first, "own", depth=1))[0]} == {"one", "two"}
    spans, nodes = await trace_call(first, "own", depth=0)
    assert ({span["node"] for span in spans}, nodes) == ({"one"}, [])
    refused = await first.operation("fabric.trace.get", {"trace_id": "0" * 32, "depth": 99})
    assert refused["error_code"] == "BAD_INPUT"


async def test_a_guest_sees_its_own_call_and_is_told_what_it_may_not_see(first: Node) -> None:
    spans, nodes = await trace_call(first, "guest")
    assert {span["node"] for span in spans} == {"one", "two"}
    assert [(each["agent_id"], each["status"]) for each in nodes] == [("guest", "ok"), ("guest > far", "not_permitted")]
    assert nodes[1]["reason"] == "Only the operator's question goes on to other nodes"


@pytest.mark.parametrize(
    ("agent_id", "status", "words"),
    [("stranger", "not_permitted", "does not accept this node's key"), ("away", "unreachable", "")],
)
async def test_a_node_that_cannot_be_asked_is_named_with_the_reason(
    first: Node, agent_id: str, status: str, words: str
) -> None:
    spans, nodes = await trace_call(first, agent_id)
    assert {span["node"] for span in spans} == {"one"}
    assert [(each["agent_id"], each["status"]) for each in nodes] == [(agent_id, status)]
    assert words in nodes[0]["reason"]


async def test_a_caller_of_the_first_node_is_not_told_of_other_nodes_calls(first: Node) -> None:
    arguments = {"agent_id": "own", "capability": "reason", "task": "why"}
    envelope = await first.operation("fabric.call", arguments, token=GUEST["key"])
    asked = {"trace_id": envelope["trace"]["trace_id"]}
    trace = (await first.operation("fabric.trace.get", asked, token=GUEST["key"]))["result"]
    assert {span["node"] for span in trace["spans"]} == {"one"}
    assert [each["status"] for each in trace["nodes"]] == ["not_permitted"]
