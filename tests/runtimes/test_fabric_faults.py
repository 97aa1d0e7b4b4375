"""The `fabric` runtime before nodes that lie, hang, break and flood: a typed error each time, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, running, tasks_are_down_to
from tests.fixtures.percy import Percy
from tests.runtimes.fabric_nodes import QUIET, entry, listed
from tests.runtimes.http_agents import BEHAVIOURS, Agents, Exchange, agents, dead_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = {**QUIET, "routing": {"fallback": False}, "limits": {"reply_bytes": 100_000}, "breaker": {"failures": 1000}}
PLAIN = {
    "reset": "UPSTREAM_ERROR",
    "reset_in_body": "UPSTREAM_ERROR",
    "close_in_body": "UPSTREAM_ERROR",
    "truncated": "UPSTREAM_ERROR",
    "web_page": "UPSTREAM_ERROR",
    "broken_page": "UPSTREAM_ERROR",
    "unavailable": "AGENT_OFFLINE",
    "bad_gateway": "UPSTREAM_ERROR",
    "redirect": "UPSTREAM_ERROR",
    "not_http": "UPSTREAM_ERROR",
    "huge_reply": "UPSTREAM_ERROR",
    "nested": "UPSTREAM_ERROR",
    "hang": "TIMEOUT",
}
STREAM = {
    "garbage_events": "UPSTREAM_ERROR",
    "cut_stream": "UPSTREAM_ERROR",
    "reset_stream": "UPSTREAM_ERROR",
    "flood": "UPSTREAM_ERROR",
    "huge_event": "UPSTREAM_ERROR",
    "hang_in_stream": "TIMEOUT",
    "bad_final": "UPSTREAM_ERROR",
    "bad_event": "UPSTREAM_ERROR",
}


async def bad_final(x: Exchange) -> None:
    await x.open_stream()
    await x.send(b'data: {"event": "final", "data": ["not", "an", "object"]}\n\n')


async def bad_event(x: Exchange) -> None:
    await x.open_stream()
    await x.send(b'data: {"event": "token", "data": 7}\n\n')


async def strange_list(x: Exchange) -> None:
    """Entries of which one can be read."""
    good = {"agent_id": "good", "capabilities": [{"name": "be", "input_schema": {}, "some_new_word": 1}]}
    entries: list[Any] = [good, 7, {}, {"agent_id": "a b"}, {"agent_id": "x", "capabilities": [{"name": 5}]}]
    entries.append({"agent_id": "from/elsewhere"})
    await x.reply({"ok": True, "trace": None, "result": {"agents": entries}})


FAULTS = {**BEHAVIOURS, "bad_final": bad_final, "bad_event": bad_event, "strange_list": strange_list}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bad() -> AsyncIterator[Agents]:
    async with agents({f"{name}/mcp/call": behaviour for name, behaviour in FAULTS.items()}) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(bad: Agents) -> AsyncIterator[Node]:
    act = [{"name": "act", "streaming": True}]
    manifests = [
        entry(bad.url(f"/{name}"), name, endpoint={"agent": "any"}, capabilities=act) for name in (*PLAIN, *STREAM)
    ]
    nowhere = f"http://127.0.0.1:{dead_port()}"
    manifests.append(entry(nowhere, "nowhere", endpoint={"agent": "any"}, capabilities=act))
    async with running(Percy().agent, manifests=manifests, config=CONFIG) as running_:
        assert (await running_.ask("percy", "reason"))["ok"]
        yield running_


@pytest.mark.parametrize(("name", "code"), [*PLAIN.items(), ("nowhere", "AGENT_OFFLINE")])
async def test_a_faulty_node_gives_a_typed_error(node: Node, name: str, code: str) -> None:
    before = len(asyncio.all_tasks())
    async with asyncio.timeout(WAIT_TIMEOUT):
        envelope = await node.ask(name, "act", timeout_ms=1000 if code == "TIMEOUT" else 20_000)
    check_envelope(envelope)
    assert envelope["error_code"] == code
    assert envelope["error_details"]["agent_id"] == name
    await _nothing_is_left(node, before)


@pytest.mark.parametrize(("name", "code"), STREAM.items())
async def test_a_faulty_stream_ends_with_a_typed_error(node: Node, name: str, code: str) -> None:
    before = len(asyncio.all_tasks())
    events = await node.events(name, "act", timeout_ms=1000 if code == "TIMEOUT" else 20_000)
    assert events[-1]["event"] == "final"
    assert events[-1]["data"]["error"]["code"] == code
    assert events[-1]["data"]["error"]["details"]["agent_id"] == name
    await _nothing_is_left(node, before)


async def _nothing_is_left(node: Node, before: int) -> None:
    assert (await node.ask("percy", "reason"))["ok"]
    await tasks_are_down_to(before)


async def test_an_answer_that_was_lost_over_there_is_not_asked_for_again_here(bad: Agents) -> None:
    stand_in = Percy("stand-in")
    act = {"name": "reason"}  # nothing is said of whether it may be repeated
    broken = {
        "agent_id": "broken",
        "runtime": "http",
        "endpoint": {"uri": bad.url("/reset/mcp/call")},
        "capabilities": [act],
    }
    config = {**CONFIG, "routing": {"fallback": True}}
    async with running(manifests=[broken], config=config) as there:
        manifests = [entry(there.url, fallbacks=["stand-in"])]
        async with running(stand_in.agent, manifests=manifests, config=config) as here:
            await listed(here, "lab/broken", "offline")  # its probe was cut off, too
            there.fabric.registry.update_health("broken", "online")
            await listed(here, "lab/broken", "online")
            envelope = await here.ask("lab/broken", "reason")
            assert envelope["error_code"] == "UPSTREAM_ERROR"
            assert envelope["error_details"]["interrupted"] is True
            assert stand_in.calls == []


async def test_one_entry_that_cannot_be_read_hides_no_other(bad: Agents) -> None:
    async with running(manifests=[entry(bad.url("/strange_list"))], config=CONFIG) as here:
        agent = await listed(here, "lab/good", "unknown")
        assert [each["name"] for each in agent["capabilities"]] == ["be"]
        assert {m.agent_id for m in here.fabric.registry.catalog.agents} == {"lab", "lab/good"}


async def test_what_is_no_node_is_said_to_be_none(bad: Agents) -> None:
    async with running(manifests=[entry(bad.url("/web_page"))], config=CONFIG) as here:
        node = await listed(here, "lab", "offline")
        assert "the reply is not from a Fabric node" in node["error"]


@pytest.mark.parametrize(
    "endpoint", [{"uri": "ftp://x"}, {"uri": "http://me:secret@127.0.0.1"}, {"uri": "http://x", "pks": "typo"}]
)
async def test_a_wrong_entry_is_offline_and_says_why(endpoint: dict[str, Any]) -> None:
    manifests = [{"agent_id": "lab", "runtime": "fabric", "endpoint": endpoint}]
    async with running(manifests=manifests, config=CONFIG) as here:
        node = await listed(here, "lab", "offline")
        assert "lab" in node["error"]
        assert "secret" not in str(node)
