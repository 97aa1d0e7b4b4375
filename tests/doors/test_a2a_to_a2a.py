"""A2A in front and A2A behind: what a client and an agent say to each other is the same with a node between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.a2a_agents import percy
from tests.doors.a2a_clients import BINDINGS, connected, connected_to, frames, message, raw, request, rpc, told
from tests.fixtures.agents.a2a_serving import Served, serving
from tests.fixtures.node import Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
BEHIND = ("jsonrpc", "http", "grpc")
NEW = {"A2A-Version": "1.0"}
_IDS = ("id", "contextId", "taskId", "messageId", "artifactId", "timestamp")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BEHIND)
async def through(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Node, Served]]:
    """A node with the SDK's agent behind it, over one binding after the other."""
    doors = [{"kind": "fabric"}, {"kind": "a2a", "grpc": "127.0.0.1:0"}]
    async with serving(*BEHIND) as served:
        agent = {
            "agent_id": "everyday",
            "runtime": "a2a",
            "endpoint": {"uri": served.url, "binding": request.param, "version": "1.0"},
        }
        async with running(percy(), manifests=[agent], config={"doors": doors}) as node:
            yield node, served


async def sent(node: Node, said: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = await rpc(node, "SendMessage", {"message": said, **more}, agent="everyday")
    result: dict[str, Any] = reply["result"]
    return result


async def test_the_first_card_has_the_skills_of_agents_that_the_node_has_just_asked() -> None:
    async with serving("jsonrpc") as served:
        agent = {"agent_id": "everyday", "runtime": "a2a", "endpoint": {"uri": served.url}}
        for path in ("/agents/everyday", ""):
            async with running(manifests=[agent], config={"doors": [{"kind": "a2a"}]}) as node:
                card = (await node.send("GET", f"{path}/.well-known/agent-card.json")).json
            assert {"say", "report"} <= {skill["id"] for skill in card["skills"]}
        async with running(manifests=[agent], config={"doors": [{"kind": "a2a"}]}) as node:
            assert (await sent(node, message("you")))["message"]["parts"] == [{"text": "heard you"}]


async def test_a_message_without_a_skill_goes_to_the_agent_as_it_is(through: tuple[Node, Served]) -> None:
    node, served = through
    said = message(
        {"text": "hello", "metadata": {"tone": "soft"}},
        {"text": "there"},
        messageId="m-1",
        metadata={"mine": {"deep": [1.5]}},
        extensions=["urn:x"],
        referenceTaskIds=["elsewhere"],
    )
    await sent(node, said, metadata={"of": "the request"})
    arrived = served.executor.sent[-1]
    assert arrived["messageId"] == "m-1"
    assert arrived["parts"] == said["parts"]
    assert arrived["metadata"]["mine"] == {"deep": [1.5]}
    assert "skill" not in arrived["metadata"]
    assert arrived["extensions"] == ["urn:x"]
    assert arrived["referenceTaskIds"] == ["elsewhere"]
    assert served.executor.metadata[-1] == {"of": "the request"}


async def test_an_answer_goes_to_the_agent_as_it_is(through: tuple[Node, Served]) -> None:
    node, served = through
    task = (await sent(node, message("paint it", skill="paint")))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    said = message(
        {"text": "red", "metadata": {"tone": "soft"}},
        messageId="m-answer",
        taskId=task["id"],
        metadata={"mine": 1.5},
        extensions=["urn:x"],
    )
    await sent(node, said, metadata={"of": "the answer"})
    first, arrived = served.executor.sent[-2:]
    assert (arrived["messageId"], arrived["metadata"]["mine"], arrived["extensions"]) == ("m-answer", 1.5, ["urn:x"])
    assert arrived["parts"] == said["parts"]
    assert (arrived["taskId"], arrived["contextId"]) == (first["taskId"], first["contextId"])
    assert served.executor.metadata[-1] == {"of": "the answer"}
    done = (await sent(node, message({"data": {"size": 7}}, taskId=task["id"])))["task"]
    assert done["status"]["message"]["parts"] == [{"text": "red in 7"}]


async def test_a_task_that_the_caller_refers_to_is_named_as_the_agent_knows_it(through: tuple[Node, Served]) -> None:
    node, served = through
    first = (await sent(node, message("write", skill="report")))["task"]
    await sent(node, message("again", referenceTaskIds=[first["id"]]))
    [reference] = served.executor.sent[-1]["referenceTaskIds"]
    assert reference != first["id"]
    assert reference == served.executor.sent[-2]["taskId"]


async def test_extensions_of_the_header_reach_the_agent(through: tuple[Node, Served]) -> None:
    node, _ = through
    params = {"message": message("who", skill="context")}
    reply = await raw(node, "SendMessage", params, agent="everyday", headers={"A2A-Extensions": "urn:x, urn:y"})
    [artifact] = reply.json["result"]["task"]["artifacts"]
    assert artifact["parts"][0]["data"]["headers"]["a2a-extensions"] == "urn:x, urn:y"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_stays_a_message(through: tuple[Node, Served], binding: str) -> None:
    node, _ = through
    for streaming in (False, True):
        async with connected(node, "everyday", binding, streaming=streaming) as client:
            [event] = await told(client, request(message("you")))
        assert event["message"]["parts"] == [{"text": "heard you"}]
        assert event["message"]["role"] == "ROLE_AGENT"
        assert "taskId" not in event["message"]


async def test_artifacts_and_the_final_status_keep_their_names_and_words(through: tuple[Node, Served]) -> None:
    node, _ = through
    task = (await sent(node, message("write", skill="report")))["task"]
    assert [(each["artifactId"], each["name"]) for each in task["artifacts"]] == [("t1", "table"), ("t2", "text")]
    assert task["artifacts"][0]["metadata"] == {"rows": 2}
    assert task["artifacts"][1]["parts"] == [{"text": "half and half"}]
    assert task["status"]["message"]["parts"] == [{"text": "both are written"}]
    assert task["status"]["message"]["taskId"] == task["id"]
    everything = (await sent(node, message("all", skill="everything")))["task"]["artifacts"]
    assert [each["name"] for each in everything] == ["note", "dot", "page", "data"]
    assert everything[1]["parts"][0]["filename"] == "dot.png"


async def test_a_stream_has_the_artifacts_of_the_agent_and_says_which_chunk_is_the_last(
    through: tuple[Node, Served],
) -> None:
    node, _ = through
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": message("w", skill="report")},
    }
    reply = await node.send("POST", "/agents/everyday", json=body, headers=NEW)
    events = [event["result"] for _, event in frames(reply.body)]
    updates = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    texts: dict[str, str] = {}
    for update in updates:
        name = update["artifact"]["name"]
        words = "".join(part["text"] for part in update["artifact"]["parts"])
        texts[name] = texts.get(name, "") + words if update["append"] else words
    assert texts == {"table": "a table", "text": "half and half"}
    for artifact_id in ("t1", "t2"):
        chunks = [update["lastChunk"] for update in updates if update["artifact"]["artifactId"] == artifact_id]
        assert chunks == [False] * (len(chunks) - 1) + [True]
    final = events[-1]["statusUpdate"]["status"]
    assert (final["state"], final["message"]["parts"]) == ("TASK_STATE_COMPLETED", [{"text": "both are written"}])


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "stream"])
async def test_a_client_sees_the_same_with_and_without_the_node(
    through: tuple[Node, Served], *, streaming: bool
) -> None:
    node, served = through
    asked: dict[str, list[dict[str, Any]]] = {
        "echo": [{"data": {"a": 1}}],
        "reject": [{"data": {"reason": "no"}}],
        "fail": [{"data": {"reason": "broken"}}],
        "everything": [{"text": "all"}],
        "show": [{"text": "this"}, {"raw": "AAEC", "mediaType": "image/png", "filename": "dot.png"}, {"data": [1]}],
        "login": [{"text": "go"}],
        **({"report": [{"text": "write"}]} if streaming else {}),  # else the node joins the pieces of its text
    }
    for skill, parts in asked.items():
        seen = []
        for base in (served.url, f"{node.url}/agents/everyday"):
            async with connected_to(base, "JSONRPC", streaming=streaming) as client:
                seen.append(_without_ids(await told(client, request(message(*parts, skill=skill)))))
        assert seen[0] == seen[1], skill


