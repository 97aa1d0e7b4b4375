"""The A2A door without version 0.3, before an agent that requires an extension; and names as protos spell them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from a2a.client.client import ClientCallContext
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import (
    AgentCard,
    GetExtendedAgentCardRequest,
    SendMessageRequest,
    TaskPushNotificationConfig,
    a2a_pb2_grpc,
)
from a2a.utils.errors import ExtensionSupportRequiredError, PushNotificationNotSupportedError
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.doors.a2a_clients import BINDINGS, WITH_KEY, connected, message, plain, request, rpc
from tests.fixtures.agents.a2a_tck_agent import EXTENSION, doors, tck_agent
from tests.fixtures.node import PSK, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
every_binding = pytest.mark.parametrize("binding", BINDINGS)

CARD = "/agents/tck/.well-known/agent-card.json"
NEW = {"A2A-Version": "1.0"}
KEY = ("authorization", f"Bearer {PSK}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    """As the TCK is given it."""
    async with running(tck_agent(), config={"doors": doors("127.0.0.1:0")}) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict() -> AsyncIterator[Node]:
    config = {"doors": doors("127.0.0.1:0", is_strict=True)}
    async with running(tck_agent(is_strict=True), config=config) as node:
        yield node


def named(name: str, **more: Any) -> dict[str, Any]:
    return {**message("hello", **more), "messageId": f"tck-{name}-0001"}


def knowing(*uris: str) -> ClientCallContext:
    told = {**(WITH_KEY.service_parameters or {}), "a2a-extensions": ", ".join(uris)}
    return WITH_KEY.model_copy(update={"service_parameters": told})


async def said(node: Node, binding: str, asked: SendMessageRequest, context: ClientCallContext) -> dict[str, Any]:
    async with connected(node, "tck", binding) as client:
        [event] = [plain(each) async for each in client.send_message(asked, context=context)]
        return event


async def place(node: Node) -> str:
    """Where gRPC listens."""
    card = (await node.send("GET", CARD)).json
    [found] = [each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
    return str(found)


async def test_where_0_3_is_not_spoken_cards_have_no_field_that_1_0_does_not_know(node: Node) -> None:
    extended = await rpc(node, "GetExtendedAgentCard", {}, agent="tck")
    gateway = (await node.send("GET", "/.well-known/agent-card.json")).json
    for card in ((await node.send("GET", CARD)).json, extended["result"], gateway):
        read = ParseDict(card, AgentCard())  # it refuses what it does not know
        assert {each.protocol_version for each in read.supported_interfaces} == {"1.0"}
        assert read.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"


@pytest.mark.parametrize("version", [None, "", "0.3", "0.3.0"])
async def test_and_its_requests_are_refused_by_their_version(node: Node, version: str | None) -> None:
    error = (await rpc(node, "message/send", {"message": named("complete-task")}, agent="tck", version=version))[
        "error"
    ]
    assert (error["code"], error["data"][0]["reason"]) == (-32009, "VERSION_NOT_SUPPORTED")
    said = {} if version is None else {"A2A-Version": version}
    reply = await node.send("GET", "/agents/tck/v1/tasks/x", headers=said)
    assert (reply.status, reply.json["error"]["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")


async def test_and_so_is_its_service_of_grpc(node: Node) -> None:
    async with grpc.aio.insecure_channel(await place(node)) as channel:
        stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetTask(old_pb.GetTaskRequest(name="tasks/x"), metadata=(KEY,))
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_card_asked_for_over_grpc_names_only_addresses_that_are_known(node: Node) -> None:
    address = await place(node)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        card = await stub.GetExtendedAgentCard(GetExtendedAgentCardRequest(tenant="tck"), metadata=(KEY,))
    offered = [MessageToDict(each) for each in card.supported_interfaces]
    assert offered == [{"url": address, "protocolBinding": "GRPC", "tenant": "tck", "protocolVersion": "1.0"}]


async def test_the_card_declares_the_extensions_of_its_agent(strict: Node) -> None:
    card = (await strict.send("GET", CARD)).json
    [found] = [each for each in card["capabilities"]["extensions"] if each["uri"] == EXTENSION]
    assert found["required"] is True
    assert ParseDict(card, AgentCard()).capabilities.push_notifications is False


@every_binding
async def test_a_required_extension_is_required_of_everybody(strict: Node, binding: str) -> None:
    asked = request(named("complete-task"))
    for context in (WITH_KEY, knowing("https://example.com/another")):
        with pytest.raises(ExtensionSupportRequiredError, match=EXTENSION):
            await said(strict, binding, asked, context)
    event = await said(strict, binding, asked, knowing("https://example.com/another", EXTENSION))
    assert event["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    event = await said(strict, binding, request(named("complete-task", extensions=[EXTENSION])), WITH_KEY)
    assert event["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@every_binding
async def test_without_push_notifications_a_config_is_refused_as_such(strict: Node, binding: str) -> None:
    asked = request(named("complete-task"), taskPushNotificationConfig={"url": "https://example.com/hook"})
    with pytest.raises(PushNotificationNotSupportedError):
        await said(strict, binding, asked, knowing(EXTENSION))
    config = TaskPushNotificationConfig(task_id="none", id="c", url="https://example.com/hook")
    async with connected(strict, "tck", binding) as client:
        with pytest.raises(PushNotificationNotSupportedError):  # before anybody looks for the task
            await client.create_task_push_notification_config(config, context=WITH_KEY)


async def test_names_may_be_spelt_as_protos_spell_them(node: Node) -> None:
    spelt = {
        "message_id": "tck-input-required-0002",
        "role": "ROLE_USER",
        "context_id": "spelt",
        "parts": [{"text": "x"}],
    }
    sent = await rpc(node, "SendMessage", {"message": spelt, "configuration": {"history_length": 0}}, agent="tck")
    task = sent["result"]["task"]
    assert (task["contextId"], task["status"]["state"]) == ("spelt", "TASK_STATE_INPUT_REQUIRED")
    assert "history" not in task
    asked = {"id": task["id"], "history_length": 1}
    [only] = (await rpc(node, "GetTask", asked, agent="tck"))["result"]["history"]
    assert (only["messageId"], only["contextId"]) == ("tck-input-required-0002", "spelt")
    found = await rpc(node, "ListTasks", {"context_id": "spelt", "page_size": 5}, agent="tck")
    assert [each["id"] for each in found["result"]["tasks"]] == [task["id"]]
    config = {"task_id": task["id"], "id": "c", "url": "https://example.com/hook"}
    assert (await rpc(node, "CreateTaskPushNotificationConfig", config, agent="tck"))["result"]["taskId"] == task["id"]
    which = {"task_id": task["id"], "id": "c"}
    assert (await rpc(node, "GetTaskPushNotificationConfig", which, agent="tck"))["result"]["id"] == "c"


async def test_but_what_is_not_the_protocols_is_left_as_it_is(node: Node) -> None:
    parts = [{"data": {"task_id": 1, "page_size": {"message_id": 2}}, "media_type": "application/json"}]
    own = {"some_field": {"task_id": "y"}, "metadata": {"context_id": "z"}}
    spelt = {"message_id": "tck-complete-task-0003", "role": "ROLE_USER", "parts": parts, **own}
    task = (await rpc(node, "SendMessage", {"message": spelt}, agent="tck"))["result"]["task"]
    [kept] = task["history"]
    assert {name: kept[name] for name in own} == own
    assert kept["parts"] == [{"data": parts[0]["data"], "mediaType": "application/json"}]


async def test_of_two_spellings_the_usual_one_counts(node: Node) -> None:
    both = {**named("complete-task"), "context_id": "unusual", "contextId": "usual"}
    task = (await rpc(node, "SendMessage", {"message": both}, agent="tck"))["result"]["task"]
    assert task["contextId"] == "usual"
