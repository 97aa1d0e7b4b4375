"""Delegation between nodes: how far a call may go, and that it never goes in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.propagation import make_chain_entry
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.fabric_nodes import QUIET, Line, entry, listed

REASON = {"name": "reason"}


def named(node_id: str, **more: Any) -> dict[str, Any]:
    return {"node_id": node_id, **QUIET, **more}


@asynccontextmanager
async def chain(percy: Percy) -> AsyncIterator[tuple[Node, Node, Node]]:
    """`a` has the agents of `b`, and `b` has one of `c`'s under an id of its own."""
    async with AsyncExitStack() as stack:
        c = await stack.enter_async_context(running(percy.agent, config=named("c")))
        deep = entry(c.url, "deep", endpoint={"agent": "percy"}, capabilities=[REASON, {"name": "wait"}])
        b = await stack.enter_async_context(running(manifests=[deep], config=named("b")))
        a = await stack.enter_async_context(running(manifests=[entry(b.url, "b")], config=named("a")))
        await listed(a, "b/deep", None)
        yield a, b, c


@requirement("001-30", "001-56")
async def test_a_call_over_three_nodes_has_one_trace_less_time_and_a_chain() -> None:
    percy = Percy()
    async with chain(percy) as (a, _, _):
        envelope = await a.ask("b/deep", "reason", "far away", timeout_ms=20_000)
        assert envelope["result"]["answer"] == "far away"
        seen = percy.calls[-1]
        assert seen.trace.trace_id == envelope["trace"]["trace_id"]
        assert seen.trace.parent_span_id != envelope["trace"]["span_id"]  # b's span lies between
        assert seen.target.timeout_ms <= 20_000 - 2 * 250
        assert seen.delegation_chain == (
            make_chain_entry("a", "b/deep"),
            make_chain_entry("b", "deep"),
            make_chain_entry("c", "percy"),
        )
        assert seen.on_behalf_of
        assert seen.on_behalf_of.principal_id == "psk"


async def test_an_error_names_every_hop_it_came_over() -> None:
    percy = Percy()
    async with chain(percy) as (a, _, _):
        envelope = await a.ask("b", "deep.sing")
        assert envelope["error_details"]["hops"] == ["b"]
        envelope = await a.ask("b/deep", "reason", context={"depth": "deep"})
        assert envelope["error_code"] == "BAD_INPUT"
        assert envelope["error_details"]["hops"] == ["b", "deep"]


async def test_leaving_is_felt_two_nodes_away() -> None:
    percy = Percy()
    async with chain(percy) as (a, _, _), asyncio.timeout(WAIT_TIMEOUT):
        asking = asyncio.ensure_future(a.ask("b/deep", "wait"))
        await percy.started.wait()
        asking.cancel()
        await percy.cancelled.wait()


@asynccontextmanager
async def circle(**settings: Any) -> AsyncIterator[tuple[Node, Node]]:
    """`a` sends `ping` to `b`, and `b` sends it back to `a`."""
    async with AsyncExitStack() as stack:
        line = Line(0)
        stack.push_async_callback(line.cut)
        await line.mend()
        back = entry(line.url, "ping", endpoint={"agent": "ping"}, capabilities=[REASON])
        b = await stack.enter_async_context(running(manifests=[back], config=named("b", **settings)))
        there = entry(b.url, "ping", endpoint={"agent": "ping"}, capabilities=[REASON])
        a = await stack.enter_async_context(running(manifests=[there], config=named("a", **settings)))
        line.lead_to(a.port)
        yield a, b


async def test_a_call_that_comes_back_is_refused_at_once() -> None:
    async with circle() as (a, b), asyncio.timeout(WAIT_TIMEOUT):
        envelope = await a.ask("ping", "reason")
        assert envelope["error_code"] == "AUTH_DENIED"
        assert envelope["error_details"]["reason"] == "LOOP"
        assert envelope["error_details"]["delegation_chain"] == [
            make_chain_entry("a", "ping"),
            make_chain_entry("b", "ping"),
            "a",
        ]
        assert envelope["error_details"]["hops"] == ["ping", "ping"]
        envelope = await b.ask("ping", "reason")
        assert envelope["error_details"]["delegation_chain"] == [
            make_chain_entry("b", "ping"),
            make_chain_entry("a", "ping"),
            "b",
        ]


async def test_nodes_without_a_name_notice_circles_too() -> None:
    """Both are called `local`, and are not taken for one another."""
    async with AsyncExitStack() as stack:
        line = Line(0)
        stack.push_async_callback(line.cut)
        await line.mend()
        percy, config = Percy(), {**QUIET, "routing": {"fallback": False}}
        back = entry(line.url, "ping", endpoint={"agent": "ping"}, capabilities=[REASON])
        b = await stack.enter_async_context(running(percy.agent, manifests=[back], config=config))
        manifests = [entry(b.url, "ping", endpoint={"agent": "ping"}, capabilities=[REASON]), entry(b.url)]
        a = await stack.enter_async_context(running(manifests=manifests, config=config))
        line.lead_to(a.port)
        await listed(a, "lab/percy")
        assert (await a.ask("lab/percy", "reason", "straight"))["ok"]
        envelope = await a.ask("ping", "reason")
        assert envelope["error_code"] == "AUTH_DENIED"
        assert envelope["error_details"]["reason"] == "LOOP"


