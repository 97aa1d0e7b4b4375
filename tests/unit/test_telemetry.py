from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.call import Call, Handler, compose, ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.propagation import current_trace, process_trace
from a2a_fabric.core.result import Result
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.steps.entry import observe
from a2a_fabric.telemetry.log import JSONHandler, LogWriter, capture_log_records
from a2a_fabric.telemetry.metrics import AgentGauges, Metrics
from a2a_fabric.telemetry.observer import Telemetry
from a2a_fabric.testing import ScriptedRuntime, Turn
from tests.marks import requirement
from tests.unit.made import agent, call, validate

SCHEMA = {"type": "object", "properties": {"depth": {"type": "integer"}}}
PERCY = agent("percy", Capability(name="reason", input_schema=SCHEMA), Capability(name="plan"))
TOOL = agent("math.calculate", "eval", category="math")
WAIT_TIMEOUT = 30.0


class Station:
    """A pipeline that is observed: one agent, its log, its metrics."""

    def __init__(self, script: Any = ({},), *, payloads: bool = False, **log: Any) -> None:
        self.stream = io.StringIO()
        self.metrics = Metrics("1.2.3")
        self.writer = LogWriter(self.stream, **log)
        find = Catalog([PERCY, TOOL]).get
        telemetry = Telemetry(self.writer, self.metrics, find, payloads=payloads)
        self.runtime = ScriptedRuntime(PERCY, script)
        steps = [observe(telemetry), validate(find)]
        self.handler: Handler = compose(steps, self.runtime)

    async def ask(self, wanted: Call | None = None) -> None:
        with suppress(FabricError):
            await self.handler(wanted or call(), ignore_event)

    @property
    def text(self) -> str:
        self.writer.close()
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    async def samples(self) -> list[tuple[str, dict[str, str], float]]:
        families = text_string_to_metric_families((await self.metrics.render_exposition()).decode())
        return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    ours = logging.getLogger("a2a_fabric.test")
    ours.propagate = False
    ours.setLevel(logging.DEBUG)
    yield ours
    ours.handlers.clear()


@requirement("001-48")
async def test_every_call_leaves_one_json_line_with_its_trace() -> None:
    station = Station([{"answer": "x"}, AgentOffline("nobody listens")])
    first, second = call(), call(capability="plan", stream=True)
    await station.ask(first)
    await station.ask(second)
    good, bad = station.lines
    assert (good["trace_id"], good["span_id"]) == (first.trace.trace_id, first.trace.span_id)
    assert (good["event"], good["level"], good["status"]) == ("call", "info", "completed")
    assert (good["principal"], good["auth_mode"], good["target"], good["capability"]) == (
        "alice",
        "psk",
        "percy",
        "reason",
    )
    assert good["duration_ms"] >= 0
    assert (bad["trace_id"], bad["error_code"], bad["error"]) == (
        second.trace.trace_id,
        "AGENT_OFFLINE",
        "nobody listens",
    )
    assert (bad["level"], bad["status"], bad["streaming"]) == ("warning", "failed", True)


@requirement("001-48")
async def test_what_is_logged_while_a_call_runs_carries_its_trace(logger: logging.Logger) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    logger.addHandler(JSONHandler(writer))

    async def talkative(wanted: Call, emit: object) -> Any:
        await asyncio.sleep(0)
        logger.info("half way of %s", wanted.target.agent_id)
        raise UpstreamRefused("no")

    wanted = [call() for _ in range(3)]
    handler = observe(Noted())(talkative)
    await asyncio.gather(*(handler(each, ignore_event) for each in wanted), return_exceptions=True)
    try:
        raise ValueError("a bug")
    except ValueError:
        logger.exception("outside")
    writer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["trace_id"] for line in lines[:3]] == [each.trace.trace_id for each in wanted]
    assert lines[0]["message"] == "half way of percy"
    assert lines[3]["trace_id"] == process_trace.trace_id == current_trace.get().trace_id
    assert "ValueError: a bug" in lines[3]["traceback"]


