"""MCP servers that make tasks of their calls: tasks of 2025-11-25, and the extension of 2026-07-28."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import test_utils, web
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Principal, ignore_event
from a2a_fabric.core.errors import BadInput, CallTimeout, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.result import Answer, Answers, Result
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.environments import python_of
from tests.fixtures.mcp_servers.serving import HERE
from tests.fixtures.mcp_servers.working import serving_working, working_program
from tests.marks import requirement
from tests.runtimes.mcp_bench import Bench, failure_of

NEW = ["stdio-2026", "http-2026"]
OLD = ["stdio-2025", "http-2025"]
KINDS = [*NEW, *OLD]
RED = Answer(content={"colour": "red"})
BEE = Principal(mode="psk", principal_id="bee")
WAIT_TIMEOUT = 60.0


@asynccontextmanager
async def serving_2025() -> AsyncIterator[asyncio.subprocess.Process]:
    command = [python_of("mcp-1"), str(HERE / "working_2025.py"), "http"]
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


class Working:
    """Builds runtimes in front of a server whose calls are tasks."""

    def __init__(self, stack: AsyncExitStack, base: Path) -> None:
        self._stack = stack
        self._bench = Bench(stack, base)
        self.program: asyncio.subprocess.Process | None = None  # the server of `http-2025`

    async def __call__(self, kind: str, **endpoint: Any) -> McpRuntime:
        if kind == "stdio-2026":
            return self._bench.runtime(command=working_program(), era="stateless", **endpoint)
        if kind == "stdio-2025":
            return self._bench.runtime(command=[python_of("mcp-1"), str(HERE / "working_2025.py")], **endpoint)
        if kind == "http-2026":
            server = await self._stack.enter_async_context(serving_working())
            return self._bench.runtime(uri=server.url, **endpoint)
        self.program = await self._stack.enter_async_context(serving_2025())
        assert self.program.stdout is not None
        port = int(await self.program.stdout.readline())
        return self._bench.runtime(uri=f"http://127.0.0.1:{port}/mcp/", **endpoint)


@pytest.fixture
async def working(tmp_path: Path) -> AsyncIterator[Working]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Working(stack, tmp_path)


def answering(call: Call, result: Result, answer: Answer) -> Call:
    assert result.asked is not None, result
    (key,) = result.asked.questions
    return replace(call, answers=Answers(continuation=result.asked.continuation, answers={key: answer}))


def within(call: Call, seconds: float) -> Call:
    return replace(call, target=replace(call.target, timeout_ms=int(seconds * 1000)))


@requirement("001-13")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_becomes_a_task_has_the_result_of_the_task(working: Working, kind: str) -> None:
    server = await working(kind)
    assert (await server(call_of("dig", depth=1), ignore_event)).data == {"answer": "a hole"}
    assert (await server(call_of("hurry"), ignore_event)).data == {"answer": "without a task"}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_task_says_about_itself_becomes_events(working: Working, kind: str) -> None:
    server, heard = await working(kind), Heard()
    assert (await server(call_of("dig", depth=2, stream=True), heard)).data == {"answer": "a hole"}
    messages = [event.data.get("message") for event in heard.events if event.kind == "status"]
    assert messages == ["1 m deep", "2 m deep"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_may_ask_and_goes_on_with_the_answer(working: Working, kind: str) -> None:
    server = await working(kind)
    call = call_of("paint", thing="door")
    result = await server(call, ignore_event)
    assert result.asked is not None
    assert [each.message for each in result.asked.questions.values()] == ["Which colour?"]
    stranger = replace(answering(call, result, RED), auth=BEE)
    await failure_of(server(stranger, ignore_event), BadInput)
    assert (await server(answering(call, result, RED), ignore_event)).data == {"answer": "door in red"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_declined_question_reaches_the_task(working: Working, kind: str) -> None:
    server = await working(kind)
    call = call_of("paint", thing="door")
    declined = answering(call, await server(call, ignore_event), Answer(action="decline"))
    assert (await server(declined, ignore_event)).data == {"answer": "door in decline"}


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_the_call_cancels_the_task(working: Working, kind: str, tmp_path: Path) -> None:
    server, note = await working(kind), tmp_path / "note"
    await server.describe()
    call = asyncio.ensure_future(server(call_of("sleep", note=str(note)), ignore_event))
    await until((tmp_path / "note.begun").exists)
    call.cancel()
    await asyncio.wait([call])
    await until(note.exists)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_never_ends_is_cancelled_when_the_time_of_the_call_is_over(
    working: Working, kind: str, tmp_path: Path
) -> None:
    server, note = await working(kind), tmp_path / "note"
    await server.describe()
    with pytest.raises(CallTimeout):
        await server(within(call_of("sleep", note=str(note)), 1.5), ignore_event)
    await until(note.exists)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_fails_fails_the_call_with_its_reason(working: Working, kind: str) -> None:
    server = await working(kind)
    assert "The floor is wet" in str(await failure_of(server(call_of("stumble"), ignore_event), UpstreamRefused))


@pytest.mark.parametrize("kind", NEW)
async def test_a_task_that_the_server_cancels_or_forgets_says_so(working: Working, kind: str) -> None:
    server = await working(kind)
    assert "It rains" in str(await failure_of(server(call_of("give_up"), ignore_event), UpstreamRefused))
    lost = await failure_of(server(call_of("forget"), ignore_event), UpstreamInterrupted)
    assert "no longer knows the call's task" in str(lost)


async def test_a_server_that_dies_during_a_task_fails_the_call(working: Working, tmp_path: Path) -> None:
    server, heard = await working("http-2025"), Heard()
    await server.describe()
    call = asyncio.ensure_future(server(call_of("sleep", note=str(tmp_path / "note"), stream=True), heard))
    await heard.something.wait()
    assert working.program is not None
    working.program.kill()
    assert "Lost contact" in str(await failure_of(call, UpstreamInterrupted))


async def test_a_result_that_cannot_be_fetched_is_not_asked_for_without_end(tmp_path: Path) -> None:
    """The task is known, but each request for its result loses the session."""
    methods: list[str] = []
    task = {"taskId": "t1", "status": "input_required", "createdAt": "2025-11-25T00:00:00Z", "ttl": None}
    task["lastUpdatedAt"] = task["createdAt"]
    tool = {"name": "ask", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}},
            "serverInfo": {"name": "stub", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
        "tools/call": {"task": task},
        "tasks/get": task,
        "tasks/cancel": {**task, "status": "cancelled"},
    }

    async def answer(request: web.Request) -> web.Response:
        message = await request.json() if request.method == "POST" else {}
        methods.append(message.get("method", ""))
        if "id" not in message:
            return web.Response(status=202 if message else 405)
        if message["method"] == "server/discover":
            return web.Response(status=400)
        if message["method"] not in results:
            return web.Response(status=404)
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        return web.json_response(reply, headers={"mcp-session-id": "s1"})

    application = web.Application()
    application.router.add_route("*", "/mcp", answer)
    async with (
        asyncio.timeout(2 * WAIT_TIMEOUT),
        AsyncExitStack() as stack,
        test_utils.TestServer(application) as server,
    ):
        runtime = Bench(stack, tmp_path).runtime(uri=str(server.make_url("/mcp")))
        await runtime.describe()
        with pytest.raises(UpstreamInterrupted):
            await runtime(within(call_of("ask"), WAIT_TIMEOUT), ignore_event)
    assert (methods.count("tasks/result"), methods.count("tools/call")) == (6, 1)
