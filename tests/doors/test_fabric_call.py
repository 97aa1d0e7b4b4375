"""`POST /mcp/call`: plain replies of every operation, their envelope, their trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.fixtures.node import PSK, Node, check_envelope, running
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.runtimes.http_agents import BEHAVIOURS, Agents, agents

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def percy() -> Percy:
    return Percy(trust_tier="org", tags=["thinker"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wild() -> AsyncIterator[Agents]:
    async with agents(BEHAVIOURS, takes_get=False) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(percy: Percy, wild: Agents) -> AsyncIterator[Node]:
    async with running(percy.agent, manifests=[wild.manifest("answer", tags=["far"])]) as found:
        yield found


@requirement("000-02", "000-03", "000-05", "000-07", "000-09", "000-10", "000-21", "001-36")
async def test_a_call_is_answered_in_the_envelope(node: Node) -> None:
    arguments = {"agent_id": "percy", "capability": "reason", "task": "why?"}
    reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": arguments})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["result"] == {"answer": "why?", "depth": 1}
    assert reply.json.keys() == {"ok", "trace", "result", "error"}
    check_envelope(reply.json)


@requirement("000-10", "000-28", "001-02", "001-03", "001-05", "001-06")
@pytest.mark.parametrize(
    ("name", "arguments", "beside"),
    [
        ("fabric.agent.list", {}, {"agents", "count"}),
        ("fabric.agent.describe", {"agent_id": "percy"}, {"agent"}),
        ("fabric.route.preview", {"agent_id": "percy", "capability": "reason"}, {"selected_runtime", "policy"}),
        ("fabric.health", {}, {"registry", "runtimes", "tools", "version", "uptime_seconds"}),
        ("fabric.tool.list", {}, {"tools", "count"}),
        ("fabric.tool.describe", {"tool_id": "math.calculate"}, {"tool"}),
    ],
)
async def test_what_is_no_call_is_wrapped_too_and_keeps_its_bare_keys(
    node: Node, name: str, arguments: dict[str, Any], beside: set[str]
) -> None:
    reply = await node.operation(name, arguments)
    check_envelope(reply)
    assert beside <= reply["result"].keys()
    assert all(reply[key] == reply["result"][key] for key in beside)


@requirement("001-02", "000-23")
async def test_the_list_shows_capabilities_and_trust_and_can_be_filtered(node: Node) -> None:
    agents = {agent["agent_id"]: agent for agent in (await node.operation("fabric.agent.list"))["agents"]}
    assert agents.keys() == {"percy", "answer"}
    assert agents["percy"]["trust_tier"] == "org"
    required = {"agent_id", "display_name", "version", "status", "endpoint", "capabilities"}
    assert all(required <= agent.keys() for agent in agents.values())
    assert {"name": "plan", "description": "Think aloud.", "streaming": True, "modalities": ["text"]} in agents[
        "percy"
    ]["capabilities"]
    for wanted in ({"capability": "act"}, {"tag": "far"}, {"filter": {"capability": "act"}}):
        found = (await node.operation("fabric.agent.list", wanted))["agents"]
        assert [agent["agent_id"] for agent in found] == ["answer"]
    assert (await node.operation("fabric.agent.list", {"trust_tier": "local"}))["count"] == 0


@requirement("001-03")
async def test_a_description_holds_the_schemas(node: Node) -> None:
    agent = (await node.operation("fabric.agent.describe", {"agent_id": "percy"}))["result"]["agent"]
    reason = next(c for c in agent["capabilities"] if c["name"] == "reason")
    assert reason["input_schema"]["required"] == ["task"]
    assert reason["input_schema"]["properties"]["depth"]["type"] == "integer"
    assert {"name", "description", "input_schema", "output_schema", "streaming"} <= reason.keys()


@requirement("001-05")
async def test_the_preview_names_the_runtime_and_who_would_follow(node: Node, wild: Agents) -> None:
    preview = (await node.operation("fabric.route.preview", {"agent_id": "answer", "capability": "act"}))["result"]
    assert preview["selected_runtime"] == {"transport": "http", "uri": wild.url("/answer"), "adapter": "http"}
    assert preview["policy"]["allowed"] is True
    assert preview["fallbacks"] == []


@requirement("000-08", "000-15", "000-16")
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("fabric.tool.math.calculate", {"expression": "6*7"}, 42),
        ("fabric.tool.calculate", {"expression": "6*7"}, 42),
        ("fabric.tool.encoding.url", {"text": "a b"}, "a%20b"),
        ("fabric.tool.encode.url", {"text": "a b"}, "a%20b"),
        ("fabric.tool.call", {"tool_id": "math.calculate", "parameters": {"expression": "6*7"}}, 42),
        ("fabric.tool.call", {"tool_id": "math.calculate", "capability": "eval", "parameters": {"expression": "1"}}, 1),
    ],
)
async def test_tools_answer_under_all_their_names(
    node: Node, name: str, arguments: dict[str, Any], answer: object
) -> None:
    reply = await node.operation(name, arguments)
    check_envelope(reply)
    assert reply["result"]["result"] == answer


@requirement("000-16", "000-08")
async def test_an_agent_is_a_tool_of_five_segments(node: Node) -> None:
    reply = await node.operation("fabric.tool.agent.percy.reason", {"task": "why?", "depth": 3})
    assert reply["result"] == {"answer": "why?", "depth": 3}
    far = await node.operation("fabric.tool.agent.answer.act", {"task": "why?"})
    assert far["result"] == {"answer": "heard why?"}


@requirement("000-12", "000-18")
async def test_every_call_has_ids_of_its_own(node: Node) -> None:
    replies = await asyncio.gather(*(node.operation("fabric.health") for _ in range(50)))
    traces = [reply["trace"] for reply in replies]
    assert len({trace["trace_id"] for trace in traces}) == 50
    assert len({trace["span_id"] for trace in traces}) == 50
    assert all(trace["parent_span_id"] is None for trace in traces)


@requirement("000-18", "000-19", "001-30")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fabric.call", {"agent_id": "percy", "capability": "reason", "task": "x"}),
        ("fabric.tool.math.calculate", {"expression": "1"}),
        ("fabric.tool.call", {"tool_id": "math.calculate", "parameters": {"expression": "1"}}),
        ("fabric.agent.list", {}),
        ("fabric.health", {}),
        ("fabric.agent.describe", {"agent_id": "nobody"}),
    ],
)
async def test_a_callers_trace_goes_on_with_a_fresh_span(node: Node, name: str, arguments: dict[str, Any]) -> None:
    trace_id, span_id = str(uuid4()), str(uuid4())
    given = {"trace_id": trace_id, "span_id": span_id}
    reply = await node.operation(name, {**arguments, "trace": given})
    check_envelope(reply)
    assert reply["trace"]["trace_id"] == trace_id
    assert reply["trace"]["parent_span_id"] == span_id
    assert reply["trace"]["span_id"] != span_id


@requirement("000-18", "000-19")
async def test_a_w3c_header_is_continued_and_a_malformed_one_ignored(node: Node) -> None:
    hexed = uuid4().hex
    good = {"traceparent": f"00-{hexed}-00f067aa0ba902b7-01"}
    trace = (await node.operation("fabric.health", headers=good))["trace"]
    assert trace["trace_id"].replace("-", "") == hexed
    assert trace["parent_span_id"].replace("-", "").startswith("00f067aa0ba902b7")
    for bad in ("", "00", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{hexed}", f"00-{hexed}-x-01"):
        envelope = await node.operation("fabric.health", headers={"traceparent": bad})
        check_envelope(envelope)
        assert envelope["trace"]["parent_span_id"] is None


@requirement("000-19", "001-30", "001-35")
async def test_the_trace_reaches_the_agent_in_body_and_header(node: Node, wild: Agents) -> None:
    trace_id, parent = str(uuid4()), str(uuid4())
    reply = await node.ask("answer", "act", trace={"trace_id": trace_id, "parent_span_id": parent})
    sent = wild.calls[-1]
    assert sent.json["trace"] == reply["trace"]
    assert sent.json["trace"]["trace_id"] == trace_id
    assert sent.json["trace"]["parent_span_id"] == parent
    assert sent.headers["traceparent"].split("-")[1] == trace_id.replace("-", "")


@requirement("001-31", "001-32", "001-33", "001-34", "001-35")
async def test_a_python_agent_sees_the_same_envelope(node: Node, percy: Percy) -> None:
    files = [{"type": "data", "content": "aGk=", "mime_type": "text/plain"}]
    await node.ask("percy", "reason", "x", context={"depth": 2}, attachments=files, format="toolcalls", timeout_ms=5000)
    call = percy.calls[-1]
    assert (call.target.agent_id, call.target.capability) == ("percy", "reason")
    assert 4000 < call.target.timeout_ms <= 5000
    assert (call.input.task, call.input.context) == ("x", {"depth": 2})
    assert call.input.attachments[0].content == "aGk="
    assert (call.response.stream, call.response.format) == (False, "toolcalls")
    assert (call.auth.mode, call.auth.principal_id) == ("psk", "psk")
    await node.ask("percy", "reason", "x")
    assert 59_000 < percy.calls[-1].target.timeout_ms <= 60_000
    assert PSK not in str(percy.calls)


async def test_a_capability_is_found_whatever_its_separators(node: Node) -> None:
    assert (await node.ask("percy", "Wait-And-Talk", timeout_ms=50))["error_code"] == "TIMEOUT"


async def test_any_answer_becomes_an_object(node: Node) -> None:
    assert (await node.ask("percy", "odd", "text"))["result"] == {"answer": "just words"}
    assert (await node.ask("percy", "odd", "list"))["result"] == {"result": [1, 2]}
    assert (await node.ask("percy", "odd", "none"))["result"] == {}
    assert (await node.ask("percy", "odd", "huge"))["result"] == {"result": 10**60}


@requirement("001-32")
async def test_time_runs_out_when_the_caller_says(node: Node) -> None:
    started = time.monotonic()
    reply = await node.ask("percy", "wait", timeout_ms=150)
    assert 0.1 < time.monotonic() - started < 20  # much less than it may take by itself
    check_envelope(reply)
    assert reply["error_code"] == "TIMEOUT"
    assert reply["error_details"]["agent_id"] == "percy"


@requirement("001-38", "001-40", "001-42")
async def test_when_everybody_fails_the_error_names_every_hop() -> None:
    first = Percy(node_id="node-1", fallbacks=["percy-backup"])
    gone = {
        "agent_id": "percy-backup",
        "node_id": "node-2",
        "endpoint": {"uri": "http://127.0.0.1:9/x"},
        "capabilities": [{"name": "wait"}],
    }
    async with running(first.agent, manifests=[gone]) as node:
        arguments = {"agent_id": "percy", "capability": "wait", "task": "go", "timeout_ms": 300}
        form = {"X-Fabric-Error-Format": "object"}
        reply = await node.operation("fabric.call", arguments, headers=form)
    check_envelope(reply)
    assert reply["ok"] is False
    assert reply["error"]["code"] == "AGENT_OFFLINE"
    assert reply["error"]["message"] == "Agent percy unavailable and all fallbacks failed"
    assert reply["error"]["details"]["primary"] == "percy@node-1: timeout"
    assert reply["error"]["details"]["fallbacks"] == ["percy-backup@node-2: offline"]


@requirement("001-38", "001-39", "001-44")
async def test_after_a_timeout_a_peer_answers_and_the_reply_says_so() -> None:
    slow, quick = Percy("slow", fallbacks=["quick"]), Percy("quick")
    quick.may_go_on.set()
    async with running(slow.agent, quick.agent) as node:
        reply = await node.ask("slow", "hold", timeout_ms=500)
    check_envelope(reply)
    assert reply["result"] == {"answer": "at last"}
    assert reply["fallback"] == {
        "requested": "slow",
        "used": "quick",
        "reason": "timeout",
        "attempts": ["slow@local: timeout", "quick@local: ok"],
        "degraded": None,
    }


async def test_a_reply_on_a_kept_connection_does_not_wait_for_the_clients_acknowledgement() -> None:
    times = []
    async with running() as node:
        for _ in range(15):
            started = time.perf_counter()
            await node.send("GET", "/mcp/health")
            times.append(time.perf_counter() - started)
    assert sorted(times)[7] < 0.03  # with Nagle's delay each takes 40 ms


@requirement("001-53")
async def test_each_call_leaves_one_log_line_with_its_trace_and_no_secret() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        trace = (await node.ask("percy", "reason", "a secret task"))["trace"]
        metrics = (await node.send("GET", "/metrics")).body.decode()
        node.fabric.telemetry.log.close()
        told = [line for line in node.log.getvalue().splitlines() if trace["trace_id"] in line]
        lines = [line for line in told if '"event":"status"' not in line]  # that the agent came online, if it just did
    assert len(lines) == 1
    assert "a secret task" not in lines[0]
    assert PSK not in node.log.getvalue()
    assert 'fabric_calls_total{capability="reason",status="' in metrics
