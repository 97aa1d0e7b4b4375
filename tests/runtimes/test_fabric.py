"""The `fabric` runtime: two and three real nodes that ask one another."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Input, Principal, Target, ignore_event
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Part, Question, Result, make_input_required
from tests.fixtures.mcp_client import client
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running, tasks_are_down_to
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.runtimes.fabric_nodes import QUIET, Line, entry, line_to, listed

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Pair:
    """`here` knows the node `there` as `lab`, over a line that can be cut."""

    def __init__(self, here: Node, there: Node, line: Line, percy: Percy) -> None:
        self.here = here
        self.there = there
        self.line = line
        self.percy = percy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def joined() -> AsyncIterator[Pair]:
    percy = Percy(tags=("thinker",))
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(running(percy.agent, config={"node_id": "lab-1", **QUIET}))
        line = await stack.enter_async_context(line_to(there))
        manifests = [entry(line.url, tags=["far"], trust_tier="org")]
        here = await stack.enter_async_context(running(manifests=manifests, config={"node_id": "home", **QUIET}))
        await listed(here, "lab/percy")
        yield Pair(here, there, line, percy)


@pytest.fixture
def pair(joined: Pair) -> Pair:
    joined.percy.calls.clear()
    joined.percy.started.clear()
    joined.percy.cancelled.clear()
    return joined


@requirement("001-56")
async def test_the_agents_of_another_node_appear_under_its_name(pair: Pair) -> None:
    agent = await listed(pair.here, "lab/percy")
    own = (await pair.there.operation("fabric.agent.describe", {"agent_id": "percy"}))["result"]["agent"]
    assert agent["node_id"] == "lab-1"
    assert agent["runtime"] == "fabric"
    assert agent["tags"] == ["far", "thinker"]
    assert agent["version"] == "2.1.0"
    assert agent["capabilities"] == own["capabilities"]
    assert "psk" not in str(agent)


@requirement("001-56")
async def test_a_call_goes_across_and_its_answer_comes_back(pair: Pair) -> None:
    envelope = await pair.here.ask("lab/percy", "reason", "what is far?", context={"depth": 3})
    check_envelope(envelope)
    assert envelope["result"] == {"answer": "what is far?", "depth": 3}


async def test_arguments_are_checked_before_they_go_across(pair: Pair) -> None:
    envelope = await pair.here.ask("lab/percy", "reason", "hm", context={"depth": "deep"})
    assert envelope["error_code"] == "BAD_INPUT"
    assert pair.percy.calls == []


async def test_the_node_itself_answers_to_agent_and_capability(pair: Pair) -> None:
    envelope = await pair.here.ask("lab", "percy.reason", "by way of the node")
    assert envelope["result"]["answer"] == "by way of the node"
    envelope = await pair.here.ask("lab", "sing", "nobody is named")
    assert envelope["error_code"] == "CAPABILITY_NOT_FOUND"


@pytest.mark.parametrize(
    "name", ["fabric.tool.agent.lab/percy.reason", "fabric.tool.agent.lab.percy.reason"], ids=["agent", "node"]
)
async def test_a_capability_there_is_a_tool_here(pair: Pair, name: str) -> None:
    envelope = await pair.here.operation(name, {"task": "as a tool"})
    assert envelope["result"]["answer"] == "as a tool"


async def test_every_page_copes_with_the_slash(pair: Pair) -> None:
    for path in ("/mcp/agent/lab/percy", "/mcp/agent/lab%2Fpercy"):
        reply = await pair.here.send("GET", path)
        assert reply.json["agent"]["agent_id"] == "lab/percy"
    preview = await pair.here.operation("fabric.route.preview", {"agent_id": "lab/percy", "capability": "reason"})
    assert preview["result"]["selected_agent"] == "lab/percy"


@requirement("001-52", "001-56")
async def test_mcp_clients_reach_the_agents_of_another_node(pair: Pair) -> None:
    async with client(pair.here) as whole:
        tools = {(tool.meta or {})["a2a-fabric/name"]: tool.name for tool in (await whole.list_tools()).tools}
        name = tools["fabric.tool.agent.lab/percy.reason"]
        assert name == "lab_percy_reason"
        assert (await whole.call_tool(name, {"task": "by MCP"})).structured_content == {"answer": "by MCP", "depth": 1}
        seen = await whole.read_resource("fabric://agents/lab/percy")
        assert '"lab/percy"' in seen.contents[0].text  # type: ignore[union-attr]  # it is JSON
    async with client(pair.here, path="/agents/lab/percy/mcp") as alone:
        result = await alone.call_tool("reason", {"task": "alone"})
        assert result.structured_content == {"answer": "alone", "depth": 1}


@requirement("001-56")
async def test_events_come_across_in_order_as_they_happen(pair: Pair) -> None:
    events = await pair.here.events("lab/percy", "plan", "one two three")
    told = [(event["event"], event["data"]) for event in events]
    kinds = [kind for kind, _ in told]
    assert kinds == ["status", "token", "token", "token", "tool_call", "progress", "final"]
    assert [data["text"] for kind, data in told if kind == "token"] == ["one", "two", "three"]
    assert told[-1][1]["result"]["answer"] == "ONE TWO THREE"
    assert len({event["trace"]["span_id"] for event in events}) == 1


async def test_the_first_word_is_heard_before_the_last_is_said(pair: Pair) -> None:
    arguments = {"agent_id": "lab/percy", "capability": "wait_and_talk", "task": "go"}
    async with asyncio.timeout(WAIT_TIMEOUT), pair.here.stream("fabric.call", arguments) as events:
        async for event in events:
            if event["event"] == "token":
                assert event["data"]["text"] == "waiting"
                break
        assert not pair.percy.cancelled.is_set()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await pair.percy.cancelled.wait()


async def test_leaving_here_ends_the_work_there(pair: Pair) -> None:
    before = len(asyncio.all_tasks())
    asking_ = asyncio.ensure_future(pair.here.ask("lab/percy", "wait"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await pair.percy.started.wait()
        asking_.cancel()
        await pair.percy.cancelled.wait()
    await tasks_are_down_to(before)


async def test_time_runs_out_there_a_moment_before_it_does_here(pair: Pair) -> None:
    envelope = await pair.here.ask("lab/percy", "wait", timeout_ms=1500)
    assert envelope["error_code"] == "TIMEOUT"
    assert envelope["error_details"]["hops"] == ["lab"]
    async with asyncio.timeout(WAIT_TIMEOUT):
        await pair.percy.cancelled.wait()
    await pair.here.ask("lab/percy", "reason", timeout_ms=5000)
    assert 0 < pair.percy.calls[-1].target.timeout_ms < 5000


@requirement("001-30")
async def test_the_trace_goes_on_with_a_span_for_each_node(pair: Pair) -> None:
    envelope = await pair.here.ask("lab/percy", "reason")
    seen = pair.percy.calls[-1].trace
    assert seen.trace_id == envelope["trace"]["trace_id"]
    assert seen.parent_span_id == envelope["trace"]["span_id"]


@requirement("001-27")
async def test_the_agent_there_gets_the_identity_of_the_caller_here_to_verify_again(pair: Pair) -> None:
    caller = Principal(
        mode="passport",
        principal_id="alice",
        agent_passport_id="pass-7",
        signature="c2lnbmVk",
        key_id="key-1",
        scp=("agent:lab/percy",),
        trust="local",
    )
    call = Call(
        trace=new_trace(), auth=caller, target=Target(agent_id="lab/percy", capability="reason"), input=Input(task="?")
    )
    await pair.here.fabric.gateway.call(call, ignore_event)
    seen = pair.percy.calls[-1]
    assert seen.on_behalf_of == caller
    assert (seen.auth.mode, seen.auth.principal_id) == ("psk", "psk")  # who asks there is this node


@requirement("001-19")
@pytest.mark.parametrize(
    ("capability", "code"), [("refuse", "BAD_INPUT"), ("fail", "UPSTREAM_ERROR"), ("sing", "CAPABILITY_NOT_FOUND")]
)
async def test_errors_keep_their_code_and_name_the_hop(pair: Pair, capability: str, code: str) -> None:
    agent_id, name = ("lab", f"percy.{capability}") if capability == "sing" else ("lab/percy", capability)
    envelope = await pair.here.ask(agent_id, name)
    check_envelope(envelope)
    assert envelope["error_code"] == code
    assert envelope["error_details"]["hops"] == ["lab"]
    if capability == "refuse":
        assert envelope["error"] == "I would rather not"
        assert envelope["error_details"]["wanted"] == "something else"


async def test_a_newcomer_there_is_here_within_moments_and_leaves_as_quickly(pair: Pair) -> None:
    newcomer = {"agent_id": "newcomer", "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": [{"name": "hide"}]}
    assert (await pair.there.operation("fabric.agent.register", newcomer))["ok"]
    catalog = pair.here.fabric.registry

    async def has_come() -> bool:
        return catalog.catalog.get("lab/newcomer") is not None

    async def has_left() -> bool:
        return catalog.catalog.get("lab/newcomer") is None

    await eventually(has_come)
    assert (await pair.there.operation("fabric.agent.unregister", {"agent_id": "newcomer"}))["ok"]
    await eventually(has_left)


async def test_how_an_agent_is_there_is_known_here(pair: Pair) -> None:
    pair.there.fabric.registry.update_health("percy", "online")  # whatever it failed at in other tests
    await listed(pair.here, "lab/percy", "online")
    pair.there.fabric.registry.update_health("percy", "degraded", "it is tired")
    agent = await listed(pair.here, "lab/percy", "degraded")
    assert agent["error"] == "it is tired"
    pair.there.fabric.registry.update_health("percy", "online")
    await listed(pair.here, "lab/percy", "online")


@requirement("001-38", "001-39")
async def test_a_node_that_is_away_is_offline_with_its_agents_and_comes_back_by_itself() -> None:
    percy, stand_in = Percy(), Agent("stand-in")

    @stand_in.capability
    async def reason(task: str) -> dict[str, str]:
        return {"answer": f"instead: {task}"}

    async with running(percy.agent) as there, line_to(there) as line:
        manifests = [entry(line.url, fallbacks=["stand-in"])]
        async with running(stand_in, manifests=manifests, config=QUIET) as here:
            await listed(here, "lab/percy")
            await line.cut()
            agent = await listed(here, "lab/percy", "offline")
            assert agent["error"].startswith("node 'lab' is away: ")
            node = await listed(here, "lab", "offline")
            assert "No connection" in node["error"] or "broke" in node["error"]
            envelope = await here.ask("lab/percy", "reason", "hello")
            assert envelope["result"] == {"answer": "instead: hello"}
            assert envelope["fallback"]["requested"] == "lab/percy"
            assert envelope["fallback"]["used"] == "stand-in"
            assert percy.calls == []
            await line.mend()
            await listed(here, "lab/percy", "online")
            envelope = await here.ask("lab/percy", "reason", "hello again")
            assert envelope["result"]["answer"] == "hello again"
            assert "fallback" not in envelope


async def test_a_key_that_the_other_node_does_not_know_is_said_plainly(pair: Pair) -> None:
    manifests = [
        entry(pair.there.url, endpoint={"psk": "a wrong one"}),
        entry(pair.there.url, "far-percy", endpoint={"agent": "percy", "psk": "a wrong one"}, capabilities=[REASON]),
    ]
    async with running(manifests=manifests) as here:
        node = await listed(here, "lab", "offline")
        assert "does not accept this node's key" in node["error"]
        assert "a wrong one" not in str(node)
        reply = await here.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": FAR})
        assert reply.status == 200  # the caller's own key is good
        assert reply.json["error_code"] == "AGENT_OFFLINE"
        assert reply.json["error_details"]["upstream_code"] == "AUTH_INVALID"


REASON = {"name": "reason"}
FAR = {"agent_id": "far-percy", "capability": "reason", "task": "?"}


async def test_one_agent_of_a_node_can_stand_under_an_id_of_ones_own(pair: Pair) -> None:
    pair.there.fabric.registry.update_health("percy", "online")  # whatever it failed at in other tests
    async with running(manifests=[entry(pair.there.url, "far-percy", endpoint={"agent": "percy"})]) as here:

        async def has_said_what_it_does() -> bool:
            agent = await listed(here, "far-percy")
            return {each["name"] for each in agent["capabilities"]} >= {"reason", "plan"}

        await eventually(has_said_what_it_does)
        assert (await here.ask("far-percy", "reason", "alone"))["result"]["answer"] == "alone"
        catalog = here.fabric.registry.catalog
        assert [manifest.agent_id for manifest in catalog.agents] == ["far-percy"]


async def test_an_agent_that_has_left_since_it_was_listed_never_ran() -> None:
    percy = Percy()
    async with running(percy.agent, config=QUIET) as there:
        gone = entry(there.url, "gone", endpoint={"agent": "nobody"}, capabilities=[REASON])
        async with running(manifests=[gone], config=QUIET) as here:
            envelope = await here.ask("gone", "reason")
            assert envelope["error_code"] == "AGENT_OFFLINE"
            assert envelope["error_details"]["upstream_code"] == "AGENT_NOT_FOUND"


def painter() -> Agent:
    """Answers with content of all kinds, and shows what came with the words."""
    agent = Agent("painter")

    @agent.capability
    async def paint(task: str, call: Call) -> Result:
        seen = [
            {"type": each.type, "content": each.content, "mime_type": each.mime_type} for each in call.input.attachments
        ]
        parts = (
            Part(kind="image", blob=base64.b64encode(b"\x89PNG").decode(), mime_type="image/png", name="a.png"),
            Part(kind="file", url="https://example.org/b.pdf", mime_type="application/pdf"),
            Part(kind="function_call", data={"name": "f", "arguments": {"n": 2**60}}),
        )
        return Result(data={"seen": seen, "talk": call.conversation_id}, parts=parts, notes=("it was hard",))

    @agent.capability
    async def inquire(task: str, call: Call) -> Result:
        if not call.answers:
            question = Question(kind="form", message="Which colour?", schema={"type": "object"})
            return make_input_required({"colour": question}, "the-brush")
        return Result(data={"painted": call.answers.answers["colour"].content, "with": call.answers.continuation})

    return agent


async def test_content_goes_both_ways_with_notes_and_conversation() -> None:
    attachments = [
        {"type": "file", "content": "AAECAw==", "mime_type": "application/octet-stream"},
        {"type": "data", "content": {"n": 2**60}, "mime_type": None},
        {"type": "url", "content": "https://example.org/a.png", "mime_type": "image/png"},
    ]
    async with running(painter()) as there, running(manifests=[entry(there.url)]) as here:
        await listed(here, "lab/painter")
        given: dict[str, Any] = {"attachments": attachments, "conversation_id": "talk-1"}
        direct = await there.ask("painter", "paint", **given)
        across = await here.ask("lab/painter", "paint", **given)
        assert across["result"]["seen"] == attachments
        assert across["result"]["talk"].endswith(".talk-1")
        assert across["parts"] == direct["parts"]
        assert across["notes"] == ["it was hard"]


async def test_conversations_of_different_callers_stay_apart_though_all_come_under_one_key() -> None:
    keys = {"auth": {"keys": [{"id": name, "key": f"the-key-of-{name}"} for name in ("alice", "bob")]}}
    async with running(painter()) as there, running(manifests=[entry(there.url)], config=keys) as here:
        await listed(here, "lab/painter")
        given = {"agent_id": "lab/painter", "capability": "paint", "task": "?", "conversation_id": "x" * 256}
        talks = [
            (await here.operation("fabric.call", given, token=f"the-key-of-{name}"))["result"]["talk"]
            for name in ("alice", "alice", "bob")
        ]
        assert talks[0] == talks[1] != talks[2]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_question_comes_across_and_its_answer_finds_the_way_back(stream: bool) -> None:
    async with running(painter()) as there, running(manifests=[entry(there.url)]) as here:
        await listed(here, "lab/painter")
        if stream:
            events = await here.events("lab/painter", "inquire")
            asked = [event["data"] for event in events if event["event"] == "input_required"]
            assert len(asked) == 1
            told = events[-1]["data"]["result"]["input_required"]
        else:
            told = (await here.ask("lab/painter", "inquire"))["result"]["input_required"]
        assert told["questions"]["colour"]["message"] == "Which colour?"
        answers = {"colour": {"content": {"colour": "blue"}}}
        envelope = await here.ask("lab/painter", "inquire", continuation=told["continuation"], answers=answers)
        assert envelope["result"] == {"painted": {"colour": "blue"}, "with": "the-brush"}
        envelope = await here.ask("lab/painter", "inquire", continuation="lab/painter:made up", answers=answers)
        assert envelope["error_code"] == "BAD_INPUT"


async def test_who_answered_instead_over_there_is_said_here() -> None:
    percy, second = Percy(fallbacks=["second"]), Agent("second")

    @second.capability
    async def fail(task: str) -> dict[str, str]:
        return {"done": task}

    async with running(percy.agent, second) as there, running(manifests=[entry(there.url)]) as here:
        await listed(here, "lab/second")
        envelope = await here.ask("lab/percy", "fail", "it")
        assert envelope["result"] == {"done": "it"}
        assert envelope["fallback"]["requested"] == "lab/percy"
        assert envelope["fallback"]["used"] == "lab/second"
        assert envelope["fallback"]["attempts"] == ["lab/percy@local: failed", "lab/second@local: ok"]
