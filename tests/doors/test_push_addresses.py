"""Where callers may have notifications sent to is judged when they ask for it, at every door, and named to them."""

from __future__ import annotations

import pytest

from a2a_fabric.core.errors import BadInput
from a2a_fabric.jobs.webhooks import WebhookUrlPolicy
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import AddressRefused
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.node import Node, running
from tests.fixtures.percy import Percy

PRIVATE = (
    "http://127.0.0.1:1/hook",
    "http://localhost/hook",
    "http://10.1.2.3/hook",
    "http://[::1]/hook",
    "http://169.254.169.254/latest/meta-data",
    "http://2130706433/hook",
    "http://[::ffff:192.168.0.1]/hook",
)


async def a_task(node: Node) -> str:
    asked = {"message": message("hi", skill="reason")}
    reply = await node.send(
        "POST",
        "/agents/percy",
        json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": asked},
        headers={"A2A-Version": "1.0"},
    )
    return str(reply.json["result"]["task"]["id"])


@pytest.mark.parametrize("url", PRIVATE)
async def test_a_private_address_is_refused_at_every_door(url: str) -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        task_id = await a_task(node)
        config = {"taskId": task_id, "url": url}
        set_alone = await rpc(node, "CreateTaskPushNotificationConfig", config, agent="percy")
        along = {"taskPushNotificationConfig": {"url": url}}
        asked = {"message": message("hi", skill="reason"), "configuration": along}
        told = [set_alone, await rpc(node, "SendMessage", asked, agent="percy")]
        path = f"/agents/percy/tasks/{task_id}/pushNotificationConfigs"
        told.append((await node.send("POST", path, json={"url": url}, headers={"A2A-Version": "1.0"})).json)
        own = {"taskId": task_id, "config": {"endpoint": url}}
        for method in ("setPushConfig", "setPushNotificationConfig"):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": own}
            told.append((await node.send("POST", "/", json=body)).json)
        hook = {"url": url, "secret": "long enough"}
        given = {"agent_id": "percy", "capability": "reason", "task": "?", "async": True, "webhook": hook}
        told.append(await node.operation("fabric.call", given))
        for reply in told:
            assert "error" in reply, reply
            assert "jobs.webhook_allow" in str(reply), reply
        assert len(percy.calls) == 1, "nothing was begun for what cannot be told"


async def test_what_the_operator_lists_and_public_names_pass() -> None:
    percy = Percy()
    async with running(percy.agent, config={"jobs": {"webhook_allow": ["127.0.0.0/8"]}}) as node:
        config = {"taskId": await a_task(node), "url": PRIVATE[0]}
        assert "result" in await rpc(node, "CreateTaskPushNotificationConfig", config, agent="percy")


async def test_a_name_is_looked_up_and_told_without_what_it_stands_for() -> None:
    found = {"inside.example": ["10.9.8.7"], "both.example": ["93.184.216.34", "10.9.8.7"], "out.example": ["1.1.1.1"]}

    async def resolve(host: str, port: int) -> list[str]:
        if host not in found:
            raise OSError("no such name")
        return found[host]

    guard = Guard(resolve=resolve)
    addresses = WebhookUrlPolicy(guard)
    for host in ("inside.example", "both.example"):
        with pytest.raises(BadInput, match="webhook_allow") as refused:
            await addresses.check(f"https://{host}/hook", "url")
        assert "10.9" not in refused.value.message
    await addresses.check("https://out.example/hook", "url")
    await addresses.check("https://later.example/hook", "url")  # it may be there when it is needed
    found["out.example"] = ["10.9.8.7"]  # and a delivery looks again
    with pytest.raises(AddressRefused):
        await guard.resolve_addresses("out.example", 443)
