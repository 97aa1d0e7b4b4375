"""An agent made with the SDK of A2A 0.3, in a process and an environment of its own, behind the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from a2a_fabric.core.call import attachment_from_part, ignore_event
from a2a_fabric.core.errors import BadInput, UpstreamRefused
from a2a_fabric.core.result import Answer
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from tests.fixtures.agents.a2a_serving import Served, serving_v03
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.marks import requirement
from tests.matrix.agents.kind import CONTENT
from tests.runtimes.a2a_bench import Bench, answering

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_TIMEOUT = 30.0
BINDINGS = ["jsonrpc", "http", "grpc"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["streams", "plain"])
async def elder(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving_v03(plain=request.param == "plain") as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module", params=BINDINGS)
async def agent(elder: Served, request: pytest.FixtureRequest) -> AsyncIterator[A2ARuntime]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Bench(stack).runtime(uri=elder.url, binding=request.param)


@requirement("001-56", "001-18")
async def test_its_card_its_words_and_its_data_are_understood(agent: A2ARuntime) -> None:
    found = await agent.describe()
    assert (found.display_name, found.version) == ("Elder", "0.9")
    assert {"say", "echo", "count"} <= {capability.name for capability in found.capabilities}
    assert await agent.health() == "online"
    assert (await agent(call_of("say", "good day"), ignore_event)).data == {"answer": "heard good day"}
    given: dict[str, Any] = {"number": -7, "items": [1, None, {"deep": 0.5}]}
    assert (await agent(call_of("echo", **given), ignore_event)).data == {"seen": given}


async def test_what_it_makes_piece_by_piece_is_one_answer(agent: A2ARuntime, tmp_path: Path) -> None:
    (go_on := tmp_path / "go_on").touch()
    heard = Heard()
    result = await agent(call_of("count", words=["one ", "two"], go_on=str(go_on), stream=True), heard)
    assert result.data == {"answer": "one two", "counted": 2}
    told = "".join(event.data["text"] for event in heard.events if event.kind == "token")
    assert told in ("one two", "two", "")  # one that does not stream is looked at now and then


async def test_files_links_and_data_come_as_parts(agent: A2ARuntime) -> None:
    result = await agent(call_of("everything"), ignore_event)
    assert result.data == {"number": 7, "answer": "some words"}
    assert [part.kind for part in result.parts] == ["text", "image", "file", "json"]
    assert (result.parts[1].blob, result.parts[1].name) == ("iVBORw0KGgoA/w==", "dot.png")


async def test_content_of_every_kind_comes_back_as_it_was_sent(agent: A2ARuntime) -> None:
    call = call_of("show")
    sent = replace(call, input=replace(call.input, attachments=tuple(map(attachment_from_part, CONTENT))))
    assert (await agent(sent, ignore_event)).parts == CONTENT


async def test_its_questions_are_answered_in_the_same_task(agent: A2ARuntime) -> None:
    call = call_of("paint")
    result = await agent(call, ignore_event)
    assert result.asked is not None
    assert result.asked.message == "Which colour?"
    assert (await agent(answering(call, result, Answer(content="red")), ignore_event)).data == {"answer": "all in red"}


async def test_its_refusals_are_told_in_its_words(agent: A2ARuntime, request: pytest.FixtureRequest) -> None:
    if "streams-http" not in request.node.callspec.id:  # there this SDK only breaks the connection
        with pytest.raises(BadInput, match="not today"):
            await agent(call_of("refuse", reason="not today"), ignore_event)
    with pytest.raises(UpstreamRefused, match="not today"):
        await agent(call_of("fail", reason="not today"), ignore_event)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_cancels_its_work(agent: A2ARuntime, tmp_path: Path, *, stream: bool) -> None:
    note = tmp_path / "note"
    asking = asyncio.create_task(agent(call_of("sleep", note=str(note), stream=stream), ignore_event))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)
