"""The agents of the bench, in C and in Python, give the answers that the load expects."""

from __future__ import annotations

import sys

import pytest

from bench import agent, calls, load_native, load_python, processes
from bench.load import Limit, RequestPlan
from bench.mcp_wire import handshake, list_tools, stateless


def program() -> str:
    binary = load_native.program("agent")
    if binary is None:
        pytest.skip("there is no C compiler; install gcc or clang")
    return binary


@pytest.mark.parametrize("kind", ["C", "Python"])
async def test_the_mcp_server_answers_both_eras(kind: str) -> None:
    argv = (program(),) if kind == "C" else (sys.executable, "-m", "bench.mcp_upstream")
    port = processes.free_port()
    with processes.process(*argv, str(port)):
        processes.wait_for(port)
        plans = [
            stateless(port, "/mcp", "add"),
            list_tools(port, "/mcp", ""),
            handshake(port, "/mcp", "add"),
            handshake(port, "/events", "add"),
        ]
        for plan in plans:
            result = await load_python.run(port, plan, 2, Limit(calls=10), None)
            assert (result.calls, result.failures) == (10, 0), result.why
        refused = await load_python.run(port, stateless(port, "/events", "add"), 1, Limit(calls=1), None)
        assert refused.failures == 1


@pytest.mark.parametrize("kind", ["C", "Python"])
async def test_the_http_agent_answers_calls_and_streams(kind: str) -> None:
    argv = (program(),) if kind == "C" else (sys.executable, "-m", "bench.agent")
    port = processes.free_port()
    with processes.process(*argv, str(port)):
        processes.wait_for(port)
        target = calls.CallTarget("agent", port, 0)
        slow = RequestPlan([target.plan_calls().messages[0].replace(b"POST / ", b"POST /slow ")], b"forty-two")
        for plan, count in ((target.plan_calls(), 10), (slow, 2), (target.plan_streams(), 2)):
            result = await load_python.run(port, plan, 2, Limit(calls=count), None)
            assert (result.calls, result.failures) == (count, 0), result.why
        assert result.events == 2 * agent.EVENTS
