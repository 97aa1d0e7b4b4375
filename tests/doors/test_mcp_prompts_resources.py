"""Prompts, resources, templates and completions of all MCP agents, through the official client in both eras."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import Prompt
from mcp.server.mcpserver.resources import TextResource
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from a2a_fabric.core.agent import Manifest
from tests.fixtures.forked.commands import forked_command
from tests.fixtures.mcp_client import client, socket_client
from tests.fixtures.mcp_raw import modern
from tests.fixtures.mcp_servers.serving import odd, serving
from tests.fixtures.mcp_servers.shelves import make
from tests.fixtures.node import Node, eventually, running
from tests.system.node import COMMAND, environment

Connect = Callable[..., AbstractAsyncContextManager[Client]]
CONFIG = {"health": {"interval": 0, "timeout": 20.0}}
AGENTS = ("files", "old", "new")  # over stdio, and over HTTP in both eras
NOTES = "file:///notes/a%20b.txt"
KEYS = [
    {"id": "outsider", "key": "outsider-key", "trust": "public"},
    {"id": "narrow", "key": "narrow-key-1", "scopes": ["capability:grow"]},
    {"id": "librarian", "key": "librarian-key", "scopes": ["agent:old"]},
]

pytestmark = pytest.mark.asyncio(loop_scope="module")
ways = pytest.mark.parametrize("connect", [client, socket_client])
eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


def agent(agent_id: str, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": endpoint}


def program() -> list[str]:
    """With shelves too, on stdio."""
    return forked_command("tests.fixtures.mcp_servers.shelves")


@asynccontextmanager
async def shelves(*more: dict[str, Any], **config: Any) -> AsyncIterator[Node]:
    """A node with three servers, one of each kind, whose prompts and resources are known."""
    async with (
        serving("handshake", make=partial(make, "old")) as old,
        serving("stateless", make=partial(make, "new")) as new,
    ):
        manifests = [
            agent("files", command=program(), era="handshake"),
            agent("old", uri=old.url),
            agent("new", uri=new.url),
            *more,
        ]
        async with running(manifests=manifests, config={**CONFIG, **config}) as node:
            for agent_id in AGENTS:
                await learnt(node, agent_id, "prompts", "tools")
            yield node


async def learnt(node: Node, agent_id: str, *kinds: str) -> None:
    """Wait until what the agent offers is listed; programs may take long to start."""
    for kind in kinds or ("prompts",):
        await until(lambda kind=kind: owners_of(node, kind), agent_id)  # type: ignore[misc]


async def learnt_of(node: Node, prompt: str) -> None:
    async def names() -> set[str]:
        return {each["name"] for each in await listed(node, "prompts")}

    await until(names, prompt)


async def until(look: Callable[[], Awaitable[set[str]]], wanted: str) -> None:
    async with asyncio.timeout(30):
        while True:
            if wanted in await look():
                return
            await asyncio.sleep(0.05)


async def owners_of(node: Node, kind: str) -> set[str]:
    return {each["_meta"].get("a2a-fabric/agent", "") for each in await listed(node, kind)} - {""}


async def listed(node: Node, kind: str) -> Any:
    headers, body = modern(f"{kind}/list")
    return (await node.send("POST", "/mcp", headers=headers, json=body)).json["result"][kind]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    """For tests that change nothing."""
    async with shelves() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def own_node() -> AsyncIterator[Node]:
    async with shelves() as found:
        yield found


def ours(agent_id: str, uri: str = NOTES) -> str:
    return f"fabric://agents/{agent_id}/resources/" + uri.replace("%", "%25").replace(":", "%3A").replace("/", "%2F")


def text_of(result: Any) -> str:
    """Of a prompt's first message, or of a resource's first content."""
    if isinstance(result, types.GetPromptResult):
        content = result.messages[0].content
        assert isinstance(content, types.TextContent)
        return content.text
    (found,) = result.contents
    assert isinstance(found, types.TextResourceContents)
    return found.text


async def refused(work: Any) -> MCPError:
    with pytest.raises(MCPError) as caught:
        await work
    return caught.value


async def answered(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


@ways
@eras
async def test_prompts_of_all_servers_are_listed_and_got(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        prompts = {prompt.name: prompt for prompt in (await connected.list_prompts()).prompts}
        for agent_id, owner in zip(AGENTS, ("shelves", "old", "new"), strict=True):
            prompt = prompts[f"{agent_id}_summarise"]
            assert prompt.title == "Say it shortly"
            assert prompt.description == "Summarise a text."
            assert [(each.name, each.required) for each in prompt.arguments or ()] == [
                ("text", True),
                ("length", False),
            ]
            assert prompt.meta == {
                "a2a-fabric/agent": agent_id,
                "a2a-fabric/name": f"{agent_id}.summarise",
                "a2a-fabric/original": "summarise",
            }
            for name in (prompt.name, f"{agent_id}.summarise"):
                got = await connected.get_prompt(name, {"text": "words"})
                assert text_of(got) == f"{owner}: short: words"
                assert got.meta is not None
                assert got.meta["a2a-fabric/agent"] == agent_id
            odd_one = prompts[f"{agent_id}_odd_name_x"]
            assert odd_one.title == "Odd-Name.x"
            assert text_of(await connected.get_prompt(f"{agent_id}.Odd-Name.x")) == "odd"
        assert all(re.fullmatch("[a-z][a-z0-9_]{0,47}", name) for name in prompts)


@ways
@eras
async def test_resources_of_all_servers_are_listed_and_read(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        listed = {str(each.uri): each for each in (await connected.list_resources()).resources}
        for agent_id, owner in zip(AGENTS, ("shelves", "old", "new"), strict=True):
            assert f"fabric://agents/{agent_id}" in listed
            found = listed[ours(agent_id)]
            assert (found.name, found.mime_type) == ("notes", "text/plain")
            assert found.meta == {"shelf": 1, "a2a-fabric/agent": agent_id, "a2a-fabric/original": NOTES}
            read = await connected.read_resource(ours(agent_id))
            assert text_of(read) == f"notes of {owner}"
            assert str(read.contents[0].uri) == ours(agent_id)
            blob = (await connected.read_resource(ours(agent_id, f"bin://only/{owner}"))).contents[0]
            assert isinstance(blob, types.BlobResourceContents)
            assert blob.blob == "AAE="


@eras
async def test_a_servers_own_uri_is_read_where_only_one_has_it(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        only = (await connected.read_resource("bin://only/old")).contents[0]
        assert str(only.uri) == "bin://only/old"
        assert text_of(await connected.read_resource("tree://new/a/b")) == "new: a/b"
        shared = await refused(connected.read_resource(NOTES))
        assert shared.code == (-32002 if mode == "legacy" else types.INVALID_PARAMS)


@ways
@eras
async def test_a_template_expands_to_something_that_can_be_read(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        templates = {
            ((each.meta or {}).get("a2a-fabric/agent"), (each.meta or {}).get("a2a-fabric/original")): each.uri_template
            for each in (await connected.list_resource_templates()).resource_templates
        }
        for agent_id, owner in zip(AGENTS, ("shelves", "old", "new"), strict=True):
            dated = UriTemplate.parse(templates[agent_id, "file:///notes/{year}/{name}{?lang}"])
            uri = dated.expand({"year": "2026", "name": "a b/c?", "lang": "fr"})
            read = await connected.read_resource(uri)
            assert text_of(read) == f"{owner}: 2026 a b/c? fr"
            assert str(read.contents[0].uri) == uri
            tree = UriTemplate.parse(templates[agent_id, f"tree://{owner}/{{+path}}"])
            assert text_of(await connected.read_resource(tree.expand({"path": "x/y/z"}))) == f"{owner}: x/y/z"


@eras
async def test_arguments_are_completed_by_the_server_that_wants_them(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        for agent_id in AGENTS:
            prompt = types.PromptReference(name=f"{agent_id}_summarise")
            done = await connected.complete(prompt, {"name": "length", "value": "sh"}, {"text": "x"})
            assert done.completion.values == ["summarise|length=sh|{'text': 'x'}"]
            theirs = "file:///notes/{year}/{name}{?lang}"
            template = types.ResourceTemplateReference(uri=f"fabric://agents/{agent_id}/templates/{theirs}")
            done = await connected.complete(template, {"name": "year", "value": "20"})
            assert done.completion.values == [f"{theirs}|year=20|None"]
        own = types.ResourceTemplateReference(uri="fabric://agents/{agent_id}")
        assert (await connected.complete(own, {"name": "agent_id", "value": "n"})).completion.values == ["new"]
        unknown = await refused(connected.complete(types.PromptReference(name="nobody"), {"name": "a", "value": ""}))
        assert unknown.code == types.INVALID_PARAMS


@eras
async def test_prompts_and_resources_that_no_server_has_are_refused(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        for name in ("nobody", "files_nothing", "files.nothing", "summarise", "x" * 10_000):
            error = await refused(connected.get_prompt(name))
            assert error.code == types.INVALID_PARAMS
            assert error.data["error"]["code"] == "BAD_INPUT"
        not_found = -32002 if mode == "legacy" else types.INVALID_PARAMS
        for uri in (ours("nobody"), "fabric://agents/files/else/x", "fabric://agents/files/resources/%ff", "nope://"):
            assert (await refused(connected.read_resource(uri))).code == not_found
        for agent_id in AGENTS:  # the server itself says so
            error = await refused(connected.read_resource(ours(agent_id, "file:///nothing")))
            assert error.code == not_found, agent_id
            assert error.data["error"]["code"] == "BAD_INPUT"
            assert set(error.data["trace"]) == {"trace_id", "span_id", "parent_span_id"}
            missing = await refused(connected.get_prompt(f"{agent_id}_summarise"))
            assert missing.data["error"]["code"] in ("BAD_INPUT", "UPSTREAM_ERROR")


@eras
async def test_lists_and_contents_are_advertised_as_changing(node: Node, mode: str) -> None:
    async with client(node, "legacy" if mode == "legacy" else "auto") as connected:
        offered = connected.server_capabilities
    assert offered.prompts is not None
    assert offered.prompts.list_changed is True
    assert offered.resources is not None
    assert offered.resources.list_changed is True
    assert offered.resources.subscribe is True
    assert offered.completions is not None


async def test_dead_slow_and_crashing_servers_hide_and_delay_no_other_server() -> None:
    bad = [
        agent("mute", command=odd("mute")),
        agent("crashing", command=odd("crashing"), backoff=60),
        agent("missing", command=["no-such-program"]),
        agent("away", uri="http://127.0.0.1:9/mcp"),
        agent("none", command=odd("old")),
    ]
    async with shelves(*bad) as node, client(node) as connected:
        started = time.monotonic()
        owners = {(each.meta or {})["a2a-fabric/agent"] for each in (await connected.list_prompts()).prompts}
        assert owners == set(AGENTS)
        await connected.list_resources()
        await connected.list_resource_templates()
        assert time.monotonic() - started < 15  # no request waits for servers that do not answer


@eras
async def test_what_an_agent_holds_stays_listed_while_it_is_away(mode: str, tmp_path: Path) -> None:
    once = f"mkdir {shlex.quote(str(tmp_path / 'started'))} && exec {shlex.join(program())}"  # it starts no second time
    manifests = [agent("files", command=["sh", "-c", once], backoff=600, backoff_max=600)]
    async with running(manifests=manifests, config=CONFIG) as node, client(node, mode) as connected:
        await learnt(node, "files", "prompts", "tools")
        await connected.call_tool("files_die")

        async def is_away() -> bool:
            error = await refused(connected.get_prompt("files_who"))
            return bool(error.data["error"]["code"] == "AGENT_OFFLINE")

        await eventually(is_away)
        assert "files_who" in [each.name for each in (await connected.list_prompts(cache_mode="bypass")).prompts]
        started = time.monotonic()
        error = await refused(connected.read_resource(ours("files")))
        assert time.monotonic() - started < 15
        assert error.code == types.INTERNAL_ERROR
        assert error.data["ok"] is False
        assert error.data["error"]["code"] == "AGENT_OFFLINE"


async def test_who_may_not_use_all_of_an_agent_sees_nothing_of_what_it_holds() -> None:
    async with shelves(auth={"keys": KEYS}) as node:
        for token, seen in (("outsider-key", set()), ("narrow-key-1", set()), ("librarian-key", {"old"})):
            async with client(node, token=token) as connected:
                owners = {(each.meta or {})["a2a-fabric/agent"] for each in (await connected.list_prompts()).prompts}
                assert owners == seen
                held = [each for each in (await connected.list_resources()).resources if each.meta]
                assert {(each.meta or {})["a2a-fabric/agent"] for each in held} == seen
                templates = (await connected.list_resource_templates()).resource_templates
                assert {each.meta["a2a-fabric/agent"] for each in templates if each.meta} == seen
                await refused(connected.get_prompt("files_who"))
                await refused(connected.read_resource(ours("files")))
                await refused(connected.read_resource("bin://only/shelves"))
        async with client(node, token="librarian-key") as connected:
            assert text_of(await connected.read_resource(NOTES)) == "notes of old"  # the only one it may know of


class Told:
    def __init__(self) -> None:
        self.methods: set[str] = set()

    async def __call__(self, message: Any) -> None:
        if not isinstance(message, Exception):
            self.methods.add(message.method)

    async def hears(self, wanted: set[str]) -> bool:
        for _ in range(50):
            if self.methods >= wanted:
                return True
            await asyncio.sleep(0.02)
        return False


@ways
async def test_sessions_of_the_handshake_era_are_told_of_changes(own_node: Node, connect: Connect) -> None:
    wanted = {"notifications/prompts/list_changed", "notifications/resources/list_changed"}
    for agent_id in AGENTS:
        told = Told()
        async with connect(own_node, "legacy", message_handler=told) as connected:
            rounds = 0
            for number in range(
                20
            ):  # over HTTP the client opens its stream for news after the handshake, in its own time
                told.methods.clear()
                await connected.call_tool(f"{agent_id}_grow", {"name": f"n{number}"})
                await learnt_of(own_node, f"{agent_id}_n{number}")
                rounds += await told.hears(wanted)
                if rounds == 2:  # the first may have been of how the node started
                    break
            assert rounds == 2
            assert text_of(await connected.get_prompt(f"{agent_id}_n0")) == "new here"


async def test_listeners_of_the_stateless_era_are_told_of_changes(own_node: Node) -> None:
    kinds: dict[str, Any] = {"prompts_list_changed": True, "resources_list_changed": True}
    for agent_id in AGENTS:
        async with (
            client(own_node, "2026-07-28") as connected,
            connected.listen(**kinds, resource_subscriptions=["x://"]) as news,
        ):
            assert news.honored.resource_subscriptions is None
            await connected.call_tool(f"{agent_id}_grow", {"name": "novelty"})
            told = set()
            async for event in news:
                told.add(type(event).__name__)
                listed = (await connected.list_prompts(cache_mode="bypass")).prompts
                if len(told) == 2 and f"{agent_id}_novelty" in [each.name for each in listed]:
                    break
            assert told == {"PromptsListChanged", "ResourcesListChanged"}
            assert text_of(await connected.get_prompt(f"{agent_id}_novelty")) == "new here"
            assert text_of(await connected.read_resource(ours(agent_id, "grown:///novelty"))) == "novelty"


async def test_prompts_go_when_their_agent_goes(own_node: Node) -> None:
    async with client(own_node, "2026-07-28") as connected, connected.listen(prompts_list_changed=True) as news:
        gone = Manifest(agent_id="old", runtime="http", endpoint={"uri": "http://127.0.0.1:9/"})
        own_node.fabric.registry.register_agent(gone)
        async for _ in news:
            if await owners_of(own_node, "prompts") == {"files", "new"}:
                break
        assert (await refused(connected.get_prompt("old_who"))).code == types.INVALID_PARAMS


async def test_a_prompts_name_stays_when_others_come() -> None:
    def one(name: str) -> MCPServer[Any]:
        server: MCPServer[Any] = MCPServer(name, log_level="ERROR")
        server.add_prompt(Prompt.from_function(lambda: name, name=name))
        return server

    async with (
        serving(make=partial(one, "b_c")) as first,
        serving(make=partial(one, "c")) as second,
        running(manifests=[agent("a", uri=first.url)], config=CONFIG) as node,
        client(node) as connected,
    ):
        await learnt(node, "a")
        node.fabric.registry.register_agent(msgspec.convert(agent("a.b", uri=second.url), Manifest))
        await learnt(node, "a.b")
        prompts = (await connected.list_prompts(cache_mode="bypass")).prompts
        names = {(each.meta or {})["a2a-fabric/agent"]: each.name for each in prompts}
        assert names["a"] == "a_b_c"
        assert re.fullmatch("a_b_c_[0-9a-f]{6}", names["a.b"])
        assert text_of(await connected.get_prompt("a_b_c")) == "b_c"
        assert text_of(await connected.get_prompt(names["a.b"])) == "c"
        assert text_of(await connected.get_prompt("a.b.c")) == "c"


@eras
async def test_long_lists_come_in_pages_and_endless_ones_are_cut(mode: str) -> None:
    def many() -> MCPServer[Any]:
        server: MCPServer[Any] = MCPServer("many", log_level="ERROR")
        server.add_prompt(Prompt.from_function(lambda: "x", name="huge", description="x" * 100_000))
        for number in range(1200):
            server.add_prompt(Prompt.from_function(lambda: "x", name=f"p{number:04}"))
            server.add_resource(TextResource(uri=f"n:///{number:04}", name=str(number), text="x"))
        return server

    async with serving(make=many) as server, running(manifests=[agent("many", uri=server.url)], config=CONFIG) as node:
        await learnt(node, "many")
        async with client(node, mode) as connected:
            prompts = await connected.list_prompts()
            names = [each.name for each in prompts.prompts]
            while prompts.next_cursor is not None:
                prompts = await connected.list_prompts(cursor=prompts.next_cursor)
                names += [each.name for each in prompts.prompts]
            resources = await connected.list_resources()
            uris = [each.uri for each in resources.resources]
            while resources.next_cursor is not None:
                resources = await connected.list_resources(cursor=resources.next_cursor)
                uris += [each.uri for each in resources.resources]
    assert names == [f"many_p{number:04}" for number in range(len(names))]  # and nothing huge
    assert len(names) == 1000
    assert uris == ["fabric://agents/many", *(ours("many", f"n:///{number:04}") for number in range(1000))]


@ways
async def test_a_question_of_a_stateless_server_reaches_a_stateless_client_and_the_answer_goes_back(
    connect: Connect,
) -> None:
    local = agent("local", command=program(), era="stateless")
    async with shelves(local) as node, connect(node, "2026-07-28", elicitation_callback=answered) as connected:
        await learnt(node, "local")
        for agent_id, owner in (("new", "new"), ("local", "shelves")):
            assert text_of(await connected.get_prompt(f"{agent_id}_greet")) == f"{owner} greets Ada after first round"
            uri = f"fabric://agents/{agent_id}/templates/ask://{owner}/it"
            read = await connected.read_resource(uri)
            assert text_of(read) == "it for Ada"
            assert str(read.contents[0].uri) == uri


@ways
async def test_a_question_of_a_stateless_server_is_put_to_a_client_of_the_handshake_era(
    node: Node, connect: Connect
) -> None:
    async with connect(node, "legacy", elicitation_callback=answered) as connected:
        assert text_of(await connected.get_prompt("new_greet")) == "new greets Ada after first round"
        uri = "fabric://agents/new/templates/ask://new/it"
        assert text_of(await connected.read_resource(uri)) == "it for Ada"


async def test_a_question_that_a_client_cannot_be_asked_is_an_error(node: Node) -> None:
    async with client(node, "legacy") as connected:
        for work in (
            connected.get_prompt("new_greet"),
            connected.read_resource("fabric://agents/new/templates/ask://new/it"),
        ):
            error = await refused(work)
            assert error.code == types.INTERNAL_ERROR
            assert error.data["error"]["code"] == "UPSTREAM_ERROR"
            assert error.data["error"]["details"]["input_requests"]["who"]["method"] == "elicitation/create"


async def test_a_cancelled_request_harms_no_other_request(node: Node) -> None:
    async with socket_client(node, "legacy") as connected:
        before = text_of(await connected.get_prompt("files_who"))
        asking = asyncio.ensure_future(connected.get_prompt("files_who"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert text_of(await connected.get_prompt("files_who")) == before


async def test_an_agents_own_address_shows_everything_as_the_agent_calls_it(node: Node) -> None:
    async with client(node, path="/agents/files/mcp") as connected:
        assert "Odd-Name.x" in [each.name for each in (await connected.list_prompts()).prompts]
        assert text_of(await connected.get_prompt("summarise", {"text": "x"})) == "shelves: short: x"
        assert text_of(await connected.read_resource(NOTES)) == "notes of shelves"


@eras
async def test_it_is_the_same_over_stdio(tmp_path: Path, mode: str) -> None:
    (tmp_path / "agents.yaml").write_text(json.dumps([agent("files", command=program())]))
    command = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", "--alone"], env=environment(tmp_path), cwd=str(tmp_path)
    )
    async with asyncio.timeout(30), Client(command, mode=mode) as connected:

        async def names() -> set[str]:
            return {each.name for each in (await connected.list_prompts(cache_mode="bypass")).prompts}

        await until(names, "files_summarise")
        assert text_of(await connected.get_prompt("files_summarise", {"text": "x"})) == "shelves: short: x"
        assert text_of(await connected.read_resource(ours("files"))) == "notes of shelves"
