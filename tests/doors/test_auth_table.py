"""Every door with every kind of credentials: real clients at real doors, and the table of it in docs/security.md.

A cell is good if the agent gets the identity that the credentials prove, and if credentials that are wrong in one place
are refused at the same door. The table is written when all of them have been seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import httpx2
import msgspec
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2, a2a_pb2_grpc
from cryptography import x509
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.keys import NewKey
from a2a_fabric.core.propagation import PASSPORT_META_KEY, new_id
from a2a_fabric.identity.mandates import issue_mandate
from a2a_fabric.identity.passports import PASSPORT_HEADER, issue_passport
from a2a_fabric.identity.shared_keys import make_key
from a2a_fabric.identity.signing import SigningKey
from tests.fixtures.authority import US, Authority, authority
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.plain import TRUSTS_NO_PROXY
from tests.fixtures.tls_node import TLSNode, running_tls
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- table of doors and credentials -->", "<!-- end of the table -->"
ISSUER = SigningKey.generate()
NODE_URL = "https://node.example"
DOOR_KINDS = ("fabric", "mcp", "rest", "directory", "discovery")


class Refused(Exception):
    """The door did not let the caller in."""


@dataclass(frozen=True)
class Sent:
    """Credentials as a client sends them: headers, or for clients that set none, one token and metadata."""

    headers: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None  # with the certificate of the client
    pem: tuple[bytes, bytes, bytes] = (b"", b"", b"")  # the same for gRPC: authority, key, certificate


def percy() -> Agent:
    agent = Agent("percy", trust_tier="public")

    @agent.capability
    async def greet(task: str, call: Call) -> dict[str, Any]:
        return {"answer": f"hello {task}", "auth": {"mode": call.auth.mode, "principal": call.auth.principal_id}}

    return agent


@dataclass
class Bench:
    node: Node
    open_node: Node  # lets callers in without credentials
    server: Authority
    stored_key: str
    tls: TLSNode


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("table")
    folder.joinpath("keys.json").write_bytes(msgspec.json.encode({"keys": [ISSUER.public_jwk]}))
    doors = [*({"kind": kind} for kind in DOOR_KINDS), {"kind": "a2a", "grpc": "127.0.0.1:0"}]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(authority())
        own = {"id": "corp", "issuer": "corp", "jwks_file": "keys.json", "accepts": ["passport", "mandate"]}
        name, password = US
        login = {
            "id": "login", "issuer": server.issuer, "audience": [NODE_URL], "scopes": ["*"], "client_id": name,
            "client_secret": password,
        }  # fmt: skip
        auth = {"issuers": [own, login]}
        limits = {"failed_attempts_per_minute": 100_000}
        config = {"public_url": NODE_URL, "auth": auth, "doors": doors, "limits": limits}
        node = await stack.enter_async_context(running(percy(), config=config, base=folder))
        open_config = {"auth": {"anonymous": True}, "doors": doors}
        open_node = await stack.enter_async_context(running(percy(), config=open_config))
        secret = make_key()
        digest = hashlib.sha256(secret.encode()).digest()
        await node.fabric.store.keys.add(NewKey(key_id="key-1", name="reader", digest=digest, scopes=("*",)))

        async def is_known() -> bool:
            return (await node.send("GET", "/v1/agents", token=secret)).status == 200

        await eventually(is_known)
        certificates = [{"match": "dns:known.example", "id": "ann", "trust": "org"}]
        tls_doors = [*doors[:-1], {**doors[-1], "grpc_client_certificates": "required"}]
        tls_config = {"auth": {"certificates": certificates}, "doors": tls_doors}
        tls_folder = tmp_path_factory.mktemp("tls")
        table = {"client_certificates": "optional"}
        tls = await stack.enter_async_context(running_tls(percy(), folder=tls_folder, tls=table, config=tls_config))
        yield Bench(node, open_node, server, secret, tls)


def by_token(token: str) -> Sent:
    return Sent({"Authorization": f"Bearer {token}"}, token)


def make_passport() -> dict[str, Any]:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    return issue_passport(ISSUER, principal_id="alice", scopes=["*"], expires_at=expires_at)


def make_mandate() -> str:
    return issue_mandate(
        ISSUER, issuer="corp", principal="alice", delegate="bot", scopes=["*"], now=time.time(), seconds=3600
    )


def spoil(text: str) -> str:
    """One character in the middle is another one."""
    middle = len(text) // 2
    return f"{text[:middle]}{'A' if text[middle] != 'A' else 'B'}{text[middle + 1 :]}"


Make = Callable[[Bench], tuple[Sent, Sent | None]]  # right, and wrong in one place


def _none(bench: Bench) -> tuple[Sent, Sent | None]:
    return Sent(), None


def _psk(bench: Bench) -> tuple[Sent, Sent | None]:
    return by_token(PSK), by_token(spoil(PSK))


def _api_key(bench: Bench) -> tuple[Sent, Sent | None]:
    right, wrong = bench.stored_key, spoil(bench.stored_key)
    return Sent({"X-API-Key": right}, right), Sent({"X-API-Key": wrong}, wrong)


def _jwt(bench: Bench) -> tuple[Sent, Sent | None]:
    return by_token(bench.server.sign(aud=NODE_URL)), by_token(bench.server.sign(aud="https://other.example"))


def _opaque(bench: Bench) -> tuple[Sent, Sent | None]:
    return by_token(bench.server.hand_out(aud=NODE_URL)), by_token(secrets.token_urlsafe(24))


def _passport(bench: Bench) -> tuple[Sent, Sent | None]:
    right = make_passport()
    wrong = {**right, "principal_id": "bob"}
    return (
        Sent({PASSPORT_HEADER: json.dumps(right)}, PSK, {PASSPORT_META_KEY: right}),
        Sent({PASSPORT_HEADER: json.dumps(wrong)}, PSK, {PASSPORT_META_KEY: wrong}),
    )


def _mandate(bench: Bench) -> tuple[Sent, Sent | None]:
    right = make_mandate()
    return by_token(right), by_token(spoil(right))


def _certificate(bench: Bench) -> tuple[Sent, Sent | None]:
    def show(name: str) -> Sent:
        key, certificate = bench.tls.clients.vouch_for("client", x509.DNSName(name))
        file = bench.tls.folder / f"{name}.pem"
        file.write_bytes(certificate + key)
        context = ssl.create_default_context(cadata=bench.tls.authority.pem.decode())
        context.load_cert_chain(file)
        return Sent(tls=context, pem=(bench.tls.authority.pem, key, certificate))

    return show("known.example"), show("unknown.example")


# Column, how the credentials are made, and the mode and the principal that the agent is told.
MODES: dict[str, tuple[Make, str, str]] = {
    "none": (_none, "none", "anonymous"),
    "node's key": (_psk, "psk", "psk"),
    "API key": (_api_key, "psk", "reader"),
    "JWT": (_jwt, "jwt", "login:alice"),
    "opaque token": (_opaque, "oauth2", "login:alice"),
    "passport": (_passport, "passport", "corp:alice"),
    "mandate": (_mandate, "mandate", "corp:alice"),
    "certificate (mTLS)": (_certificate, "mtls", "ann"),
}


async def post(node: Node, path: str, sent: Sent, body: Any, **headers: str) -> str:
    reply = await node.send("POST", path, token=None, headers={**sent.headers, **headers}, json=body)
    if reply.status in (401, 403):
        raise Refused
    assert reply.status in (200, 201, 202), reply.body
    return reply.body.decode()


async def fabric(node: Node, sent: Sent) -> str:
    arguments = {"agent_id": "percy", "capability": "greet", "task": "you"}
    return await post(node, "/mcp/call", sent, {"name": "fabric.call", "arguments": arguments})


async def fabric_socket(node: Node, sent: Sent) -> str:
    arguments = {"agent_id": "percy", "capability": "greet", "task": "you"}
    async with _connect(node, "/mcp/call", sent) as socket:
        await socket.send(json.dumps({"id": 1, "name": "fabric.call", "arguments": arguments}))
        return str(await socket.recv())


def _connect(node: Node, path: str, sent: Sent) -> Any:
    url = node.url.replace("http", "ws", 1) + path
    return websockets.connect(url, additional_headers=sent.headers, ssl=sent.tls)


async def _greet(client: Client, name: str, meta: dict[str, Any] | None = None) -> str:
    result = await client.call_tool(name, {"task": "you"}, meta=meta or None)  # type: ignore[arg-type]
    assert not result.is_error, result
    return json.dumps(result.structured_content)


async def _mcp(node: Node, sent: Sent, path: str, name: str, mode: str) -> str:
    async with (
        httpx2.AsyncClient(headers=sent.headers, timeout=WAIT_TIMEOUT, verify=sent.tls or TRUSTS_NO_PROXY) as http,
        Client(streamable_http_client(f"{node.url}{path}", http_client=http), mode=mode) as client,
    ):
        return await _greet(client, name)


async def mcp_stateless(node: Node, sent: Sent) -> str:
    return await _mcp(node, sent, "/mcp", "percy_greet", "2026-07-28")


async def mcp_handshake(node: Node, sent: Sent) -> str:
    return await _mcp(node, sent, "/mcp", "percy_greet", "legacy")


async def mcp_one_agent(node: Node, sent: Sent) -> str:
    return await _mcp(node, sent, "/agents/percy/mcp", "greet", "legacy")


async def mcp_socket(node: Node, sent: Sent) -> str:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"name": "percy_greet", "arguments": {"task": "you"}}
    async with _connect(node, "/mcp/ws", sent) as socket:
        for number, (method, params) in enumerate((("initialize", about), ("tools/call", call))):
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
            answer = await socket.recv()
        return str(answer)


async def mcp_stdio(node: Node, sent: Sent) -> str:
    token = ["--token", sent.token] if sent.token else []
    words = ["-m", "a2a_fabric", "mcp", "--url", node.url, *token]
    no_keys = {
        **get_default_environment(),
        "FABRIC_HOME": str(Path(__file__).parent / "no-keys"),
    }  # no node of this user has kept its key there
    program = StdioServerParameters(command=sys.executable, args=words, env=no_keys)
    async with Client(stdio_client(program), mode="legacy") as client:
        return await _greet(client, "percy_greet", sent.meta)


async def a2a_http(node: Node, sent: Sent) -> str:
    message = {"messageId": new_id(), "role": "ROLE_USER", "parts": [{"text": "you"}], "metadata": {"skill": "greet"}}
    return await post(node, "/agents/percy/message:send", sent, {"message": message}, **{"A2A-Version": "1.0"})


async def a2a_jsonrpc(node: Node, sent: Sent) -> str:
    message = {"messageId": new_id(), "role": "ROLE_USER", "parts": [{"text": "you"}], "metadata": {"skill": "greet"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    return await post(node, "/agents/percy", sent, body, **{"A2A-Version": "1.0"})


async def a2a_grpc(node: Node, sent: Sent) -> str:
    root, key, certificate = sent.pem
    operator: dict[str, Any] = {} if sent.tls is None else {"ssl": ssl.create_default_context(cadata=root.decode())}
    async with aiohttp.ClientSession() as session:  # a connection of its own, without the certificate
        card = (await Node(node.url, node.fabric, session).send(
            "GET", "/agents/percy/.well-known/agent-card.json", **operator)).json  # fmt: skip
    place = next(each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    message = a2a_pb2.Message(message_id=new_id(), role="ROLE_USER", parts=[a2a_pb2.Part(text="you")])
    message.metadata.update({"skill": "greet"})
    request = a2a_pb2.SendMessageRequest(message=message, tenant="percy")
    address = place.partition("://")[2] if "://" in place else place
    async with (
        grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root, key, certificate))
        if sent.tls
        else grpc.aio.insecure_channel(address)
    ) as channel:
        service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        metadata = tuple((name.lower(), value) for name, value in sent.headers.items())
        try:
            reply = await service.SendMessage(request, metadata=metadata, timeout=WAIT_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                raise Refused from error
            raise
    return str(reply)


async def rest(node: Node, sent: Sent) -> str:
    body = {"agentId": "percy", "capability": "greet", "input": {"task": "you"}}
    task = json.loads(await post(node, "/v1/tasks", sent, body))
    seen: list[str] = []

    async def has_ended() -> bool:
        reply = await node.send("GET", f"/v1/tasks/{task['id']}", token=None, headers=sent.headers)
        seen.append(reply.body.decode())
        return bool(reply.json["status"] == "completed")

    await eventually(has_ended)
    return seen[-1]


async def directory(node: Node, sent: Sent) -> str:
    params = {"taskId": new_id(), "agentId": "percy", "action": "greet", "input": {"task": "you"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": params}
    return await post(node, "/a2a", sent, body)


async def discovery(node: Node, sent: Sent) -> str:
    found = await post(node, "/search", sent, {"query": "greet"})
    assert "percy" in found
    return found


DOORS: dict[str, Callable[[Node, Sent], Awaitable[str]]] = {
    "Fabric wire": fabric,
    "Fabric wire, WebSocket": fabric_socket,
    "MCP, stateless era": mcp_stateless,
    "MCP, handshake era": mcp_handshake,
    "MCP, one agent alone": mcp_one_agent,
    "MCP, WebSocket": mcp_socket,
    "MCP, stdio": mcp_stdio,
    "A2A, HTTP+JSON": a2a_http,
    "A2A, JSON-RPC": a2a_jsonrpc,
    "A2A, gRPC": a2a_grpc,
    "REST": rest,
    "directory": directory,
    "discovery": discovery,
}
IMPOSSIBLE = {("MCP, stdio", "certificate (mTLS)")}  # the command has no option for a certificate
SEARCH_ONLY = {"discovery"}  # calls no agent, so that only being let in is seen
GOOD: set[tuple[str, str]] = set()


@requirement("001-20", "001-27", "001-28", "001-53", "001-55")
@pytest.mark.parametrize(("door", "mode"), [pair for pair in product(DOORS, MODES) if pair not in IMPOSSIBLE])
async def test_the_agent_gets_the_identity_that_the_credentials_prove(bench: Bench, door: str, mode: str) -> None:
    make, told_mode, principal = MODES[mode]
    right, wrong = make(bench)
    node = bench.open_node if mode == "none" else bench.node
    async with asyncio.timeout(WAIT_TIMEOUT), AsyncExitStack() as stack:
        refusing = bench.node
        if right.tls is not None and wrong is not None and wrong.tls is not None:
            node, refusing = [
                Node(bench.tls.url, bench.tls.node.fabric, await stack.enter_async_context(bench.tls.session(context)))
                for context in (right.tls, wrong.tls)
            ]
        answer = await DOORS[door](node, right)
        if door not in SEARCH_ONLY:
            assert told_mode in answer, answer
            assert principal in answer, answer
        assert await is_refused(DOORS[door], refusing, wrong or Sent())
    GOOD.add((door, mode))


@requirement("001-20")
@pytest.mark.parametrize("cap", [[], "", [7], {"greet": True}])
@pytest.mark.parametrize("door", [door for door in DOORS if door not in SEARCH_ONLY and door != "MCP, stdio"])
async def test_a_token_that_its_cap_narrows_to_nothing_calls_nothing(bench: Bench, door: str, cap: Any) -> None:
    """On stdio, the command relays to the WebSocket."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        token = by_token(bench.server.sign(aud=NODE_URL, scope="*", cap=cap))
        assert await is_refused(DOORS[door], bench.node, token)
        allowed = by_token(bench.server.sign(aud=NODE_URL, cap=["greet"]))
        assert "login:alice" in await DOORS[door](bench.node, allowed)


