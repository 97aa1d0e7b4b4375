"""The next interface of a card is used while the first one is dead, and the agent's health says so."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.testing.values import make_call
from tests.fixtures.agents.a2a_serving import serving
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.runtimes.a2a_bench import Bench

WAIT_TIMEOUT = 30.0


def dead_url() -> str:
    """Where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/rpc"


def card(*urls: str) -> dict[str, Any]:
    interfaces = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"} for url in urls]
    skills = [{"id": "say", "name": "Say"}]
    return {"name": "N", "skills": skills, "supportedInterfaces": interfaces, "capabilities": {"streaming": True}}


async def test_calls_go_to_the_next_interface_and_the_health_says_why_it_is_degraded() -> None:
    async with AsyncExitStack() as stack, serving("jsonrpc") as served:
        dead = dead_url()
        runtime = Bench(stack).runtime(card=card(dead, f"{served.url}/rpc"))
        for _ in range(2):
            result = await runtime(make_call("tested", "say", task="you"), ignore_event)
            assert result.data == {"answer": "heard you"}
        assert await runtime.health() == "degraded"
        assert runtime.health_reason == f"no answer from {dead.removesuffix('/rpc')}, which the card prefers"
        assert len(served.executor.sent) == 2


async def test_a_look_at_the_first_interface_does_not_cut_the_calls_on_the_next_one(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), AsyncExitStack() as stack, serving("grpc") as served:
        document = card(dead_url())
        living = {"url": served.grpc, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        document["supportedInterfaces"].append(living)
        runtime = Bench(stack).runtime(card=document)
        heard, go_on = Heard(), tmp_path / "go_on"
        calling = asyncio.create_task(runtime(call_of("wait", go_on=str(go_on), stream=True), heard))
        await until(lambda: "token" in heard.kinds, WAIT_TIMEOUT)
        assert await runtime.health() == "degraded"
        go_on.touch()
        assert (await calling).data == {"answer": "half and half"}
        assert served.rpcs == ["SendStreamingMessage"]  # its stream was read to the end


async def test_an_agent_without_a_living_interface_is_offline() -> None:
    async with AsyncExitStack() as stack:
        runtime = Bench(stack).runtime(card=card(dead_url(), dead_url()))
        with pytest.raises(AgentOffline):
            await runtime(make_call("tested", "say"), ignore_event)
        with pytest.raises(AgentOffline):
            await runtime.health()


async def test_the_first_interface_is_used_again_when_it_is_back() -> None:
    async with AsyncExitStack() as stack, serving("jsonrpc") as served, serving("jsonrpc") as other:
        runtime = Bench(stack).runtime(card=card(f"{served.url}/rpc", f"{other.url}/rpc"))
        runtime._dead_urls.add(f"{served.url}/rpc")  # as after a call that did not reach it
        await runtime(make_call("tested", "say", task="you"), ignore_event)
        assert (len(served.executor.sent), len(other.executor.sent)) == (0, 1)
        assert await runtime.health() == "online"
        assert runtime.health_reason is None
        await runtime(make_call("tested", "say", task="you"), ignore_event)
        assert len(served.executor.sent) == 1
