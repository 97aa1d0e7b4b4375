"""The client that the documents' authors published, against a live node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, running_in_thread
from tests.marks import requirement

sdk: Any = pytest.importorskip("fabric_a2a", reason="make install brings it: pip install fabric-a2a==0.1.0")
exceptions: Any = pytest.importorskip("fabric_a2a.exceptions")
models: Any = pytest.importorskip("fabric_a2a.models")
streaming: Any = pytest.importorskip("fabric_a2a.streaming")


def percy() -> Agent:
    agent = Agent("percy", description="Thinks.", display_name="Percy", tags=["thinker"])

    @agent.capability
    async def reason(task: str, depth: int = 1) -> dict[str, Any]:
        """Repeat the task."""
        return {"answer": task, "depth": depth}

    @agent.capability(max_timeout_ms=5000)
    async def plan(task: str) -> Any:
        """Think aloud."""
        for word in task.split():
            yield word

    return agent


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base: Path = tmp_path_factory.mktemp("node")
    (base / "note.txt").write_text("one\ntwo\n")
    with running_in_thread(percy(), base=base, config={"tools": {"io_root": "."}}) as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with sdk.FabricClient(url, token=PSK, timeout=10, max_retries=0) as found:
        yield found


@requirement("000-20", "000-28")
def test_it_reads_health(client: Any) -> None:
    health = client.health()
    assert (health.status, health.version) == ("ok", "af-mcp-0.1")


@requirement("001-02", "000-23")
def test_it_lists_and_filters_agents(client: Any) -> None:
    [agent] = client.agents.list()
    assert (agent.agent_id, agent.display_name, agent.tags) == ("percy", "Percy", ["thinker"])
    assert agent.has_capability("reason")
    assert client.agents.find_by_capability("nothing") == []
    assert client.list_agents(tag="thinker")[0]["agent_id"] == "percy"
    assert client.list_agents(status="offline") == []


@requirement("001-03")
def test_it_reads_one_agent(client: Any) -> None:
    agent = client.agents.get("percy")
    assert agent.agent_id == "percy"
    assert [c.max_timeout_ms for c in agent.capabilities] == [60000, 5000]
    assert client.agents.get_capabilities("percy") == ["reason", "plan"]
    assert client.agents.get("nobody") is None


@requirement("000-09")
def test_it_calls_an_agent(client: Any) -> None:
    result = client.agents.call("percy", "reason", "why?", context={"depth": 3})
    assert result.success
    assert result.result == {"answer": "why?", "depth": 3}
    assert UUID(result.trace.trace_id)
    assert client.agents.call_simple("percy", "reason", "why?") == "why?"
    streamed = client.agents.call("percy", "plan", "a b", stream=True)  # it takes only JSON, so it gets one reply
    assert streamed.result == {"answer": "ab"}


@requirement("000-11", "001-43")
def test_it_types_our_errors(client: Any, url: str) -> None:
    with pytest.raises(exceptions.AgentNotFoundError):
        client.agents.call("nobody", "reason", "x")
    with pytest.raises(exceptions.CapabilityNotFoundError):
        client.agents.call("percy", "sing", "x")
    refused = client.agents.call("percy", "reason", "x", context={"depth": "deep"})
    assert not refused.success
    assert refused.error_code == "BAD_INPUT"
    with pytest.raises(exceptions.FabricError) as caught:
        refused.raise_for_error()
    assert caught.value.trace_id == refused.trace.trace_id
    with sdk.FabricClient(url, token="wrong", max_retries=0) as stranger, pytest.raises(exceptions.AuthenticationError):
        stranger.agents.list()


def test_it_is_told_when_it_calls_too_often() -> None:
    with (
        running_in_thread(percy(), config={"limits": {"calls_per_minute": 1}}) as url,
        sdk.FabricClient(url, token=PSK, max_retries=0) as client,
    ):
        client.agents.call("percy", "reason", "x")
        with pytest.raises(exceptions.RateLimitError) as caught:
            client.agents.call("percy", "reason", "x")
    assert 1 <= caught.value.retry_after <= 60


@requirement("000-08", "000-15", "000-16")
def test_it_uses_the_tools(client: Any) -> None:
    assert client.tools.math.calculate("6 * 7") == 42
    assert {"math.calculate", "io.read_file"} <= {tool["tool_id"] for tool in client.tools.list()}
    assert client.list_tools(category="math")
    assert client.tools.call("security.hash", data="x", algorithm="sha256")["algorithm"] == "sha256"
    assert client.tools.io.read_file("note.txt").line_count == 2


def test_it_reads_the_status(client: Any) -> None:
    status = models.ServerStatus(**client._make_request("GET", "/monitoring/status"))
    assert [agent.agent_id for agent in status.available_agents] == ["percy"]
    assert "math.calculate" in {tool.tool_id for tool in status.available_tools}


@requirement("001-22", "000-22")
async def test_it_parses_our_streams(url: str) -> None:
    arguments = {"agent_id": "percy", "capability": "plan", "task": "a b", "stream": True}
    body = {"name": "fabric.call", "arguments": arguments}
    headers = {"Authorization": f"Bearer {PSK}"}
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/mcp/call", json=body) as response,
    ):
        events = [event async for event in streaming.StreamIterator(response)]
    assert [event.event for event in events] == ["status", "token", "token", "final"]
    assert [event.data.get("text") for event in events[1:3]] == ["a", "b"]
    assert len({event.trace_id for event in events}) == 1
    assert events[-1].data["answer"] == "ab"


async def test_its_async_form_works_too(url: str) -> None:
    async with sdk.AsyncFabricClient(url, token=PSK) as client:
        assert (await client.health()).version == "af-mcp-0.1"
        assert (await client.list_agents(capability="plan"))[0]["agent_id"] == "percy"
        arguments = {"agent_id": "percy", "capability": "reason", "task": "why?"}
        assert (await client.call("fabric.call", arguments)).result["answer"] == "why?"
