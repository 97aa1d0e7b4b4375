"""The A2A door with the official client over each binding: messages, streams, tasks, questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from tests.doors.a2a_agents import adder, percy
from tests.doors.a2a_clients import BINDINGS, WITH_KEY, connected, message, plain, request, told
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
every_binding = pytest.mark.parametrize("binding", BINDINGS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "a2a", "grpc": "127.0.0.1:0"}]
    async with running(percy(), adder(), config={"doors": doors}) as node:
        yield node


def answer_in(task: dict[str, Any]) -> list[dict[str, Any]]:
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    [artifact] = task["artifacts"]
    parts: list[dict[str, Any]] = artifact["parts"]
    return parts


@every_binding
async def test_a_message_becomes_a_task_that_can_be_got_again(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        said = message("hello", {"data": {"times": 3}}, skill="shout")
        [event] = await told(client, request(said))
        assert answer_in(event["task"]) == [{"data": {"text": "HELLO", "times": 3.0}}]
        again = await client.get_task(GetTaskRequest(id=event["task"]["id"]), context=WITH_KEY)
    assert plain(again) == event["task"]
    [first] = event["task"]["history"]
    assert (first["messageId"], first["parts"]) == (said["messageId"], [{"text": "hello"}, {"data": {"times": 3.0}}])
    assert first["contextId"] == event["task"]["contextId"]


@every_binding
async def test_words_stream_in_order_and_make_up_the_answer(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding, streaming=True) as client:
        first, *events = await told(client, request(message("one two three", skill="talk")))
        assert first["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
        updates = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        words = [[{"text": word}] for word in ("one ", "two ", "three ", "")]  # the empty one says that it was the last
        assert [each["artifact"]["parts"] for each in updates] == words
        assert [each.get("append", False) for each in updates] == [False, True, True, True]
        assert [each.get("lastChunk", False) for each in updates] == [False, False, False, True]
        states = [event["statusUpdate"]["status"]["state"] for event in events if "statusUpdate" in event]
        assert states == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
        task = await client.get_task(GetTaskRequest(id=first["task"]["id"]), context=WITH_KEY)
    assert answer_in(plain(task)) == [{"text": "one two three "}]


@every_binding
async def test_who_will_not_wait_follows_the_task_without_a_gap(node: Node, binding: str, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    asked = request(message({"data": {"go_on": str(go_on)}}, skill="wait"), returnImmediately=True)
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, asked)
    async with connected(node, "percy", binding, streaming=True) as client:
        task_id = event["task"]["id"]
        assert event["task"]["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        words = ""
        async with asyncio.timeout(WAIT_TIMEOUT):
            async for each in client.subscribe(SubscribeToTaskRequest(id=task_id), context=WITH_KEY):
                seen = plain(each)
                if "task" in seen:
                    go_on.touch()
                    assert not words
                    words = "".join(p["text"] for a in seen["task"].get("artifacts", []) for p in a["parts"])
                if "artifactUpdate" in seen:
                    words += "".join(part["text"] for part in seen["artifactUpdate"]["artifact"]["parts"])
        assert words == "half and half"
        with pytest.raises(UnsupportedOperationError):
            async for _ in client.subscribe(SubscribeToTaskRequest(id=task_id), context=WITH_KEY):
                pass


@every_binding
async def test_cancelling_reaches_the_agent_and_comes_too_late_afterwards(
    node: Node, binding: str, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    async with connected(node, "percy", binding) as client:
        asked = request(message({"data": {"note": str(note)}}, skill="sleep"), returnImmediately=True)
        [event] = await told(client, asked)
        await eventually(lambda: _is(note, "asleep"))
        which = CancelTaskRequest(id=event["task"]["id"])
        ended = await client.cancel_task(which, context=WITH_KEY)
        assert plain(ended)["status"]["state"] == "TASK_STATE_CANCELED"
        await eventually(lambda: _is(note, "cancelled"))
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(which, context=WITH_KEY)


async def _is(note: Path, words: str) -> bool:
    return note.exists() and note.read_text() == words  # noqa: ASYNC240  # quick


@every_binding
async def test_an_agents_questions_are_answered_by_messages_to_the_task(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, request(message("a door", skill="paint")))
        task = event["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert task["status"]["message"]["parts"] == [{"text": "Which colour?"}]
        [event] = await told(client, request(message("red", taskId=task["id"])))
        words, form = event["task"]["status"]["message"]["parts"]
        assert (words["text"], form["data"]["schema"]["required"]) == ("Which size?", ["size"])
        [event] = await told(client, request(message({"data": {"size": 7}}, taskId=task["id"])))
    assert answer_in(event["task"]) == [{"data": {"painted": "a door red", "size": 7.0}}]
    said = [each["parts"][0].get("text") for each in event["task"]["history"]]
    assert said == ["a door", "Which colour?", "red", "Which size?", None]
    assert event["task"]["contextId"] == task["contextId"]


@every_binding
async def test_a_stream_ends_with_a_question_that_can_be_answered_at_once(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding, streaming=True) as client:
        first, *_, last = await told(client, request(message("a wall", skill="paint")))
        assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        first, *_, last = await told(client, request(message("blue", taskId=first["task"]["id"])))
        assert last["statusUpdate"]["status"]["message"]["parts"][0] == {"text": "Which size?"}
        first, *_, last = await told(client, request(message("9", taskId=first["task"]["id"])))
        assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@every_binding
async def test_failures_are_told_by_the_task_and_bad_requests_at_once(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, request(message("no", skill="refuse")))
        status = event["task"]["status"]
        assert status["state"] == "TASK_STATE_REJECTED"
        assert status["message"]["metadata"]["a2a-fabric/error"]["code"] == "BAD_INPUT"
        [event] = await told(client, request(message("broken", skill="fail")))
        assert event["task"]["status"]["state"] == "TASK_STATE_FAILED"
        with pytest.raises(InvalidParamsError, match="text"):
            await told(client, request(message({"data": {"times": 3}}, skill="shout")))
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="nobody-has-this"), context=WITH_KEY)


@every_binding
async def test_a_task_that_is_over_takes_no_message_and_no_other_context(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, request(message("hi", skill="say")))
        with pytest.raises(UnsupportedOperationError):
            await told(client, request(message("more", taskId=event["task"]["id"])))
        [event] = await told(client, request(message("a fence", skill="paint")))
        with pytest.raises(InvalidParamsError):
            await told(client, request(message("red", taskId=event["task"]["id"], contextId="another")))
        with pytest.raises(TaskNotFoundError):
            await told(client, request(message("red", taskId="task-of-nobody")))


@every_binding
async def test_tasks_are_listed_by_context_and_state_page_by_page(node: Node, binding: str) -> None:
    context_id = f"list-{binding}"
    async with connected(node, "percy", binding) as client:
        for word in ("one", "two", "three"):
            await told(client, request(message(word, skill="say", contextId=context_id)))
        await told(client, request(message("a gate", skill="paint", contextId=context_id)))
        everything = await client.list_tasks(ListTasksRequest(context_id=context_id), context=WITH_KEY)
        assert (len(everything.tasks), everything.total_size, everything.next_page_token) == (4, 4, "")
        assert not any(task.artifacts or task.history for task in everything.tasks)
        asked = ListTasksRequest(context_id=context_id, status="TASK_STATE_COMPLETED", page_size=2)
        first = await client.list_tasks(asked, context=WITH_KEY)
        assert (len(first.tasks), first.page_size, first.total_size) == (2, 2, 3)
        asked.page_token = first.next_page_token
        asked.include_artifacts = True
        rest = await client.list_tasks(asked, context=WITH_KEY)
        assert [part.text for task in rest.tasks for part in task.artifacts[0].parts] == ["one"]
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(ListTasksRequest(page_size=1000), context=WITH_KEY)


@every_binding
async def test_the_history_is_as_long_as_it_is_asked_for(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, request(message("a box", skill="paint"), historyLength=0))
        assert "history" not in event["task"]
        [event] = await told(client, request(message("red", taskId=event["task"]["id"]), historyLength=2))
        assert [each["parts"][0]["text"] for each in event["task"]["history"]] == ["Which colour?", "red"]
        which = GetTaskRequest(id=event["task"]["id"], history_length=1)
        assert len((await client.get_task(which, context=WITH_KEY)).history) == 1


@every_binding
async def test_content_of_every_kind_goes_there_and_back(node: Node, binding: str) -> None:
    parts: list[dict[str, Any]] = [
        {"raw": "AAEC", "mediaType": "image/png", "filename": "dot.png"},
        {"url": "http://127.0.0.1/page.html", "mediaType": "text/html"},
        {"data": [1, 2.5, None], "metadata": {"a2a-fabric/kind": "json"}},
    ]
    async with connected(node, "percy", binding) as client:
        [event] = await told(client, request(message(*parts, skill="show")))
    back = answer_in(event["task"])
    assert back[0] == parts[0]
    assert back[1] == parts[1]
    assert back[2]["data"] == [1.0, 2.5, None]


@every_binding
async def test_the_gateway_itself_is_an_agent_that_routes_by_skill(node: Node, binding: str) -> None:
    async with connected(node, None, binding) as client:
        [event] = await told(client, request(message({"data": {"skill": "add", "arguments": {"a": 1, "b": 2}}})))
        assert answer_in(event["task"]) == [{"data": {"sum": 3.0}}]
        assert event["task"]["metadata"]["a2a-fabric/agent_id"] == "adder"
        [event] = await told(client, request(message("percy, shout this", skill="shout")))
        assert event["task"]["metadata"]["a2a-fabric/agent_id"] == "percy"
        with pytest.raises(InvalidParamsError, match="No agent has the skill 'fly'"):
            await told(client, request(message("up", skill="fly")))
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest(), context=WITH_KEY)
    assert {"add", "shout"} <= {skill.id for skill in card.skills}


@every_binding
async def test_a_wrong_key_is_refused(node: Node, binding: str) -> None:
    async with connected(node, "percy", binding) as client:
        context = WITH_KEY.model_copy(update={"service_parameters": {"authorization": "Bearer not-the-key"}})
        with pytest.raises(A2AError):
            await client.get_task(GetTaskRequest(id="x"), context=context)
