"""Keys of callers in a store that two nodes share: each change takes effect on both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from a2a_fabric.core.keys import NewKey
from a2a_fabric.identity.shared_keys import hash_key, make_key
from tests.fixtures.node import Node, eventually, running
from tests.fixtures.postgres import shared
from tests.marks import requirement

VIEW = {"name": "office", "agents": ["percy"]}


@pytest.fixture(params=["sqlite", "postgresql"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    address = f"sqlite:{tmp_path / 'fabric.db'}" if request.param == "sqlite" else shared().database()
    async with (
        running(config={"store": address, "views": [VIEW]}) as one,
        running(config={"store": address}) as other,
    ):
        yield one, other


def new_key(name: str, secret: str, **more: object) -> NewKey:
    fields = {"scopes": ("*",), **more}
    return NewKey(key_id=f"key-{secret[-8:]}", name=name, digest=hash_key(secret), **fields)  # type: ignore[arg-type]


async def status(node: Node, key: str) -> int:
    body = {"name": "fabric.agent.list", "arguments": {}}
    return (await node.send("POST", "/mcp/call", token=key, json=body)).status


async def until_all(nodes: tuple[Node, ...], key: str, expected: int) -> None:
    async def is_so() -> bool:
        return all([await status(node, key) == expected for node in nodes])

    await eventually(is_so)


@requirement("001-58")
async def test_a_key_counts_on_all_nodes_until_it_is_revoked_on_one(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    first, second = make_key(), make_key()
    await one.fabric.store.keys.add(new_key("reader", first))
    await until_all(nodes, first, 200)
    await other.fabric.store.keys.add(new_key("reader", second), overlap=3600.0)
    await until_all(nodes, second, 200)
    await until_all(nodes, first, 200)
    await one.fabric.store.keys.revoke("reader")
    for key in (first, second):
        await until_all(nodes, key, 401)


async def test_an_expired_key_says_so_and_a_key_without_its_view_is_refused(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    short, viewed = make_key(), make_key()
    await one.fabric.store.keys.add(new_key("short", short, lifetime=0.01))
    await one.fabric.store.keys.add(new_key("viewer", viewed, view="office"))
    await until_all((one,), viewed, 200)
    await until_all((other,), viewed, 401)  # that node has no such view, without which the key would see everything
    await until_all(nodes, short, 401)
    body = {"name": "fabric.health", "arguments": {}}

    async def is_said() -> bool:
        return bool((await one.send("POST", "/mcp/call", token=short, json=body)).json["error_code"] == "AUTH_EXPIRED")

    await eventually(is_said)


async def test_no_agent_registers_under_the_name_of_a_stored_key(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    key, stranger = make_key(), make_key()
    await one.fabric.store.keys.add(new_key("treasurer", key))
    await one.fabric.store.keys.add(new_key("stranger", stranger))
    await until_all(nodes, key, 200)
    await until_all(nodes, stranger, 200)
    manifest = {"agent_id": "treasurer", "endpoint": {"uri": "http://127.0.0.1:9/"}, "runtime": "http"}
    for node in nodes:
        refused = await node.send("POST", "/mcp/register_agent", token=stranger, json=manifest)
        assert refused.status == 409 or refused.json.get("error_code") == "CONFLICT", refused.body
