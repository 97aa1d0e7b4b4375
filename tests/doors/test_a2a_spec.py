"""What the specification demands of servers, section by section, on all three bindings; behind the node is the agent
that the official TCK wants to find there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from a2a.types import GetTaskRequest, SubscribeToTaskRequest, a2a_pb2_grpc
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs

from tests.doors.a2a_clients import BINDINGS, WITH_KEY, connected, message, plain, request, told
from tests.fixtures.agents.a2a_tck_agent import tck_agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
every_binding = pytest.mark.parametrize("binding", BINDINGS)

ENDED = {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": "a2a", "grpc": "127.0.0.1:0", "replay_seconds": 0}]
    async with running(tck_agent(), config={"doors": doors}) as node:
        yield node


def named(name: str, words: str = "Hello from TCK", **more: Any) -> dict[str, Any]:
    return {**message(words, **more), "messageId": f"tck-{name}-0001"}


@every_binding
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("complete-task", [{"text": "Hello from TCK"}]),
        ("artifact-text", [{"text": "Generated text content"}]),
        ("artifact-file", [{"raw": "dGNr", "mediaType": "text/plain", "filename": "output.txt"}]),
        (
            "artifact-file-url",
            [{"url": "https://example.com/output.txt", "mediaType": "text/plain", "filename": "output.txt"}],
        ),
        ("artifact-data", [{"data": {"key": "value", "count": 42.0}}]),
    ],
)
async def test_3_1_1_a_message_is_answered_with_a_task_and_its_artifact(
    node: Node, binding: str, name: str, parts: list[dict[str, Any]]
) -> None:
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named(name)))
    task = event["task"]
    assert (task["status"]["state"], task["artifacts"][0]["parts"]) == ("TASK_STATE_COMPLETED", parts)
    assert task["artifacts"][0]["artifactId"]
    assert task["contextId"]
    assert task["status"]["timestamp"].endswith("Z")


@every_binding
async def test_3_1_1_or_with_a_message_or_with_a_refusal(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named("message-response")))
        assert event["message"]["parts"] == [{"text": "Direct message response"}]
        assert event["message"]["role"] == "ROLE_AGENT"
        [event] = await told(client, request(named("reject-task")))
        assert event["task"]["status"]["state"] == "TASK_STATE_REJECTED"
        with pytest.raises(UnsupportedOperationError):
            await told(client, request(named("terminal", taskId=event["task"]["id"])))
        odd = message({"raw": "dGNr", "mediaType": "application/x-unsupported-tck-type"})
        with pytest.raises(ContentTypeNotSupportedError):
            await told(client, request(odd))


@every_binding
async def test_3_1_2_a_stream_begins_with_the_task_and_closes_at_its_end(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding, streaming=True) as client:
        first, *events = await told(client, request(named("stream-artifact-chunked")))
        assert "task" in first
        chunks = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == ["chunk-1 ", "chunk-2", ""]
        assert [chunk.get("lastChunk", False) for chunk in chunks] == [False, False, True]
        assert len({chunk["artifact"]["artifactId"] for chunk in chunks}) == 1
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert {each["taskId"] for event in events for each in event.values()} == {first["task"]["id"]}
        for name in ("stream-artifact-text", "stream-artifact-file"):
            first, *events = await told(client, request(named(name)))
            assert any("artifactUpdate" in event for event in events)
            assert events[-1]["statusUpdate"]["status"]["state"] in ENDED


@every_binding
async def test_3_1_6_subscribers_see_the_task_first_and_all_see_the_same(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding) as plainly, connected(node, "tck", binding, streaming=True) as client:
        [event] = await told(plainly, request(named("input-required")))
        task = event["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        begun = [asyncio.Event(), asyncio.Event()]

        async def follow(number: int) -> list[dict[str, Any]]:
            seen = []
            async for each in client.subscribe(SubscribeToTaskRequest(id=task["id"]), context=WITH_KEY):
                seen.append(plain(each))
                begun[number].set()
            return seen

        async with asyncio.timeout(WAIT_TIMEOUT):
            following = [asyncio.ensure_future(follow(number)) for number in range(2)]
            await asyncio.gather(*(each.wait() for each in begun))
            await told(plainly, request(named("complete-task", taskId=task["id"])))
            one, other = await asyncio.gather(*following)
        assert one == other
        assert one[0]["task"]["id"] == task["id"]
        assert one[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        with pytest.raises(UnsupportedOperationError):
            async for _ in client.subscribe(SubscribeToTaskRequest(id=task["id"]), context=WITH_KEY):
                pass
        with pytest.raises(TaskNotFoundError):
            async for _ in client.subscribe(SubscribeToTaskRequest(id="tck-none"), context=WITH_KEY):
                pass


@every_binding
async def test_3_4_contexts_are_made_kept_and_inferred(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named("complete-task", contextId="tck-client-context")))
        assert event["task"]["contextId"] == "tck-client-context"
        [event] = await told(client, request(named("input-required")))
        [after] = await told(client, request(named("infer-ctx", taskId=event["task"]["id"])))
        assert (after["task"]["contextId"], after["task"]["id"]) == (event["task"]["contextId"], event["task"]["id"])
        said = [each["messageId"] for each in after["task"]["history"] if each["role"] == "ROLE_USER"]
        assert said == ["tck-input-required-0001", "tck-infer-ctx-0001"]
        ids = {(await told(client, request(named("complete-task"))))[0]["task"]["id"] for _ in range(3)}
        assert len(ids) == 3


@every_binding
async def test_3_2_2_who_waits_gets_the_end_or_the_question_and_who_does_not_the_beginning(
    node: Node, binding: str
) -> None:
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named("delayed-complete"), returnImmediately=True))
        assert event["task"]["status"]["state"] in {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}
        [event] = await told(client, request(named("delayed-complete")))
        assert event["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@every_binding
async def test_7_6_a_login_is_asked_for_by_a_task_that_says_why(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named("auth-required")))
        found = plain(await client.get_task(GetTaskRequest(id=event["task"]["id"]), context=WITH_KEY))
    assert found["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert found["status"]["message"]["parts"][0] == {"text": "Log in there first"}


@every_binding
async def test_3_2_4_what_was_said_in_several_turns_stays_in_its_order(node: Node, binding: str) -> None:
    """Also under the same id: here nothing is taken for a repetition."""
    async with connected(node, "tck", binding) as client:
        [event] = await told(client, request(named("input-required", "first")))
        for words in ("second", "third"):
            [event] = await told(client, request(named("input-required", words, taskId=event["task"]["id"])))
            assert event["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        [event] = await told(client, request(named("complete-task", "last", taskId=event["task"]["id"])))
    task = event["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    said = [each["parts"][0]["text"] for each in task["history"] if each["role"] == "ROLE_USER"]
    assert said == ["first", "second", "third", "last"]


@every_binding
async def test_3_6_an_unknown_version_is_refused_and_extensions_are_not(node: Node, binding: str) -> None:
    async with connected(node, "tck", binding) as client:
        key = f"Bearer {PSK}"
        strange = WITH_KEY.model_copy(update={"service_parameters": {"authorization": key, "A2A-Version": "99.0"}})
        if binding == "GRPC":
            strange = WITH_KEY.model_copy(update={"service_parameters": {"authorization": key, "a2a-version": "99.0"}})
        with pytest.raises((VersionNotSupportedError, InvalidParamsError, A2AError)):
            await client.get_task(GetTaskRequest(id="x"), context=strange)
        named_ones = {"authorization": key, "a2a-extensions": "https://example.com/ext/v1,https://example.com/ext/v2"}
        extended = WITH_KEY.model_copy(update={"service_parameters": named_ones})
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="x"), context=extended)


async def test_10_errors_of_grpc_have_their_status_and_say_why(node: Node) -> None:
    card = (await node.send("GET", "/agents/tck/.well-known/agent-card.json")).json
    [place] = [each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
    assert place["tenant"] == "tck"
    key = ("authorization", f"Bearer {PSK}")
    cases: list[tuple[GetTaskRequest, tuple[tuple[str, str], ...], str, str]] = [
        (GetTaskRequest(id="x", tenant="tck"), (key,), "NOT_FOUND", "TASK_NOT_FOUND"),
        (GetTaskRequest(id="x", tenant="nobody"), (key,), "NOT_FOUND", "AGENT_NOT_FOUND"),
        (GetTaskRequest(id="x"), (), "UNAUTHENTICATED", "UNAUTHENTICATED"),
        (GetTaskRequest(id="x"), (key, ("a2a-version", "99.0")), "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
        (GetTaskRequest(id="x"), (key, ("a2a-version", "0.3")), "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
        (GetTaskRequest(tenant="tck"), (key,), "INVALID_ARGUMENT", "INVALID_PARAMS"),
    ]
    async with grpc.aio.insecure_channel(place["url"]) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        for asked, metadata, code, reason in cases:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetTask(asked, metadata=metadata)
            assert (refused.value.code(), _reason(refused.value)) == (grpc.StatusCode[code], reason)


def _reason(error: grpc.aio.AioRpcError) -> str:
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata() or ())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "a2a-protocol.org"
    return str(info.reason)


async def test_11_answers_over_http_have_the_protocols_media_type(node: Node) -> None:
    body = {"message": named("complete-task")}
    reply = await node.send("POST", "/agents/tck/message:send", json=body, headers={"A2A-Version": "1.0"})
    assert reply.headers["content-type"] == "application/a2a+json"
    stream = await node.send("POST", "/agents/tck/message:stream", json=body, headers={"A2A-Version": "1.0"})
    assert stream.headers["content-type"].startswith("text/event-stream")
