"""What goes through to an MCP server is seen, counted, limited and stopped like any other call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.doors.test_mcp_passthrough_eras import program
from tests.fixtures.conformance_server import serving
from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

PATH = "/agents/fixture/mcp"
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
wheres = pytest.mark.parametrize("where", ["http", "stdio"])
eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@asynccontextmanager
async def node_before(where: str, **config: Any) -> AsyncIterator[Node]:
    async with serving() as url:
        endpoint = {"uri": url} if where == "http" else program("both")
        manifests: list[dict[str, Any]] = [
            {"agent_id": "fixture", "runtime": "mcp", "endpoint": endpoint},
            {"agent_id": "gone", "runtime": "mcp", "endpoint": {"uri": "http://127.0.0.1:9/mcp"}},
        ]
        async with running(manifests=manifests, config=config) as node:
            yield node


def on(node: Node, mode: str, **more: Any) -> Any:
    return client(node, mode, path=PATH, **more)


async def described(node: Node) -> None:
    """The catalog knows its tools, so they become labels."""

    async def has_tools() -> bool:
        manifest = node.fabric.registry.catalog.get("fixture")
        return manifest is not None and bool(manifest.capabilities)

    await eventually(has_tools)


def lines_of(node: Node) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in node.log.getvalue().splitlines()]
    return [line for line in found if str(line.get("trace_id")).replace("-", "") == TRACE]


async def lines(node: Node, *, calls: int, operation: str | None = None) -> list[dict[str, Any]]:
    """What is written within a moment: so many calls, and the request that came last."""

    async def are_written() -> bool:
        found = lines_of(node)
        is_last_there = operation is None or any(line.get("operation") == operation for line in found)
        return is_last_there and sum(line["event"] == "call" for line in found) >= calls

    await eventually(are_written)
    return lines_of(node)


@requirement("001-53")
@wheres
@eras
async def test_a_tools_call_is_a_call_in_the_log_and_in_the_metrics(where: str, mode: str) -> None:
    async with node_before(where) as node:
        await described(node)
        async with on(node, mode, headers=HEADERS) as connected:
            await connected.call_tool("test_simple_text", {})
            await connected.call_tool("test_error_handling", {})
            with pytest.raises(MCPError):
                await connected.call_tool("extra_error_data", {})
            await connected.list_prompts()
        written = await lines(node, calls=3, operation=f"{PATH} prompts/list")
        metrics = (await node.send("GET", "/metrics")).body.decode()
    calls = [line for line in written if line["event"] == "call"]
    told = [(each["target"], each["capability"], each["principal"], each.get("error_code")) for each in calls]
    assert told == [
        ("fixture", "test_simple_text", "psk", None),
        ("fixture", "test_error_handling", "psk", "UPSTREAM_ERROR"),
        ("fixture", "extra_error_data", "psk", "UPSTREAM_ERROR"),
    ]
    asked = [line["operation"] for line in written if line["event"] == "request"]
    assert asked.count(f"{PATH} prompts/list") == 1
    assert not any("tools/call" in operation for operation in asked)
    labels = (
        'fabric_calls_total{capability="test_simple_text",status="success",target_id="fixture",target_type="agent"}'
    )
    assert f"{labels} 1.0" in metrics


@wheres
@eras
async def test_one_agent_gets_only_so_many_requests_at_a_time(where: str, mode: str, tmp_path: Path) -> None:
    working = asyncio.Event()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        working.set()

    arguments = {"note": str(tmp_path / "note")}
    async with node_before(where, limits={"concurrent_calls_per_agent": 1}) as node, on(node, mode) as connected:
        call = asyncio.ensure_future(connected.call_tool("extra_wait", arguments, progress_callback=listen))
        await asyncio.wait_for(working.wait(), WAIT_TIMEOUT)
        with pytest.raises(MCPError) as refused:
            await connected.list_prompts()
        assert refused.value.data["error"]["code"] == "RATE_LIMITED"
        assert "busy" in refused.value.message
        call.cancel()

        async def is_free() -> bool:
            try:
                await connected.list_prompts()
            except MCPError:
                return False
            return True

        await eventually(is_free)


@wheres
async def test_a_stream_that_waits_for_news_takes_nobodys_place(where: str) -> None:
    headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with (
        node_before(where, limits={"concurrent_calls_per_agent": 1}) as node,
        asyncio.timeout(WAIT_TIMEOUT),
        node.client.post(node.url + PATH, json=body, headers=headers) as stream,
    ):
        assert (await stream.content.readline()).startswith(b"event: message")
        async with on(node, "legacy") as standing, on(node, "2026-07-28") as connected:
            await standing.list_prompts()
            assert (await connected.call_tool("test_simple_text", {})).content


@wheres
@eras
async def test_calls_are_counted_against_the_rate_and_lists_are_not(where: str, mode: str) -> None:
    async with node_before(where, limits={"calls_per_minute": 1}) as node, on(node, mode) as connected:
        await connected.call_tool("test_simple_text", {})
        await connected.list_prompts()
        with pytest.raises(MCPError) as refused:
            await connected.call_tool("test_simple_text", {})
        assert refused.value.data["error"]["code"] == "RATE_LIMITED"


async def test_a_client_that_is_too_fast_is_told_when_to_come_back() -> None:
    headers, body = modern("tools/call", {"name": "test_simple_text", "arguments": {}})
    async with node_before("http", limits={"calls_per_minute": 1}) as node:
        assert (await node.send("POST", PATH, json=body, headers=headers)).status == 200
        reply = await node.send("POST", PATH, json=body, headers=headers)
        assert (reply.status, reply.json["id"]) == (429, 1)
        assert int(reply.headers["retry-after"]) >= 1


async def test_a_server_that_fails_again_and_again_is_left_alone_for_a_while() -> None:
    headers, body = modern("tools/call", {"name": "any", "arguments": {}})
    async with node_before("http", breaker={"failures": 2}) as node:
        said = []
        for _ in range(3):
            reply = await node.send("POST", "/agents/gone/mcp", json=body, headers=headers)
            assert reply.status == 503
            said.append(reply.json["error"]["message"])
    assert "cannot be reached" in said[1]
    assert "failed 2 times in a row" in said[2]


@wheres
async def test_a_caller_who_leaves_is_a_call_that_was_cancelled(where: str, tmp_path: Path) -> None:
    arguments = {"note": str(tmp_path / "note")}
    params = {"name": "extra_wait", "arguments": arguments}
    headers, body = modern("tools/call", params, meta={"progressToken": 1})
    async with node_before(where) as node:
        given = {**headers, **HEADERS}
        async with asyncio.timeout(WAIT_TIMEOUT), node.client.post(node.url + PATH, json=body, headers=given) as stream:
            await stream.content.readline()
            stream.close()
        (line,) = await lines(node, calls=1)
        assert (line["event"], line["capability"], line["error_code"]) == ("call", "extra_wait", "CANCELLED")

        async def is_cancelled() -> bool:
            return (tmp_path / "note").exists()

        await eventually(is_cancelled)


@wheres
@eras
async def test_no_server_may_take_longer_than_the_node_allows(where: str, mode: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with node_before(where, limits={"max_timeout_ms": 10_000, "timeout_ms": 10_000}) as node:
        async with on(node, mode) as connected:
            assert (await connected.call_tool("test_simple_text", {})).content  # it has been started
            with pytest.raises(MCPError) as raised:
                await connected.call_tool("extra_wait", {"note": str(note)})
            assert "No answer within 10 s" in raised.value.message
            assert (await connected.call_tool("test_simple_text", {})).content

        async def is_cancelled() -> bool:
            return note.exists()

        await eventually(is_cancelled)


@eras
async def test_no_client_goes_on_talking_with_a_program_whose_agent_has_left(mode: str) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    others = children()
    async with node_before("stdio") as node, on(node, mode) as connected:
        await connected.call_tool("test_simple_text", {})
        assert children() - others
        source: Any = node.fabric.agents.sources[1]
        source._manifests = []
        await node.fabric.registry.load(source)

        async def all_are_gone() -> bool:
            return not children() - others

        await eventually(all_are_gone)
        with pytest.raises(MCPError):
            await connected.list_tools(cache_mode="bypass")
