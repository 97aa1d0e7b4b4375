"""Jobs as tasks of MCP's extension, as a client of the stateless era sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as types
import pytest
import pytest_asyncio
import websockets

from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import AgentOffline, UpstreamRefused
from a2a_fabric.core.job import JOB_STATES, Job, JobError, JobState
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.doors.mcp.results import render_task
from a2a_fabric.protocols.mcp.wire import TASKS_EXTENSION
from tests.fixtures.agents.tasks import AGENT_ID, tasks_agent
from tests.fixtures.mcp_raw import Session, last_message, modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEE = "the-key-of-the-bee-12345"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
DECLARED: dict[str, Any] = {CAPABILITIES: {"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}}}
ALONE = f"/agents/{AGENT_ID}/mcp"
ENDED = ("completed", "failed", "cancelled")
ACK = {"resultType": "complete"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    config = {"auth": {"keys": [{"id": "bee", "key": BEE}]}}
    async with running(tasks_agent(), config=config) as node:
        yield node


async def said(
    node: Node,
    method: str,
    params: dict[str, Any],
    *,
    path: str = ALONE,
    token: str = PSK,
    meta: dict[str, Any] | None = None,
    **headers: str,
) -> Any:
    """The whole message that answers."""
    if "taskId" in params:
        headers = {"Mcp_Name": params["taskId"], **headers}
    given, body = modern(method, params, meta=DECLARED if meta is None else meta, **headers)
    reply = await node.send("POST", path, token=token, json=body, headers={**given, "Authorization": f"Bearer {token}"})
    return last_message(reply.body.decode())


async def told(node: Node, method: str, params: dict[str, Any], **more: Any) -> Any:
    message = await said(node, method, params, **more)
    assert "result" in message, message
    return message["result"]


async def refused(node: Node, method: str, params: dict[str, Any], **more: Any) -> Any:
    message = await said(node, method, params, **more)
    assert "error" in message, message
    return message["error"]


async def begun(node: Node, tool: str, **arguments: Any) -> str:
    """The id of the task that a call became."""
    created = await told(node, "tools/call", {"name": tool, "arguments": arguments})
    assert created["resultType"] == "task", created
    task_id: str = created["taskId"]
    return task_id


async def at(node: Node, task_id: str, *statuses: str, **more: Any) -> Any:
    """The task once it has one of these."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            task = await told(node, "tasks/get", {"taskId": task_id}, **more)
            if task["status"] in statuses:
                return task
            assert task["status"] not in ENDED, task
            await asyncio.sleep(0.02)


async def answer(node: Node, task_id: str, **responses: Any) -> Any:
    given = {key: {"action": "accept", "content": {"name": said}} for key, said in responses.items()}
    return await told(node, "tasks/update", {"taskId": task_id, "inputResponses": given})


@pytest.mark.parametrize(("path", "tool"), [(ALONE, "slow_compute"), ("/mcp", "tasks_slow_compute")])
async def test_a_call_that_takes_long_is_answered_with_a_task_that_holds_its_result_later(
    node: Node, path: str, tool: str
) -> None:
    for _ in range(2):  # the second time /mcp answers without the SDK
        asked = {"name": tool, "arguments": {"seconds": 1, "label": "sum"}}
        created = await told(node, "tools/call", asked, path=path)
        assert (created["resultType"], created["status"], created["ttlMs"]) == ("task", "working", None)
        assert isinstance(created["pollIntervalMs"], int)
        assert not {"result", "error", "inputRequests", "requestState", "structuredContent"} & created.keys()
        ended = await at(node, created["taskId"], "completed", path=path)
        assert ended["result"]["content"] == [{"type": "text", "text": "sum: computed for 1 s"}]
        assert (ended["resultType"], ended["createdAt"]) == ("complete", created["createdAt"])
        assert ended["ttlMs"] > 0
        trace = "a2a-fabric/trace"
        assert ended["result"]["_meta"][trace]["trace_id"] == created["_meta"][trace]["trace_id"]