def _without_ids(value: Any) -> Any:
    """Without what differs from task to task, and the node's own notes."""
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if key not in _IDS and not key.startswith("a2a-fabric/")}
    return {key: plain for key, each in kept.items() if (plain := _without_ids(each)) or key != "metadata"}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_what_the_agent_says_on_the_way_arrives_as_it_is(through: tuple[Node, Served], binding: str) -> None:
    node, _ = through
    async with connected(node, "everyday", binding, streaming=True) as client:
        events = await told(client, request(message("hm", skill="think")))
    updates = [event["statusUpdate"] for event in events if "statusUpdate" in event]
    [thought] = [update for update in updates if "message" in update["status"]]
    said = thought["status"]["message"]
    assert said["parts"] == [
        {"text": "let me see"},
        {"data": {"name": "add", "args": {"a": 1.0}}, "metadata": {"adk_type": "function_call"}},
    ]
    assert (said["metadata"], said["taskId"]) == ({"mood": "calm"}, thought["taskId"])
    assert thought["metadata"]["step"] == "one"
    assert thought["status"]["state"] == "TASK_STATE_WORKING"


async def test_a_rejected_task_is_rejected(through: tuple[Node, Served]) -> None:
    node, _ = through
    task = (await sent(node, message({"data": {"reason": "not today"}}, skill="reject")))["task"]
    assert task["status"]["state"] == "TASK_STATE_REJECTED"
    assert task["status"]["message"]["parts"] == [{"text": "not today"}]


async def test_a_repeated_id_is_answered_from_memory_only_if_the_whole_request_is_the_same(
    through: tuple[Node, Served],
) -> None:
    node, served = through
    said = message("once", skill="report")
    first = (await sent(node, said))["task"]["id"]
    count = len(served.executor.sent)
    assert (await sent(node, said))["task"]["id"] == first
    assert len(served.executor.sent) == count
    assert (await sent(node, said, metadata={"other": 1}))["task"]["id"] != first
    assert (await sent(node, said, configuration={"historyLength": 3}))["task"]["id"] != first
    assert len(served.executor.sent) == count + 2


async def test_at_another_agent_the_reply_says_which_skill_answered_and_why(through: tuple[Node, Served]) -> None:
    node, _ = through
    task = (await rpc(node, "SendMessage", {"message": message("please shout this")}))["result"]["task"]
    chosen = task["metadata"]["a2a-fabric/skill"]
    assert chosen["id"] == "shout"
    assert chosen["reason"] == (
        "The message names no capability. 'shout' answers, because its words are the nearest to those of the message."
    )
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message("percy, say hello")}}
    task = (await node.send("POST", "/gateway", json=body, headers=NEW)).json["result"]["task"]
    assert task["metadata"]["a2a-fabric/skill"]["id"] == "say"
    assert (
        "'percy' answers, because the request addresses it as 'percy'" in task["metadata"]["a2a-fabric/skill"]["reason"]
    )
    named = (await rpc(node, "SendMessage", {"message": message("hi", skill="say")}))["result"]["task"]
    assert "a2a-fabric/skill" not in named["metadata"]
