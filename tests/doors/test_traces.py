"""Spans for OpenTelemetry: one tree over nodes and protocols, sampling, and collectors that are away or slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.telemetry.export import Sampler
from a2a_fabric.telemetry.recorder import build_sampler, choose_protocol
from a2a_fabric.telemetry.settings import TracingSettings
from tests.fixtures.node import PSK, Node, eventually, running
from tests.fixtures.otlp import Collector, grpc_collector, http_collector
from tests.marks import requirement

SERVER, CLIENT = 2, 3
HEADERS = {"Authorization": f"Bearer {PSK}"}
TRACEPARENT = "00-{}-00f067aa0ba902b7-{}"


def make_percy() -> Agent:
    percy = Agent("percy", description="Answers")

    @percy.capability
    async def reason(task: str) -> str:
        """Answers a question."""
        return f"because {task}"

    return percy


def trace_to(collector: Collector, node_id: str, protocol: str = "http", **more: Any) -> dict[str, Any]:
    tracing = {"protocol": protocol, "endpoint": collector.endpoint, **more}
    return {"store": "memory:", "node_id": node_id, "tracing": tracing, "health": {"interval": 0}}


async def read_metric(node: Node, outcome: str) -> float:
    page = (await node.send("GET", "/metrics")).body.decode()
    line = next(line for line in page.splitlines() if line.startswith(f'fabric_spans_total{{outcome="{outcome}"}}'))
    return float(line.rpartition(" ")[2])


@requirement("001-57", "001-49", "001-53")
async def test_a_call_over_three_nodes_and_four_protocols_is_one_tree() -> None:
    """Fabric's wire to the first node, A2A to the second, MCP to the third, HTTP to the agent."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            seen.append(request.headers["traceparent"])
        return web.json_response({"ok": True, "result": {"answer": "done"}})

    app = web.Application()
    app.router.add_route("*", "/run", answer)
    async with http_collector() as by_http, grpc_collector() as by_grpc, TestServer(app) as agent:
        worker = {
            "agent_id": "worker",
            "runtime": "http",
            "endpoint": {"uri": str(agent.make_url("/run"))},
            "capabilities": [{"name": "work", "input_schema": {"type": "object"}}],
        }
        async with running(manifests=[worker], config=trace_to(by_http, "three")) as third:
            over_mcp = {
                "agent_id": "middle",
                "runtime": "mcp",
                "endpoint": {"uri": f"{third.url}/agents/worker/mcp", "headers": HEADERS},
            }
            async with running(manifests=[over_mcp], config=trace_to(by_grpc, "two", "grpc")) as second:
                over_a2a = {
                    "agent_id": "far",
                    "runtime": "a2a",
                    "endpoint": {"uri": f"{second.url}/agents/middle", "headers": HEADERS},
                }
                async with running(manifests=[over_a2a], config=trace_to(by_http, "one")) as first:
                    given = {"agent_id": "far", "capability": "work", "task": "", "context": {}}
                    caller = TRACEPARENT.format("4bf92f3577b34da6a3ce929d0e0e4736", "01")
                    envelope = await first.operation("fabric.call", given, headers={"traceparent": caller})
                    assert envelope["ok"], envelope
                    trace_id = envelope["trace"]["trace_id"]
                    spans = await by_http.wait_for(6, trace_id) + await by_grpc.wait_for(4, trace_id)
    by_id = {span["span_id"]: span for span in spans}
    assert len(by_id) == len(spans), "no two spans have the same id"
    (root,) = [span for span in spans if span["parent_span_id"] not in by_id]
    assert (root["node"], root["parent_span_id"]) == ("one", "00f067aa0ba902b7")
    assert {span["node"] for span in spans} == {"one", "two", "three"}
    (leaf,) = [span for span in spans if span["span_id"] == seen[-1].split("-")[2]]
    assert (leaf["node"], leaf["kind"], leaf["attributes"]["fabric.runtime"]) == ("three", CLIENT, "http")
    path = [leaf]
    while path[-1]["parent_span_id"] in by_id:
        path.append(by_id[path[-1]["parent_span_id"]])
    names = [span["name"].split()[0] for span in reversed(path)]
    assert names == ["fabric", "attempt", "a2a", "job", "a2a", "attempt", "mcp", "mcp", "attempt", "http"]
    assert root["kind"] == SERVER
    assert all(span["service"] == "a2a-fabric" for span in spans)
    assert all(span["nanoseconds"] >= 0 for span in spans)