class Noted:
    """An observer that keeps the codes."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def record_success(self, call: Call, result: Result, seconds: float) -> None:
        self.codes.append("")

    def record_failure(self, call: Call, code: str, message: str, seconds: float, attempts: object = ()) -> None:
        self.codes.append(code)


async def test_a_caller_who_leaves_and_a_bug_are_told_apart() -> None:
    noted = Noted()
    slow = ScriptedRuntime(PERCY, [Turn(answer={}, delay=30), ZeroDivisionError()])
    handler = observe(noted)(slow)
    task = asyncio.ensure_future(handler(call(), ignore_event))
    await asyncio.wait_for(slow.called.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ZeroDivisionError):
        await handler(call(), ignore_event)
    assert noted.codes == ["CANCELLED", "INTERNAL_ERROR"]


@requirement("001-48")
async def test_neither_payload_nor_secret_is_written_unless_asked_for() -> None:
    station = Station([{"answer": "the-answer-inside"}])
    await station.ask(call(task="the-task-inside", context={"k": "the-context-inside"}))
    await station.ask(call(task="the-task-inside", context={"depth": "the-context-inside"}))
    assert [line["status"] for line in station.lines] == ["completed", "failed"]
    assert "inside" not in station.text


async def test_payloads_are_written_when_asked_for() -> None:
    station = Station([{"answer": "the-answer"}], payloads=True)
    await station.ask(call(task="the-task"))
    (line,) = station.lines
    assert (line["input"]["task"], line["output"]) == ("the-task", {"answer": "the-answer"})


async def test_a_payload_that_is_no_json_costs_no_other_line() -> None:
    station = Station([{"answer": object()}, {"answer": "\ud800"}, {}], payloads=True)
    for _ in range(3):
        await station.ask()
    first, second, third = station.lines
    assert "output" in first
    assert "output" in second
    assert third["output"] == {}


async def test_only_lines_of_the_wanted_level_are_written() -> None:
    station = Station([{}, AgentOffline("gone")], level="warning")
    await station.ask()
    await station.ask()
    assert [line["error_code"] for line in station.lines] == ["AGENT_OFFLINE"]


async def test_lines_stay_short_whatever_callers_and_agents_write() -> None:
    station = Station([UpstreamRefused("x" * 1_000_000)])
    await station.ask(call("a" * 100_000, "b" * 100_000))
    await station.ask()
    assert all(len(line) < 3000 for line in station.text.splitlines())


async def test_text_for_a_terminal_cannot_be_forged_by_a_name() -> None:
    station = Station(as_text=True)
    await station.ask(call("percy\n12:00:00 info evil", "\x1b[2Jreason\r\x9b"))
    assert len(station.text.splitlines()) == 1
    assert not set(station.text) & set("\x1b\r\x9b")


class Pipe:
    """A log stream whose reader takes his time."""

    def __init__(self, **log: Any) -> None:
        self._reading, self._writing = os.pipe()
        self._stream = os.fdopen(self._writing, "w")
        self.writer = LogWriter(self._stream, **log)
        self._telemetry = Telemetry(self.writer, Metrics("1"), Catalog([PERCY]).get)

    def log_one(self) -> None:
        self._telemetry.record_failure(call(), "TIMEOUT", "y" * 500, 0.1)

    def fill(self) -> None:
        """Until the writer's thread hangs in the full pipe."""
        for _ in range(500):
            self.log_one()
        ends = time.monotonic() + WAIT_TIMEOUT
        while select.select([], [self._writing], [], 0)[1]:
            assert time.monotonic() < ends
            time.sleep(0.005)

    def read_until(self, wanted: bytes) -> bytes:
        received, ends = b"", time.monotonic() + WAIT_TIMEOUT
        while wanted not in received and time.monotonic() < ends:
            if select.select([self._reading], [], [], 0.1)[0]:
                received += os.read(self._reading, 1 << 20)
        return received

    def close(self) -> None:
        os.close(self._reading)
        self.writer.close()
        with suppress(OSError):
            self._stream.close()


