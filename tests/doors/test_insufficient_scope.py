"""A token that is good, but not for this: 403 says which scope is missing and where to get it, at every HTTP door."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio
import websockets
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from a2a_fabric.agent import Agent
from a2a_fabric.web.server import bind_socket, url_from_socket
from tests.fixtures.authority import Authority, authority
from tests.fixtures.mcp_client import MemoryTokenStorage
from tests.fixtures.mcp_raw import Session, modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUDIENCE = "https://fabric.example"
KEY = "a-key-that-may-do-little"
GRANTS = {
    "guests": ["agent:percy"],
    "staff": ["*"],
    "vault-users": ["agent:vault"],
    "ops": ["register", "metrics"],
    "Domain Users": ["agent:percy"],  # a group, and no word that a client could ask for
}
WORDS = "guests ops staff vault-users"

_message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "metadata": {"skill": "say"}}
_part = {"type": "text", "content": "x"}
_call = {"agent_id": "vault", "capability": "say", "task": "x"}
_task = {"taskId": "t", "action": "say", "agentId": "vault", "input": {}}
_entry = {"agentId": "t", "name": "n", "capabilities": ["c"], "endpoint": "http://127.0.0.1:1"}
_rpc = {"jsonrpc": "2.0", "id": 1}
NEW = {"A2A-Version": "1.0"}

# By door: method, path, body, more headers, and the scope of this node that is missing.
REQUESTS: dict[str, tuple[str, str, Any, dict[str, str], str]] = {
    "fabric": ("POST", "/mcp/call", {"name": "fabric.call", "arguments": _call}, {}, "agent:vault"),
    "fabric, a stream": (
        "POST", "/mcp/call", {"name": "fabric.call", "arguments": {**_call, "stream": True}}, {}, "agent:vault",
    ),
    "fabric, a tool": ("POST", "/mcp/call", {"name": "fabric.tool.agent.vault.say"}, {}, "agent:vault"),
    "fabric, one agent": ("GET", "/mcp/agent/vault", None, {}, "agent:vault"),
    "fabric, metrics": ("GET", "/metrics", None, {}, "metrics"),
    "fabric, register": (
        "POST", "/mcp/register_agent", {"agent_id": "t", "endpoint": "http://127.0.0.1:1"}, {}, "register",
    ),
    "mcp, one agent": ("POST", "/agents/vault/mcp", *reversed(modern("tools/list")), "agent:vault"),
    "a2a": (
        "POST", "/agents/vault", {**_rpc, "method": "SendMessage", "params": {"message": _message}}, NEW, "agent:vault",
    ),
    "a2a, HTTP+JSON": ("POST", "/agents/vault/message:send", {"message": _message}, NEW, "agent:vault"),
    "rest": ("POST", "/v1/tasks", {"agentId": "vault", "input": {"task": "x"}}, {}, "agent:vault"),
    "rest, a message": ("POST", "/v1/agents/vault/messages", {"parts": [_part]}, {}, "agent:vault"),
    "rest, RPC": (
        "POST", "/", {**_rpc, "method": "sendMessage", "params": {"agentId": "vault", "parts": [_part]}}, {},
        "agent:vault",
    ),
    "directory": ("POST", "/a2a", {**_rpc, "method": "a2a/task", "params": _task}, {}, "agent:vault"),
    "directory, bare": ("POST", "/a2a/task", _task, {}, "agent:vault"),
    "directory, register": ("POST", "/a2a/register", _entry, {}, "register"),
    "discovery": ("GET", "/agents/vault/mcp/server-card", None, {}, "agent:vault"),
}  # fmt: skip


def make_agent(agent_id: str) -> Agent:
    agent = Agent(agent_id, trust_tier="org")

    @agent.capability
    async def say(task: str) -> dict[str, str]:
        return {"answer": f"{agent_id} says {task}"}

    return agent


def trusting(server: Authority, **more: Any) -> dict[str, Any]:
    return {"id": "corp", "issuer": server.issuer, "audience": [AUDIENCE], "grants": GRANTS, **more}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Authority]:
    async with authority() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(server: Authority) -> AsyncIterator[Node]:
    keys = [{"id": "bob", "key": KEY, "scopes": ["agent:percy"]}]
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]
    config = {"auth": {"keys": keys, "issuers": [trusting(server)]}, "doors": doors}
    async with running(make_agent("percy"), make_agent("vault"), config=config) as found:
        yield found


def guest(server: Authority, scope: str = "guests") -> str:
    return server.sign(aud=AUDIENCE, scope=scope)


def read_challenge(reply: Reply) -> dict[str, str]:
    scheme, _, fields = reply.headers["www-authenticate"].partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', fields))


async def send(node: Node, door: str, token: str | None) -> Reply:
    method, path, body, headers, _ = REQUESTS[door]
    more = {name: value for name, value in headers.items() if name != "Authorization"}
    return await node.send(method, path, token=token, json=body, headers=more)


@pytest.mark.parametrize("door", REQUESTS)
async def test_a_good_token_that_lacks_a_scope_is_told_which_word_of_its_issuer_gives_it(
    node: Node, server: Authority, door: str
) -> None:
    reply = await send(node, door, guest(server))
    assert reply.status == 403
    challenge = read_challenge(reply)
    path = "/agents/vault/mcp" if door.startswith("mcp") else ""
    assert challenge == {
        "realm": "fabric",
        "error": "insufficient_scope",
        "scope": "vault-users" if REQUESTS[door][4] == "agent:vault" else "ops",  # what gives least, not `staff`
        "resource_metadata": f"{node.url}/.well-known/oauth-protected-resource{path}",
    }


@pytest.mark.parametrize("door", ["fabric", "a2a", "rest", "directory", "mcp, one agent"])
async def test_a_key_is_told_the_scope_of_this_node(door: str) -> None:
    keys = [{"id": "bob", "key": KEY, "scopes": ["agent:percy"]}]
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest")]
    async with running(make_agent("vault"), config={"auth": {"keys": keys}, "doors": doors}) as found:
        reply = await send(found, door, KEY)
    assert reply.status == 403
    assert read_challenge(reply) == {"realm": "fabric", "error": "insufficient_scope", "scope": "agent:vault"}


@pytest.mark.parametrize("door", ["fabric", "a2a", "rest", "directory", "discovery", "mcp, one agent"])
async def test_without_a_token_the_401_names_the_scopes(node: Node, door: str) -> None:
    for token, error in ((None, {}), ("a.b.c", {"error": "invalid_token"})):
        reply = await send(node, door, token)
        assert reply.status == 401
        challenge = read_challenge(reply)
        assert challenge.pop("resource_metadata").startswith(node.url)
        assert challenge == {"realm": "fabric", "scope": WORDS, **error}


async def test_a_token_without_any_scope_is_told_all_that_it_can_ask_for(node: Node, server: Authority) -> None:
    reply = await node.send("GET", "/v1/agents", token=guest(server, "openid"))
    assert reply.status == 403
    assert read_challenge(reply)["error"] == "insufficient_scope"
    assert read_challenge(reply)["scope"] == WORDS


async def test_a_websocket_is_refused_with_the_same_words(node: Node, server: Authority) -> None:
    headers = {"Authorization": f"Bearer {guest(server, 'openid')}"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(node.url.replace("http", "ws") + "/mcp/call", additional_headers=headers)
    assert refused.value.response.status_code == 403
    assert 'error="insufficient_scope"' in refused.value.response.headers["WWW-Authenticate"]


@pytest.mark.parametrize("grants", [{}, {"guests": ["agent:percy"], "staff": ["*"]}])
async def test_a_hidden_agent_and_one_that_does_not_exist_are_refused_alike(
    server: Authority, grants: dict[str, Any]
) -> None:
    auth = {"keys": [{"id": "bob", "key": KEY, "scopes": ["agent:percy"]}]}
    issuers = {"issuers": [trusting(server, grants=grants)]} if grants else {}
    replies = []
    async with running(make_agent("vault"), config={"auth": {**auth, **issuers}}) as found:
        for name in ("vault", "nowhere"):
            body = {"name": "fabric.call", "arguments": {**_call, "agent_id": name}}
            reply = await found.send("POST", "/mcp/call", token=KEY, json=body)
            replies.append((reply.status, reply.headers["www-authenticate"].replace(name, "NAME")))
    assert replies[0][0] == 403
    assert replies[0] == replies[1]


async def test_a_refusal_by_trust_tier_promises_nothing(node: Node, server: Authority) -> None:
    config = {"auth": {"keys": [{"id": "bob", "key": KEY, "trust": "public"}]}}
    async with running(make_agent("vault"), config=config) as found:
        body = {"name": "fabric.call", "arguments": _call}
        reply = await found.send("POST", "/mcp/call", token=KEY, json=body)
    assert reply.status == 403
    assert "www-authenticate" not in reply.headers


@pytest.mark.parametrize("name", ['x"y', "x\r\nSet-Cookie: a=b", "näm", "x y", "w" * 1000])
async def test_a_name_that_no_header_can_hold_is_left_out(node: Node, name: str) -> None:
    body = {"name": "fabric.call", "arguments": {**_call, "agent_id": name}}
    reply = await node.send("POST", "/mcp/call", token=KEY, json=body)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers
    assert read_challenge(reply)["scope"] == WORDS


async def test_an_mcp_tool_outside_the_scopes_of_a_token_is_a_403_in_both_eras(node: Node, server: Authority) -> None:
    token = guest(server)
    for tool in ("vault_say", "nothing_here"):  # whether there is such a tool is not told
        headers, body = modern("tools/call", {"name": tool, "arguments": {"task": "x"}})
        for _ in range(3):  # the first is the SDK's, the others take the fast path
            reply = await node.send("POST", "/mcp", token=None, json=body, headers={**headers, **bearer(token)})
            assert reply.status == 403
            assert read_challenge(reply)["error"] == "insufficient_scope"
            assert read_challenge(reply)["scope"] == WORDS
            assert reply.json["id"] == 1
            assert reply.json["error"]["data"]["error"]["code"] == "AUTH_DENIED"
            allowed_headers, allowed = modern("tools/call", {"name": "percy_say", "arguments": {"task": "x"}})
            done = await node.send(
                "POST", "/mcp", token=None, json=allowed, headers={**allowed_headers, **bearer(token)}
            )
            assert "percy says x" in done.body.decode()
        async with Session(node, token=token) as session:
            for number in range(3):
                params = {"name": tool, "arguments": {"task": "x"}}
                request = {"jsonrpc": "2.0", "id": number + 5, "method": "tools/call", "params": params}
                async with session.post(request) as refused:
                    assert refused.status == 403
                    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
            params = {"name": "percy_say", "arguments": {"task": "x"}}
            answer = await session.answer({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
            assert answer["result"]["structuredContent"]["answer"] == "percy says x"


async def test_the_holder_of_a_key_still_gets_a_tool_result_that_a_model_can_read(node: Node) -> None:
    headers, body = modern("tools/call", {"name": "vault_say", "arguments": {"task": "x"}})
    reply = await node.send("POST", "/mcp", token=None, json=body, headers={**headers, **bearer(KEY)})
    assert reply.status == 200
    assert reply.json["result"]["isError"] is True


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_the_client_of_the_sdk_gets_itself_the_missing_scope_and_repeats_the_call() -> None:
    """The user first consents to less than the client asked for, and to the rest when the call needs it."""
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    async with authority() as own:
        issuers = [trusting(own, audience=[], grants={"guests": ["agent:percy"], "staff": ["*"]})]
        config = {"auth": {"issuers": issuers}, "public_url": url_from_socket(listener)}
        async with running(make_agent("percy"), make_agent("vault"), config=config, listener=listener) as node:
            sent_to: list[str] = []

            async def go(url: str) -> None:
                sent_to.append(url)

            async def come_back() -> AuthorizationCodeResult:
                url = sent_to[-1] if len(sent_to) > 1 else re.sub(r"scope=[^&]*", "scope=guests", sent_to[-1])
                async with httpx2.AsyncClient(timeout=WAIT_TIMEOUT) as browser:
                    reply = await browser.get(url)
                told = parse_qs(urlsplit(reply.headers["location"]).query)
                return AuthorizationCodeResult(code=told["code"][0], state=told["state"][0])

            about = OAuthClientMetadata(redirect_uris=[AnyUrl("http://localhost:1/back")], client_name="test")
            auth = OAuthClientProvider(f"{node.url}/mcp", about, MemoryTokenStorage(), go, come_back)
            async with (
                asyncio.timeout(WAIT_TIMEOUT),
                httpx2.AsyncClient(auth=auth, timeout=WAIT_TIMEOUT) as http,
                Client(streamable_http_client(f"{node.url}/mcp", http_client=http), mode="2026-07-28") as client,
            ):
                first = await client.call_tool("percy_say", {"task": "hello"})
                assert first.structured_content["answer"] == "percy says hello"
                assert len(sent_to) == 1
                second = await client.call_tool("vault_say", {"task": "hello"})
                assert second.structured_content["answer"] == "vault says hello"
    assert len(sent_to) == 2
    assert "staff" in parse_qs(urlsplit(sent_to[1]).query)["scope"][0].split()
