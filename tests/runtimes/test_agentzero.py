"""The runtime `agentzero` by FastA2A, in front of that library itself, which runs in an environment of its own."""

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
from a2a_fabric.core.errors import BadInput, CallTimeout, UpstreamRefused
from a2a_fabric.core.result import Answers, Part, Result
from a2a_fabric.runtimes.agentzero import build
from tests.fixtures.agents.calling import HERE, Heard, until
from tests.fixtures.node import tasks_are_down_to
from tests.fixtures.peers import peer
from tests.marks import requirement
from tests.runtimes.remote_bench import WAIT_TIMEOUT, Bench, Remote, answering, call_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "the-token"
NAMES = ("ask", "echo", "refuse", "sleep", "recall", "book", "mirror", "project", "silent")
OFFERED = tuple(Capability(name=name) for name in NAMES)  # of several, the agent is told which one is meant


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    async with peer("acp", HERE / "agentzero_server.py") as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(server: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, build, HERE)


@pytest.fixture
def zero(bench: Bench, server: str) -> Remote:
    return bench(*OFFERED, uri=server, token=TOKEN)


@requirement("001-14", "001-18")
async def test_a_task_is_followed_until_the_agent_has_spoken(bench: Bench, server: str) -> None:
    least = bench(uri=server, token=TOKEN)
    assert await least.ask("general_assistance", "hello") == Result(data={"answer": "HELLO"})


@requirement("001-14", "001-18")
async def test_the_card_is_found_and_its_skills_are_capabilities(bench: Bench, server: str) -> None:
    manifest = await bench(uri=server, token=TOKEN).runtime.describe()
    assert [capability.name for capability in manifest.capabilities] == ["general_assistance"]
    assert not manifest.capabilities[0].streaming
    assert (manifest.display_name, manifest.version, manifest.tags) == ("Agent Zero", "1.0.0", ("ai", "code"))


@requirement("001-14")
@pytest.mark.parametrize(
    "endpoint",
    [
        {"token": TOKEN},
        {"token": TOKEN, "token_in_path": True},
        {"headers": {"authorization": f"Bearer {TOKEN}"}},
        {"path": "/a2a", "token": TOKEN},
        {"path": f"/a2a/t-{TOKEN}/"},
    ],
    ids=["headers", "path", "own header", "full address", "address with token"],
)
async def test_the_token_goes_where_it_is_wanted(bench: Bench, server: str, endpoint: dict[str, Any]) -> None:
    where = {"uri": server + endpoint.get("path", ""), **{k: v for k, v in endpoint.items() if k != "path"}}
    remote = bench(**where)
    assert (await remote.ask("x", "hello")).data == {"answer": "HELLO"}
    assert (await remote.runtime.describe()).display_name == "Agent Zero"


@pytest.mark.parametrize("in_path", [False, True])
async def test_a_wrong_token_is_a_refusal_that_does_not_tell_it(bench: Bench, server: str, in_path: bool) -> None:
    remote = bench(uri=server, token="hush", token_in_path=in_path)
    for failing in (remote.ask("x", "hello"), remote.runtime.describe()):
        with pytest.raises(UpstreamRefused, match="credentials") as caught:
            await failing
        assert "hush" not in caught.value.message + str(caught.value.details)


@requirement("001-14")
@pytest.mark.parametrize("in_path", [False, True])
async def test_the_project_is_told_either_way(bench: Bench, server: str, in_path: bool) -> None:
    remote = bench(*OFFERED, uri=server, token=TOKEN, token_in_path=in_path, project="garden")
    assert (await remote.ask("project", "which?")).data == {"answer": "garden"}


async def test_arguments_go_in_words_and_an_object_comes_back(zero: Remote) -> None:
    assert await zero.ask("echo", n=3, s="ü") == Result(data={"seen": {"n": 3, "s": "ü"}})


async def test_an_object_that_was_promised_is_looked_for_in_the_words(bench: Bench, server: str) -> None:
    promised = Capability(name="ask", output_schema={"type": "object"})
    result = await bench(promised, uri=server, token=TOKEN).ask("ask", "hello")
    assert "ANSWER WITH NOTHING BUT ONE JSON OBJECT" in result.data["answer"]  # it shouts back all that it hears
    assert result.notes == ("the agent's answer is not the JSON object that was asked for",)


@requirement("001-14", "001-19")
async def test_a_failed_task_is_a_refusal_with_the_agents_words(zero: Remote) -> None:
    with pytest.raises(UpstreamRefused, match="failed: reluctance"):
        await zero.ask("refuse", "reluctance")


