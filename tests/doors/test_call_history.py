"""The call history: what is recorded of a call, who may read it, and what it costs when the store or time is short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden, StoreUnavailable
from a2a_fabric.core.propagation import new_id, new_trace
from a2a_fabric.core.spans import CallFilter, StoredCall
from tests.fixtures.node import PSK, Node, eventually, running
from tests.marks import requirement

KEYS: list[dict[str, Any]] = [
    {"id": "anna", "key": "the-key-of-anna", "scopes": ["agent:*"]},
    {"id": "bert", "key": "the-key-of-bert", "scopes": ["agent:percy"]},
]


def make_agents() -> list[Agent]:
    percy = Agent("percy", description="Answers")

    @percy.capability
    async def reason(task: str) -> str:
        """Answers a question."""
        return f"because {task}"

    writer = Agent("writer", description="Writes in pieces")

    @writer.capability
    async def draft(task: str) -> AsyncIterator[str]:
        """Writes."""
        for word in task.split():
            yield word

    return [percy, writer]


async def answer_broken(request: web.Request) -> web.Response:
    """Only calls fail; probes find the agent well, so that it is asked first."""
    is_call = request.method == "POST" and b'"reason"' in await request.read()
    return web.Response(status=500) if is_call else web.json_response({"ok": True, "status": "online"})


def declare_broken(url: str) -> dict[str, Any]:
    return {
        "agent_id": "broken",
        "runtime": "http",
        "endpoint": {"uri": url},
        "capabilities": [{"name": "reason"}],
        "fallbacks": ["percy"],
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def node() -> AsyncIterator[Node]:
    config = {
        "store": "memory:",
        "auth": {"keys": KEYS},
        "node_id": "one",
        "history": {"payloads": True},
        "health": {"interval": 0},
    }
    app = web.Application()
    app.router.add_route("*", "/run", answer_broken)
    async with TestServer(app) as server:
        manifest = declare_broken(str(server.make_url("/run")))
        async with running(*make_agents(), manifests=[manifest], config=config) as node:
            yield node


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def list_calls(node: Node, token: str | None = None, **arguments: Any) -> list[dict[str, Any]]:
    more = {} if token is None else {"token": token}
    reply = await node.operation("fabric.call.list", arguments, **more)
    assert reply["ok"], reply
    calls: list[dict[str, Any]] = reply["result"]["calls"]
    return calls


async def read_spans(node: Node, trace_id: str, **more: Any) -> list[dict[str, Any]]:
    reply = await node.operation("fabric.trace.get", {"trace_id": trace_id}, **more)
    spans: list[dict[str, Any]] = reply["result"]["spans"]
    return spans


@requirement("001-57", "001-36")
async def test_a_call_is_a_tree_of_door_attempt_and_runtime(node: Node) -> None:
    envelope = await node.ask("percy", "reason", "it rains")
    trace_id = envelope["trace"]["trace_id"]
    (call,) = await list_calls(node, trace_id=trace_id)
    span_id = envelope["trace"]["span_id"].replace("-", "")
    assert call["span_id"] == span_id[16:]
    assert (call["node"], call["door"], call["principal"], call["agent_id"], call["capability"]) == (
        *("one", "fabric", "psk", "percy", "reason"),
    )
    assert (call["status"], call["runtime"], call["attempts"], call["error_code"]) == ("completed", "python", 1, None)
    door, attempt, runtime = await read_spans(node, trace_id.replace("-", ""))
    assert [door["kind"], attempt["kind"], runtime["kind"]] == ["door", "attempt", "runtime"]
    assert (attempt["parent_span_id"], runtime["parent_span_id"]) == (door["span_id"], attempt["span_id"])
    assert runtime["span_id"] == span_id[:16], "what the agent is sent as its parent"
    assert door["duration_ms"] >= attempt["duration_ms"] >= runtime["duration_ms"] > 0
    assert door["attributes"]["gen_ai.operation.name"] == "invoke_agent"


@requirement("001-57")
async def test_a_fallback_shows_each_attempt_with_its_reason(node: Node) -> None:
    envelope = await node.ask("broken", "reason", "x")
    (call,) = await list_calls(node, trace_id=envelope["trace"]["trace_id"])
    assert (call["agent_id"], call["used"], call["attempts"]) == ("broken", "percy", 2)
    spans = await read_spans(node, envelope["trace"]["trace_id"])
    first, second = (span for span in spans if span["kind"] == "attempt")
    assert first["status"] == "error"
    assert first["attributes"]["error.type"] == "UPSTREAM_ERROR"
    assert first["attributes"]["fabric.may_have_run"] is True
    assert second["attributes"]["fabric.agent_id"] == "percy"
    assert second["attributes"]["fabric.reason"]
    assert call in await list_calls(node, agent="percy"), "calls that an agent answered for another one are its calls"


async def test_failed_calls_can_be_listed_alone_and_by_caller(node: Node) -> None:
    await node.ask("percey", "reason")
    await node.operation(
        "fabric.call", {"agent_id": "writer", "capability": "draft", "task": "x"}, token=KEYS[1]["key"]
    )
    failed = await list_calls(node, failed=True)
    assert {call["error_code"] for call in failed} >= {"AGENT_NOT_FOUND", "AUTH_DENIED"}
    (refused,) = await list_calls(node, principal="bert", failed=True)
    assert refused["attempts"] == 0
    (door,) = await read_spans(node, refused["trace_id"])
    assert door["attributes"]["fabric.verdict"] == "refused"
    assert door["attributes"]["fabric.missing_scope"] == "agent:writer"
    assert await list_calls(node, principal="bert", failed=False) == []


async def test_a_caller_sees_its_own_calls_and_what_it_was_told(node: Node) -> None:
    anna, bert = KEYS[0]["key"], KEYS[1]["key"]
    arguments = {"agent_id": "percy", "capability": "reason", "task": "x"}
    envelope = await node.operation("fabric.call", arguments, token=anna)
    trace_id = envelope["trace"]["trace_id"]
    assert [call["trace_id"] for call in await list_calls(node, anna)][:1] == [trace_id]
    assert all(call["principal"] == "anna" for call in await list_calls(node, anna))
    assert all(call["principal"] == "bert" for call in await list_calls(node, bert))
    assert await list_calls(node, bert, trace_id=trace_id) == []
    assert await list_calls(node, bert, principal="anna") == []
    assert await read_spans(node, trace_id, token=bert) == []
    assert len(await read_spans(node, trace_id, token=anna)) == 3
    failed = await node.operation("fabric.call", {**arguments, "agent_id": "broken"}, token=anna)
    spans = await read_spans(node, failed["trace"]["trace_id"], token=anna)
    assert not any("error.message" in span["attributes"] for span in spans)


async def test_callers_without_credentials_have_no_history(node: Node) -> None:
    stranger = Principal(mode="none", principal_id="anonymous", trust="public")
    for name, arguments in (("fabric.call.list", {}), ("fabric.trace.get", {"trace_id": new_id()})):
        with pytest.raises(Forbidden, match="Use a key"):
            await node.fabric.operations.run(name, arguments, stranger, new_trace())


async def test_events_of_a_stream_are_noted_and_tokens_only_counted(node: Node) -> None:
    events = await node.events("writer", "draft", "some words to say")
    trace_id = events[-1]["trace"]["trace_id"]
    (call,) = await list_calls(node, trace_id=trace_id)
    assert call["streaming"]
    door, *_ = await read_spans(node, trace_id)
    assert door["attributes"]["fabric.tokens"] == 4
    assert {event["name"] for event in door["events"]} == {"status"}


@requirement("001-57")
async def test_a_job_is_a_span_above_its_runs(node: Node) -> None:
    started = await node.ask("percy", "reason", "later", **{"async": True})
    job_id, trace_id = started["result"]["job_id"], started["trace"]["trace_id"]
    await node.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000})

    async def has_job_span() -> bool:
        return any(span["kind"] == "job" for span in await read_spans(node, trace_id))

    await eventually(has_job_span)
    spans = await read_spans(node, trace_id)
    job = next(span for span in spans if span["kind"] == "job")
    run = next(span for span in spans if span["kind"] == "door")
    assert job["span_id"] == started["trace"]["span_id"].replace("-", "")[:16]
    assert run["parent_span_id"] == job["span_id"]
    assert job["attributes"]["fabric.state"] == "completed"
    (call,) = await list_calls(node, trace_id=trace_id)
    assert (call["job_id"], call["door"]) == (job_id, "fabric")


async def test_a_call_that_becomes_a_job_names_it(node: Node) -> None:
    started = await node.ask("percy", "reason", "soon", job_after_ms=0)
    trace_id = started["trace"]["trace_id"]

    async def is_recorded() -> bool:
        return len(await list_calls(node, trace_id=trace_id)) == 1

    await eventually(is_recorded)
    (call,) = await list_calls(node, trace_id=trace_id)
    assert call["job_id"] == started["result"]["job_id"]


async def test_calls_are_followed_as_they_end(node: Node) -> None:
    reply = await node.operation("fabric.call.list", {"limit": 1})
    waiting = asyncio.ensure_future(
        node.operation("fabric.call.list", {"follow": reply["result"]["follow"], "wait_ms": 20_000, "agent": "writer"})
    )
    await node.ask("percy", "reason", "not this one")
    envelope = await node.ask("writer", "draft", "this one")
    found = (await waiting)["result"]
    assert [call["trace_id"] for call in found["calls"]] == [envelope["trace"]["trace_id"]]
    again = await node.operation("fabric.call.list", {"follow": found["follow"]})
    assert again["result"]["calls"] == []
    after_restart = await node.operation("fabric.call.list", {"follow": "123456789"})
    assert after_restart["result"]["calls"], "a store in memory that began anew is read from its first call"
    assert not (await node.operation("fabric.call.list", {"follow": "x"}))["ok"]


async def test_pages_of_the_list_go_on_without_repeating(node: Node) -> None:
    for _ in range(3):
        await node.ask("percy", "reason")
    reply = (await node.operation("fabric.call.list", {"limit": 2}))["result"]
    rest = (await node.operation("fabric.call.list", {"limit": 2, "cursor": reply["next_cursor"]}))["result"]
    ids = [call["span_id"] for call in (*reply["calls"], *rest["calls"])]
    assert len(set(ids)) == 4
    assert not (await node.operation("fabric.call.list", {"cursor": "x"}))["ok"]
    assert not (await node.operation("fabric.trace.get", {"trace_id": "no uuid"}))["ok"]


async def test_payloads_are_kept_only_if_wanted_and_without_secrets(node: Node) -> None:
    context = {"password": "hunter2", "note": "the token is ghp_" + "a" * 36}
    envelope = await node.ask("percy", "reason", "hello", context=context)
    door, *_ = await read_spans(node, envelope["trace"]["trace_id"])
    assert "hello" in door["attributes"]["fabric.input"]
    assert "because" in door["attributes"]["fabric.output"]
    assert "hunter2" not in str(door)
    assert "ghp_" not in str(door)
    async with running(*make_agents(), config={"store": "memory:"}) as plain:
        envelope = await plain.ask("percy", "reason", "hello")
        spans = await read_spans(plain, envelope["trace"]["trace_id"])
        assert "hello" not in str(spans)


async def test_a_switched_off_history_says_so() -> None:
    async with running(*make_agents(), config={"store": "memory:", "history": {"enabled": False}}) as node:
        assert (await node.ask("percy", "reason"))["ok"]
        reply = await node.operation("fabric.call.list")
        assert "history.enabled" in reply["error"]


async def test_more_calls_than_the_node_records_are_counted_as_lost() -> None:
    config = {"store": "memory:", "history": {"calls_per_second": 1}}
    async with running(*make_agents(), config=config) as node:
        await asyncio.gather(*(node.ask("percy", "reason") for _ in range(20)))
        reply = (await node.operation("fabric.call.list"))["result"]
        assert reply["lost"] > 0
        assert reply["lost"] + len(reply["calls"]) == 20
        page = (await node.send("GET", "/metrics")).body.decode()
        assert f"fabric_history_lost_total {float(reply['lost'])}" in page


async def test_the_history_holds_its_bound_whatever_the_rate_of_calls() -> None:
    config = {"store": "memory:", "history": {"keep_calls": 20}}
    async with running(*make_agents(), config=config) as node:
        for _ in range(10):
            await asyncio.gather(*(node.ask("percy", "reason") for _ in range(20)))
            await list_calls(node)

        async def is_within_bound() -> bool:
            return len(await list_calls(node, limit=500)) <= 20

        await eventually(is_within_bound)


async def test_what_was_kept_before_the_history_was_switched_off_still_grows_too_old() -> None:
    config = {"store": "memory:", "history": {"enabled": False, "keep_seconds": 60}}
    async with running(*make_agents(), config=config) as node:
        now = time.time()
        records = [
            StoredCall(trace_id=new_id(), span_id="s", started_at=now - age, owner="psk", body=b"{}")
            for age in (90, 30)
        ]
        await node.fabric.store.calls.append(records)
        assert node.fabric.history_pruner is not None
        await node.fabric.history_pruner.prune()
        assert [call.trace_id for call in await node.fabric.store.calls.list(CallFilter())] == [records[1].trace_id]


async def test_records_that_wait_for_the_store_are_bounded_by_their_size() -> None:
    config = {"store": "memory:", "history": {"payloads": True, "payload_bytes": 1 << 20}}
    async with running(*make_agents(), config=config) as node:
        history = node.fabric.call_history
        assert history is not None
        away = history._store = AwayCalls(history._store)  # type: ignore[assignment]  # as if the database were down
        for _ in range(30):
            await node.ask("percy", "reason", "x" * 900_000)  # it is in the answer, too
        assert await list_calls(node) == []
        away.is_away = False
        kept = len(await list_calls(node))
        assert 10 < kept < 25
        assert history.lost == 30 - kept


class AwayCalls:
    """A store of calls that is away until it is told otherwise."""

    def __init__(self, calls: Any) -> None:
        self.is_away = True
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    async def append(self, calls: list[StoredCall]) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        await self._calls.append(calls)


async def test_calls_go_on_while_the_store_of_the_history_is_away() -> None:
    async with running(*make_agents(), config={"store": "memory:"}) as node:
        history = node.fabric.call_history
        assert history is not None
        away = history._store = AwayCalls(history._store)  # type: ignore[assignment]  # as if the database were down
        assert (await node.ask("percy", "reason"))["ok"]
        assert await list_calls(node) == []
        away.is_away = False
        assert len(await list_calls(node)) == 1


async def test_a_call_says_by_which_transport_of_its_door_it_came(node: Node) -> None:
    headers = {"Authorization": f"Bearer {PSK}"}
    async with node.client.ws_connect(f"{node.url}/mcp/call", headers=headers) as socket:
        arguments = {"agent_id": "percy", "capability": "reason", "task": "x"}
        await socket.send_json({"id": "1", "name": "fabric.call", "arguments": arguments})
        reply = await socket.receive_json(timeout=20)
    (call,) = await list_calls(node, trace_id=reply["trace"]["trace_id"])
    assert (call["door"], call["protocol"]) == ("fabric", "fabric+websocket")