@requirement("001-57")
async def test_the_flag_of_the_caller_decides_and_a_share_of_new_traces_is_sent() -> None:
    async with (
        http_collector() as collector,
        running(make_percy(), config=trace_to(collector, "one", ratio=0.0)) as node,
    ):
        kept, left_out = "4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"
        given = {"agent_id": "percy", "capability": "reason", "task": "x"}
        for trace_id, flag in ((left_out, "00"), (kept, "01")):
            headers = {"traceparent": TRACEPARENT.format(trace_id, flag)}
            assert (await node.operation("fabric.call", given, headers=headers))["ok"]
        await node.operation("fabric.call", given)
        await collector.wait_for(3, kept)
    assert {span["trace_id"] for span in collector.spans} == {kept}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_collector_that_is_away_costs_calls_nothing_and_is_counted(protocol: str) -> None:
    away = {"protocol": protocol, "endpoint": "http://127.0.0.1:9", "timeout_seconds": 0.5}
    async with running(make_percy(), config={"store": "memory:", "tracing": away, "health": {"interval": 0}}) as node:
        assert (await node.ask("percy", "reason"))["ok"]

        async def is_counted() -> bool:
            return await read_metric(node, "failed") >= 1

        await eventually(is_counted)
        assert (await node.ask("percy", "reason"))["ok"]


async def test_a_collector_that_refuses_costs_calls_nothing_and_is_counted() -> None:
    async with http_collector() as collector:
        collector.refuses = True
        async with running(make_percy(), config=trace_to(collector, "one")) as node:
            assert (await node.ask("percy", "reason"))["ok"]

            async def is_counted() -> bool:
                return await read_metric(node, "failed") >= 1

            await eventually(is_counted)
            assert (await node.ask("percy", "reason"))["ok"]
            collector.refuses = False

            async def is_sent() -> bool:
                await node.ask("percy", "reason")
                return await read_metric(node, "sent") >= 1

            await eventually(is_sent)
            node.fabric.telemetry.log.flush()
            lines = [line for line in node.log.getvalue().splitlines() if "spans" in line]
            assert len([line for line in lines if "cannot be sent" in line]) == 1, "an outage is one line"
            assert len([line for line in lines if "again" in line]) == 1


async def test_a_slow_collector_fills_the_queue_and_calls_go_on() -> None:
    async with http_collector() as collector:
        collector.release = asyncio.Event()
        async with running(make_percy(), config=trace_to(collector, "one", queue=2)) as node:
            for _ in range(100):
                assert (await node.ask("percy", "reason"))["ok"]
            assert await read_metric(node, "dropped") >= 30
            collector.release.set()


async def test_jobs_and_messages_are_spans_and_failures_have_their_code() -> None:
    async with http_collector() as collector, running(make_percy(), config=trace_to(collector, "one")) as node:
        started = await node.ask("percy", "reason", "later", **{"async": True})
        spans = await collector.wait_for(4, started["trace"]["trace_id"])
        job = next(span for span in spans if span["name"].startswith("job"))
        run = next(span for span in spans if span["kind"] == SERVER)
        assert run["parent_span_id"] == job["span_id"]
        posted = await node.send(
            "POST",
            "/v1/messages",
            json={"recipient": {"id": "percy", "type": "agent"}, "parts": [{"type": "text", "content": "hello"}]},
        )
        assert posted.status < 300, posted.body
        found = await collector.wait_for(4, posted.headers["x-trace-id"])
        assert any(span["name"] == "message percy.reason" for span in found)
        failed = await node.ask("nobody", "reason")
        (span,) = await collector.wait_for(1, failed["trace"]["trace_id"])
        assert (span["status"], span["attributes"]["error.type"]) == (2, "AGENT_NOT_FOUND")


def test_standard_variables_choose_protocol_and_sampler() -> None:
    unset = TracingSettings()
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert choose_protocol(unset, {}) is None
    assert choose_protocol(unset, endpoint) == "http"
    assert choose_protocol(unset, {**endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) == "grpc"
    assert choose_protocol(unset, {**endpoint, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert choose_protocol(unset, {**endpoint, "OTEL_SDK_DISABLED": "true"}) is None
    assert choose_protocol(TracingSettings(protocol="off"), endpoint) is None
    assert choose_protocol(TracingSettings(protocol="grpc"), {}) == "grpc"
    with pytest.raises(ConfigError, match="http/protobuf or grpc"):
        choose_protocol(unset, {**endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    new, continued = ("4bf92f35-77b3-4da6-a3ce-929d0e0e4736", None, None), ("4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "x")
    assert not build_sampler(unset, ratio).takes(*new)
    assert build_sampler(unset, ratio).takes(*continued, None)
    assert not build_sampler(unset, {"OTEL_TRACES_SAMPLER": "always_off"}).takes(*continued, None)
    for wrong in ({"OTEL_TRACES_SAMPLER": "xray"}, {**ratio, "OTEL_TRACES_SAMPLER_ARG": "many"}):
        with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
            build_sampler(unset, wrong)


def test_the_ratio_takes_its_share_and_nodes_decide_alike() -> None:
    ids = [f"00000000-0000-4000-{number:04x}-{number:012x}" for number in range(0, 65536, 64)]
    taken = [trace_id for trace_id in ids if Sampler(0.25).takes(trace_id, None, None)]
    assert len(taken) == len(ids) // 4
    assert taken == [trace_id for trace_id in ids if Sampler(0.25).takes(trace_id, None, None)]