async def test_what_was_only_made_is_the_answer_of_an_agent_that_says_nothing(zero: Remote) -> None:
    assert await zero.ask("silent") == Result(data={"answer": "only made"})


@requirement("001-14")
async def test_a_caller_who_wants_a_stream_gets_the_answer(zero: Remote) -> None:
    heard = Heard()
    assert (await zero.ask("ask", "hello", emit=heard, stream=True)).data == {"answer": "HELLO"}
    assert heard.events == []


@requirement("001-14")
async def test_calls_of_one_conversation_share_a_context(zero: Remote) -> None:
    for word in ("a", "b"):
        await zero.ask("ask", word, conversation="trip")
    assert (await zero.ask("recall", "c", conversation="trip")).data == {"answer": "a, b"}
    strangers: list[dict[str, Any]] = [{"conversation": "trip", "who": "bee"}, {"conversation": "other"}, {}]
    for stranger in strangers:
        assert (await zero.ask("recall", "c", **stranger)).data == {}


LINK = Part(kind="image", url="http://127.0.0.1/dot.png", mime_type="image/png")
BYTES = Part(kind="image", blob="iVBORw==", mime_type="image/png", name="dot.png")
NOTE = Part(kind="text", text="by the way", name="note.txt")
DATA = Part(kind="json", data={"n": 1})


@requirement("001-14")
async def test_links_travel_both_ways_and_words_go_as_words(zero: Remote) -> None:
    result = await zero.ask("mirror", "look", parts=(LINK, NOTE, DATA))
    assert result.data == {"answer": "look\n\nnote.txt:\nby the way"}
    assert result.parts[1:] == (LINK,)
    assert result.notes == ()


async def test_bytes_stay_behind_with_a_note_unless_they_are_wanted(bench: Bench, server: str, zero: Remote) -> None:
    result = await zero.ask("mirror", "look", parts=(BYTES,))
    assert result.parts == ()
    assert result.notes == ("'dot.png' was not sent: Agent Zero's A2A cannot carry image content",)
    taking = bench(*OFFERED, uri=server, token=TOKEN, inline_files=True)
    result = await taking.ask("mirror", "look", parts=(BYTES,))
    assert result.parts[1:] == (replace(BYTES, name=None),)  # this version of A2A has no names
    assert result.notes == ()


@requirement("001-14")
async def test_a_task_that_wants_input_is_a_question_and_goes_on_with_the_answer(zero: Remote) -> None:
    call = call_for("book", "a table")
    asked = await zero.send(call)
    assert asked.asked is not None
    assert asked.asked.message == "For when?"
    assert (await zero.send(answering(call, asked, {"answer": "eight"}))).data == {"answer": "a table for eight"}


@pytest.mark.parametrize("continuation", ["", "nothing", "x/" + "y" * 500])
async def test_a_continuation_that_was_never_given_out_is_refused(zero: Remote, continuation: str) -> None:
    call = call_for("book", "a table")
    with pytest.raises(BadInput, match="continuation is unknown"):
        await zero.send(replace(call, answers=Answers(continuation=continuation)))


@requirement("001-14")
async def test_cancelling_a_call_cancels_the_task(zero: Remote, tmp_path: Path) -> None:
    note = tmp_path / "note"
    asking = asyncio.ensure_future(zero.ask("sleep", str(note)))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)


@requirement("001-14", "001-44")
async def test_a_call_ends_at_its_deadline_and_the_task_with_it(zero: Remote, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with pytest.raises(CallTimeout):
        await zero.ask("sleep", str(note), timeout=3)
    await until(lambda: not note.exists() or note.read_text() == "cancelled", WAIT_TIMEOUT)


@requirement("001-14", "001-18")
async def test_a_server_that_is_there_is_online(zero: Remote) -> None:
    assert await zero.runtime.health() == "online"


async def test_nothing_stays_when_the_runtime_is_closed(server: str, tmp_path: Path) -> None:
    before = len(asyncio.all_tasks())
    async with AsyncExitStack() as stack:
        remote = Bench(stack, build, tmp_path)(*OFFERED, uri=server, token=TOKEN)
        asking = asyncio.ensure_future(remote.ask("sleep", str(tmp_path / "note")))
        await until((tmp_path / "note").exists, WAIT_TIMEOUT)
        asking.cancel()
        await asyncio.wait({asking})
        await remote.runtime.aclose()
        await remote.runtime.aclose()
    await tasks_are_down_to(before)
