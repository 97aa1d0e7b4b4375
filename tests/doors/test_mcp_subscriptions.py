"""Watched resources, and prompts that take their time or ask back: the official client, in both eras."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import mcp_types as types
import msgspec
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

from a2a_fabric.agent import Agent
from a2a_fabric.core.agent import Manifest
from tests.fixtures.forked.commands import forked_command
from tests.fixtures.mcp_client import client, socket_client, words
from tests.fixtures.mcp_servers import watched
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running

Connect = Callable[..., AbstractAsyncContextManager[Client]]

CONFIG: dict[str, Any] = {
    "health": {"interval": 0, "timeout": 20.0},
    "auth": {"keys": [{"id": "outsider", "key": "outsider-key", "trust": "public"}]},
}
AGENTS = ("files", "old", "new")  # over stdio, and over HTTP in both eras
PAGE, OTHER = watched.PAGE, watched.OTHER

pytestmark = pytest.mark.asyncio(loop_scope="module")
ways = pytest.mark.parametrize("connect", [client, socket_client])
eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


def agent(agent_id: str, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": endpoint}


def program() -> list[str]:
    """With a page to watch too, on stdio."""
    return forked_command("tests.fixtures.mcp_servers.watched")


def ours(agent_id: str, uri: str = PAGE) -> str:
    return f"fabric://agents/{agent_id}/resources/{quote(uri, safe='')}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with (
        serving("handshake", make=partial(watched.make, "old")) as old,
        serving("stateless", make=partial(watched.make, "new")) as new,
        serving("handshake", make=partial(watched.make, "mute", tells=False)) as mute,
    ):
        manifests = [
            agent("files", command=program(), era="handshake"),
            agent("old", uri=old.url),
            agent("new", uri=new.url),
            agent("mute", uri=mute.url),
        ]
        percy = Agent("percy")

        @percy.capability
        async def think() -> dict[str, Any]:
            return {}

        async with running(percy, manifests=manifests, config=CONFIG) as found:
            libraries = found.fabric.runtimes.prompts_and_resources

            async def all_are_learnt() -> bool:
                known = [libraries.find(agent_id, None) for agent_id in (*AGENTS, "mute")]
                tools = [found.fabric.registry.get_agent(agent_id).capabilities for agent_id in AGENTS]
                return all(tools) and all(each is not None and each.listing.prompts for each in known)

            await eventually(all_are_learnt)
            yield found


class Told:
    """What a session of the handshake era is told without asking."""

    def __init__(self) -> None:
        self.updates: list[str] = []
        self.heard: list[str] = []  # those that were taken, too
        self._bell = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updates.append(str(message.params.uri))
            self.heard.append(str(message.params.uri))
            self._bell.set()

    async def next(self, seconds: float = 1.0) -> str | None:
        try:
            async with asyncio.timeout(seconds):
                while not self.updates:
                    self._bell.clear()
                    await self._bell.wait()
        except TimeoutError:
            return None
        return self.updates.pop(0)


async def subscribe(connected: Client, uri: str) -> None:
    await connected.session.subscribe_resource(uri)


async def unsubscribe(connected: Client, uri: str) -> None:
    await connected.session.unsubscribe_resource(uri)


@asynccontextmanager
async def told_of(node: Node, connect: Connect) -> AsyncIterator[tuple[Client, Told]]:
    told = Told()
    async with connect(node, "legacy", message_handler=told) as connected:
        yield connected, told


async def hears(connected: Client, told: Told, tool: str, uri: str, shown: str) -> None:
    """Over HTTP the client opens its stream for news after the handshake, in its own time: it may need a second go."""
    for _ in range(20):
        await connected.call_tool(tool, {"uri": uri})
        if await told.next() == shown:
            return
    raise AssertionError(f"nothing heard of {shown}")


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@ways
@pytest.mark.parametrize("agent_id", AGENTS)
async def test_a_session_is_told_of_what_it_subscribed_to_and_of_nothing_else(
    node: Node, connect: Connect, agent_id: str
) -> None:
    async with told_of(node, connect) as (connected, told):
        assert connected.server_capabilities.resources is not None
        assert connected.server_capabilities.resources.subscribe
        await subscribe(connected, ours(agent_id))
        await hears(connected, told, f"{agent_id}_touch", PAGE, ours(agent_id))
        await connected.call_tool(f"{agent_id}_touch", {"uri": OTHER})
        await subscribe(connected, ours(agent_id, OTHER))
        await hears(connected, told, f"{agent_id}_touch", OTHER, ours(agent_id, OTHER))  # after all that was on its way
        await unsubscribe(connected, ours(agent_id))
        told.heard.clear()
        await connected.call_tool(f"{agent_id}_touch", {"uri": PAGE})
        await hears(connected, told, f"{agent_id}_touch", OTHER, ours(agent_id, OTHER))
        assert ours(agent_id) not in told.heard


@ways
@pytest.mark.parametrize("agent_id", AGENTS)
async def test_a_listener_is_told_of_what_it_named(node: Node, connect: Connect, agent_id: str) -> None:
    named = [ours(agent_id), "fabric://agents/nobody", "x://", ours("mute"), ours("nobody")]
    async with connect(node, "2026-07-28") as connected, connected.listen(resource_subscriptions=named) as news:
        assert news.honored.resource_subscriptions == [ours(agent_id)]
        await connected.call_tool(f"{agent_id}_touch", {"uri": OTHER})
        await connected.call_tool(f"{agent_id}_touch", {"uri": PAGE, "times": 50})
        assert await anext(news) == ResourceUpdated(uri=ours(agent_id))
        read = await connected.read_resource(ours(agent_id), cache_mode="bypass")
        assert isinstance(read.contents[0], types.TextResourceContents)
        async with connected.listen(resource_subscriptions=[ours(agent_id, OTHER), ours(agent_id)]) as more:
            await connected.call_tool(f"{agent_id}_touch", {"uri": OTHER})
            async for event in more:  # the last word of the other page may still be on its way
                if event == ResourceUpdated(uri=ours(agent_id, OTHER)):
                    break
        await connected.call_tool(f"{agent_id}_touch", {"uri": PAGE})
        assert await anext(news) == ResourceUpdated(uri=ours(agent_id))


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_server_is_told_when_no_client_is_subscribed_any_more(node: Node) -> None:
    async def seen(connected: Client) -> str:
        return words(await connected.call_tool("old_subscribed", {}))

    async with client(node) as looking:
        async with client(node, "legacy") as first, client(node, "legacy") as second:
            await subscribe(first, ours("old"))
            await subscribe(first, ours("old"))
            await subscribe(second, ours("old"))
            assert await seen(looking) == PAGE
            await unsubscribe(first, ours("old"))
            await unsubscribe(first, ours("old"))
            assert await seen(looking) == PAGE

        async def no_client_watches() -> bool:
            return await seen(looking) == "nothing"

        await eventually(no_client_watches)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_what_cannot_be_watched_is_refused_with_the_reason(node: Node) -> None:
    async with client(node, "legacy") as connected:
        for uri, code, word in (
            ("x://", -32002, "BAD_INPUT"),
            (ours("nobody"), -32002, "BAD_INPUT"),
            (ours("old", "page://none"), -32002, "BAD_INPUT"),
            (ours("mute"), types.INTERNAL_ERROR, "UPSTREAM_ERROR"),
        ):
            with pytest.raises(MCPError) as caught:
                await subscribe(connected, uri)
            assert caught.value.code == code, uri
            assert caught.value.data["error"]["code"] == word
        await unsubscribe(connected, "never://")
    async with client(node, "legacy", token="outsider-key") as outsider:
        for uri in (ours("old"), PAGE, "fabric://agents/percy"):
            with pytest.raises(MCPError) as caught:
                await subscribe(outsider, uri)
            assert caught.value.code == -32002


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@ways
async def test_a_manifest_is_watched_with_the_status_of_its_agent(node: Node, connect: Connect) -> None:
    uri, health = "fabric://agents/percy", node.fabric.registry.health
    async with told_of(node, connect) as (old_client, told):
        await subscribe(old_client, uri)
        async with client(node, "2026-07-28") as new_client, new_client.listen(resource_subscriptions=[uri]) as news:
            assert news.honored.resource_subscriptions == [uri]
            for status in ("degraded", "online") * 5:
                health.set_status("percy", status, None)
                assert await anext(news) == ResourceUpdated(uri=uri)
                if await told.next() == uri:
                    break
            else:
                raise AssertionError("the session heard nothing")
            declared = node.fabric.registry.get_agent("percy")
            node.fabric.registry.register_agent(msgspec.structs.replace(declared, description="Thinks twice."))
            assert await anext(news) == ResourceUpdated(uri=uri)
            read = (await new_client.read_resource(uri, cache_mode="bypass")).contents[0]
            assert isinstance(read, types.TextResourceContents)
            assert msgspec.json.decode(read.text)["description"] == "Thinks twice."


async def test_a_subscription_goes_on_when_the_server_comes_back_or_is_replaced() -> None:
    manifests = [agent("files", command=program(), backoff=0.1)]
    async with running(manifests=manifests, config=CONFIG) as own, client(own, "2026-07-28") as connected:

        async def is_learnt() -> bool:
            library, tools = (
                own.fabric.runtimes.prompts_and_resources.find("files", None),
                own.fabric.registry.get_agent("files").capabilities,
            )
            return bool(tools) and library is not None and bool(library.listing.resources)

        await eventually(is_learnt)
        async with connected.listen(resource_subscriptions=[ours("files")]) as news:
            assert news.honored.resource_subscriptions == [ours("files")]
            await connected.call_tool("files_die", {})
            assert await anext(news) == ResourceUpdated(uri=ours("files"))  # what was missed is unknown
            await connected.call_tool("files_touch", {"uri": PAGE})
            assert await anext(news) == ResourceUpdated(uri=ours("files"))
            replaced = msgspec.convert(agent("files", command=program(), backoff=0.2), Manifest)
            own.fabric.registry.register_agent(replaced)
            assert await anext(news) == ResourceUpdated(uri=ours("files"))


@eras
@ways
async def test_progress_of_prompts_and_resources_is_passed_on(node: Node, connect: Connect, mode: str) -> None:
    async with connect(node, mode) as connected:
        for agent_id in AGENTS:
            heard: list[tuple[float, float | None, str | None]] = []

            hear: Any = partial(_keep, heard)
            got: Any = await connected.session.send_request(
                types.GetPromptRequest(params=types.GetPromptRequestParams(name=f"{agent_id}_slow")),
                types.GetPromptResult,
                progress_callback=hear,
            )
            owner = "watched" if agent_id == "files" else agent_id
            assert got.messages[0].content.text == f"{owner} took its time"
            assert heard == [(25.0, 100.0, "step 1"), (50.0, 100.0, "step 2"), (100.0, 100.0, "step 4")]
            heard.clear()
            uri = f"fabric://agents/{agent_id}/templates/slow://it"
            read: Any = await connected.session.send_request(
                types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri)),
                types.ReadResourceResult,
                progress_callback=hear,
            )
            assert read.contents[0].text == "it"
            assert heard == [(50.0, 100.0, "half of it")]


async def _keep(heard: list[Any], progress: float, total: float | None, message: str | None) -> None:
    heard.append((progress, total, message))


async def ada(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": f"Ada ({params.message})"})


async def declined(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


@eras
@ways
@pytest.mark.parametrize(("agent_id", "owner"), [("files", "watched"), ("old", "old")])
async def test_a_question_during_a_request_reaches_the_client(
    node: Node, connect: Connect, mode: str, agent_id: str, owner: str
) -> None:
    async with connect(node, mode, elicitation_callback=ada) as connected:
        got: Any = await connected.get_prompt(f"{agent_id}_ask")
        assert got.messages[0].content.text == f"{owner} hears Ada (Who is there?)"
        read: Any = await connected.read_resource(f"fabric://agents/{agent_id}/templates/ask://it")
        assert read.contents[0].text == "it for Ada (Who reads it?)"
    async with connect(node, mode, elicitation_callback=declined) as connected:
        got = await connected.get_prompt(f"{agent_id}_ask")
        assert got.messages[0].content.text == f"{owner} hears: decline"
    async with connect(node, mode) as connected:  # has not said that it can be asked
        got = await connected.get_prompt(f"{agent_id}_ask")
        assert got.messages[0].content.text == f"{owner} hears: decline"


async def test_a_server_that_waits_is_told_when_the_client_leaves_without_an_answer(node: Node) -> None:
    asked = asyncio.Event()

    async def silent(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    pending = node.fabric.runtime_pool.find_runtime("old")._pending_questions  # type: ignore[union-attr]
    before = len(pending)
    async with socket_client(node, "legacy", elicitation_callback=silent) as connected:
        waiting = asyncio.ensure_future(connected.get_prompt("old_ask"))
        await asyncio.wait_for(asked.wait(), WAIT_TIMEOUT)
        assert len(pending) == before + 1
        waiting.cancel()
        await asyncio.wait([waiting])

        async def no_client_waits() -> bool:
            return len(pending) == before

        await eventually(no_client_waits)


async def test_a_question_is_answered_only_by_whom_it_was_put_to(node: Node) -> None:
    headers, body = modern_prompt("old_ask", elicitation={})
    asked = (await node.send("POST", "/mcp", headers=headers, json=body)).json["result"]
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    answered = {"inputResponses": {key: {"action": "accept", "content": {"name": "Eve"}}}}
    body["params"] |= {**answered, "requestState": asked["requestState"]}
    for name, token in (("old_ask", "outsider-key"), ("old_slow", PSK)):
        headers["Mcp-Name"] = body["params"]["name"] = name
        refused = (await node.send("POST", "/mcp", headers=headers, json=body, token=token)).json
        assert "error" in refused, (name, refused)
    headers["Mcp-Name"] = body["params"]["name"] = "old_ask"
    told = (await node.send("POST", "/mcp", headers=headers, json=body)).json["result"]
    assert told["messages"][0]["content"]["text"] == "old hears Eve"
    again = (await node.send("POST", "/mcp", headers=headers, json=body)).json
    assert again["error"]["data"]["error"]["details"]["field"] == "continuation"


def modern_prompt(name: str, **capabilities: Any) -> tuple[dict[str, str], dict[str, Any]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "prompts/get",
        "Mcp-Name": name,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": name, "_meta": meta}}
    return headers, body


async def test_no_schema_of_ours_is_without_a_type(node: Node) -> None:
    """As strict clients want it; and nothing is narrower than before."""
    async with client(node) as connected:
        listed = {tool.name: tool for tool in (await connected.list_tools()).tools if tool.name.startswith("fabric_")}
        called = await connected.call_tool(
            "fabric_call",
            {
                "agent_id": "percy",
                "capability": "think",
                "task": "",
                "attachments": [{"type": "data", "content": each} for each in ({"a": [1]}, [1], "x", 1.5, True, None)],
            },
        )
        assert not called.is_error
    for tool in listed.values():
        for schema in (tool.input_schema, tool.output_schema or {"type": "object"}):
            assert list(untyped(schema, tool.name)) == []


_TYPE_KEYWORDS = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not")


def untyped(schema: Any, path: str) -> Any:
    if not any(word in schema for word in _TYPE_KEYWORDS) or isinstance(schema.get("type"), list):
        yield path
    for word in ("properties", "$defs"):
        for name, inner in schema.get(word, {}).items():
            yield from untyped(inner, f"{path}.{name}")
    for word in ("anyOf", "oneOf", "allOf"):
        for number, inner in enumerate(schema.get(word, ())):
            yield from untyped(inner, f"{path}.{word}{number}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from untyped(schema[word], f"{path}.{word}")