async def test_a_call_that_is_quick_is_answered_itself(node: Node) -> None:
    result = await told(node, "tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    assert (result["resultType"], result["content"][0]["text"]) == ("complete", "Hello, Ada!")


async def test_a_client_that_asks_for_a_job_gets_a_task(node: Node) -> None:
    wanted = {"agent_id": AGENT_ID, "capability": "greet", "task": "", "context": {"name": "Ada"}, "async": True}
    created = await told(node, "tools/call", {"name": "fabric_call", "arguments": wanted}, path="/mcp")
    assert created["resultType"] == "task"
    ended = await at(node, created["taskId"], "completed", path="/mcp")
    assert ended["result"]["structuredContent"] == {"answer": "Hello, Ada!"}
    job = await node.operation("fabric.job.status", {"job_id": created["taskId"]})
    assert job["result"]["state"] == "completed"


async def test_who_has_not_declared_the_extension_gets_no_task(node: Node) -> None:
    nothing: dict[str, Any] = {CAPABILITIES: {}}
    asked = {"name": "tasks_failing_job", "arguments": {}}
    handle = await told(node, "tools/call", asked, path="/mcp", meta=nothing)
    assert handle["resultType"] == "complete"
    assert handle["structuredContent"]["job_id"]
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
    alone = await refused(node, "tools/call", {"name": "failing_job", "arguments": {}}, meta=nothing)
    assert (alone["code"], alone["data"]) == (types.MISSING_REQUIRED_CLIENT_CAPABILITY, needed)
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        error = await refused(node, method, {"taskId": "job_1", "inputResponses": {}}, meta=nothing)
        assert (error["code"], error["data"]) == (types.MISSING_REQUIRED_CLIENT_CAPABILITY, needed)


@pytest.mark.parametrize(
    ("settings", "path", "prefix"), [({}, ALONE, ""), ({"gateway_tools": "none"}, "/mcp", "tasks_")]
)
async def test_a_client_without_tasks_is_refused_what_can_only_be_a_task_however_often_it_calls(
    settings: dict[str, Any], path: str, prefix: str
) -> None:
    """What the node has accepted of a client once, it answers without the SDK."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
    async with running(tasks_agent(), config={"doors": [{"kind": "mcp", **settings}]}) as node:
        greet = {"name": f"{prefix}greet", "arguments": {"name": "Ada"}}
        only_as_job = {"name": f"{prefix}failing_job", "arguments": {}}
        plain: dict[str, Any] = {CAPABILITIES: {}}
        unusual: dict[str, Any] = {CAPABILITIES: {"sampling": {"unknown": {}}}}  # so the SDK is asked first about it
        for meta in (plain, unusual):
            replies = []
            for params in (only_as_job, greet, only_as_job, greet, only_as_job):
                headers, body = modern("tools/call", params, meta=meta)
                reply = await node.send("POST", path, json=body, headers=headers)
                replies.append((reply.status, last_message(reply.body.decode())))
            assert [status for status, _ in replies] == [400, 200, 400, 200, 400]
            refusals = [message["error"] for _, message in replies[::2]]
            assert all(error["code"] == types.MISSING_REQUIRED_CLIENT_CAPABILITY for error in refusals)
            assert all(error == refusals[0] and error["data"] == needed for error in refusals)
        with_tasks = await told(node, "tools/call", only_as_job, path=path)
        assert with_tasks["resultType"] == "task"


async def test_a_client_without_tasks_is_refused_it_through_the_tool_that_calls_others_too() -> None:
    nothing: dict[str, Any] = {CAPABILITIES: {}}
    async with running(tasks_agent(), config={"doors": [{"kind": "mcp", "disclosure": "search"}]}) as node:
        greet = {"tool_id": f"agent.{AGENT_ID}.greet", "parameters": {"name": "Ada"}}
        only_as_job = {"tool_id": f"agent.{AGENT_ID}.failing_job", "parameters": {}}
        for _ in range(2):
            call = {"name": "fabric_tool_call", "arguments": only_as_job}
            error = await refused(node, "tools/call", call, path="/mcp", meta=nothing)
            assert error["code"] == types.MISSING_REQUIRED_CLIENT_CAPABILITY
            call = {"name": "fabric_tool_call", "arguments": greet}
            assert not (await told(node, "tools/call", call, path="/mcp", meta=nothing))["isError"]
        unreadable = {"name": "fabric_tool_call", "arguments": {"tool_id": ["x"]}}
        assert (await told(node, "tools/call", unreadable, path="/mcp", meta=nothing))["isError"]
        call = {"name": "fabric_tool_call", "arguments": only_as_job}
        assert (await told(node, "tools/call", call, path="/mcp"))["resultType"] == "task"


async def test_a_client_of_the_handshake_era_has_no_tasks(node: Node) -> None:
    async with Session(node, path=ALONE) as session:
        call = {"name": "failing_job", "arguments": {}}
        result = (await session.answer({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}))["result"]
        job_id = result["structuredContent"]["job_id"]
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"taskId": job_id}}
        assert (await session.answer(asked))["error"]["code"] == types.METHOD_NOT_FOUND


async def test_another_callers_task_is_not_found_and_not_touched(node: Node) -> None:
    task_id = await begun(node, "confirm_delete", filename="a")
    parked = await at(node, task_id, "input_required")
    yes = {"sure": {"action": "accept", "content": {"confirm": True}}}
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        foreign = await refused(node, method, {"taskId": task_id, "inputResponses": yes}, token=BEE)
        unknown = await refused(node, method, {"taskId": "job_0", "inputResponses": yes}, token=BEE)
        assert foreign["code"] == unknown["code"] == types.INVALID_PARAMS
        assert foreign["message"].replace(task_id, "job_0") == unknown["message"]
    assert await told(node, "tasks/get", {"taskId": task_id}) == parked


async def test_a_task_is_cancelled_while_it_works_and_cancelling_again_changes_nothing(node: Node) -> None:
    task_id = await begun(node, "slow_compute", seconds=300)
    for _ in range(2):
        acknowledged = await told(node, "tasks/cancel", {"taskId": task_id})
        assert acknowledged.items() >= ACK.items()
        assert not {"taskId", "status"} & acknowledged.keys()
        ended = await at(node, task_id, "cancelled")
        assert not {"result", "error"} & ended.keys()


async def test_a_task_that_asks_goes_on_once_all_is_answered(node: Node) -> None:
    task_id = await begun(node, "multi_input")
    asked = await at(node, task_id, "input_required")
    assert asked["inputRequests"]["first"]["method"] == "elicitation/create"
    assert set(asked["inputRequests"]) == {"first", "second"}
    assert (await answer(node, task_id, first="Ada", stranger="Bob")).items() >= ACK.items()
    left = await told(node, "tasks/get", {"taskId": task_id})
    assert (left["status"], set(left["inputRequests"])) == ("input_required", {"second"})
    await answer(node, task_id, first="too late")
    await answer(node, task_id, second="Eve")
    ended = await at(node, task_id, "completed")
    assert ended["result"]["structuredContent"] == {"named": {"first": "Ada", "second": "Eve"}}
    assert (await answer(node, task_id, second="after the end")).items() >= ACK.items()


async def test_answers_that_come_in_the_same_moment_all_count(node: Node) -> None:
    task_id = await begun(node, "multi_input")
    await at(node, task_id, "input_required")
    await asyncio.gather(answer(node, task_id, first="Ada"), answer(node, task_id, second="Eve"))
    ended = await at(node, task_id, "completed")
    assert ended["result"]["structuredContent"] == {"named": {"first": "Ada", "second": "Eve"}}


async def test_an_answer_that_is_none_is_refused_and_the_task_still_waits(node: Node) -> None:
    task_id = await begun(node, "confirm_delete", filename="a")
    parked = await at(node, task_id, "input_required")
    error = await refused(node, "tasks/update", {"taskId": task_id, "inputResponses": {"sure": 5}})
    assert error["code"] == types.INVALID_PARAMS
    assert await told(node, "tasks/get", {"taskId": task_id}) == parked


async def test_a_part_that_was_answered_as_a_task_is_kept_when_the_rest_comes_by_another_door(node: Node) -> None:
    task_id = await begun(node, "multi_input")
    await at(node, task_id, "input_required")
    await answer(node, task_id, first="Ada")
    rest = {"second": {"action": "accept", "content": {"name": "Eve"}}}
    await node.operation("fabric.job.answer", {"job_id": task_id, "answers": rest})
    ended = await at(node, task_id, "completed")
    assert ended["result"]["structuredContent"] == {"named": {"first": "Ada", "second": "Eve"}}


async def test_a_part_alone_by_another_door_is_refused_and_the_task_still_waits(node: Node) -> None:
    task_id = await begun(node, "multi_input")
    parked = await at(node, task_id, "input_required")
    part = {"first": {"action": "accept", "content": {"name": "Ada"}}}
    refusal = await node.operation("fabric.job.answer", {"job_id": task_id, "answers": part})
    assert refusal["error_code"] == "BAD_INPUT"
    assert "second missing" in refusal["error"]
    assert await told(node, "tasks/get", {"taskId": task_id}) == parked


async def test_an_answered_call_that_then_takes_long_becomes_a_task(node: Node) -> None:
    call = {"name": "test_tool_with_task", "arguments": {}}
    first = await told(node, "tools/call", call)
    assert first["resultType"] == "input_required"
    responses = {"user_name": {"action": "accept", "content": {"name": "Alice"}}}
    again = {**call, "inputResponses": responses, "requestState": first["requestState"]}
    created = await told(node, "tools/call", again)
    assert created["resultType"] == "task"
    assert "requestState" not in created
    ended = await at(node, created["taskId"], "completed")
    assert ended["result"]["content"][0]["text"] == "Hello, Alice!"


async def test_what_the_agent_refuses_is_a_result_and_what_the_gateway_cannot_do_a_failure(node: Node) -> None:
    refusal = await at(node, await begun(node, "failing_job"), "completed")
    assert refusal["result"]["isError"] is True
    assert "This job always fails" in refusal["result"]["content"][0]["text"]
    failure = await at(node, await begun(node, "protocol_error_job"), "failed")
    assert "result" not in failure
    assert failure["error"]["code"] == types.INTERNAL_ERROR
    assert failure["error"]["message"] == failure["statusMessage"]


async def test_the_name_in_the_header_is_the_tasks(node: Node) -> None:
    error = await refused(node, "tasks/get", {"taskId": "job_1"}, Mcp_Name="job_2")
    assert error["code"] == types.HEADER_MISMATCH


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_methods_that_the_extension_does_not_have_are_not_found(node: Node, method: str) -> None:
    assert (await refused(node, method, {}))["code"] == types.METHOD_NOT_FOUND


async def test_the_extension_is_advertised(node: Node) -> None:
    for path in (ALONE, "/mcp"):
        capabilities = (await told(node, "server/discover", {}, path=path))["capabilities"]
        assert capabilities["extensions"][TASKS_EXTENSION] == {}


async def test_tasks_are_followed_over_a_socket_too(node: Node) -> None:
    url = node.url.replace("http", "ws", 1) + "/mcp/ws"
    headers = {"Authorization": f"Bearer {PSK}"}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        websockets.connect(url, additional_headers=headers, subprotocols=["mcp"]) as socket,  # type: ignore[list-item]
    ):

        async def exchanged(method: str, params: dict[str, Any]) -> Any:
            await socket.send(json.dumps(modern(method, params, meta=DECLARED)[1]))
            return json.loads(await socket.recv())["result"]

        created = await exchanged("tools/call", {"name": "tasks_slow_compute", "arguments": {"seconds": 300}})
        assert created["resultType"] == "task"
        await exchanged("tasks/cancel", {"taskId": created["taskId"]})

        async def is_cancelled() -> bool:
            seen = await exchanged("tasks/get", {"taskId": created["taskId"]})
            return bool(seen["status"] == "cancelled")

        await eventually(is_cancelled)


WORDS: dict[JobState, str] = {
    "queued": "working",
    "running": "working",
    "input_required": "input_required",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "timeout": "failed",
    "rejected": "failed",
}


@pytest.mark.parametrize("state", JOB_STATES)
async def test_every_state_of_a_job_has_its_word(state: JobState) -> None:
    assert render_task(_job(state), 1.0)["status"] == WORDS[state]


async def test_only_an_agents_own_refusal_counts_as_having_run() -> None:
    ran = render_task(_job("failed", JobError.from_error(UpstreamRefused("no"))), 1.0)
    assert (ran["status"], ran["result"]["isError"], "error" in ran) == ("completed", True, False)
    never = render_task(_job("failed", JobError.from_error(AgentOffline("away"))), 1.0)
    assert (never["status"], never["error"]["code"], "result" in never) == ("failed", types.INTERNAL_ERROR, False)


async def test_a_task_that_has_ended_says_how_long_it_is_kept() -> None:
    assert render_task(_job("completed", ended_at=15.0), 60.0)["ttlMs"] == 65_000
    assert render_task(_job("completed", ended_at=15.0, retention=1.0), 60.0)["ttlMs"] == 6000
    assert render_task(_job("running"), 60.0)["ttlMs"] is None


def _job(state: JobState, error: JobError | None = None, **more: Any) -> Job:
    call = Call(
        trace=new_trace(),
        auth=Principal(),
        target=Target(agent_id="a", capability="b", timeout_ms=1000),
        input=Input(task="c"),
    )
    about: dict[str, Any] = {"job_id": "job_1", "owner": "o", "agent_id": "a", "capability": "b", "run_at": 0.0}
    return Job(**about, state=state, call=call, error=error, created_at=10.0, updated_at=11.0, **more)
