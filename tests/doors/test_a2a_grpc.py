"""Whatever is sent over gRPC, in either version: the mistake is the caller's, and is told in the protocol's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message as Proto
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.doors.a2a.grpc import EVENT_NUMBER_KEY
from tests.doors.a2a_agents import adder, percy
from tests.doors.a2a_clients import message, rpc
from tests.doors.test_a2a_fuzz import check_whole, params, words
from tests.fixtures.fuzzing import MARKS, many
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *MARKS]

NEW, OLD = "/lf.a2a.v1.A2AService", "/a2a.v1.A2AService"
METADATA = (("authorization", f"Bearer {PSK}"), ("x-a2a-agent", "adder"))
PLAIN: dict[str, type[Proto]] = {
    f"{NEW}/SendMessage": pb.SendMessageRequest,
    f"{NEW}/GetTask": pb.GetTaskRequest,
    f"{NEW}/ListTasks": pb.ListTasksRequest,
    f"{NEW}/CancelTask": pb.CancelTaskRequest,
    f"{NEW}/CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    f"{NEW}/GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest,
    f"{NEW}/ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest,
    f"{NEW}/DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest,
    f"{NEW}/GetExtendedAgentCard": pb.GetExtendedAgentCardRequest,
    f"{OLD}/SendMessage": old_pb.SendMessageRequest,
    f"{OLD}/GetTask": old_pb.GetTaskRequest,
    f"{OLD}/CancelTask": old_pb.CancelTaskRequest,
    f"{OLD}/CreateTaskPushNotificationConfig": old_pb.CreateTaskPushNotificationConfigRequest,
    f"{OLD}/GetTaskPushNotificationConfig": old_pb.GetTaskPushNotificationConfigRequest,
    f"{OLD}/ListTaskPushNotificationConfig": old_pb.ListTaskPushNotificationConfigRequest,
    f"{OLD}/DeleteTaskPushNotificationConfig": old_pb.DeleteTaskPushNotificationConfigRequest,
    f"{OLD}/GetAgentCard": old_pb.GetAgentCardRequest,
}
STREAMS: dict[str, type[Proto]] = {
    f"{NEW}/SendStreamingMessage": pb.SendMessageRequest,
    f"{NEW}/SubscribeToTask": pb.SubscribeToTaskRequest,
    f"{OLD}/SendStreamingMessage": old_pb.SendMessageRequest,
    f"{OLD}/TaskSubscription": old_pb.TaskSubscriptionRequest,
}
METHODS = {**PLAIN, **STREAMS}
CALLERS_FAULT = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(adder(), percy(), config={"doors": [{"kind": "a2a", "grpc": "127.0.0.1:0"}]}) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    card = (await node.send("GET", "/agents/adder/.well-known/agent-card.json")).json
    [place] = {each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"}
    async with grpc.aio.insecure_channel(place, options=[("grpc.max_receive_message_length", -1)]) as channel:
        yield channel


async def refusal(line: grpc.aio.Channel, method: str, request: bytes) -> grpc.aio.AioRpcError | None:
    """What the node has against it; None if it did as it was asked."""
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            if method in STREAMS:
                async for _ in line.unary_stream(method)(request, metadata=METADATA):
                    pass
            else:
                await line.unary_unary(method)(request, metadata=METADATA)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def reason(error: grpc.aio.AioRpcError) -> str:
    status, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    status.ParseFromString(dict(error.trailing_metadata() or ())["grpc-status-details-bin"])
    status.details[0].Unpack(info)
    return str(info.reason)


def check(error: grpc.aio.AioRpcError | None) -> None:
    if error is not None:
        assert error.code().name in CALLERS_FAULT, error
        assert reason(error)
        assert "<class" not in (error.details() or "")


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_an_invalid_request(line: grpc.aio.Channel, method: str) -> None:
    error = await refusal(line, method, b"\xff\xff\xff")
    assert error is not None
    assert (error.code(), reason(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


@pytest.mark.parametrize("name", ["", "x", "tasks", "tasks/x/y"])
@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "TaskSubscription", "GetTaskPushNotificationConfig"])
async def test_a_name_of_0_3_that_names_nothing_is_the_callers_mistake(
    line: grpc.aio.Channel, method: str, name: str
) -> None:
    asked = METHODS[f"{OLD}/{method}"](name=name)
    error = await refusal(line, f"{OLD}/{method}", asked.SerializeToString())
    assert error is not None
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert reason(error) in ("INVALID_PARAMS", "TASK_NOT_FOUND")


def odd() -> dict[str, tuple[str, Proto]]:
    """What protos can hold and JSON cannot, and parts that are none."""
    nothing = pb.Message(message_id="m", role=pb.ROLE_USER, parts=[pb.Part()])
    no_number = pb.Message(message_id="m", role=pb.ROLE_USER, parts=[pb.Part()])
    no_number.parts[0].data.number_value = float("nan")
    after = pb.ListTasksRequest()
    after.status_timestamp_after.seconds = 10**15
    old = old_pb.Message(message_id="m", role=old_pb.ROLE_USER, content=[old_pb.Part()])
    return {
        "an empty part": (f"{NEW}/SendMessage", pb.SendMessageRequest(message=nothing)),
        "no number": (f"{NEW}/SendMessage", pb.SendMessageRequest(message=no_number)),
        "no number, streaming": (f"{NEW}/SendStreamingMessage", pb.SendMessageRequest(message=no_number)),
        "no time": (f"{NEW}/ListTasks", after),
        "an unknown state": (f"{NEW}/ListTasks", pb.ListTasksRequest(status=88)),  # type: ignore[arg-type]
        "an empty part of 0.3": (f"{OLD}/SendMessage", old_pb.SendMessageRequest(request=old)),
        "and streaming": (f"{OLD}/SendStreamingMessage", old_pb.SendMessageRequest(request=old)),
    }


@pytest.mark.parametrize("what", odd())
async def test_what_cannot_be_understood_is_invalid_and_nothing_happens(
    line: grpc.aio.Channel, node: Node, what: str
) -> None:
    method, request = odd()[what]
    error = await refusal(line, method, request.SerializeToString())
    assert error is not None
    assert (error.code(), reason(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")
    await check_whole(node)


async def test_large_content_passes_and_too_large_is_refused(line: grpc.aio.Channel) -> None:
    sending = line.unary_unary(f"{NEW}/SendMessage")
    for size in (5, 17):
        said = pb.Message(message_id=f"large-{size}", role=pb.ROLE_USER, parts=[pb.Part(raw=bytes(size << 20))])
        said.metadata["skill"] = "show"
        request = pb.SendMessageRequest(message=said, tenant="percy").SerializeToString()
        try:
            async with asyncio.timeout(WAIT_TIMEOUT):
                reply = pb.SendMessageResponse.FromString(await sending(request, metadata=METADATA[:1]))
        except grpc.aio.AioRpcError as error:
            code = error.code()
        else:
            assert reply.task.artifacts[0].parts[0].raw == said.parts[0].raw
            continue
        assert (size, code) == (17, grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_whole_numbers_are_whole_again_though_protos_know_none(line: grpc.aio.Channel, node: Node) -> None:
    data = [{"n": 7, "half": 1.5, "deep": [{"k": -3, "zero": 0}], "big": 2**53, "text": "7"}, 1, 0.5]
    said = message({"data": data}, skill="show", contextId="numbers")
    request = ParseDict({"message": said, "tenant": "percy"}, pb.SendMessageRequest())
    async with asyncio.timeout(WAIT_TIMEOUT):
        sent = await line.unary_unary(f"{NEW}/SendMessage")(request.SerializeToString(), metadata=METADATA[:1])
    task = pb.SendMessageResponse.FromString(sent).task
    got = (await rpc(node, "GetTask", {"id": task.id}))["result"]
    for part in (got["history"][0]["parts"][0], got["artifacts"][0]["parts"][0]):
        assert json.dumps(part["data"], sort_keys=True) == json.dumps(data, sort_keys=True)


async def test_a_reader_comes_back_with_the_last_number_and_misses_nothing(line: grpc.aio.Channel, node: Node) -> None:
    params = {"message": message({"data": {"a": 1, "b": 2}})}
    task = (await rpc(node, "SendMessage", params, agent="adder"))["result"]["task"]
    for last in (1, 2):
        asked = pb.SubscribeToTaskRequest(id=task["id"]).SerializeToString()
        back = (*METADATA, ("last-event-id", str(last)))
        heard = [
            MessageToDict(pb.StreamResponse.FromString(each))
            async for each in line.unary_stream(f"{NEW}/SubscribeToTask")(asked, metadata=back)
        ]
        metadata = [next(iter(each.values())).get("metadata", {}) for each in heard]
        numbers = [each[EVENT_NUMBER_KEY] for each in metadata if EVENT_NUMBER_KEY in each]
        assert numbers == sorted(numbers)
        assert (numbers[0], numbers[1] > last) == (last, True)
        assert heard[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@many(150)
@given(method=st.sampled_from(sorted(METHODS)), request=params, name=words)
async def test_any_message_that_can_be_written(
    line: grpc.aio.Channel, node: Node, method: str, request: Any, name: str
) -> None:
    request = METHODS[method]()
    fields = {**request, "name": name, "request": request.get("message")} if isinstance(request, dict) else {}
    for key, value in fields.items():  # as many of them as this method has
        try:
            ParseDict({key: value}, request, ignore_unknown_fields=True)
        except (ParseError, RecursionError):
            continue
    check(await refusal(line, method, request.SerializeToString()))
    await check_whole(node)


@many(150)
@given(method=st.sampled_from(sorted(METHODS)), body=st.binary(max_size=40))
async def test_any_bytes(line: grpc.aio.Channel, node: Node, method: str, body: bytes) -> None:
    check(await refusal(line, method, body))
    await check_whole(node)
