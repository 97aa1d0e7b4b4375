"""The `grpc` runtime behind a real node, before real gRPC servers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from a2a_fabric.runtimes.proto.messages import (
    CallRequest,
    Capability,
    DescribeRequest,
    Description,
    HealthReply,
    HealthRequest,
    InputRequired,
    Outcome,
    Part,
    Question,
    Result,
    StreamItem,
)
from tests.fixtures.agents.grpc_serving import NOWHERE, done, event, refused, serving
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running, tasks_are_down_to
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.runtimes.fabric_nodes import Line

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = {
    "health": {"interval": 0},
    "routing": {"fallback": False},
    "limits": {"reply_bytes": 200_000},
    "breaker": {"failures": 1000},
}
BIG = 2**63 + 1  # no float holds it


class Oracle:
    """Does one thing of each kind, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[CallRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.time_left = 0.0
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.peers: set[str] = set()

    async def describe(self, request: DescribeRequest, context: grpc.aio.ServicerContext) -> Description:
        schema = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
        return Description(
            display_name="The Oracle",
            description="Knows.",
            version="3.1.4",
            tags=["wise"],
            capabilities=[
                Capability(
                    name="say", description="Speak.", input_schema_json=schema, modalities=["text", "json"],
                    idempotent=True, max_timeout_ms=60_000,
                ),
                *(Capability(name=name, streaming=True) for name in ("talk", *FAULTS)),
                *(Capability(name=name) for name in ("refuse", "ask", "paint", "wait", "abort", "die")),
            ],
        )  # fmt: skip

    async def health(self, request: HealthRequest, context: grpc.aio.ServicerContext) -> HealthReply:
        return HealthReply(status="degraded")

    async def call(self, request: CallRequest, context: grpc.aio.ServicerContext) -> Outcome:
        self._note(request, context)
        match request.target.capability:
            case "say":
                return done({"said": json.loads(request.input.arguments_json), "big": BIG})
            case "refuse":
                return refused("BAD_INPUT", "not today", day="Monday", n=BIG)
            case "paint":
                return Outcome(result=Result(data_json="[]", parts=_paintings(request), notes=["the frame is lost"]))
            case "ask":
                return _asked(request)
            case "wait":
                await self._wait()
            case "abort":
                name = json.loads(request.input.context_json)["code"]
                await context.abort(grpc.StatusCode[name], "because")
            case name if name in FAULTS:
                outcome: Outcome = FAULTS[name][0]
                return outcome
        raise RuntimeError("broken")

    async def stream(self, request: CallRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[StreamItem]:
        self._note(request, context)
        for item in FAULTS.get(request.target.capability, ())[1:]:
            yield item
        match request.target.capability:
            case "talk":
                yield event("status", status="running", message="thinking")
                yield event("token", text="one ")
                yield event("tool_call", tool="math.calculate", arguments={"n": BIG})
                yield event("something_new", of="a later version")
                yield event("token", text="two")
                yield StreamItem(outcome=done({"answer": "one two"}))
            case "hang_in_stream":
                yield event("token", text="and then")
                await self._wait()
            case "flood":
                try:
                    while True:
                        yield event("token", text="x" * 8000)
                finally:
                    self.cancelled.set()

    def _note(self, request: CallRequest, context: grpc.aio.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append({key: value for key, value in context.invocation_metadata() if isinstance(value, str)})
        self.time_left = context.time_remaining()
        self.peers.add(context.peer())

    async def _wait(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.cancelled.set()


def _paintings(request: CallRequest) -> list[Part]:
    return [*request.input.attachments, Part(kind="image", blob=b"\x89PNG\x00\xff", mime_type="image/png")]


def _asked(request: CallRequest) -> Outcome:
    if request.HasField("answers"):
        answer = request.answers.answers["colour"]
        return done({"heard": json.loads(answer.content_json), "with": request.answers.continuation})
    question = Question(kind="form", message="Which colour?", schema_json='{"type": "object"}')
    return Outcome(input_required=InputRequired(questions={"colour": question}, continuation="brush-1"))


SLOW_NUMBERS = f"[{','.join(['1e300'] * 2000)}]"
SLOW_PART = f"[{','.join(['1e300'] * 900)}]"  # alone it is decoded
# What a faulty agent answers to a call, and what it streams.
FAULTS: dict[str, tuple[Any, ...]] = {
    "nothing": (Outcome(), StreamItem(outcome=Outcome())),
    "no_end": (Outcome(result=Result(data_json="{")), event("token", text="half")),
    "bad_event": (Outcome(result=Result(data_json="nope")), StreamItem(event={"kind": "token", "data_json": "[1]"})),
    "bad_part": (Outcome(result=Result(data_json="{}", parts=[Part(kind="smell", text="x")])), event("token", text=7)),
    "slow_numbers": (
        Outcome(result=Result(data_json=SLOW_NUMBERS)),
        StreamItem(event={"kind": "progress", "data_json": f'{{"x": {SLOW_NUMBERS}}}'}),
    ),
    "slow_parts": (Outcome(result=Result(data_json="{}", parts=[Part(kind="json", data_json=SLOW_PART)] * 3)),),
    "too_large": (done("x" * 300_000), event("artifact", data="x" * 300_000)),
    "flood": (done("x" * 300_000),),
    "hang_in_stream": (done(None),),
}


class Place:
    def __init__(self, node: Node, oracle: Oracle, line: Line) -> None:
        self.node = node
        self.oracle = oracle
        self.line = line


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    oracle = Oracle()
    async with serving(oracle) as port:
        line = Line(port)
        await line.mend()
        manifests = [
            _entry("oracle", f"grpc://127.0.0.1:{port}", metadata={"x-key": "secret"}),
            _entry("shaky", f"127.0.0.1:{line.port}"),
            {**_entry("nowhere", NOWHERE), "capabilities": [{"name": "say"}]},
        ]
        async with running(Percy().agent, manifests=manifests, config=CONFIG) as node:
            await _described(node, "oracle")
            await _described(node, "shaky")
            yield Place(node, oracle, line)
        await line.cut()


@pytest.fixture(autouse=True)
def fresh(place: Place) -> None:
    place.oracle.started.clear()
    place.oracle.cancelled.clear()


def _entry(agent_id: str, uri: str, **more: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "grpc", "endpoint": {"uri": uri, **more}}


async def _described(node: Node, agent_id: str) -> None:
    async def is_known() -> bool:
        manifest = node.fabric.registry.catalog.get(agent_id)
        return manifest is not None and bool(manifest.capabilities)

    await eventually(is_known)


async def test_what_the_agent_says_of_itself_fills_the_least_manifest(place: Place) -> None:
    agent = (await place.node.operation("fabric.agent.describe", {"agent_id": "oracle"}))["result"]["agent"]
    assert (agent["display_name"], agent["version"], agent["tags"]) == ("The Oracle", "3.1.4", ["wise"])
    say = next(each for each in agent["capabilities"] if each["name"] == "say")
    assert say["input_schema"]["properties"] == {"n": {"type": "integer"}}
    assert (say["idempotent"], say["max_timeout_ms"], say["modalities"]) == (True, 60_000, ["text", "json"])
    assert agent["status"] == "degraded"  # as it says itself


@requirement("001-30", "001-31", "001-32", "001-33")
async def test_a_call_reaches_the_agent_with_its_whole_envelope(place: Place) -> None:
    envelope = await place.node.ask(
        "oracle", "say", "hello", context={"n": BIG}, timeout_ms=9000, conversation_id="talk-1"
    )
    check_envelope(envelope)
    assert envelope["result"] == {"said": {"n": BIG}, "big": BIG}  # integers stay what they are
    request = place.oracle.requests[-1]
    assert request.trace.trace_id == envelope["trace"]["trace_id"]
    assert request.trace.span_id == envelope["trace"]["span_id"]
    assert (request.auth.mode, request.auth.principal_id, request.auth.trust) == ("psk", "psk", "local")
    assert not request.auth.HasField("scp")
    assert (request.target.agent_id, request.target.capability) == ("oracle", "say")
    assert (request.input.task, json.loads(request.input.context_json)) == ("hello", {"n": BIG})
    assert request.conversation_id.endswith(".talk-1")  # bound to its caller
    assert len(request.delegation_chain) == 1
    metadata = place.oracle.metadata[-1]
    trace_id, span_id = (envelope["trace"][name].replace("-", "") for name in ("trace_id", "span_id"))
    assert metadata["traceparent"] == f"00-{trace_id}-{span_id[:16]}-01"
    assert metadata["x-fabric-delegation"] == request.delegation_chain[0]
    assert metadata["x-key"] == "secret"
    assert 0 < place.oracle.time_left <= 9.0


@requirement("001-21")
async def test_events_arrive_in_order(place: Place) -> None:
    events = await place.node.events("oracle", "talk")
    kinds = [each["event"] for each in events]
    assert kinds == ["status", "status", "token", "tool_call", "token", "final"]
    assert events[3]["data"]["arguments"] == {"n": BIG}
    assert events[-1]["data"]["result"] == {"answer": "one two"}


@requirement("001-19")
async def test_a_typed_error_comes_as_it_was_said(place: Place) -> None:
    envelope = await place.node.ask("oracle", "refuse")
    assert (envelope["error_code"], envelope["error"]) == ("BAD_INPUT", "not today")
    assert envelope["error_details"]["day"] == "Monday"
    assert envelope["error_details"]["n"] == BIG
    assert envelope["error_details"]["agent_id"] == "oracle"


async def test_content_goes_both_ways(place: Place) -> None:
    attachments = [
        {"type": "file", "content": "AAEC/w==", "mime_type": "audio/wav", "name": "a.wav"},
        {"type": "url", "content": "https://example.org/a.pdf", "mime_type": "application/pdf"},
        {"type": "data", "content": {"n": BIG}},
        {"type": "data", "content": {"name": "f"}, "kind": "function_call", "meta": {"id": "call-1"}},
        {"type": "data", "content": "words"},
    ]
    envelope = await place.node.ask("oracle", "paint", attachments=attachments)
    assert envelope["result"] == {"result": []}
    assert envelope["notes"] == ["the frame is lost"]
    assert envelope["parts"] == [
        {"kind": "audio", "blob": "AAEC/w==", "mime_type": "audio/wav", "name": "a.wav"},
        {"kind": "file", "url": "https://example.org/a.pdf", "mime_type": "application/pdf"},
        {"kind": "json", "data": {"n": BIG}},
        {"kind": "function_call", "data": {"name": "f"}, "meta": {"id": "call-1"}},
        {"kind": "text", "text": "words"},
        {"kind": "image", "blob": "iVBORwD/", "mime_type": "image/png"},
    ]


async def test_a_question_is_asked_and_answered(place: Place) -> None:
    told = (await place.node.ask("oracle", "ask"))["result"]["input_required"]
    assert told["questions"]["colour"] == {"kind": "form", "message": "Which colour?", "schema": {"type": "object"}}
    answers = {"colour": {"content": {"colour": "blue"}}}
    envelope = await place.node.ask("oracle", "ask", continuation=told["continuation"], answers=answers)
    assert envelope["result"] == {"heard": {"colour": "blue"}, "with": "brush-1"}


async def test_leaving_cancels_the_agents_work(place: Place) -> None:
    before = len(asyncio.all_tasks())
    asking = asyncio.ensure_future(place.node.ask("oracle", "wait"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await place.oracle.started.wait()
        asking.cancel()
        await place.oracle.cancelled.wait()
    await tasks_are_down_to(before)


@requirement("001-44")
@pytest.mark.parametrize("capability", ["wait", "hang_in_stream"])
async def test_the_deadline_ends_it_on_both_sides(place: Place, capability: str) -> None:
    stream = capability == "hang_in_stream"
    if stream:
        events = await place.node.events("oracle", capability, timeout_ms=1500)
        code = events[-1]["data"]["error"]["code"]
        assert [each["data"]["text"] for each in events if each["event"] == "token"] == ["and then"]
    else:
        code = (await place.node.ask("oracle", capability, timeout_ms=1500))["error_code"]
    assert code == "TIMEOUT"
    async with asyncio.timeout(WAIT_TIMEOUT):
        await place.oracle.cancelled.wait()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("INVALID_ARGUMENT", "BAD_INPUT"),
        ("UNAVAILABLE", "UPSTREAM_ERROR"),
        ("UNIMPLEMENTED", "AGENT_OFFLINE"),
        ("PERMISSION_DENIED", "UPSTREAM_ERROR"),
        ("UNAUTHENTICATED", "UPSTREAM_ERROR"),
        ("RESOURCE_EXHAUSTED", "UPSTREAM_ERROR"),
        ("DEADLINE_EXCEEDED", "TIMEOUT"),
        ("CANCELLED", "UPSTREAM_ERROR"),
        ("DATA_LOSS", "UPSTREAM_ERROR"),
    ],
)
async def test_a_status_of_grpcs_own_means_what_the_table_says(place: Place, status: str, code: str) -> None:
    envelope = await place.node.ask("oracle", "abort", context={"code": status})
    assert envelope["error_code"] == code
    assert envelope["error_details"]["grpc_status"] == status
    assert envelope["error_details"]["upstream"].startswith("127.0.0.1:")


@pytest.mark.parametrize("capability", [name for name in FAULTS if name != "hang_in_stream"])
async def test_an_answer_that_cannot_be_read_is_a_refusal(place: Place, capability: str) -> None:
    before = len(asyncio.all_tasks())
    events = await place.node.events("oracle", capability, timeout_ms=20_000)
    assert events[-1]["data"]["error"]["code"] == "UPSTREAM_ERROR"
    assert (await place.node.ask("oracle", capability))["error_code"] == "UPSTREAM_ERROR"
    assert (await place.node.ask("percy", "reason"))["ok"]
    await tasks_are_down_to(before)


async def test_an_absent_server_is_offline_and_never_ran(place: Place) -> None:
    envelope = await place.node.ask("nowhere", "say")
    assert envelope["error_code"] == "AGENT_OFFLINE"
    assert "127.0.0.1:9" in envelope["error"]


async def test_an_agent_that_is_lost_in_the_middle_may_have_run(place: Place) -> None:
    asking = asyncio.ensure_future(place.node.ask("shaky", "wait"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await place.oracle.started.wait()
        await place.line.cut()
        envelope = await asking
    assert envelope["error_code"] == "UPSTREAM_ERROR"
    assert envelope["error_details"]["interrupted"] is True
    assert (await place.node.ask("shaky", "say"))["error_code"] == "AGENT_OFFLINE"
    await place.line.mend()

    async def is_back() -> bool:
        return bool((await place.node.ask("shaky", "say"))["ok"])

    await eventually(is_back)


async def test_calls_share_one_connection(place: Place) -> None:
    await place.node.ask("oracle", "say")
    place.oracle.peers.clear()
    await asyncio.gather(*(place.node.ask("oracle", "say") for _ in range(20)))
    assert len(place.oracle.peers) == 1


@pytest.mark.parametrize(
    "endpoint",
    [
        {"uri": "ftp://127.0.0.1:1"},
        {"uri": "grpc://127.0.0.1"},
        {"uri": "grpc://127.0.0.1:1/path"},
        {"uri": "grpc://me:secret@127.0.0.1:1"},
        {"uri": "grpc://127.0.0.1:1", "cert": "only-half.pem"},
        {"uri": "grpc://127.0.0.1:1", "metadata": {"Not Allowed": "x"}},
        {"uri": "grpc://127.0.0.1:1", "tsl": True},
        {"uri": "grpcs://127.0.0.1:1", "ca": "missing.pem"},
    ],
)
async def test_a_wrong_endpoint_is_said_to_be_wrong(endpoint: dict[str, Any]) -> None:
    manifest = {"agent_id": "bad", "runtime": "grpc", "endpoint": endpoint, "capabilities": [{"name": "say"}]}
    async with running(manifests=[manifest], config=CONFIG) as node:
        envelope = await node.ask("bad", "say")
        assert envelope["error_code"] == "AGENT_OFFLINE"
        assert "bad" in envelope["error"] or "missing.pem" in envelope["error"]
        assert "secret" not in str(envelope)


@asynccontextmanager
async def example() -> AsyncIterator[str]:
    """`examples/grpc_agent.py` as a process of its own."""
    program = str(ROOT / "examples" / "grpc_agent.py")
    process = await asyncio.create_subprocess_exec(sys.executable, program, "0", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            said = (await process.stdout.readline()).decode()
        yield said.split()[-1]
    finally:
        process.terminate()
        await process.wait()


async def test_the_example_in_the_documentation_works() -> None:
    async with example() as uri, running(manifests=[_entry("adder", uri)], config=CONFIG) as node:
        assert re.fullmatch(r"grpc://127\.0\.0\.1:\d+", uri)
        await _described(node, "adder")
        envelope = await node.ask("adder", "add", "", context={"a": BIG, "b": 1})
        assert envelope["result"] == {"sum": BIG + 1}
        events = await node.events("adder", "count", "", context={"to": 3})
        assert [each["data"]["text"] for each in events if each["event"] == "token"] == ["1 ", "2 ", "3 "]
        assert events[-1]["data"]["result"] == {"counted": 3}
        assert (await node.ask("adder", "add", "", context={"a": "x", "b": 1}))["error_code"] == "BAD_INPUT"