async def is_refused(call: Callable[[Node, Sent], Awaitable[str]], node: Node, sent: Sent) -> bool:
    """Whichever way the client of the protocol reports it."""
    try:
        await call(node, sent)
    except (Refused, websockets.InvalidStatus, MCPError):
        return True
    except BaseExceptionGroup as group:
        return group.subgroup(lambda exc: isinstance(exc, Refused | MCPError | httpx2.HTTPStatusError)) is not None
    return False


async def test_the_table_in_the_documentation_is_what_was_seen() -> None:
    if len(GOOD) < len(DOORS) * len(MODES) - len(IMPOSSIBLE):
        pytest.skip("needs the whole module in one process: pytest tests/doors/test_auth_table.py")
    rows = [f"| {door} | {' | '.join('✓' if (door, mode) in GOOD else '–' for mode in MODES)} |" for door in DOORS]
    head = f"| door | {' | '.join(MODES)} |\n|---|{'---|' * len(MODES)}"
    table = "\n".join((BEGIN, "", head, *rows, "", END))
    page = PAGE.read_text("utf-8")
    before, _, rest_of_page = page.partition(BEGIN)
    after = rest_of_page.partition(END)[2]
    if page != before + table + after:
        PAGE.write_text(before + table + after, "utf-8")
        pytest.fail("docs/security.md was out of date and has been written anew: look at it and commit it")