@requirement("001-38")
async def test_another_agent_is_asked_instead_of_going_in_a_circle() -> None:
    """Two nodes that stand in for one another both fail; neither asks the other for ever, and a third one helps."""
    first = Percy(fallbacks=["b/percy", "b/helper"])
    second, helper = Percy(fallbacks=["a/percy", "helper"]), Agent("helper")

    @helper.capability
    async def fail(task: str) -> dict[str, str]:
        return {"done": task}

    async with AsyncExitStack() as stack:
        line = Line(0)
        stack.push_async_callback(line.cut)
        await line.mend()
        b = await stack.enter_async_context(
            running(second.agent, helper, manifests=[entry(line.url, "a")], config=named("b"))
        )
        a = await stack.enter_async_context(
            running(first.agent, manifests=[entry(b.url, "b")], config=named("a", routing={"max_attempts": 16}))
        )
        line.lead_to(a.port)
        await listed(a, "b/helper")
        await listed(b, "a/percy")
        async with asyncio.timeout(WAIT_TIMEOUT):
            envelope = await a.ask("percy", "fail", "it")
        assert envelope["result"] == {"done": "it"}


async def test_the_lists_of_nodes_that_know_one_another_do_not_grow_for_ever() -> None:
    first, second = Percy(), Percy("second")
    async with AsyncExitStack() as stack:
        line = Line(0)
        stack.push_async_callback(line.cut)
        await line.mend()
        b = await stack.enter_async_context(running(second.agent, manifests=[entry(line.url, "a")], config=named("b")))
        a = await stack.enter_async_context(running(first.agent, manifests=[entry(b.url, "b")], config=named("a")))
        line.lead_to(a.port)
        await listed(a, "b/second")
        await listed(b, "a/percy")
        seen = b.fabric.registry.changes.revision

        async def has_changed_twice() -> bool:
            b.fabric.registry.update_health("second", "degraded")
            b.fabric.registry.update_health("second", "online")
            return b.fabric.registry.changes.revision != seen

        await eventually(has_changed_twice)
        await listed(a, "b/second", "online")
        assert {m.agent_id for m in a.fabric.registry.catalog.agents} == {"percy", "b", "b/second"}
        assert {m.agent_id for m in b.fabric.registry.catalog.agents} == {"second", "a", "a/percy"}


async def test_too_many_nodes_are_too_many() -> None:
    percy = Percy()
    async with running(percy.agent, config=named("end", routing={"max_delegations": 3})) as node:
        assert (await node.ask("percy", "reason", delegation_chain=["x", "y"]))["ok"]
        assert percy.calls[-1].delegation_chain == ("x", "y", make_chain_entry("end", "percy"))
        envelope = await node.ask("percy", "reason", delegation_chain=["x", "y", "z"])
        assert envelope["error_code"] == "AUTH_DENIED"
        assert envelope["error_details"]["reason"] == "DEPTH"
        reply = await node.send(
            "POST",
            "/mcp/call",
            json={"name": "fabric.call", "arguments": _asked(delegation_chain=["end", "x"])},
        )
        assert reply.status == 403
        assert reply.json["error_details"]["reason"] == "LOOP"


def _asked(**more: Any) -> dict[str, Any]:
    return {"agent_id": "percy", "capability": "reason", "task": "?", **more}


async def test_an_agent_may_call_its_own_node_back() -> None:
    percy, nodes = Percy(), list[Node]()
    caller = Agent("caller")

    @caller.capability
    async def delegate(task: str, call: Call) -> dict[str, Any]:
        answer = await nodes[0].ask("percy", "reason", task, delegation_chain=list(call.delegation_chain or ()))
        return dict(answer["result"])

    async with running(percy.agent, caller, config=named("home")) as node:
        nodes.append(node)
        assert (await node.ask("caller", "delegate", "pass it on"))["result"]["answer"] == "pass it on"
        assert percy.calls[-1].delegation_chain == (
            make_chain_entry("home", "caller"),
            make_chain_entry("home", "percy"),
        )


@requirement("001-27")
async def test_agents_behind_the_last_node_get_chain_and_identity_in_their_envelope() -> None:
    remote = Agent("remote")

    @remote.capability
    async def show(task: str, call: Call) -> dict[str, Any]:
        whom = call.on_behalf_of.principal_id if call.on_behalf_of else None
        return {"chain": list(call.delegation_chain or ()), "for": whom, "by": call.auth.principal_id}

    keys = {"auth": {"keys": [{"id": "alice", "key": "the-key-of-alice"}]}}
    async with (
        listening(remote.app) as url,
        running(manifests=[{"agent_id": "remote", "endpoint": {"uri": url}}], config=named("b")) as b,
        running(manifests=[entry(b.url, "b")], config=named("a", **keys)) as a,
    ):
        await listed(a, "b/remote")
        given = {"agent_id": "b/remote", "capability": "show", "task": "?"}
        envelope = await a.operation("fabric.call", given, token="the-key-of-alice")
        passed = [make_chain_entry("a", "b/remote"), make_chain_entry("b", "remote")]
        assert envelope["result"] == {"chain": passed, "for": "alice", "by": "psk"}


async def test_what_is_no_chain_or_identity_is_refused() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        for wrong in ({"delegation_chain": "a"}, {"delegation_chain": [1]}, {"on_behalf_of": {"mode": "no such"}}):
            envelope = await node.ask("percy", "reason", **wrong)
            assert envelope["error_code"] == "BAD_INPUT"
            assert envelope["error_details"]["field"].startswith(next(iter(wrong)))
