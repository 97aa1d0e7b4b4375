"""Whatever is sent to the A2A door, it answers in its own words: never a 5xx, a traceback or half a task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_fabric.core.propagation import new_id
from tests.doors.a2a_agents import adder
from tests.doors.a2a_clients import frames
from tests.fixtures.fuzzing import LEAK
from tests.fixtures.node import Node, running
from tests.profiles import examples

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
METHODS = (
    "SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask",
    "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig", "GetExtendedAgentCard", "message/send", "message/stream", "tasks/get",
    "tasks/cancel", "tasks/resubscribe", "tasks/pushNotificationConfig/set", "tasks/pushNotificationConfig/list",
)  # fmt: skip
PATHS = (
    "message:send", "message:stream", "tasks", "tasks/x", "tasks/x:cancel", "tasks/x:subscribe",
    "tasks/x/pushNotificationConfigs", "tasks/x/pushNotificationConfigs/y", "extendedAgentCard",
    "v1/message:send", "v1/message:stream", "v1/tasks/x", "v1/tasks/x:cancel", "v1/card",
)  # fmt: skip

QUERY = ("pageSize", "historyLength", "status", "pageToken", "x")

words = st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
parts = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": anything, "raw": anything, "url": anything, "data": anything, "file": anything, "kind": anything,
            "metadata": anything, "filename": anything, "mediaType": anything,
        },
    )
    | st.just({"data": {"a": 1, "b": 2}}),
    max_size=3,
)  # fmt: skip
messages = st.fixed_dictionaries(
    {"messageId": st.builds(new_id) | anything, "role": st.sampled_from(["ROLE_USER", "user"]) | anything},
    optional={
        "parts": parts | anything, "content": parts, "contextId": anything, "taskId": anything, "metadata": anything,
        "extensions": anything, "referenceTaskIds": anything, "unknown": anything,
    },
)  # fmt: skip
configurations = st.fixed_dictionaries(
    {},
    optional={
        "historyLength": anything, "returnImmediately": anything, "blocking": anything, "acceptedOutputModes": anything,
        "taskPushNotificationConfig": anything, "pushNotificationConfig": anything,
    },
)  # fmt: skip
params = (
    st.fixed_dictionaries({"message": messages}, optional={"configuration": configurations, "metadata": anything})
    | st.fixed_dictionaries(
        {},
        optional={
            "id": anything, "taskId": anything, "url": anything, "tenant": anything, "pageSize": anything,
            "pageToken": anything, "status": anything, "statusTimestampAfter": anything, "includeArtifacts": anything,
            "historyLength": anything, "authentication": anything, "token": anything, "contextId": anything,
        },
    )
    | anything
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(adder(), config={"doors": [{"kind": "a2a"}]}) as node:
        yield node


@MANY
@given(method=st.sampled_from(METHODS) | words, params=params, version=st.sampled_from(["1.0", "0.3", "", "2.0"]))
async def test_json_rpc_is_answered_with_a_result_or_an_error(
    node: Node, method: str, params: Any, version: str
) -> None:
    body = {"jsonrpc": "2.0", "id": "f", "method": method, "params": params}
    reply = await node.send("POST", "/agents/adder", json=body, headers={"A2A-Version": version})
    assert reply.status < 500, reply.body
    answers = [reply.json] if "json" in reply.headers["content-type"] else [each for _, each in frames(reply.body)]
    for answer in answers:
        assert ("result" in answer) != ("error" in answer)
        assert answer["id"] == "f"
        if "error" in answer:
            assert answer["error"]["code"] != -32603, answer
    await check_whole(node)


@MANY
@given(
    method=st.sampled_from(["GET", "POST", "DELETE"]),
    path=st.sampled_from(PATHS),
    body=params,
    version=st.sampled_from(["1.0", "0.3", ""]),
    query=st.dictionaries(
        st.sampled_from(["pageSize", "historyLength", "status", "pageToken", "x"]), words, max_size=2
    ),
)
async def test_http_is_answered_with_what_was_asked_or_a_status(
    node: Node, method: str, path: str, body: Any, version: str, query: dict[str, str]
) -> None:
    sent = {"json": body} if method == "POST" else {}
    headers = {"A2A-Version": version}
    reply = await node.send(method, f"/agents/adder/{path}", params=query, headers=headers, **sent)
    assert reply.status < 500, reply.body
    if reply.status >= 400 and "json" in reply.headers["content-type"]:
        assert "error" in reply.json
    await check_whole(node)


async def check_whole(node: Node) -> None:
    """What there is of tasks is whole, and nothing was a surprise to us."""
    log = node.log.getvalue()
    assert LEAK.decode() not in log
    node.log.truncate(0)
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageSize": 3, "includeArtifacts": True}}
    reply = await node.send("POST", "/agents/adder", json=body, headers={"A2A-Version": "1.0"})
    for task in reply.json["result"]["tasks"]:
        assert {"id", "contextId", "status"} <= task.keys()