@requirement("001-48")
def test_an_unread_stream_blocks_neither_calls_nor_the_end() -> None:
    pipe = Pipe()
    pipe.fill()
    started = time.monotonic()
    for _ in range(2000):
        pipe.log_one()
    pipe.writer.close()
    assert time.monotonic() - started < WAIT_TIMEOUT
    pipe.close()


def test_a_writer_that_falls_behind_drops_lines_and_says_how_many() -> None:
    pipe = Pipe(buffer_size=1000)
    pipe.fill()
    for _ in range(1500):
        pipe.log_one()
    received = pipe.read_until(b"were dropped")
    pipe.close()
    told = re.search(rb"(\d+) log lines were dropped", received)
    assert told is not None
    dropped = int(told[1])
    assert dropped >= 500  # more, if some of the first waited behind those that fill the pipe
    assert dropped + received.count(b'"error_code":"TIMEOUT"') == 2000


def test_a_broken_log_record_does_not_break_who_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    handler = JSONHandler(writer)
    for message, given in (("%d", "not a number"), ("next %s", "one")):
        handler.handle(logging.LogRecord("x", logging.INFO, __file__, 1, message, (given,), None))
    writer.close()
    assert json.loads(stream.getvalue())["message"] == "next one"
    assert "not a number" in capsys.readouterr().err


def test_nodes_of_one_process_keep_their_log_levels_and_leave_none_behind() -> None:
    ours, streams = logging.getLogger("a2a_fabric"), [io.StringIO(), io.StringIO()]
    before = ours.level
    loud, quiet = LogWriter(streams[0]), LogWriter(streams[1], level="error")
    first, second = ExitStack(), ExitStack()
    first.enter_context(capture_log_records(quiet))
    second.enter_context(capture_log_records(loud))
    ours.info("both run")
    first.close()
    ours.info("one runs")
    second.close()
    assert ours.level == before
    for writer in (loud, quiet):
        writer.close()
    written = [json.loads(line)["message"] for line in streams[0].getvalue().splitlines()]
    assert (written, streams[1].getvalue()) == (["both run", "one runs"], "")


EXPECTED = {
    "fabric_calls_total": {"target_type", "target_id", "capability", "status"},
    "fabric_call_duration_seconds_count": {"target_type", "target_id", "capability"},
    "fabric_tool_calls_total": {"tool_id", "status"},
    "fabric_tool_duration_seconds_count": {"tool_id"},
    "fabric_errors_total": {"error_code", "target_type"},
    "fabric_auth_attempts_total": {"auth_mode", "status"},
    "fabric_active_streams": set(),
    "fabric_server_info": {"version"},
    "fabric_agent_status": {"agent_id"},
    "fabric_agent_last_seen_timestamp": {"agent_id"},
    "fabric_registry_agents": {"status"},
    "fabric_registry_tools": {"category"},
    "fabric_uptime_seconds": set(),
}


@requirement("001-48")
async def test_metrics_carry_the_documented_names_and_labels() -> None:
    station = Station([{}, AgentOffline("x")])
    states = {"percy": Health(status="degraded", seen_at=5.0)}
    station.metrics.add_source(
        AgentGauges(lambda: [PERCY, agent("b")], lambda: [TOOL], lambda name: states.get(name, Health())).render
    )
    for wanted in (call(), call(), call("math.calculate", "eval")):
        await station.ask(wanted)
    station.metrics.count_auth_attempt("psk", "success")
    station.writer.close()
    samples = await station.samples()
    labels = {name: set(labels) for name, labels, _ in samples}
    assert {name: labels.get(name) for name in EXPECTED} == EXPECTED
    values = {(name, *sorted(labels.items())): value for name, labels, value in samples}
    reason = (("capability", "reason"), ("status", "success"), ("target_id", "percy"), ("target_type", "agent"))
    assert values["fabric_calls_total", *reason] == 1
    assert values["fabric_errors_total", ("error_code", "AGENT_OFFLINE"), ("target_type", "agent")] == 1
    assert values["fabric_agent_status", ("agent_id", "percy")] == 0.5
    assert values["fabric_agent_status", ("agent_id", "b")] == -1
    assert values["fabric_agent_last_seen_timestamp", ("agent_id", "percy")] == 5.0
    assert values["fabric_registry_tools", ("category", "math")] == 1


