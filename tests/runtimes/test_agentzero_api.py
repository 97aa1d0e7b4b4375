"""The runtime `agentzero` by its external API and by its remote functions, in front of a server with the same wire."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import (
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    UpstreamFailed,
    UpstreamRefused,
)
from a2a_fabric.core.result import Part, Result
from a2a_fabric.runtimes.agentzero import build
from tests.fixtures.agents.calling import HERE
from tests.fixtures.peers import peer
from tests.marks import requirement
from tests.runtimes.http_agents import Exchange, agents
from tests.runtimes.remote_bench import Bench, Remote

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN, PASSWORD = "the-token", "the-password"
NAMES = ("ask", "echo", "refuse", "sleep", "recall", "forget", "files", "given")
OFFERED = tuple(Capability(name=name) for name in NAMES)
MEAN = {
    "module": "statistics",
    "function": "mean",
    "name": "average",
    "description": "Of numbers",
    "input_schema": {"type": "object", "properties": {"data": {"type": "array"}}, "required": ["data"]},
}
CAPWORDS = {"module": "string", "function": "capwords"}
LOADS = {"module": "json", "function": "loads"}
FUNCTIONS = [MEAN, CAPWORDS, LOADS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[dict[str, str]]:
    program = HERE / "agentzero_server.py"
    async with peer("acp", program) as newer, peer("acp", program, "--older") as older:
        yield {"newer": newer, "older": older}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, build, HERE)


@pytest.fixture
def zero(bench: Bench, servers: dict[str, str]) -> Remote:
    return bench(*OFFERED, uri=servers["newer"], protocol="api", token=TOKEN)


@pytest.fixture
def rfc(bench: Bench, servers: dict[str, str]) -> Remote:
    return bench(uri=servers["newer"], protocol="rfc", password=PASSWORD, functions=FUNCTIONS)


@requirement("001-14", "001-18")
@pytest.mark.parametrize("version", ["newer", "older"])
async def test_a_message_is_answered_wherever_this_version_listens(
    bench: Bench, servers: dict[str, str], version: str
) -> None:
    remote = bench(uri=servers[version], protocol="api", token=TOKEN)
    for _ in range(2):
        assert await remote.ask("ask", "hello") == Result(data={"answer": "HELLO"})
    assert [capability.name for capability in (await remote.runtime.describe()).capabilities] == ["ask"]
    assert await remote.runtime.health() == "online"


@requirement("001-14")
async def test_a_conversation_goes_on_and_begins_anew_with_a_note_when_the_agent_has_forgotten_it(zero: Remote) -> None:
    for word in ("a", "b"):
        await zero.ask("ask", word, conversation="trip")
    assert await zero.ask("recall", "c", conversation="trip") == Result(data={"answer": "a, b"})
    assert (await zero.ask("recall", "c", conversation="trip", who="bee")).data == {"answer": ""}
    await zero.ask("forget", "all")
    result = await zero.ask("recall", "d", conversation="trip")
    assert result.data == {"answer": ""}
    assert result.notes == ("the agent no longer knew the conversation, so a new one was started",)
    assert (await zero.ask("recall", "e", conversation="trip")).data == {"answer": "d"}


@requirement("001-14")
async def test_files_go_along_under_names_of_their_own_and_links_in_words(zero: Remote) -> None:
    contents = (b"one", b"two", b"three")
    names = ("dot.png", "dot.png", None)
    files = tuple(
        Part(kind="image", blob=b64encode(content).decode(), mime_type="image/png", name=name)
        for name, content in zip(names, contents, strict=True)
    )
    sums = [hashlib.sha256(content).hexdigest()[:8] for content in contents]
    told = (await zero.ask("files", "these", parts=files)).data["answer"].splitlines()
    assert told == [f"dot.png {sums[0]}", f"2-dot.png {sums[1]}", f"attachment-3.png {sums[2]}"]
    link = Part(kind="file", url="http://127.0.0.1/page", name="page")
    assert (await zero.ask("ask", "see", parts=(link,))).data == {"answer": "SEE\n\nPAGE: HTTP://127.0.0.1/PAGE"}


async def test_options_are_told_once_and_the_lifetime_always(bench: Bench, servers: dict[str, str]) -> None:
    options = {"project": "garden", "profile": "researcher", "lifetime_hours": 2}
    remote = bench(*OFFERED, uri=servers["newer"], protocol="api", token=TOKEN, **options)
    first = json.loads((await remote.ask("given", "x", conversation="c")).data["answer"])
    assert (first["project_name"], first["agent_profile"], first["lifetime_hours"]) == ("garden", "researcher", 2)
    second = json.loads((await remote.ask("given", "x", conversation="c")).data["answer"])
    assert second.keys() == {"message", "context_id", "lifetime_hours"}


@requirement("001-14", "001-19")
async def test_errors_of_the_api_are_told_in_its_words(bench: Bench, servers: dict[str, str], zero: Remote) -> None:
    with pytest.raises(UpstreamFailed, match="reluctance"):
        await zero.ask("refuse", "reluctance")
    with pytest.raises(UpstreamRefused, match="credentials") as caught:
        await bench(uri=servers["newer"], protocol="api", token="hush").ask("ask", "hello")
    assert "hush" not in caught.value.message + str(caught.value.details)


@requirement("001-14", "001-44")
async def test_a_message_that_takes_too_long_ends_at_the_deadline(zero: Remote, tmp_path: Path) -> None:
    with pytest.raises(CallTimeout):
        await zero.ask("sleep", str(tmp_path / "note"), timeout=0.5)


@requirement("001-14", "001-18")
@pytest.mark.parametrize("version", ["newer", "older"])
async def test_functions_that_are_listed_are_called_with_their_arguments(
    bench: Bench, servers: dict[str, str], version: str
) -> None:
    remote = bench(uri=servers[version], protocol="rfc", password=PASSWORD, functions=FUNCTIONS)
    assert await remote.ask("average", data=[1, 2, 6]) == Result(data={"result": 3})
    assert await remote.ask("capwords", "green tea") == Result(data={"answer": "Green Tea"})
    assert await remote.ask("capwords", "green-tea", sep="-") == Result(data={"answer": "Green-Tea"})
    assert await remote.ask("loads", '{"ü": [1]}') == Result(data={"ü": [1]})
    found = {capability.name: capability for capability in (await remote.runtime.describe()).capabilities}
    assert found.keys() == {"average", "capwords", "loads"}
    assert (found["average"].description, found["average"].input_schema) == ("Of numbers", MEAN["input_schema"])
    assert await remote.runtime.health() == "online"


async def test_a_schema_may_stand_with_the_capability_too(bench: Bench, servers: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    declared = Capability(name="capwords", input_schema=schema)
    remote = bench(declared, uri=servers["newer"], protocol="rfc", password=PASSWORD, functions=[CAPWORDS])
    assert (await remote.ask("capwords", s="green tea")).data == {"answer": "Green Tea"}
    assert (await remote.ask("capwords", "green tea")).data == {"answer": "Green Tea"}


@requirement("001-14", "001-19")
async def test_what_a_function_raises_is_told_in_one_line(rfc: Remote) -> None:
    with pytest.raises(UpstreamFailed, match=r"StatisticsError: mean requires at least one data point$"):
        await rfc.ask("average", data=[])
    with pytest.raises(UpstreamFailed, match="unexpected keyword argument 'colour'") as caught:
        await rfc.ask("capwords", "x", colour="red")
    assert "Traceback" not in caught.value.message


async def test_a_wrong_password_is_told_in_the_agents_words(bench: Bench, servers: dict[str, str]) -> None:
    wrong = bench(uri=servers["newer"], protocol="rfc", password="hush", functions=FUNCTIONS)
    with pytest.raises(UpstreamFailed, match="Invalid RFC hash") as caught:
        await wrong.ask("capwords", "x")
    assert "hush" not in caught.value.message + str(caught.value.details)


async def test_what_cannot_go_along_is_noted(rfc: Remote) -> None:
    result = await rfc.ask("capwords", "x", parts=(Part(kind="file", blob="AAEC", name="bytes"),))
    assert result.notes == ("'bytes' was not sent: 'capwords' takes no attachments",)


@requirement("001-14")
async def test_functions_that_are_not_listed_are_refused_before_anything_is_sent(bench: Bench) -> None:
    async def must_not_be_reached(x: Exchange) -> None:
        await x.reply({})

    async with agents({"api/rfc": must_not_be_reached, "rfc": must_not_be_reached}) as server:
        remote = bench(
            Capability(name="system"), uri=server.url(""), protocol="rfc", password=PASSWORD, functions=[CAPWORDS]
        )
        for name in ("system", "os.system", "string.capwords", "Formatter", "average", "capwords.__globals__", ""):
            with pytest.raises(CapabilityNotFound, match="offers: capwords"):
                await remote.ask(name, "x", module="os", function="system", function_name="system")
        assert server.calls == []
        await remote.ask("capwords", "x")
        assert len(server.calls) == 1


@requirement("001-14")
async def test_a_call_is_signed_over_exactly_the_text_that_is_sent(bench: Bench) -> None:
    async def answer(x: Exchange) -> None:
        await x.reply(None)

    async with agents({"api/rfc": answer}) as server:
        remote = bench(uri=server.url("/"), protocol="rfc", password="pässword", functions=[CAPWORDS])
        assert await remote.ask("capwords", "grün", sep="ü") == Result(data={})
        [sent] = server.calls
    text = sent.json["rfc_input"]
    assert json.loads(text) == {
        "module": "string",
        "function_name": "capwords",
        "args": ["grün"],
        "kwargs": {"sep": "ü"},
    }
    assert sent.json["hash"] == hmac.new("pässword".encode(), text.encode(), hashlib.sha256).hexdigest()
    assert sent.json.keys() == {"rfc_input", "hash"}


@requirement("001-14")
@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ({"password": PASSWORD}, "off until `functions` lists"),
        ({"password": PASSWORD, "functions": []}, "off until `functions` lists"),
        ({"functions": [CAPWORDS]}, "needs a `password`"),
        ({"password": PASSWORD, "functions": [CAPWORDS, {**MEAN, "name": "cap-words"}, CAPWORDS]}, "same name"),
        ({"password": PASSWORD, "functions": [{"module": "os"}]}, "function"),
        ({"password": PASSWORD, "functions": [{"module": "os;", "function": "x"}]}, "module"),
        ({"password": PASSWORD, "functions": [{"module": "os", "function": "x\n"}]}, "function"),
        ({"password": PASSWORD, "functions": "*"}, "array"),
        ({"password": PASSWORD, "functions": [{"module": "os", "function": "*"}]}, "function"),
    ],
    ids=range(9),
)
async def test_remote_functions_are_off_unless_each_is_listed(bench: Bench, endpoint: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        bench(uri="http://127.0.0.1:9", protocol="rfc", **endpoint)


async def test_an_unknown_protocol_or_option_is_refused(bench: Bench) -> None:
    for endpoint in ({"protocol": "telnet"}, {"colour": "red"}, {"uri": "ftp://127.0.0.1"}):
        with pytest.raises(BadInput, match="bad endpoint"):
            bench(**{"uri": "http://127.0.0.1:9", **endpoint})


async def test_many_calls_at_once_share_a_few_connections(zero: Remote) -> None:
    answers = await asyncio.gather(*(zero.ask("ask", f"n{number}") for number in range(50)))
    assert [each.data["answer"] for each in answers] == [f"N{number}" for number in range(50)]


async def test_a_page_where_the_api_should_be_is_an_error(bench: Bench) -> None:
    async def page(x: Exchange) -> None:
        await x.reply(b"<html>It works!</html>", "404 Not Found", "text/html")

    async with agents({"api/api_message": page, "api_message": page, "api/rfc": page, "rfc": page}) as server:
        for protocol in ({"protocol": "api"}, {"protocol": "rfc", "password": PASSWORD, "functions": [CAPWORDS]}):
            with pytest.raises(FabricError, match="404"):
                await bench(uri=server.url(""), **protocol).ask("capwords", "x")
        assert len(server.calls) == 4
