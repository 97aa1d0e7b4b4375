"""The `http` runtime behind a real node: agents that answer, stream, lie, hang, break and flood."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, check_envelope, eventually, running, tasks_are_down_to
from tests.marks import requirement
from tests.runtimes.http_agents import BEHAVIOURS, Agents, Exchange, agents, dead_port

NO_FALLBACK = {"routing": {"fallback": False}, "limits": {"reply_bytes": 100_000}, "breaker": {"failures": 1000}}
LOCAL = Agent("local")


@LOCAL.capability
async def echo(task: str) -> dict[str, str]:
    return {"answer": task}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind() -> AsyncIterator[Agents]:
    async with agents(BEHAVIOURS, takes_get=False) as found:
        yield found


@pytest.fixture
def wild(behind: Agents) -> Agents:
    """The agents, with nothing remembered of earlier tests."""
    behind.calls.clear()
    behind.arrived.clear()
    behind.left.clear()
    return behind


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(behind: Agents) -> AsyncIterator[Node]:
    """One agent per behaviour; none stands in for another."""
    manifests = [behind.manifest(name) for name in BEHAVIOURS]
    dead = {"uri": f"http://127.0.0.1:{dead_port()}/x"}
    manifests.append({"agent_id": "dead", "endpoint": dead, "capabilities": [{"name": "act", "streaming": True}]})
    async with running(LOCAL, manifests=manifests, config=NO_FALLBACK) as found:
        yield found


@requirement("001-17", "001-19", "001-53", "001-56")
async def test_an_agent_behind_http_answers_as_one_in_process_does(node: Node) -> None:
    remote = await node.ask("answer", "act", "hello")
    local = await node.ask("local", "echo", "hello")
    check_envelope(remote)
    check_envelope(local)
    assert remote["result"] == {"answer": "heard hello"}
    assert local["result"] == {"answer": "hello"}


@requirement("001-17", "001-27", "001-30", "001-31", "001-32", "001-33", "001-34", "001-35", "000-19")
async def test_the_agent_gets_the_whole_envelope(node: Node, wild: Agents) -> None:
    reply = await node.ask(
        "answer",
        "act",
        "hello",
        context={"depth": 2},
        attachments=[{"type": "url", "content": "http://x/", "mime_type": "text/html"}],
        format="json",
        timeout_ms=4321,
    )
    [sent] = wild.calls
    body = sent.json
    assert body["name"] == "act"
    assert body["arguments"]["task"] == "hello"
    assert body["arguments"]["context"] == {"depth": 2}
    assert body["arguments"]["attachments"][0]["content"] == "http://x/"
    assert body["trace"] == reply["trace"]
    assert body["target"]["agent_id"] == "answer"
    assert body["target"]["capability"] == "act"
    assert 0 < body["target"]["timeout_ms"] <= 4321
    assert body["response"] == {"stream": False, "format": "json"}
    auth = body["auth"]
    assert {"mode", "principal_id", "agent_passport_id", "signature", "key_id"} <= auth.keys()
    assert {"delegate_id", "mandate_id", "cog_id", "cap", "scp"} <= auth.keys()
    assert auth["mode"] == "psk"
    assert auth["principal_id"] == "psk"
    assert PSK.encode() not in sent.body
    trace_id, span_id = reply["trace"]["trace_id"].replace("-", ""), reply["trace"]["span_id"].replace("-", "")
    assert sent.headers["traceparent"] == f"00-{trace_id}-{span_id[:16]}-01"
    assert sent.headers["content-type"] == "application/json"


@requirement("001-21", "001-22", "001-23", "001-17")
async def test_events_of_the_agent_arrive_in_order_under_our_trace(node: Node) -> None:
    events = await node.events("talk", "act", "hello")
    assert [event["event"] for event in events] == [
        "status", "status", "token", "tool_call", "progress", "token", "final",
    ]  # fmt: skip
    assert len({event["trace"]["trace_id"] for event in events}) == 1
    assert all(event["data"]["trace"] == event["trace"] for event in events)
    assert events[3]["data"]["tool"] == "math.calculate"
    assert events[4]["data"]["percent"] == 50
    assert events[-1]["data"]["answer"] == "one two"
    assert events[-1]["data"]["result"]["citations"] == events[-1]["data"]["citations"] == [{"title": "a book"}]


async def test_a_stream_without_a_result_is_answered_by_its_words(node: Node) -> None:
    events = await node.events("mumble", "act")
    assert [event["data"].get("text") for event in events if event["event"] == "token"] == ["wo", "rds"]
    assert events[-1]["data"]["result"] == {"answer": "words"}


async def test_an_agent_asked_for_events_may_answer_plainly(node: Node, wild: Agents) -> None:
    events = await node.events("answer", "act", "hello")
    assert [event["event"] for event in events] == ["status", "final"]
    assert events[-1]["data"]["answer"] == "heard hello"
    assert "text/event-stream" in wild.calls[0].headers["accept"]


@requirement("001-42", "001-43")
@pytest.mark.parametrize(
    ("agent_id", "code", "sentence", "details"),
    [
        ("refuse", "BAD_INPUT", "a number, please", {"n": 1}),
        ("refuse_in_words", "UPSTREAM_ERROR", "no, thank you", {}),
        # the agent's own trouble with us is not the caller's trouble with the gateway
        ("refuse_credentials", "UPSTREAM_ERROR", "who are you?", {"upstream_code": "AUTH_DENIED"}),
    ],
)
async def test_what_the_agent_reports_becomes_a_typed_error(
    node: Node, wild: Agents, agent_id: str, code: str, sentence: str, details: dict[str, Any]
) -> None:
    reply = await node.ask(agent_id, "act")
    check_envelope(reply)
    assert (reply["error_code"], reply["error"]) == (code, sentence)
    place = {"agent_id": agent_id, "capability": "act", "upstream": wild.url("")}
    assert reply["error_details"] == {**place, **details}


FAULTS = {
    "dead": ("AGENT_OFFLINE", "No connection to"),
    "hang": ("TIMEOUT", "No answer within"),
    "reset": ("UPSTREAM_ERROR", "The "),
    "reset_in_body": ("UPSTREAM_ERROR", "The "),
    "close_in_body": ("UPSTREAM_ERROR", "The "),
    "truncated": ("UPSTREAM_ERROR", "not JSON"),
    "web_page": ("UPSTREAM_ERROR", "not JSON"),
    "broken_page": ("UPSTREAM_ERROR", "500"),
    "unavailable": ("AGENT_OFFLINE", "503"),
    "bad_gateway": ("UPSTREAM_ERROR", "502"),
    "redirect": ("UPSTREAM_ERROR", "307"),
    "not_http": ("UPSTREAM_ERROR", "The "),
    "nested": ("UPSTREAM_ERROR", "not JSON"),
    "huge_reply": ("UPSTREAM_ERROR", "larger"),
}
STREAM_FAULTS = {
    **FAULTS,
    "hang_in_stream": ("TIMEOUT", "No answer within"),
    "garbage_events": ("UPSTREAM_ERROR", "not JSON"),
    "cut_stream": ("UPSTREAM_ERROR", "before its final"),
    "reset_stream": ("UPSTREAM_ERROR", "The "),
    "flood": ("UPSTREAM_ERROR", "larger"),
    "huge_event": ("UPSTREAM_ERROR", "larger"),
}


def _time_for(code: str) -> int:
    """Short where only the deadline ends it; otherwise no test should have to wait for one, and the machine may."""
    return 700 if code == "TIMEOUT" else 60_000


@requirement("001-42", "001-43", "001-55")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_agent_gives_a_typed_error_in_time(node: Node, fault: str) -> None:
    code, cause = FAULTS[fault]
    reply = await node.ask(fault, "act", timeout_ms=_time_for(code))
    check_envelope(reply)
    assert reply["error_code"] == code
    assert cause in reply["error"]
    assert "Traceback" not in reply["error"]
    assert reply["error_details"]["agent_id"] == fault
    assert reply["error_details"]["capability"] == "act"
    assert (await node.ask("local", "echo", "still here"))["result"] == {"answer": "still here"}


@requirement("001-42", "001-55")
@pytest.mark.parametrize("fault", STREAM_FAULTS)
async def test_a_faulty_stream_ends_with_a_typed_error_in_time(node: Node, fault: str) -> None:
    code, cause = STREAM_FAULTS[fault]
    events = await node.events(fault, "act", timeout_ms=_time_for(code))
    final = events[-1]
    assert final["event"] == "final"
    assert final["data"]["ok"] is False
    assert final["data"]["result"] is None
    assert final["data"]["error"]["code"] == code
    assert cause in final["data"]["error"]["message"]
    assert final["data"]["error"]["details"]["agent_id"] == fault
    assert (await node.events("talk", "act"))[-1]["data"]["ok"] is True


async def test_the_error_of_a_timeout_or_of_garbage_names_the_upstream(node: Node, wild: Agents) -> None:
    for fault in ("truncated", "reset", "unavailable"):
        reply = await node.ask(fault, "act")
        assert reply["error_details"]["upstream"] == wild.url("")  # scheme and host


async def test_secrets_in_an_address_are_never_shown_to_callers(wild: Agents) -> None:
    secret = wild.url("/broken_page").replace("//", "//user:hunter2@") + "?key=hunter3"
    gone = f"http://user:hunter2@127.0.0.1:{dead_port()}/x?key=hunter3"
    wild.behaviours = {**wild.behaviours, "broken_page?key=hunter3": BEHAVIOURS["broken_page"]}
    act = [{"name": "act", "streaming": True}]
    manifests: list[dict[str, Any]] = [
        {"agent_id": "a", "endpoint": {"uri": secret}, "capabilities": act},
        {"agent_id": "b", "endpoint": {"uri": gone, "headers": {"X-Key": "hunter4"}}, "capabilities": act},
    ]
    async with running(manifests=manifests, config=NO_FALLBACK) as node:
        shown = [await node.ask("a", "act"), await node.ask("b", "act"), await node.events("b", "act")]
        shown += [await node.operation("fabric.agent.describe", {"agent_id": name}) for name in ("a", "b")]
        shown += [await node.operation("fabric.health"), await node.operation("fabric.agent.list")]
        preview = {"agent_id": "b", "capability": "act"}
        shown += [await node.operation("fabric.route.preview", preview)]
        assert "hunter" not in str(shown)
        node.fabric.telemetry.log.close()
        assert "hunter" not in node.log.getvalue()


@pytest.mark.parametrize("fault", ["flood", "huge_event", "huge_reply", "hang", "hang_in_stream"])
async def test_after_a_fault_the_agents_connection_is_closed_and_no_task_is_left(wild: Agents, fault: str) -> None:
    async with running(LOCAL, manifests=[wild.manifest(fault)], config=NO_FALLBACK) as node:
        await node.ask("local", "echo", "warm")
        before = len(asyncio.all_tasks())
        for _ in range(3):
            wild.left.clear()
            events = await node.events(fault, "act", timeout_ms=1500 if "hang" in fault else 60_000)
            assert events[-1]["data"]["ok"] is False
            async with asyncio.timeout(WAIT_TIMEOUT):
                await wild.left.wait()
        await tasks_are_down_to(before)


@requirement("001-38", "001-39", "001-56")
@pytest.mark.parametrize("fault", ["dead", "hang", "unavailable", "broken_page", "truncated", "redirect"])
async def test_a_second_agent_answers_when_the_first_cannot(wild: Agents, fault: str) -> None:
    first = wild.manifest(fault, fallbacks=["answer"], node_id="node-1")
    if fault == "dead":
        first["endpoint"]["uri"] = f"http://127.0.0.1:{dead_port()}/"
    async with running(manifests=[first, wild.manifest("answer", node_id="node-2")]) as node:
        reply = await node.ask(fault, "act", "hello", timeout_ms=4000 if fault == "hang" else 60_000)
    check_envelope(reply)
    assert reply["result"] == {"answer": "heard hello"}
    assert reply["fallback"]["requested"] == fault
    assert reply["fallback"]["used"] == "answer"
    *failed, last = reply["fallback"]["attempts"]
    assert last == "answer@node-2: ok"
    if fault == "dead":  # a probe may have found that out before the call
        assert "offline" in reply["fallback"]["reason"]
    else:
        assert [hop.partition(": ")[0] for hop in failed] == [f"{fault}@node-1"]


@pytest.mark.parametrize("fault", ["reset", "bad_gateway", "hang"])
async def test_what_may_have_run_is_not_repeated_if_the_agent_says_so(wild: Agents, fault: str) -> None:
    first = wild.manifest(fault, act={"idempotent": False})
    async with running(manifests=[first, wild.manifest("answer")]) as node:
        reply = await node.ask(fault, "act", timeout_ms=4000 if fault == "hang" else 60_000)
    assert reply["ok"] is False
    assert [call.path for call in wild.calls] == [f"/{fault}"]


async def test_a_lost_answer_is_not_repeated_unless_declared_idempotent(wild: Agents) -> None:
    careful = {**wild.manifest("reset"), "fallbacks": ["answer"]}
    async with running(manifests=[careful, wild.manifest("answer")]) as node:
        assert (await node.ask("reset", "act"))["error_code"] == "UPSTREAM_ERROR"
    bold = {**wild.manifest("reset", act={"idempotent": True}), "fallbacks": ["answer"]}
    async with running(manifests=[bold, wild.manifest("answer")]) as node:
        assert (await node.ask("reset", "act"))["fallback"]["used"] == "answer"


@requirement("001-43")
async def test_a_refusal_of_the_input_asks_no_other_agent(wild: Agents) -> None:
    refusing = {**wild.manifest("refuse"), "fallbacks": ["answer"]}
    async with running(manifests=[refusing, wild.manifest("answer")]) as node:
        assert (await node.ask("refuse", "act"))["error_code"] == "BAD_INPUT"
    assert [call.path for call in wild.calls] == ["/refuse"]


async def test_a_faulty_agent_does_not_slow_another(node: Node, wild: Agents) -> None:
    stuck = [asyncio.ensure_future(node.ask("hang", "act", timeout_ms=60_000)) for _ in range(50)]
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await wild.arrived.wait()
            for _ in range(20):
                assert (await node.ask("answer", "act"))["ok"]
        assert not any(task.done() for task in stuck)
    finally:
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


CHAT = {
    "headers": {"Authorization": "Bearer sk-test"},
    "request": {
        "model": "small",
        "stream": "$stream",
        "messages": [
            {"role": "system", "content": "You are ${agent_id}; be ${arguments.context.mood}."},
            {"role": "user", "content": "$task"},
        ],
    },
    "reply": "/choices/0/message/content",
    "token": "/choices/0/delta/content",
}


@requirement("001-17")
async def test_another_api_is_spoken_to_by_a_template(wild: Agents) -> None:
    async with running(manifests=[wild.manifest("chat", endpoint=CHAT)]) as node:
        given = {"context": {"mood": "$task ${task} brief"}}
        plain = await node.ask("chat", "act", 'say "hi" ${x}', **given)
        events = await node.events("chat", "act", "good morning all", **given)
    assert plain["result"] == {"answer": 'SAY "HI" ${X}'}
    system, user = wild.calls[0].json["messages"]
    assert system["content"] == "You are chat; be $task ${task} brief."  # what callers write is never a template
    assert user["content"] == 'say "hi" ${x}'
    tokens = [event["data"]["text"] for event in events if event["event"] == "token"]
    assert tokens == ["GOOD", "MORNING", "ALL"]
    assert events[-1]["data"]["answer"] == "GOODMORNINGALL"


async def test_a_template_that_misses_a_value_says_which(wild: Agents) -> None:
    async with running(manifests=[wild.manifest("chat", endpoint=CHAT)]) as node:
        reply = await node.ask("chat", "act", "hello")
    assert reply["error_code"] == "BAD_INPUT"
    assert "arguments.context.mood" in reply["error"]
    assert not wild.calls


async def test_a_reply_without_the_expected_part_is_a_typed_error(wild: Agents) -> None:
    endpoint = {"reply": "/choices/0/message/content"}
    async with running(manifests=[wild.manifest("answer", endpoint=endpoint)]) as node:
        reply = await node.ask("answer", "act", "hello")
    assert reply["error_code"] == "UPSTREAM_ERROR"
    assert "/choices/0/message/content" in reply["error"]


@requirement("001-47")
async def test_probes_find_out_who_is_online(node: Node) -> None:
    status: dict[str, str] = {}

    async def all_are_known() -> bool:
        listed = (await node.operation("fabric.agent.list"))["agents"]
        status.update({agent["agent_id"]: agent["status"] for agent in listed})
        return "unknown" not in status.values()

    await eventually(all_are_known)
    assert status["answer"] == status["local"] == "online"
    assert status["dead"] in ("degraded", "offline")


async def test_an_agent_waits_for_a_slow_reader_and_every_event_arrives_in_order() -> None:
    sent, total, text = 0, 2500, "x" * 16_384  # more than the system's socket buffers hold

    async def chatter(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.open_stream()
        while sent < total:
            await exchange.event("progress", message=f"{sent} {text}")
            sent += 1
        await exchange.event("final", ok=True, result={"answer": "done"})

    async with (
        agents({"chatter": chatter}, takes_get=False) as behind,
        running(manifests=[behind.manifest("chatter")]) as node,
    ):
        arguments = {"agent_id": "chatter", "capability": "act", "task": "go", "stream": True}
        body = json.dumps({"name": "fabric.call", "arguments": arguments}).encode()
        head = f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\nContent-Length: {len(body)}\r\n"
        seen = -1
        async with asyncio.timeout(WAIT_TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=4096)  # reads that far ahead
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            while sent == 0 or sent != seen:  # until it stands still
                seen = sent
                for _ in range(5):
                    assert (await node.send("GET", "/health")).status == 200
            assert sent < total
            reply = await reader.read()
            writer.close()
            await writer.wait_closed()
        assert [int(number) for number in re.findall(rb'"message":"(\d+) ', reply)] == list(range(total))
        assert b'"answer":"done"' in reply