@requirement("001-48")
async def test_no_caller_can_add_series_to_the_metrics() -> None:
    station = Station([BadInput("x"), {}])
    await station.ask()
    await station.ask(call("nobody", "anything"))
    before = len(await station.samples())
    for number in range(200):
        await station.ask(call(f"agent-{number}", f"capability-{number}"))
        await station.ask(call("percy", f"capability-{number}"))
    station.writer.close()
    after = await station.samples()
    assert not [labels for _, labels, _ in after if any("-1" in value for value in labels.values())]
    assert len(after) <= before * 2


async def test_a_capability_is_counted_under_its_declared_name() -> None:
    metrics = Metrics("1")
    manifest: Manifest = agent("cook", "parse-recipe")
    metrics.get_tally(manifest, "PARSE_RECIPE", None).add(0.1)
    assert b'capability="parse-recipe"' in await metrics.render_exposition()
    assert b"PARSE_RECIPE" not in await metrics.render_exposition()


async def test_agents_that_left_leave_the_metrics_once_there_are_many() -> None:
    """A caller that may register agents chooses their ids, and registers another one each time."""
    station = Station()
    telemetry = Telemetry(station.writer, station.metrics, Catalog([PERCY, TOOL]).get)
    await compose([observe(telemetry)], station.runtime)(call(), ignore_event)
    for number in range(30_000):
        telemetry.record_status_change(f"guest-{number}", "unknown", "offline", "it is not there")
        telemetry.on_catalog_changed(Catalog([PERCY]))
    telemetry.record_status_change("percy", "unknown", "online", "it answered")
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    telemetry.metrics.count_fallback("percy", "guest-1", "timeout")
    await compose([observe(telemetry)], station.runtime)(call(), ignore_event)
    station.writer.close()
    samples = await station.samples()
    assert len([1 for name, _, _ in samples if name == "fabric_agent_status_changes_total"]) < 15_000
    [calls] = [
        value for name, labels, value in samples if name == "fabric_calls_total" and labels["target_id"] == "percy"
    ]
    assert calls == 2


async def test_a_million_label_values_are_counted_together() -> None:
    """Agents may register under any name, so a flood of names must not become a flood of rows."""
    metrics = Metrics("1", max_rows=1000)
    for number in range(1_000_000):
        manifest = Manifest(agent_id=f"guest-{number}", endpoint={}, capabilities=(Capability(name="act"),))
        metrics.get_tally(manifest, "act", None).add(0.1)
    for number in range(5000):
        metrics.count_retry(f"guest-{number}", is_made=True)
        metrics.count_status_change(f"guest-{number}", "online")
        metrics.count_fallback(f"guest-{number}", "percy", "timeout")
        metrics.get_tally(None, "act", f"CODE_{number}").add(0.1)
    text = (await metrics.render_exposition()).decode()
    assert metrics.row_count < 6000
    labels = 'capability="other",status="success",target_id="other",target_type="agent"'
    assert f"fabric_calls_total{{{labels}}} 999000.0" in text
    assert 'fabric_errors_total{error_code="other",target_type="agent"}' in text
    assert 'fabric_retries_total{status="made",target_id="other"} 4000.0' in text
    assert len(text) < 3_000_000
