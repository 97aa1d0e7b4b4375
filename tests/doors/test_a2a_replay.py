"""A message that comes twice: because its reply was lost, or because its sender wants the same again."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.call import Principal
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.doors.a2a.requests import A2ARequestContext, parse_user_message
from a2a_fabric.doors.a2a.task_creator import TaskCreator
from tests.doors.a2a_agents import percy
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.node import Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config={"doors": [{"kind": "a2a"}]}) as node:
        yield node


async def ids(node: Node, *moments: float) -> list[str]:
    """Of the tasks that the same message begins at these moments."""
    at = iter(moments)
    creator = TaskCreator(node.fabric.gateway, node.fabric.jobs, node.fabric.operations, WINDOW, lambda: next(at))
    asking = parse_user_message({"message": message("once", skill="say")}, "1.0")
    context = A2ARequestContext(
        principal=Principal(mode="psk", principal_id="psk", trust="local"),
        trace=new_trace(),
        agent=node.fabric.registry.get_agent("percy"),
    )
    return [(await creator.accept(asking, context))[1].job_id for _ in moments]


async def test_shortly_before_and_after_a_span_ends_it_is_the_same_task(node: Node) -> None:
    border = math.ceil(time.time() / WINDOW) * WINDOW
    first, second = await ids(node, border - 0.5, border + 0.001)
    assert first == second


async def test_a_whole_span_later_it_is_another(node: Node) -> None:
    border = math.ceil(time.time() / WINDOW) * WINDOW
    first, second = await ids(node, border - 0.5, border + WINDOW - 0.5)
    assert first != second


async def send(node: Node, said: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = (await rpc(node, "SendMessage", {"message": said}))["result"]["task"]
    return task


async def test_a_message_that_comes_again_after_its_task_was_answered_begins_a_new_task(node: Node) -> None:
    said = message("a wall", skill="paint")
    first = await send(node, said)
    assert (await send(node, said))["id"] == first["id"]  # the reply was lost
    await send(node, message("red", taskId=first["id"]))
    second = await send(node, said)
    assert (second["id"] != first["id"], second["status"]["state"]) == (True, "TASK_STATE_INPUT_REQUIRED")
    assert (await send(node, said))["id"] == second["id"]
    await rpc(node, "CancelTask", {"id": second["id"]})
    third = await send(node, said)
    assert (third["id"] in (first["id"], second["id"]), third["status"]["state"]) == (
        False,
        "TASK_STATE_INPUT_REQUIRED",
    )
