"""Cards of A2A agents: where they are found, how they are read, and which interface is chosen from them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, ConfigError
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.protocols.a2a.card import read_card
from a2a_fabric.protocols.a2a.models import A2ABinding, A2AVersion
from a2a_fabric.runtimes.a2a import build
from a2a_fabric.runtimes.a2a.connection import choose_interface, manifest_from_card, modalities_of, takes_json
from tests.fixtures.agents.a2a_serving import Served, serving
from tests.fixtures.agents.calling import call_of
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.a2a_bench import Bench, card_at

pytestmark = pytest.mark.asyncio(loop_scope="module")
BASE = "http://10.1.2.3:9000/.well-known/agent-card.json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everyday() -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc") as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(60), AsyncExitStack() as found:
        yield found


async def serve_card(stack: AsyncExitStack, place: str, card: Any) -> str:
    """A server that has this card at one place, and nothing else."""

    async def show(request: Request) -> Response:
        return JSONResponse(card)

    return await stack.enter_async_context(listening(Starlette(routes=[Route(place, show)])))


@requirement("001-18")
@pytest.mark.parametrize(
    ("place", "endpoint"),
    [
        ("/.well-known/agent-card.json", {"uri": ""}),
        ("/.well-known/agent-card.json", {"uri": "/"}),
        ("/.well-known/agent.json", {"uri": ""}),
        ("/agents/bee/.well-known/agent-card.json", {"uri": "/agents/bee"}),
        ("/agents/bee/.well-known/agent.json", {"uri": "/agents/bee/"}),
        ("/.well-known/agent-card.json", {"uri": "/agents/bee"}),
        ("/.well-known/agent.json", {"uri": "/agents/bee?key=1"}),
        ("/cards/bee.json", {"uri": "/cards/bee.json"}),
        ("/bee", {"uri": "/bee"}),
        ("/hidden/card", {"uri": "/elsewhere", "card": "/hidden/card"}),
        ("/hidden/card", {"card": "/hidden/card"}),
    ],
)
async def test_a_card_is_found_wherever_it_is(
    stack: AsyncExitStack, everyday: Served, place: str, endpoint: dict[str, str]
) -> None:
    url = await serve_card(stack, place, card_at(f"{everyday.url}/rpc", "jsonrpc-1.0"))
    absolute = {name: url + path if name == "uri" or "uri" not in endpoint else path for name, path in endpoint.items()}
    agent = Bench(stack).runtime(**absolute)
    assert (await agent.describe()).display_name == "Registered"
    assert (await agent(call_of("say", "hi"), ignore_event)).data == {"answer": "heard hi"}
    assert await agent.health() == "online"


async def test_an_agent_without_a_card_is_offline_and_the_error_says_where_one_looked(stack: AsyncExitStack) -> None:
    url = await serve_card(stack, "/.well-known/agent.json", ["not", "a", "card"])
    with pytest.raises(AgentOffline) as caught:
        await Bench(stack).runtime(uri=f"{url}/?secret=1").describe()
    assert caught.value.message == "No agent card was found"
    assert re.search(r"agent-card\.json: 404; .*agent\.json: no card", caught.value.full_message)
    assert "secret" not in caught.value.full_message


async def test_a_registered_card_is_used_as_it_is(stack: AsyncExitStack, everyday: Served) -> None:
    asked = len(everyday.requests)
    agent = Bench(stack).runtime(card=card_at(f"{everyday.url}/rest", "http-1.0", description="Mine."))
    found = await agent.describe()
    assert (found.description, [capability.name for capability in found.capabilities]) == ("Mine.", ["act"])
    assert (await agent(call_of("say", "hi"), ignore_event)).data == {"answer": "heard hi"}
    assert await agent.health() == "online"
    assert ("GET", "/.well-known/agent-card.json") not in everyday.requests[asked:]


async def test_an_agent_of_grpc_alone_needs_no_card(stack: AsyncExitStack, everyday: Served) -> None:
    for endpoint in ({}, {"version": "0.3"}):
        agent = Bench(stack).runtime(uri=f"grpc://{everyday.grpc}", **endpoint)
        assert [capability.name for capability in (await agent.describe()).capabilities]
        assert (await agent(call_of("say", "hi"), ignore_event)).data == {"answer": "heard hi"}
        assert await agent.health() == "online"


async def test_an_agent_that_lists_no_skills_can_still_be_spoken_to(stack: AsyncExitStack, everyday: Served) -> None:
    agent = Bench(stack).runtime(card=card_at(f"{everyday.url}/rpc", "jsonrpc-1.0", skills=[], description="Talks."))
    [only] = (await agent.describe()).capabilities
    assert (only.name, only.description) == ("message", "Talks.")
    assert (await agent(call_of("message", "hi"), ignore_event)).data == {"answer": "heard hi"}
    assert everyday.executor.sent[-1]["metadata"].keys() == {"traceparent"}  # and no skill


@pytest.mark.parametrize("url", ["{0.url}/rpc", "grpc://{0.grpc}"])
async def test_the_guard_stands_before_every_address(stack: AsyncExitStack, everyday: Served, url: str) -> None:
    line = "grpc-1.0" if url.startswith("grpc") else "jsonrpc-1.0"
    card = card_at(url.format(everyday), line)
    with pytest.raises(AgentOffline, match="not a public address"):
        await Bench(stack, guard=Guard()).runtime(card=card)(call_of("say"), ignore_event)
    allowing = Bench(stack, guard=Guard(allow=["127.0.0.1"])).runtime(card=card)
    assert (await allowing(call_of("say", "hi"), ignore_event)).data == {"answer": "heard hi"}


async def test_an_agent_that_has_moved_is_looked_for_again(stack: AsyncExitStack, everyday: Served) -> None:
    card = card_at("http://127.0.0.1:9/", "jsonrpc-1.0")
    url = await serve_card(stack, "/.well-known/agent-card.json", card)
    agent = Bench(stack).runtime(uri=url)
    with pytest.raises(AgentOffline):
        await agent(call_of("say", "hi"), ignore_event)
    card["supportedInterfaces"][0]["url"] = f"{everyday.url}/rpc"
    assert (await agent(call_of("say", "hi"), ignore_event)).data == {"answer": "heard hi"}


@pytest.mark.parametrize(
    "endpoint",
    [
        {},
        {"uri": "ftp://x"},
        {"card": "/relative"},
        {"card": {"no": "name"}},
        {"uri": "http://me:secret@host/"},
        {"uri": "http://x", "binding": "pigeon"},
        {"uri": "http://x", "version": "0.1"},
        {"uri": "http://x", "unknown": 1},
    ],
)
async def test_a_bad_endpoint_is_refused_when_it_is_built(stack: AsyncExitStack, endpoint: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="bad endpoint") as caught:
        build(Manifest(agent_id="tested", endpoint=endpoint), Bench(stack).context)
    assert "secret" not in caught.value.message


OLD: dict[str, Any] = {
    "name": "Old",
    "url": "/a2a",
    "protocolVersion": "0.3.0",
    "capabilities": {"streaming": True},
    "additionalInterfaces": [
        {"url": "http://0.0.0.0:9001/rest", "transport": "HTTP+JSON"},
        {"url": "localhost:9002", "transport": "grpc"},
        {"url": "http://localhost:9003/", "transport": "JSONRPC"},
        {"url": "http://x/", "transport": "PIGEON"},
        "nonsense",
    ],
}


async def test_addresses_that_only_their_own_machine_understands_are_put_right() -> None:
    places = [(each.binding, each.version, each.url) for each in read_card(OLD, BASE).interfaces]
    assert places == [
        ("jsonrpc", "0.3", "http://10.1.2.3:9000/a2a"),
        ("http", "0.3", "http://10.1.2.3:9001/rest"),
        ("grpc", "0.3", "10.1.2.3:9002"),
        ("jsonrpc", "0.3", "http://10.1.2.3:9003/"),
    ]
    on_one_machine = read_card(OLD, "http://127.0.0.1:9000/x").interfaces
    assert on_one_machine[3].url == "http://localhost:9003/"


BOTH: dict[str, Any] = {
    "name": "Both",
    "url": "http://x/ignored",
    "supportedInterfaces": [
        {"url": "http://x/old", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        {"url": "http://x/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0.1", "tenant": "t"},
        {"url": "http://x/rpc", "protocolBinding": "JSONRPC"},
        {"url": "x:1", "protocolBinding": "GRPC", "protocolVersion": "2.0"},
    ],
}


@pytest.mark.parametrize(
    ("bindings", "version", "expected"),
    [
        ((), None, "http://x/rest"),
        ((), "0.3", "http://x/old"),
        (("jsonrpc",), None, "http://x/rpc"),
        (("grpc", "jsonrpc"), None, "x:1"),
        (("grpc", "jsonrpc"), "0.3", "http://x/old"),
    ],
)
async def test_the_operator_decides_then_the_version_then_the_card(
    bindings: tuple[A2ABinding, ...], version: A2AVersion | None, expected: str
) -> None:
    assert choose_interface(read_card(BOTH, None), bindings, version, lambda _: True).url == expected


async def test_what_the_card_does_not_offer_is_a_matter_of_configuration() -> None:
    with pytest.raises(ConfigError, match=r"offers jsonrpc 0\.3, http 1\.0, .*, not grpc 0\.3"):
        choose_interface(read_card(BOTH, None), ("grpc",), "0.3", lambda _: True)
    only = read_card({"name": "G", "url": "x:1", "preferredTransport": "GRPC"}, None)
    with pytest.raises(ConfigError, match=r"a2a-fabric\[grpc\]"):
        choose_interface(only, (), None, lambda binding: binding != "grpc")
    with pytest.raises(ConfigError, match="no interface"):
        choose_interface(read_card({"name": "N", "skills": []}, None), (), None, lambda _: True)


async def test_a_careless_card_is_read_as_far_as_it_goes() -> None:
    card = read_card(
        {
            "name": 7,
            "description": None,
            "capabilities": [],
            "defaultInputModes": "text",
            "skills": [{"name": "No Id"}, {"id": "twice"}, {"id": "Twice", "tags": [1, "t"]}, {}, None],
            "supportedInterfaces": None,
        },
        None,
    )
    found = manifest_from_card(Manifest(agent_id="a", endpoint={}), card)
    assert [capability.name for capability in found.capabilities] == ["No Id", "twice"]
    assert (found.display_name, found.tags) == ("", ("t",))


async def test_modes_say_what_an_agent_takes_and_gives() -> None:
    modes = ("text/plain", "application/json; charset=utf-8", "image/*", "audio/wav", "video/mp4", "application/pdf")
    assert modalities_of(modes) == ("text", "json", "image", "audio", "video", "file")
    assert modalities_of(()) == modalities_of(["*/*"]) == ("text",)
    assert not takes_json(["text/plain"])
    assert all(map(takes_json, ([], ["application/json"], ["application/vnd.x+json"], ["*/*"], ["data"])))


async def test_an_agent_that_reads_only_text_gets_its_arguments_as_text(
    stack: AsyncExitStack, everyday: Served
) -> None:
    card = card_at(f"{everyday.url}/rpc", "jsonrpc-1.0", defaultInputModes=["text/plain"])
    await Bench(stack).runtime(card=card)(call_of("say", "look", number=7), ignore_event)
    assert [part["text"] for part in everyday.executor.sent[-1]["parts"]] == ["look", '{"number":7}']
