"""Agents made with the official A2A SDK behind the runtime: both versions over each of the three bindings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Principal, attachment_from_part, ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, UpstreamRefused
from a2a_fabric.core.propagation import format_traceparent
from a2a_fabric.core.result import Part
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from tests.fixtures.agents.a2a_agent import PAGE
from tests.fixtures.agents.a2a_serving import Served, serving
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.node import running
from tests.marks import requirement
from tests.matrix.agents.kind import CONTENT
from tests.runtimes.a2a_bench import LINES, Bench, our_tasks
from tests.runtimes.http_agents import dead_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_TIMEOUT = 30.0
on_every_line = pytest.mark.parametrize("line", LINES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everyday() -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3")) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Bench(stack)


@pytest.fixture
def agent(bench: Bench, everyday: Served, line: str) -> A2ARuntime:
    everyday.executor.sent.clear()
    return bench.on(line, everyday.url, headers={"X-Key": "secret"})


@requirement("001-56", "001-18")
@on_every_line
async def test_an_agent_may_answer_with_a_message_alone(agent: A2ARuntime) -> None:
    result = await agent(call_of("say", "good morning"), ignore_event)
    assert (result.data, result.parts) == ({"answer": "heard good morning"}, ())


@on_every_line
async def test_arguments_travel_as_data_and_words_as_text_with_the_skill_beside_them(
    agent: A2ARuntime, everyday: Served
) -> None:
    given: dict[str, Any] = {"number": -7, "ratio": 0.5, "items": [1, None, {"deep": []}], "": "no name"}
    result = await agent(replace_task(call_of("free", **given), "grüß dich"), ignore_event)
    assert result.data == {"seen": {"task": "grüß dich", "context": given}}
    assert type(result.data["seen"]["context"]["number"]) is int
    [sent] = everyday.executor.sent
    assert sent["metadata"].pop("traceparent").startswith("00-")
    assert sent["metadata"] == {"skill": "free"}
    assert [sorted(part.keys() & {"text", "data"}) for part in sent["parts"]] == [["text"], ["data"]]


def replace_task(call: Any, task: str) -> Any:
    return replace(call, input=replace(call.input, task=task))


@on_every_line
async def test_words_are_heard_as_they_are_said(agent: A2ARuntime, tmp_path: Path) -> None:
    heard, go_on = Heard(), tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on), stream=True), heard))
    await until(lambda: "token" in heard.kinds, WAIT_TIMEOUT)
    assert not asking.done()
    go_on.touch()
    result = await asking
    assert result.data == {"answer": "half and half"}
    assert [event.data["text"] for event in heard.events if event.kind == "token"] == ["half ", "and half"]
    states = [(event.data["status"], event.data.get("message")) for event in heard.events if event.kind == "status"]
    assert states == [("queued", None), ("running", None), ("running", "begun")]


@on_every_line
async def test_artifacts_of_every_kind_are_events_and_parts_of_the_result(agent: A2ARuntime) -> None:
    heard = Heard()
    result = await agent(call_of("everything", stream=True), heard)
    assert result.data == {"number": 7, "answer": "some words"}
    assert [(part.kind, part.mime_type, part.name) for part in result.parts] == [
        ("text", None, None),
        ("image", "image/png", "dot.png"),
        ("file", "text/html", None),
        ("json", None, None),
    ]
    assert result.parts[1].blob == "iVBORw0KGgoA/w=="
    assert result.parts[2].url == PAGE
    made = [event.data for event in heard.events if event.kind == "artifact"]
    assert [artifact["name"] for artifact in made] == ["note", "dot", "page", "data"]
    assert made[0]["parts"] == [{"kind": "text", "text": "some words"}]
    assert (await agent(call_of("everything"), ignore_event)) == result


@on_every_line
async def test_content_of_every_kind_comes_back_as_it_was_sent(agent: A2ARuntime, line: str) -> None:
    more = (
        Part(kind="file", url=PAGE, mime_type="text/html", name="page.html"),
        Part(kind="file", text="a,b\n1,2\n", mime_type="text/csv", name="table.csv"),
        Part(kind="json", data=[1, "two", None]),
        Part(kind="image", blob="AAEC", mime_type="image/png", meta={"of": "nothing"}),
    )
    call = call_of("show")
    sent = replace(call, input=replace(call.input, attachments=tuple(map(attachment_from_part, (*CONTENT, *more)))))
    result = await agent(sent, ignore_event)
    assert [part.kind for part in result.parts] == [part.kind for part in (*CONTENT, *more)]
    as_bytes: dict[str, Any] = {"text": None, "blob": "YSxiCjEsMgo="} if "0.3" in line else {}
    expected = [replace(part, **as_bytes) if part.name == "table.csv" else part for part in (*CONTENT, *more)]
    assert list(result.parts) == expected


@on_every_line
async def test_what_the_agent_refuses_rejects_or_fails_at_is_told_in_its_words(agent: A2ARuntime, line: str) -> None:
    kinds: dict[str, type[Exception]] = {"refuse": BadInput, "reject": UpstreamRefused, "fail": UpstreamRefused}
    if line == "http-0.3":
        del kinds["refuse"]  # the SDK's layer for 0.3 breaks the connection instead
    for capability, kind in kinds.items():
        for stream in (False, True):
            with pytest.raises(kind, match="not today") as caught:
                await agent(call_of(capability, reason="not today", stream=stream), ignore_event)
            assert caught.value.details["agent_id"] == "tested"  # type: ignore[attr-defined]


@on_every_line
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_leaving_cancels_the_task(agent: A2ARuntime, tmp_path: Path, *, stream: bool) -> None:
    note = tmp_path / "note"
    asking = asyncio.create_task(agent(call_of("sleep", note=str(note), stream=stream), ignore_event))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)


@on_every_line
async def test_calls_of_one_conversation_share_a_context(agent: A2ARuntime) -> None:
    async def context_of(name: str | None, who: str) -> str:
        call = replace(call_of("context"), auth=Principal(mode="psk", principal_id=who))
        call = replace(call, conversation_id=name) if name else call
        return str((await agent(call, ignore_event)).data["context"])

    first = await context_of("about bees", "percy")
    assert await context_of("about bees", "percy") == first
    others = [await context_of(*each) for each in (("about wasps", "percy"), ("about bees", "bee"), (None, "percy"))]
    assert len({first, *others}) == 4


@on_every_line
async def test_version_trace_and_credentials_go_with_every_request(agent: A2ARuntime, line: str) -> None:
    call = call_of("context")
    headers = (await agent(call, ignore_event)).data["headers"]
    assert headers["a2a-version"] == line.partition("-")[2]
    assert headers["traceparent"] == format_traceparent(call.trace)
    assert headers["x-key"] == "secret"


@on_every_line
async def test_tenants_and_extensions_are_named_as_the_version_has_it(
    bench: Bench, everyday: Served, line: str
) -> None:
    agent = bench.on(line, everyday.url, tenant="acme", extensions=["urn:a", "urn:b"])
    told = (await agent(call_of("context"), ignore_event)).data
    if line.endswith("1.0"):
        assert (told["tenant"], told["headers"]["a2a-extensions"]) == ("acme", "urn:a, urn:b")
    else:
        assert told["headers"]["x-a2a-extensions"] == "urn:a, urn:b"


@requirement("001-18", "001-56")
@on_every_line
async def test_the_card_fills_in_what_the_manifest_leaves_out(agent: A2ARuntime) -> None:
    found = await agent.describe()
    assert (found.display_name, found.version) == ("Everyday", "1.2.3")
    say = found.find_capability("say")
    assert say is not None
    assert say.description == "Answer at once.\nExamples: hello; good morning"
    assert (say.streaming, say.triggers) == (True, ("hello", "good morning"))
    assert say.modalities == ("text", "json", "image")
    assert await agent.health() == "online"


@requirement("001-18", "001-56")
async def test_an_id_and_an_address_are_enough_for_a_node(everyday: Served) -> None:
    least = {"agent_id": "planner", "runtime": "a2a", "endpoint": {"uri": everyday.url}}
    async with running(manifests=[least]) as node:
        registry = node.fabric.registry
        await until(lambda: any(agent.find_capability("say") for agent in registry.catalog.agents), WAIT_TIMEOUT)
        envelope = await node.ask("planner", "say", "good morning")
        assert envelope["result"] == {"answer": "heard good morning"}
        events = await node.events("planner", "everything")
        assert [event["event"] for event in events if event["event"] == "artifact"] == ["artifact"] * 4
        assert events[-1]["data"]["result"] == {"number": 7, "answer": "some words"}


async def test_what_the_operator_declares_wins_over_the_card(bench: Bench, everyday: Served) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    agent = bench.runtime(Capability(name="echo", description="Mine.", input_schema=schema), uri=everyday.url)
    [echo] = (await agent.describe()).capabilities
    assert (echo.description, echo.streaming) == ("Mine.", True)
    result = await agent(replace_task(call_of("echo", more=1), "words"), ignore_event)
    assert result.data == {"seen": {"text": "words", "more": 1}}


@pytest.mark.parametrize("blocking", [True, False])
@on_every_line
async def test_an_agent_without_streams_is_waited_for_or_asked_for_news(
    bench: Bench, line: str, tmp_path: Path, *, blocking: bool
) -> None:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3"), streaming=False) as served:
        agent, heard, go_on = bench.on(line, served.url, blocking=blocking), Heard(), tmp_path / "go_on"
        asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on), stream=True), heard))
        await until(lambda: bool(served.executor.sent), WAIT_TIMEOUT)
        go_on.touch()
        assert (await asking).data == {"answer": "half and half"}
        note = tmp_path / "note"
        asking = asyncio.create_task(agent(call_of("sleep", note=str(note)), ignore_event))
        await until(note.exists, WAIT_TIMEOUT)
        asking.cancel()
        if not (blocking and "0.3" in line):  # which task that was cannot be known
            await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)
        await agent.aclose()


@on_every_line
async def test_an_agent_that_is_not_there_is_offline(bench: Bench, line: str) -> None:
    agent = bench.on(line, f"http://127.0.0.1:{dead_port()}/")
    for asking in (agent(call_of("say"), ignore_event), agent.health(), agent.describe()):
        with pytest.raises(AgentOffline):
            await asking


@on_every_line
async def test_nothing_stays_behind(bench: Bench, everyday: Served, line: str, tmp_path: Path) -> None:
    agent, note = bench.on(line, everyday.url), tmp_path / "note"
    await agent(call_of("everything", stream=True), ignore_event)
    asking = asyncio.create_task(agent(call_of("sleep", note=str(note), stream=True), ignore_event))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    await asyncio.wait([asking])
    await agent.aclose()
    await agent.aclose()
    assert note.read_text() == "cancelled"
    await bench.context.http.aclose()
    await until(lambda: not our_tasks(), WAIT_TIMEOUT)


async def test_calls_share_connections(bench: Bench, everyday: Served) -> None:
    agent = bench.runtime(uri=everyday.url)
    await agent(call_of("say"), ignore_event)
    asked = len(everyday.requests)
    results = [await agent(call_of("say", str(number)), ignore_event) for number in range(5)]
    assert [result.data["answer"] for result in results] == [f"heard {number}" for number in range(5)]
    assert everyday.requests[asked:] == [("POST", "/rpc")] * 5  # and the card is not asked for again
