"""Two nodes behind a load balancer that knows nothing of sessions: the stateless era needs none."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from tests.doors.test_mcp_passthrough_eras import answer_question
from tests.fixtures.conformance_server import serving
from tests.fixtures.mcp_client import client, words
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy

PASSED_ON = {"accept", "authorization", "content-type"}
CONFIG = {"doors": [{"kind": "fabric"}, {"kind": "mcp", "max_listed": 200}]}


class Balancer:
    """The next request goes to the next node, whosever it is."""

    def __init__(self, nodes: list[Node], http: ClientSession) -> None:
        self.seen: list[tuple[int, str]] = []  # which node, which method
        self._turn = itertools.cycle(enumerate(nodes))
        self._http = http

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        number, node = next(self._turn)
        body = await request.read()
        self.seen.append((number, json.loads(body).get("method", "") if body else request.method))
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in PASSED_ON or name.lower().startswith("mcp-")
        }
        async with self._http.request(request.method, node.url + request.path, data=body, headers=headers) as reply:
            response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.content_type})
            await response.prepare(request)
            async for chunk in reply.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        return response


@asynccontextmanager
async def balanced(nodes: list[Node]) -> AsyncIterator[tuple[Node, Balancer]]:
    """Yields a node that is really all of them."""
    async with ClientSession(timeout=ClientTimeout(total=WAIT_TIMEOUT)) as http:
        balancer = Balancer(nodes, http)
        runner = web.ServerRunner(web.Server(balancer.answer), shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield Node(f"http://{host}:{port}", nodes[0].fabric, http), balancer
        finally:
            await runner.cleanup()


@pytest.fixture
async def replicas() -> AsyncIterator[tuple[Node, Balancer]]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving())
        manifest = {"agent_id": "fixture", "runtime": "mcp", "endpoint": {"uri": url}}
        nodes = [
            await stack.enter_async_context(running(Percy().agent, manifests=[manifest], config=CONFIG)),
            await stack.enter_async_context(running(Percy().agent, manifests=[manifest], config=CONFIG)),
        ]
        yield await stack.enter_async_context(balanced(nodes))


async def test_the_gateway_is_the_same_on_every_node(replicas: tuple[Node, Balancer]) -> None:
    node, balancer = replicas
    async with client(node, "2026-07-28") as connected:
        for word in ("a", "b", "c", "d"):
            assert "percy_reason" in {tool.name for tool in (await connected.list_tools(cache_mode="bypass")).tools}
            result = await connected.call_tool("percy_reason", {"task": word})
            assert result.structured_content is not None
            assert result.structured_content["answer"] == word
    assert set(Counter(number for number, _ in balancer.seen)) == {0, 1}


async def test_one_agent_alone_is_too(replicas: tuple[Node, Balancer]) -> None:
    node, balancer = replicas
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with client(node, "2026-07-28", path="/agents/fixture/mcp") as connected:
        for _ in range(3):
            assert words(await connected.call_tool("test_simple_text", {})).startswith("This is")
        assert (await connected.read_resource("test://static-text")).contents
        await connected.call_tool("test_tool_with_progress", {}, progress_callback=listen)
    assert heard == [0, 50, 100]
    assert {number for number, _ in balancer.seen} == {0, 1}


async def test_a_question_asked_through_one_node_is_answered_through_another(replicas: tuple[Node, Balancer]) -> None:
    node, balancer = replicas
    async with client(
        node, "2026-07-28", path="/agents/fixture/mcp", elicitation_callback=answer_question
    ) as connected:
        rounds = await connected.call_tool("test_input_required_result_multi_round", {})
        state = await connected.call_tool("test_input_required_result_request_state", {})
    assert (words(rounds), words(state)) == ("Ada likes red", "state-ok")
    calls = [number for number, method in balancer.seen if method == "tools/call"]
    assert {0, 1} == set(calls)
    assert len(calls) == 5


async def test_so_is_a_question_that_the_gateway_passes_on(replicas: tuple[Node, Balancer]) -> None:
    node, balancer = replicas
    async with client(node, "2026-07-28", elicitation_callback=answer_question) as connected:

        async def is_listed() -> bool:
            """On both nodes: they ask the agent in their own time."""
            pages = [await connected.list_tools(cache_mode="bypass") for _ in range(2)]
            return all("fixture_test_simple_text" in {tool.name for tool in page.tools} for page in pages)

        await eventually(is_listed)
        rounds = await connected.call_tool("fixture_test_input_required_result_multi_round", {})
    assert words(rounds) == "Ada likes red"
    assert {0, 1} == {number for number, method in balancer.seen if method == "tools/call"}


async def test_many_clients_at_once_meet_no_session(replicas: tuple[Node, Balancer]) -> None:
    node, _ = replicas

    async def call_once(word: str) -> Any:
        async with client(node, "2026-07-28") as connected:
            return (await connected.call_tool("percy_reason", {"task": word})).structured_content

    said = await asyncio.gather(*(call_once(str(number)) for number in range(10)))
    assert [each["answer"] for each in said] == [str(number) for number in range(10)]
