"""The `rpc` runtime behind a real node: agents of document 002 that answer, stream, ask, lie, hang and break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.fixtures.agents.rpc import ACTIONS, RPCAgent, body_of, reply
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import NOWHERE, listening

NO_FALLBACK: dict[str, Any] = {
    "routing": {"fallback": False},
    "limits": {"reply_bytes": 100_000},
    "breaker": {"failures": 1000},
    "doors": [{"kind": "fabric"}, {"kind": "directory"}],
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


# What an agent answers, with which status, and the code of what comes of it.
NONSENSE: dict[str, tuple[Any, int, str]] = {
    "html": (b"<html>", 200, "UPSTREAM_ERROR"),
    "list": ([], 200, "UPSTREAM_ERROR"),
    "text": ({"jsonrpc": "2.0", "id": 1, "result": "text"}, 200, "UPSTREAM_ERROR"),
    "words": ({"jsonrpc": "2.0", "id": 1, "error": "in words"}, 200, "UPSTREAM_ERROR"),
    "empty": ({"jsonrpc": "2.0", "id": 1, "error": {}}, 200, "UPSTREAM_ERROR"),
    "odd-code": ({"error": {"code": "odd", "message": None, "data": []}}, 200, "UPSTREAM_ERROR"),
    "odd-words": ({"error": {"code": [], "message": {}}}, 200, "UPSTREAM_ERROR"),
    "odd-parts": ({"result": {"status": "completed", "output": {"_fabric": {"parts": [5]}}}}, 200, "UPSTREAM_ERROR"),
    "bad-request": ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "x"}}, 400, "BAD_INPUT"),
    "not-found": ({"error": "no such agent"}, 404, "UPSTREAM_ERROR"),
    "proxy": (b"bad gateway", 502, "UPSTREAM_ERROR"),
    "closed": (b"", 503, "AGENT_OFFLINE"),
    "moved": (b"", 302, "UPSTREAM_ERROR"),
    "large": (b"x" * 200_000, 200, "UPSTREAM_ERROR"),
}
BARE = {"taskId": "x", "status": "completed", "output": {"a": 1}}


async def nonsense(scope: Any, receive: Any, send: Any) -> None:
    """Each path has its own answer, whatever was asked."""
    if scope["type"] != "http":
        return
    await body_of(receive)
    answer, status, _ = NONSENSE.get(scope["path"].strip("/"), (BARE, 200, ""))
    if not isinstance(answer, bytes):
        await reply(send, answer, status)
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": answer})


def entry(agent_id: str, url: str, **endpoint: Any) -> dict[str, Any]:
    capabilities = [{"name": name, "streaming": name in ("count", "break off")} for name in ACTIONS]
    capabilities = [{**each, "idempotent": False} for each in capabilities]
    return {
        "agent_id": agent_id,
        "runtime": "rpc",
        "endpoint": {"uri": url, **endpoint},
        "capabilities": capabilities,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peer() -> AsyncIterator[tuple[RPCAgent, str]]:
    agent = RPCAgent()
    async with listening(agent) as url:
        yield agent, url


@pytest.fixture
def agent(peer: tuple[RPCAgent, str]) -> RPCAgent:
    """With nothing remembered of earlier tests."""
    found = peer[0]
    for kept in (found.requests, found.headers, found.paths):
        kept.clear()
    found.cancelled.clear()
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(peer: tuple[RPCAgent, str]) -> AsyncIterator[Node]:
    url = f"{peer[1]}/agents/here/"
    manifests = [
        entry("peer", url),
        entry("strict", url, errors_in_output=True, sender="the gateway", token="a-token", headers={"X-More": "1"}),
        entry("dead", NOWHERE),
        {**entry("schema", url), "capabilities": [{"name": "echo", "input_schema": SCHEMA}]},
        {"agent_id": "least", "runtime": "rpc", "endpoint": {"uri": url}},
    ]
    async with running(manifests=manifests, config=NO_FALLBACK) as found:
        yield found


SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


async def error_of(node: Node, agent_id: str, capability: str, **given: Any) -> tuple[str, str]:
    envelope = await node.ask(agent_id, capability, "", **given)
    check_envelope(envelope)
    assert envelope["ok"] is False
    return envelope["error_code"], envelope["error"]


@requirement("002-01", "002-07", "002-08", "002-11")
async def test_a_call_is_a_task_as_the_document_has_it(node: Node, agent: RPCAgent) -> None:
    done = await node.ask("peer", "echo", "", context={"query": "news", "maxResults": 5})
    assert done["result"] == {"seen": {"query": "news", "maxResults": 5}}
    [asked] = agent.requests
    assert set(asked) == {"jsonrpc", "id", "method", "params"}
    assert (asked["jsonrpc"], asked["method"]) == ("2.0", "a2a/task")
    assert set(asked["params"]) == {"taskId", "action", "sender", "input"}
    assert (asked["id"], asked["params"]["action"]) == (asked["params"]["taskId"], "echo")
    assert asked["params"]["sender"] == "psk"
    assert agent.headers[0]["content-type"] == "application/json"
    assert agent.paths == ["/agents/here/"]  # exactly as it was registered


async def test_words_stand_beside_the_rest_or_where_a_schema_wants_them(node: Node) -> None:
    free = await node.ask("peer", "echo", "find it", context={"depth": 2})
    assert free["result"] == {"seen": {"task": "find it", "depth": 2}}
    typed = await node.ask("schema", "echo", "find it")
    assert typed["result"] == {"seen": {"query": "find it"}}


async def test_attachments_go_along_and_content_comes_back(node: Node) -> None:
    attachment = {"type": "url", "content": "http://x/", "mime_type": "image/png"}
    sent = await node.ask("peer", "echo", "look", attachments=[attachment])
    assert sent["result"] == {"seen": {"task": "look", "attachments": [attachment]}}
    shown = await node.ask("peer", "show", "", attachments=[attachment])
    assert shown["parts"] == [{"kind": "image", "url": "http://x/", "mime_type": "image/png"}]
    assert shown["result"] == {}
    placeless = await node.ask("schema", "echo", "look", attachments=[attachment])
    assert "takes no attachments" in placeless["notes"][0]


async def test_the_operator_s_headers_token_and_name_go_along(node: Node, agent: RPCAgent) -> None:
    await node.ask("strict", "echo", "")
    assert agent.requests[0]["params"]["sender"] == "the gateway"
    assert agent.headers[0]["authorization"] == "Bearer a-token"
    assert agent.headers[0]["x-more"] == "1"


async def test_the_trace_goes_along(node: Node, agent: RPCAgent) -> None:
    done = await node.ask("peer", "echo", "")
    assert agent.headers[0]["traceparent"].split("-")[1] == done["trace"]["trace_id"].replace("-", "")


async def test_a_conversation_keeps_its_name(node: Node, agent: RPCAgent) -> None:
    await node.ask("peer", "echo", "", conversation_id="c-1")
    await node.ask("peer", "echo", "", conversation_id="c-1")
    first, second = (asked["params"]["conversationId"] for asked in agent.requests)
    assert first == second
    assert first.endswith(".c-1")  # bound to its caller


@requirement("002-09", "002-10", "002-14")
@pytest.mark.parametrize(
    ("capability", "given", "code", "words"),
    [
        ("refuse", {"reason": "bad luck"}, "BAD_INPUT", "bad luck"),
        ("fail", {"reason": "bad luck"}, "UPSTREAM_ERROR", "Task failed: bad luck"),
        ("run out of time", {}, "TIMEOUT", "timeout"),
        ("end as", {"status": "failed", "output": {"error": "bad luck"}}, "UPSTREAM_ERROR", "bad luck"),
        ("end as", {"status": "failed"}, "UPSTREAM_ERROR", "'failed'"),
        ("end as", {"status": "cancelled"}, "UPSTREAM_ERROR", "'cancelled'"),
        ("end as", {"status": "timeout"}, "TIMEOUT", "'timeout'"),
        ("end as", {"status": "running"}, "UPSTREAM_ERROR", "'running'"),
        ("end as", {"status": "input_required"}, "UPSTREAM_ERROR", "questions cannot be read"),
    ],
)
async def test_whatever_the_agent_calls_its_failure_it_has_our_code(
    node: Node, capability: str, given: dict[str, Any], code: str, words: str
) -> None:
    found, message = await error_of(node, "peer", capability, context=given)
    assert (found, words in message) == (code, True), message


async def test_an_error_inside_a_good_outcome_is_noted_or_counts_as_failure_if_the_operator_says_so(
    node: Node,
) -> None:
    given = {"status": "completed", "output": {"error": "no such page", "tried": 3}}
    done = await node.ask("peer", "end as", "", context=given)
    assert done["result"] == {"error": "no such page", "tried": 3}
    assert "no such page" in done["notes"][0]
    assert await error_of(node, "strict", "end as", context=given) == ("UPSTREAM_ERROR", "no such page")


async def test_outputs_that_are_no_objects_become_some(node: Node) -> None:
    for output, expected in (("words", {"answer": "words"}), ([1], {"result": [1]}), (None, {}), ({"a": 1}, {"a": 1})):
        done = await node.ask("peer", "end as", "", context={"status": "completed", "output": output})
        assert done["result"] == expected


@requirement("002-17")
async def test_a_capability_that_streams_is_asked_to(node: Node, agent: RPCAgent, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    given = {
        "agent_id": "peer",
        "capability": "count",
        "task": "",
        "context": {"words": ["a", "b"], "go_on": str(go_on)},
    }
    heard: list[str] = []
    async with asyncio.timeout(WAIT_TIMEOUT), node.stream("fabric.call", given) as events:
        async for event in events:
            if event["event"] == "token":
                heard.append(event["data"]["text"])
                go_on.touch()
            final = event
    assert heard == ["a", "b"]
    assert final["data"]["result"] == {"counted": 2}
    assert [request["method"] for request in agent.requests] == ["a2a/stream"]


async def test_an_agent_that_knows_no_streams_is_asked_in_the_plain_way(tmp_path: Path) -> None:
    plain, go_on = RPCAgent("a2a/task"), tmp_path / "go_on"
    go_on.touch()
    async with listening(plain) as url, running(manifests=[entry("plain", url)], config=NO_FALLBACK) as node:
        events = await node.events("plain", "count", "", context={"words": ["a"], "go_on": str(go_on)})
    assert events[-1]["data"]["result"] == {"counted": 1}
    assert [request["method"] for request in plain.requests] == ["a2a/stream", "a2a/task"]


async def test_a_stream_that_breaks_off_is_an_interruption(node: Node) -> None:
    events = await node.events("peer", "break off", "")
    assert events[-1]["data"]["error"]["code"] == "UPSTREAM_ERROR"
    assert "ended before its answer" in events[-1]["data"]["error"]["message"]


@requirement("002-16")
async def test_a_caller_that_leaves_cancels_the_task(node: Node, agent: RPCAgent, tmp_path: Path) -> None:
    note = tmp_path / "note"
    asking = asyncio.ensure_future(node.ask("peer", "sleep", "", context={"note": str(note)}))

    async def asleep() -> bool:
        return note.exists()

    await eventually(asleep)
    asking.cancel()
    await asyncio.wait_for(agent.cancelled.wait(), WAIT_TIMEOUT)
    asked, cancelled = agent.requests
    assert cancelled["method"] == "a2a/cancel"
    assert cancelled["params"] == {"taskId": asked["params"]["taskId"]}


@requirement("002-16")
async def test_a_call_whose_time_is_up_cancels_the_task(node: Node, agent: RPCAgent, tmp_path: Path) -> None:
    found = await error_of(node, "peer", "sleep", context={"note": str(tmp_path / "note")}, timeout_ms=3000)
    assert found[0] == "TIMEOUT"
    await asyncio.wait_for(agent.cancelled.wait(), WAIT_TIMEOUT)


async def test_an_agent_may_ask_and_gets_the_answer_under_the_same_id(node: Node, agent: RPCAgent) -> None:
    asked = (await node.ask("peer", "ask", ""))["result"]["input_required"]
    assert (asked["message"], set(asked["questions"])) == ("Which one?", {"which"})
    answers = {"which": {"content": "this one"}}
    done = await node.ask("peer", "ask", "", continuation=asked["continuation"], answers=answers)
    assert done["result"] == {"said": {"which": "this one"}}
    first, second = agent.requests
    assert (second["method"], second["params"]["taskId"]) == ("a2a/answer", first["params"]["taskId"])


async def test_an_agent_that_is_not_there_is_offline(node: Node) -> None:
    code, message = await error_of(node, "dead", "echo")
    assert code == "AGENT_OFFLINE", message

    async def offline() -> bool:
        listed = (await node.operation("fabric.agent.list", {"status": "offline"}))["result"]["agents"]
        return [each["agent_id"] for each in listed] == ["dead"]

    await eventually(offline)


async def test_any_answer_is_a_sign_of_life(node: Node) -> None:
    """Agents of this kind mostly answer a GET with 501."""

    async def online() -> bool:
        listed = (await node.operation("fabric.agent.list", {"status": "online"}))["result"]["agents"]
        return {"peer", "least", "strict", "schema"} <= {each["agent_id"] for each in listed}

    await eventually(online)


async def test_the_least_manifest_is_an_id_and_an_address(node: Node) -> None:
    done = await node.ask("least", "echo", "", context={"a": 1})
    assert done["result"] == {"seen": {"a": 1}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def odd() -> AsyncIterator[Node]:
    async with listening(nonsense) as url:
        manifests = [
            {
                "agent_id": name,
                "runtime": "rpc",
                "endpoint": {"uri": f"{url}/{name}"},
                "capabilities": [{"name": "act"}],
            }
            for name in (*NONSENSE, "bare")
        ]
        async with running(manifests=manifests, config=NO_FALLBACK) as node:
            yield node


@pytest.mark.parametrize("agent_id", NONSENSE)
async def test_an_agent_that_talks_nonsense_gives_an_error_of_ours(odd: Node, agent_id: str) -> None:
    code, message = await error_of(odd, agent_id, "act")
    assert code == NONSENSE[agent_id][2], message


async def test_a_bare_outcome_is_understood_too(odd: Node) -> None:
    assert (await odd.ask("bare", "act", ""))["result"] == {"a": 1}


async def test_an_agent_of_another_node_s_directory_describes_itself_and_keeps_its_errors() -> None:
    """One node's address for an agent is another node's agent: streams, errors and questions pass."""
    far = Agent("far", display_name="Far Away")

    @far.capability(idempotent=False)
    async def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    async with running(far, config=NO_FALLBACK) as there:
        endpoint = {"uri": f"{there.url}/a2a/agents/far/rpc", "token": "the-key-of-the-test-node"}
        manifest = {"agent_id": "near", "runtime": "rpc", "endpoint": endpoint}
        async with running(manifests=[manifest], config=NO_FALLBACK) as here:

            async def described() -> bool:
                agent = (await here.operation("fabric.agent.describe", {"agent_id": "near"}))["result"]["agent"]
                return bool(agent["display_name"] == "Far Away" and agent["capabilities"])

            await eventually(described)
            assert (await here.ask("near", "shout", "", context={"text": "hi"}))["result"] == {"text": "HI"}
            code, message = await error_of(here, "near", "shout", context={"text": 5})
            assert (code, "not of type" in message) == ("BAD_INPUT", True)


async def test_an_agent_that_leads_back_to_its_own_node_is_noticed() -> None:
    config = {**NO_FALLBACK, "doors": [{"kind": "fabric"}, {"kind": "directory", "anonymous": "local"}]}
    async with running(config=config) as node:
        address = f"{node.url}/a2a/agents/circle/rpc"
        circle = {"agentId": "circle", "name": "Circle", "capabilities": ["turn"], "endpoint": address}
        assert (await node.send("POST", "/a2a/register", json=circle)).status == 200
        async with asyncio.timeout(WAIT_TIMEOUT):
            code, message = await error_of(node, "circle", "turn")
        assert (code, "passed" in message) == ("UPSTREAM_ERROR", True), message
        jobs = (await node.operation("fabric.job.list"))["result"]["count"]
        assert jobs < 10


async def test_what_is_no_endpoint_of_this_kind_is_said_to_be_none() -> None:
    wrong = (
        {"uri": "ftp://127.0.0.1/"},
        {"uri": "http://me:secret@127.0.0.1:9/"},
        {"uri": "http://127.0.0.1:9/", "unknown": 1},
    )
    manifests = [
        {"agent_id": f"wrong-{n}", "runtime": "rpc", "endpoint": endpoint, "capabilities": [{"name": "act"}]}
        for n, endpoint in enumerate(wrong)
    ]
    async with running(manifests=manifests, config=NO_FALLBACK) as node:
        for manifest in manifests:
            code, message = await error_of(node, str(manifest["agent_id"]), "act")
            assert code == "AGENT_OFFLINE"
            assert "secret" not in message
