"""Push notifications: where to tell of a task's changes, set over every binding, and told though nodes come and go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError, TaskNotFoundError

from a2a_fabric.jobs.webhooks import sign_webhook
from tests.doors.a2a_agents import percy
from tests.doors.a2a_clients import BINDINGS, WITH_KEY, connected, message, plain, rpc
from tests.doors.a2a_receiver import receiving, state_of
from tests.fixtures.node import Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a-secret-of-the-tests"
DOORS = [{"kind": "a2a", "grpc": "127.0.0.1:0", "push_secret": SECRET}]
CONFIG: dict[str, Any] = {"doors": DOORS, "jobs": {"webhook_allow": ["127.0.0.1"]}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config=CONFIG) as node:
        yield node


async def test_every_change_is_told_in_order_with_the_callers_credentials_and_our_signature(node: Node) -> None:
    async with receiving() as receiver:
        config = {
            "url": receiver.url,
            "token": "a token",
            "authentication": {"scheme": "Bearer", "credentials": "theirs"},
        }
        params = {"message": message("hi", skill="say"), "configuration": {"taskPushNotificationConfig": config}}
        task = (await rpc(node, "SendMessage", params))["result"]["task"]
        told = [await receiver.next() for _ in range(2)]
    assert [state_of(body) for _, body in told] == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    headers, last = told[-1]
    assert last["task"] == task
    assert (headers["authorization"], headers["x-a2a-notification-token"]) == ("Bearer theirs", "a token")
    body = json.dumps(last, separators=(",", ":"), ensure_ascii=False).encode()
    expected = sign_webhook(headers["webhook-id"], body, SECRET, int(headers["webhook-timestamp"]))
    assert headers["webhook-signature"] == expected["webhook-signature"]


async def test_a_question_is_told_and_so_is_what_follows_the_answer(node: Node) -> None:
    async with receiving() as receiver:
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        params = {"message": message("a post", skill="paint"), "configuration": config}
        task = (await rpc(node, "SendMessage", params))["result"]["task"]
        states = [state_of((await receiver.next())[1]) for _ in range(2)]
        assert states == ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]
        await rpc(node, "CancelTask", {"id": task["id"]})
        assert state_of((await receiver.next())[1]) == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_configs_are_set_shown_listed_and_deleted(node: Node, binding: str) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("hi", skill="say")}))["result"]["task"]
    async with connected(node, "percy", binding) as client:
        wanted = TaskPushNotificationConfig(task_id=task["id"], id="one", url="https://example.com/hook", token="t")
        made = await client.create_task_push_notification_config(wanted, context=WITH_KEY)
        assert plain(made) == {name: value for name, value in plain(wanted).items() if name != "tenant"}
        wanted.url = "https://example.com/other"
        await client.create_task_push_notification_config(wanted, context=WITH_KEY)
        unnamed = TaskPushNotificationConfig(task_id=task["id"], url="https://example.com/third")
        named = await client.create_task_push_notification_config(unnamed, context=WITH_KEY)
        which = GetTaskPushNotificationConfigRequest(task_id=task["id"], id="one")
        assert (await client.get_task_push_notification_config(which, context=WITH_KEY)).url == wanted.url
        listing = ListTaskPushNotificationConfigsRequest(task_id=task["id"])
        listed = await client.list_task_push_notification_configs(listing, context=WITH_KEY)
        assert [each.id for each in listed.configs] == ["one", named.id]
        gone = DeleteTaskPushNotificationConfigRequest(task_id=task["id"], id="one")
        for _ in range(2):
            await client.delete_task_push_notification_config(gone, context=WITH_KEY)
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(which, context=WITH_KEY)
        wanted.task_id = "nobody-has-this"
        with pytest.raises(A2AError):
            await client.create_task_push_notification_config(wanted, context=WITH_KEY)


async def test_what_can_never_be_delivered_is_refused_at_once(node: Node) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("hi", skill="say")}))["result"]["task"]
    for url in ("http://127.0.0.1:99999/", "ftp://example.com/", "http://user:word@example.com/", ""):
        reply = await rpc(node, "CreateTaskPushNotificationConfig", {"taskId": task["id"], "url": url})
        assert reply["error"]["code"] == -32602, url
    bad = {"taskId": task["id"], "url": "https://example.com/", "token": "a\r\nHost: b"}
    assert (await rpc(node, "CreateTaskPushNotificationConfig", bad))["error"]["code"] == -32602


async def test_a_refused_notification_is_sent_again_and_private_addresses_only_where_allowed() -> None:
    async with receiving() as receiver, running(percy(), config={"doors": DOORS}) as strict:
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        asked = {"message": message("hi", skill="say"), "configuration": config}
        reply = await rpc(strict, "SendMessage", asked)
        assert reply["error"]["code"] == -32602
        assert "jobs.webhook_allow" in reply["error"]["message"]
        assert receiver.heard.empty()
    async with receiving() as receiver, running(percy(), config=CONFIG) as node:
        receiver.refusals = 1
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        await rpc(node, "SendMessage", {"message": message("hi", skill="say"), "configuration": config})
        states = {state_of((await receiver.next())[1]) for _ in range(2)}
        assert states == {"TASK_STATE_WORKING", "TASK_STATE_COMPLETED"}


async def test_a_node_that_comes_back_goes_on_telling(tmp_path: Path) -> None:
    config = {**CONFIG, "store": f"sqlite:{tmp_path / 'fabric.db'}"}
    async with receiving() as receiver:
        async with running(percy(), config=config) as before:
            pushed = {"taskPushNotificationConfig": {"url": receiver.url}}
            params = {"message": message("a sign", skill="paint"), "configuration": pushed}
            task = (await rpc(before, "SendMessage", params))["result"]["task"]
            assert [state_of((await receiver.next())[1]) for _ in range(2)][-1] == "TASK_STATE_INPUT_REQUIRED"
        async with running(percy(), config=config) as after:
            await rpc(after, "CancelTask", {"id": task["id"]})
            assert state_of((await receiver.next())[1]) == "TASK_STATE_CANCELED"


async def test_what_has_been_told_is_not_told_again_after_a_restart(tmp_path: Path) -> None:
    config = {**CONFIG, "store": f"sqlite:{tmp_path / 'fabric.db'}"}
    async with receiving() as receiver:
        async with running(percy(), config=config) as before:
            pushed = {"taskPushNotificationConfig": {"url": receiver.url, "id": "after_the_end"}}
            params = {"message": message("hi", skill="say"), "configuration": pushed}
            task = (await rpc(before, "SendMessage", params))["result"]["task"]
            assert [state_of((await receiver.next())[1]) for _ in range(2)][-1] == "TASK_STATE_COMPLETED"
        async with running(percy(), config=config) as after:
            [known] = (await rpc(after, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}))["result"]["configs"]
            assert known["id"] == "after_the_end"
            other = {"message": message("a hat", skill="paint"), "configuration": pushed}
            await rpc(after, "SendMessage", other)
            told = [(await receiver.next())[1] for _ in range(2)]
            assert task["id"] not in json.dumps(told)


async def test_clients_of_0_3_get_the_task_itself(node: Node) -> None:
    async with receiving() as receiver:
        said = message(skill="say")
        said |= {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
        pushed = {"pushNotificationConfig": {"url": receiver.url, "id": "p"}, "blocking": True}
        reply = await rpc(node, "message/send", {"message": said, "configuration": pushed}, version=None)
        last = [(await receiver.next())[1] for _ in range(2)][-1]
        assert (last["kind"], last["status"]["state"]) == ("task", "completed")
        which = {"id": reply["result"]["id"], "pushNotificationConfigId": "p"}
        got = await rpc(node, "tasks/pushNotificationConfig/get", which, version=None)
        assert got["result"] == {
            "taskId": which["id"],
            "pushNotificationConfig": {"id": "p", "url": receiver.url},
        }


async def test_a_node_that_sends_none_says_so() -> None:
    async with running(percy(), config={"doors": [{"kind": "a2a", "max_push_configs": 0}]}) as node:
        card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
        assert card["capabilities"]["pushNotifications"] is False
        config = {"taskPushNotificationConfig": {"url": "https://example.com/"}}
        reply = await rpc(node, "SendMessage", {"message": message("x", skill="say"), "configuration": config})
        assert reply["error"]["code"] == -32003
        reply = await rpc(node, "ListTaskPushNotificationConfigs", {"taskId": "x"})
        assert reply["error"]["code"] == -32003


async def test_a_message_that_comes_twice_has_one_config(node: Node) -> None:
    async with receiving() as receiver:
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        params = {"message": message("hi", skill="say"), "configuration": config}
        first, again = [(await rpc(node, "SendMessage", params))["result"]["task"] for _ in range(2)]
        assert first["id"] == again["id"]
        known = await rpc(node, "ListTaskPushNotificationConfigs", {"taskId": first["id"]})
        assert [each["url"] for each in known["result"]["configs"]] == [receiver.url]


async def test_a_client_of_0_3_is_told_in_its_own_words_over_every_binding(node: Node) -> None:
    """Clients of 0.3 read the same body whichever binding they use, with the id of the task that they know."""
    async with receiving() as receiver:
        said = {
            "messageId": "push-of-0-3",
            "role": "ROLE_USER",
            "content": [{"text": "hi"}],
            "metadata": {"skill": "say"},
        }
        config = {"blocking": True, "pushNotification": {"url": receiver.url}}
        path, headers = "/agents/percy/v1/message:send", {"A2A-Version": "0.3"}
        reply = await node.send("POST", path, json={"request": said, "configuration": config}, headers=headers)
        task = reply.json["task"]
        told = [(await receiver.next())[1] for _ in range(2)]
    assert [each["kind"] for each in told] == ["task", "task"]
    assert [each["status"]["state"] for each in told] == ["working", "completed"]
    assert {each["id"] for each in told} == {task["id"]}
    assert told[-1]["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi"}]


async def test_a_0_3_request_over_http_that_does_not_say_that_it_blocks_does_not_block(
    node: Node, tmp_path: Path
) -> None:
    data = {"data": {"data": {"go_on": str(tmp_path / "later")}}}
    said = {"messageId": "unblocked", "role": "ROLE_USER", "content": [data], "metadata": {"skill": "wait"}}
    path, headers = "/agents/percy/v1/message:send", {"A2A-Version": "0.3"}
    reply = await node.send(
        "POST", path, json={"request": said, "configuration": {"historyLength": 1}}, headers=headers
    )
    assert reply.json["task"]["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    (tmp_path / "later").touch()
