"""Identities that a node signs for another node or an agent: who takes them, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2, a2a_pb2_grpc

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AuthInvalid, ConfigError
from a2a_fabric.core.forwarding import IDENTITY_HEADER, IDENTITY_META_KEY
from a2a_fabric.identity import NodeIdentityVerifier, SigningKey
from a2a_fabric.identity.forwarded import ForwardedIdentity, digest_content, nest_actors, read_identity, sign_identity
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.signing import create_key_file, encode_base64url
from a2a_fabric.runtimes.proto.messages import (
    CallRequest,
    DescribeRequest,
    Description,
    HealthReply,
    HealthRequest,
    Outcome,
    StreamItem,
)
from a2a_fabric.runtimes.proto.service import AgentServicer
from tests.fixtures.agents.a2a_serving import serving as serving_a2a
from tests.fixtures.agents.grpc_serving import done
from tests.fixtures.agents.grpc_serving import serving as serving_grpc
from tests.fixtures.mcp_client import client, words
from tests.fixtures.mcp_servers import identified
from tests.fixtures.mcp_servers.serving import serving as serving_mcp
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.marks import requirement
from tests.runtimes.fabric_nodes import listed

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
CALLER_KEY, FREE_KEY = "the-key-of-the-other-node", "the-key-of-somebody-else"
BODY = json.dumps({"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "who", "task": ""}}).encode()


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def who(call: Call) -> dict[str, Any]:
        return {"auth": msgspec.to_builtins(call.auth)}

    return agent


def sign(body: bytes = BODY, key: SigningKey = KEY, **claims: Any) -> str:
    now = int(time.time())
    given = {
        "iss": "far",
        "aud": "near",
        "sub": "alice",
        "act": nest_actors(("bot", "far")),
        "jti": encode_base64url(time.time_ns().to_bytes(8, "big")),
        "iat": now,
        "nbf": now,
        "exp": now + 60,
        "dig": digest_content(body),
    }
    return sign_identity(ForwardedIdentity(**{**given, **claims}), key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    folder.joinpath("far.json").write_bytes(msgspec.json.encode({"keys": [KEY.public_jwk]}))
    keys = [{"id": "far-key", "key": CALLER_KEY}, {"id": "free", "key": FREE_KEY}]
    trusted = {"name": "far", "jwks_file": "far.json", "callers": ["far-key"]}
    config = {
        "node_id": "near",
        "store": "memory:",
        "auth": {"keys": keys, "nodes": [trusted]},
        "doors": [*({"kind": kind} for kind in ("fabric", "mcp", "rest")), {"kind": "a2a", "grpc": "127.0.0.1:0"}],
        "limits": {"body_bytes": 65536},
    }
    async with running(percy(), config=config, base=folder) as found:
        yield found


async def send(node: Node, identity: str | None, body: bytes = BODY, token: str = CALLER_KEY) -> Any:
    headers = {"content-type": "application/json", **({} if identity is None else {IDENTITY_HEADER: identity})}
    return await node.send("POST", "/mcp/call", token=token, headers=headers, data=body)


class TestAnotherNode:
    @requirement("000-25", "001-27")
    async def test_it_is_told_for_whom_the_signed_call_is(self, node: Node) -> None:
        reply = await send(node, sign())
        auth = reply.json["result"]["auth"]
        assert (auth["principal_id"], auth["actors"]) == ("far-key", ["alice", "bot", "far"])

    async def test_one_without_an_identity_is_refused_and_others_need_none(self, node: Node) -> None:
        for _ in range(2):  # also when the key is known
            reply = await send(node, None)
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert (await send(node, None, token=FREE_KEY)).json["ok"] is True
        assert (await send(node, None, token=PSK)).json["ok"] is True

    async def test_it_counts_once(self, node: Node) -> None:
        token = sign()
        assert (await send(node, token)).json["ok"] is True
        reply = await send(node, token)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert "used before" in reply.json["error"]
        token = sign()
        replies = await asyncio.gather(*(send(node, token) for _ in range(5)))
        assert sorted(reply.status for reply in replies) == [200, 401, 401, 401, 401]

    async def test_it_counts_once_at_all_nodes_of_a_store_and_after_a_restart(self, tmp_path: Path) -> None:
        tmp_path.joinpath("far.json").write_bytes(msgspec.json.encode({"keys": [KEY.public_jwk]}))
        trusted = {"name": "far", "jwks_file": "far.json", "callers": ["far-key"]}
        config = {
            "public_url": "http://near.example",
            "store": "sqlite:shared.db",
            "auth": {"keys": [{"id": "far-key", "key": CALLER_KEY}], "nodes": [trusted]},
            "doors": [{"kind": "fabric"}],
        }

        async def send_to(node: Node, token: str) -> tuple[int, bool]:
            reply = await send(node, token)
            return reply.status, "used before" in str(reply.json.get("error"))

        first, second = (sign(aud="http://near.example") for _ in range(2))
        async with (
            running(percy(), config={**config, "node_id": "one"}, base=tmp_path) as one,
            running(percy(), config={**config, "node_id": "two"}, base=tmp_path) as two,
        ):
            assert await send_to(one, first) == (200, False)
            assert await send_to(two, first) == (401, True)
            outcomes = await asyncio.gather(*(send_to(each, second) for each in (one, two) * 3))
            assert sorted(outcomes) == [(200, False), *[(401, True)] * 5]
        async with running(percy(), config={**config, "node_id": "one"}, base=tmp_path) as one:
            assert await send_to(one, second) == (401, True)

    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"key": OTHER}, "AUTH_INVALID"),
            ({"iss": "somewhere"}, "AUTH_INVALID"),
            ({"aud": "another"}, "AUTH_INVALID"),
            ({"exp": time.time() - 120, "iat": time.time() - 180, "nbf": time.time() - 180}, "AUTH_EXPIRED"),
            ({"nbf": time.time() + 3600}, "AUTH_INVALID"),
            ({"iat": time.time() + 3600}, "AUTH_INVALID"),
            ({"exp": time.time() + 3600}, "AUTH_INVALID"),  # too long
            ({"body": BODY + b" "}, "AUTH_INVALID"),
            ({"mandate": "a.b.c"}, "AUTH_INVALID"),  # a mandate that the node cannot check is never ignored
            ({"act": {"sub": 3}}, "AUTH_INVALID"),
            ({"act": nest_actors(["far"] * 100)}, "AUTH_INVALID"),
        ],
    )
    async def test_one_that_is_not_good_here_is_refused(self, node: Node, wrong: dict[str, Any], code: str) -> None:
        for token in (CALLER_KEY, FREE_KEY, PSK):
            reply = await send(node, sign(**wrong), token=token)
            assert (reply.status, reply.json["error_code"]) == (401, code), reply.body

    @pytest.mark.parametrize("text", ["", "x", "a.b.c", "null", "e30.e30.e30", "x" * 40_000])
    async def test_nonsense_is_refused(self, node: Node, text: str) -> None:
        assert (await send(node, text or " ")).status in (401, 431)

    async def test_the_identity_of_one_node_does_not_go_with_the_key_of_another_caller(self, node: Node) -> None:
        reply = await send(node, sign(), token=FREE_KEY)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert "free" in reply.json["error"]

    async def test_it_is_for_one_trace_only(self, node: Node) -> None:
        trace_id = "0af76519-16cd-43dd-8448-eb211c80319c"
        for number, expected in ((trace_id, 200), ("b7ad6b71-6920-4333-81c8-000000000001", 401)):
            headers = {
                "content-type": "application/json",
                "traceparent": f"00-{number.replace('-', '')}-b7ad6b7169203331-01",
                IDENTITY_HEADER: sign(trace_id=trace_id),
            }
            reply = await node.send("POST", "/mcp/call", token=CALLER_KEY, headers=headers, data=BODY)
            assert reply.status == expected, reply.body

    async def test_two_identities_are_none(self, node: Node) -> None:
        head = "".join(f"{IDENTITY_HEADER}: {sign()}\r\n" for _ in range(2))
        request = (
            f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER_KEY}\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw(request.encode() + BODY) as (reader, _):
            assert b" 401 " in await reader.readline()

    async def test_the_body_of_a_forged_one_is_not_read(self, node: Node) -> None:
        head = (
            f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER_KEY}\r\n"
            f"{IDENTITY_HEADER}: {sign(key=OTHER)}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n"
        )
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw(head.encode()) as (reader, _):
            assert b" 401 " in await reader.readline()  # before any of the body was sent

    async def test_large_bodies_and_streams_go_through(self, node: Node) -> None:
        arguments = {"agent_id": "percy", "capability": "who", "task": "x" * 50_000, "stream": True}
        body = json.dumps({"name": "fabric.call", "arguments": arguments}).encode()
        assert b"event: final" in (await send(node, sign(body), body)).body
        too_large = body + b" " * 65536
        assert (await send(node, sign(too_large), too_large)).status in (401, 413)

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}),
            ("GET", "/v1/agents", None),
            ("POST", "/v1/messages", {"from": "far", "to": "percy", "parts": [{"type": "text", "text": "who"}]}),
            ("GET", "/agents/percy/.well-known/agent-card.json", None),
        ],
    )
    async def test_every_door_wants_it(self, node: Node, method: str, path: str, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        refused = await node.send(method, path, token=CALLER_KEY, headers=headers, data=data)
        assert refused.status == 401, refused.body
        signed = {**headers, IDENTITY_HEADER: sign(data)}
        assert (await node.send(method, path, token=CALLER_KEY, headers=signed, data=data)).status != 401
        assert (await node.send(method, path, token=CALLER_KEY, headers=signed, data=data)).status == 401

    async def test_sockets_and_grpc_have_no_place_for_it_so_they_are_closed(self, node: Node) -> None:
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        for headers in ({}, {IDENTITY_HEADER: sign(b"")}):
            credentials = {"Authorization": f"Bearer {CALLER_KEY}", **headers}
            with pytest.raises(websockets.InvalidStatus):
                await websockets.connect(url, additional_headers=credentials)
        card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
        place = next(each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
        message = a2a_pb2.Message(message_id="1", role="ROLE_USER", parts=[a2a_pb2.Part(text="you")])
        async with grpc.aio.insecure_channel(place["url"].removeprefix("http://")) as channel:
            service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.SendMessage(
                    a2a_pb2.SendMessageRequest(message=message, tenant="percy"),
                    metadata=(("authorization", f"Bearer {CALLER_KEY}"),),
                    timeout=WAIT_TIMEOUT,
                )
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_no_byte_of_one_can_be_changed() -> None:
    token = sign(jti="fixed", iat=1_000_000, nbf=1_000_000, exp=1_000_060)

    def verify(text: str) -> None:
        verifier = NodeIdentityVerifier(
            {"far": {KEY.key_id: KEY.public_key}}, audience="near", clock=lambda: 1_000_010.0
        )
        verifier.verify(text, BODY)

    once = NodeIdentityVerifier({"far": {KEY.key_id: KEY.public_key}}, audience="near", clock=lambda: 1_000_010.0)
    assert once.verify(token, BODY).actors == ("bot", "far")
    with pytest.raises(AuthInvalid, match="used before"):
        once.verify(token, BODY)
    verify(token)
    for position in range(len(token)):
        changed = token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
        for text in (changed, token[:position]):
            with pytest.raises(Exception, match=r"identity|signature|JSON|node|key|content"):
                verify(text)


@requirement("001-58")
async def test_the_nodes_that_must_sign_change_while_the_node_runs(node: Node) -> None:
    """As all of `auth`: on a node that trusted none before, too, and what was used once stays used."""
    running_config = node.fabric.settings.running
    trusted = running_config.auth.nodes
    used = sign()
    assert (await send(node, used)).json["ok"] is True

    def trust(*nodes: Any) -> None:
        auth = msgspec.structs.replace(running_config.auth, nodes=nodes)
        outcome = node.fabric.reload(msgspec.structs.replace(running_config, auth=auth))
        assert (outcome.applied, outcome.waiting) == (("auth",), ())

    try:
        trust()
        assert (await send(node, None)).status == 200
        assert "actors" not in (await send(node, sign())).json["result"]["auth"]  # nobody can check it any more
    finally:
        trust(*trusted)
    assert (await send(node, None)).status == 401
    assert "used before" in (await send(node, used)).json["error"]
    assert (await send(node, sign())).json["result"]["auth"]["actors"] == ["alice", "bot", "far"]
    with pytest.raises(ConfigError, match="no such file"):
        trust(msgspec.structs.replace(trusted[0], jwks_file="missing.json"))
    assert (await send(node, None)).status == 401


class TestKeysOfANode:
    async def test_they_are_published_and_a_rotated_one_counts_for_a_while(self, tmp_path: Path) -> None:
        now = [1_000_000.0]
        keys = NodeKeys(tmp_path / "deep" / "identity.key", lambda: now[0])
        assert keys.list_public() == []
        first = keys.get()
        assert keys.path.stat().st_mode & 0o077 == 0
        assert NodeKeys(keys.path).get().key_id == first.key_id
        keys.public_path.write_bytes(b"")  # as `a2a-fabric identity show --json > identity.jwks.json` does first
        assert [each["kid"] for each in keys.list_public()] == [first.key_id]
        second = keys.rotate(overlap=3600)
        assert [each["kid"] for each in keys.list_public()] == [second.key_id, first.key_id]
        assert all("d" not in each for each in keys.list_public())
        now[0] += 1800
        third = NodeKeys(keys.path, lambda: now[0]).rotate(overlap=3600)  # by the command line
        assert keys.get().key_id == third.key_id
        assert [each["kid"] for each in keys.list_public()] == [third.key_id, second.key_id, first.key_id]
        now[0] += 2000
        assert [each["kid"] for each in keys.list_public()] == [third.key_id, second.key_id]

    async def test_a_key_that_other_users_can_read_is_not_used(self, tmp_path: Path) -> None:
        create_key_file(tmp_path / "node.key")
        config = {"identity": {"key_file": "node.key"}, "store": "memory:"}
        async with running(percy(), config=config, base=tmp_path) as node:
            (tmp_path / "node.key").chmod(0o644)
            assert (await node.send("GET", "/.well-known/jwks.json", token=None)).status == 503
            trace = {"trace_id": "0af76519-16cd-43dd-8448-eb211c80319c", "sign": True}
            reply = await node.ask("percy", "who", trace=trace)
            assert (reply["ok"], reply["error_code"]) == (False, "INTERNAL_ERROR")
            assert "node.key" not in json.dumps(reply)
        with pytest.raises(ConfigError, match="other users"):
            async with running(config={**config, "receipts": {"enabled": True}}, base=tmp_path):
                pass

    @requirement("000-25")
    async def test_a_receiver_finds_them_at_the_address_of_the_node(self, tmp_path: Path) -> None:
        path = tmp_path / "far.key"
        create_key_file(path)
        async with running(config={"identity": {"key_file": "far.key"}, "store": "memory:"}, base=tmp_path) as far:
            jwks = f"{far.url}/.well-known/jwks.json"
            trusted = {"name": "far", "jwks_url": jwks, "callers": ["far-key"]}
            auth = {"keys": [{"id": "far-key", "key": CALLER_KEY}], "nodes": [trusted]}
            async with running(percy(), config={"node_id": "near", "store": "memory:", "auth": auth}) as near:
                endpoint = {"uri": near.url, "psk": CALLER_KEY, "identity": {"audience": "near"}}
                one = {"agent_id": "percy", "runtime": "fabric", "endpoint": {**endpoint, "agent": "percy"}}
                whole = {"agent_id": "lab", "runtime": "fabric", "endpoint": endpoint}
                config = {"node_id": "far", "identity": {"key_file": "far.key"}, "store": "memory:"}
                async with running(manifests=[one, whole], config=config, base=tmp_path) as sender:
                    assert (await sender.ask("percy", "who"))["ok"] is True
                    imported = await listed(sender, "lab/percy", None)  # the list of the node is signed, too
                    assert (await sender.ask(imported["agent_id"], "who"))["result"]["auth"]["actors"] == ["psk", "far"]
                    assert (await far.send("GET", "/.well-known/jwks.json", token=None)).json["keys"][0]["kid"]


class TestAgents:
    """Agents made with `Agent`, and agents of other protocols, that take only what a node has signed."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        key = create_key_file(tmp_path / "node.key")
        (tmp_path / "node.jwks.json").write_bytes(msgspec.json.encode({"keys": [key.public_jwk]}))
        return tmp_path

    def config(self, **more: Any) -> dict[str, Any]:
        return {"node_id": "near", "store": "memory:", "identity": {"key_file": "node.key", **more}}

    @requirement("001-27", "000-25")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_over_http(self, folder: Path, stream: bool) -> None:
        verifier = NodeIdentityVerifier({"near": folder / "node.jwks.json"}, audience="http://percy.example")
        agent = Agent("percy", verify=verifier)

        @agent.capability
        async def who(call: Call) -> dict[str, Any]:
            return {"principal": call.auth.principal_id}

        server = agent.start(port=0)
        try:
            signed = {"uri": server.url, "identity": {"audience": "http://percy.example"}}
            manifests = [
                {"agent_id": "percy", "runtime": "http", "endpoint": signed},
                {"agent_id": "unsigned", "runtime": "http", "endpoint": {"uri": server.url, "identity": False}},
                {
                    "agent_id": "elsewhere",
                    "runtime": "http",
                    "endpoint": {"uri": server.url},
                },  # the node signs by default
            ]
            async with running(manifests=manifests, config=self.config(sign=True), base=folder) as node:
                reply = await node.ask("percy", "who", stream=stream) if not stream else None
                if reply is None:
                    *_, final = await node.events("percy", "who")
                    reply = final["data"]
                assert reply["result"]["principal"] == "psk", reply
                refused = await node.ask("unsigned", "who")
                assert refused["ok"] is False
                assert "signed identity" in json.dumps(refused)
                assert "meant for" in json.dumps(await node.ask("elsewhere", "who"))
        finally:
            server.stop()

    @requirement("001-27")
    async def test_a_program(self, folder: Path) -> None:
        program = folder / "agent.py"
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), str(folder / "node.jwks.json")]
        manifests = [
            {"agent_id": name, "runtime": "process", "endpoint": {"command": command, "identity": identity}}
            for name, identity in (("percy", True), ("unsigned", False))
        ]
        async with running(manifests=manifests, config=self.config(), base=folder) as node:
            assert (await node.ask("percy", "who", context={"number": 7}))["result"]["principal"] == "psk"
            assert "signed identity" in json.dumps(await node.ask("unsigned", "who"))

    @pytest.mark.parametrize("endpoint", [
        {"protocol": "oneshot"},
        {"protocol": "oneshot", "args_as": "text", "args_via": "argv"},
        {"kind": "agent-client"},
        {"kind": "claude-subprocess"},
    ])  # fmt: skip
    async def test_a_program_that_ends_with_its_call_or_is_prompted(
        self, folder: Path, endpoint: dict[str, Any]
    ) -> None:
        kind = endpoint.pop("kind", "process")
        program = folder / "agent.py"
        program.write_text({"process": ONESHOT, "agent-client": PROMPTED}.get(kind, CLAUDE))
        command = [sys.executable, str(program), str(folder / "node.jwks.json")]
        manifests = [
            {"agent_id": name, "runtime": kind, "capabilities": [{"name": "who"}],
             "endpoint": {**endpoint, "command": command, "identity": identity}}
            for name, identity in (("percy", True), ("unsigned", False))
        ]  # fmt: skip
        async with running(manifests=manifests, config=self.config(), base=folder) as node:
            answered = await node.ask("percy", "who", "hello")
            assert "psk" in json.dumps(answered["result"]), answered
            assert not (await node.ask("unsigned", "who", "hello"))["ok"]

    async def test_claude_gets_one_only_if_its_own_endpoint_says_so(self, folder: Path) -> None:
        """The tools of its model can read the variable, so signing for every agent does not include it."""
        folder.joinpath("agent.py").write_text(CLAUDE)
        command = [sys.executable, str(folder / "agent.py"), str(folder / "node.jwks.json")]
        manifest = {"agent_id": "percy", "runtime": "claude", "capabilities": [{"name": "who"}]}
        config = {**self.config(), "identity": {**self.config()["identity"], "sign": True}}
        async with running(
            manifests=[{**manifest, "endpoint": {"command": command}}], config=config, base=folder
        ) as node:
            assert "FABRIC_IDENTITY" in (await node.ask("percy", "who", "hello"))["error"]

    @requirement("001-27")
    async def test_over_grpc(self, folder: Path) -> None:
        verifier = NodeIdentityVerifier({"near": folder / "node.jwks.json"}, audience="percy")

        class Percy(AgentServicer):
            async def call(self, request: CallRequest, context: Any) -> Outcome:
                token = dict(context.invocation_metadata()).get(IDENTITY_HEADER, "")
                content = request.input.arguments_json.encode()
                verified = verifier.verify(token, content, capability=request.target.capability)
                return done({"principal": verified.principal_id, "actors": list(verified.actors)})

            async def stream(self, request: CallRequest, context: Any) -> AsyncIterator[StreamItem]:
                yield StreamItem(outcome=await self.call(request, context))

            async def describe(self, request: DescribeRequest, context: Any) -> Description:
                return Description()

            async def health(self, request: HealthRequest, context: Any) -> HealthReply:
                return HealthReply(status="ok")

        async with serving_grpc(Percy()) as port:
            endpoint = {"uri": f"grpc://127.0.0.1:{port}", "identity": {"audience": "percy"}}
            manifest = {"agent_id": "percy", "runtime": "grpc", "endpoint": endpoint, "capabilities": [{"name": "who"}]}
            async with running(manifests=[manifest], config=self.config(), base=folder) as node:
                result = (await node.ask("percy", "who"))["result"]
                assert result == {"principal": "psk", "actors": ["near"]}

    @requirement("001-27")
    @pytest.mark.parametrize(("binding", "version"), [("jsonrpc", "1.0"), ("jsonrpc", "0.3"), ("grpc", "1.0")])
    async def test_an_a2a_agent_finds_it_in_the_metadata_of_the_message(
        self, folder: Path, binding: str, version: str
    ) -> None:
        verifier = NodeIdentityVerifier({"near": folder / "node.jwks.json"}, audience="percy")
        async with serving_a2a(binding, versions=[version]) as served:
            endpoint = {"uri": served.url, "identity": {"audience": "percy"}}
            manifest = {"agent_id": "percy", "runtime": "a2a", "endpoint": endpoint}
            async with running(manifests=[manifest], config=self.config(), base=folder) as node:
                reply = await node.ask("percy", "say", "good morning", context={"numbers": [1, 2.5]})
                assert reply["ok"] is True, reply
            message = served.executor.sent[-1]
            content = [
                {name: value for name, value in part.items() if name in ("text", "data", "url", "raw")}
                for part in message["parts"]
            ]
            token = message["metadata"][IDENTITY_META_KEY]
            with pytest.raises(AuthInvalid, match="content"):
                verifier.verify(token, [*content, {"text": "and more"}], capability="say")
            with pytest.raises(AuthInvalid, match="capability"):
                verifier.verify(token, content, capability="shout")
            assert verifier.verify(token, content, capability="say").principal_id == "psk"

    @requirement("001-27")
    @pytest.mark.parametrize("kind", ["stdio", "handshake", "stateless"])
    async def test_an_mcp_server_finds_it_in_meta(self, folder: Path, kind: Any) -> None:
        verifier = NodeIdentityVerifier({"near": folder / "node.jwks.json"}, audience="percy")
        async with AsyncExitStack() as stack:
            endpoint: dict[str, Any] = {"command": [sys.executable, identified.__file__]}
            if kind != "stdio":
                served = await stack.enter_async_context(serving_mcp(kind, make=identified.make))
                endpoint = {"uri": served.url}
            manifest = {
                "agent_id": "percy",
                "runtime": "mcp",
                "endpoint": {**endpoint, "identity": {"audience": "percy"}},
            }
            node = await stack.enter_async_context(running(manifests=[manifest], config=self.config(), base=folder))
            for stream in (False, True):
                arguments = {"agent_id": "percy", "capability": "show", "task": "", "context": {"name": "Bob"}}
                if stream:
                    *_, final = await node.events("percy", "show", "", context={"name": "Bob"})
                    result = final["data"]["result"]
                else:
                    result = (await node.operation("fabric.call", arguments))["result"]
                verified = verifier.verify(result["answer"], {"name": "Bob"}, capability="show")
                assert (verified.principal_id, verified.actors) == ("psk", ("near",))
            for mode in ("legacy", "2026-07-28"):  # straight through to the server, which gets it all the same
                async with client(node, mode, path="/agents/percy/mcp") as connected:
                    shown = words(await connected.call_tool("show", {"name": "Bob"}))
                    verified = verifier.verify(shown, {"name": "Bob"}, capability="show")
                    assert (verified.principal_id, verified.actors) == ("psk", ("near",))
                    if (kind, mode) == ("handshake", "legacy") or (kind, mode) == ("stateless", "2026-07-28"):
                        header = words(await connected.call_tool("show_header", {}))
                        claims, _ = read_identity(header)
                        assert (claims.sub, claims.agent_id, claims.capability) == ("psk", "percy", "show_header")

    async def test_agents_that_register_themselves_cannot_ask_for_signatures(self, folder: Path) -> None:
        async with running(config=self.config(), base=folder) as node:
            endpoint = {"transport": "http", "uri": node.url, "identity": {"audience": "bank"}}
            manifest = {"agent_id": "eve", "endpoint": endpoint, "capabilities": [{"name": "x"}]}
            await node.send("POST", "/mcp/register_agent", json=manifest)
            reply = await node.ask("eve", "x")
            assert reply["ok"] is False
            assert not (folder / "identity.key").exists()

    async def test_a_card_from_another_site_cannot_say_what_is_signed_for_its_agent(self, folder: Path) -> None:
        endpoint = {"uri": "http://127.0.0.1:9", "identity": {"audience": "bank"}}
        manifest = {
            "agent_id": "eve",
            "runtime": "http",
            "endpoint": endpoint,
            "origin": {"location": "remote"},
            "capabilities": [{"name": "x"}],
        }
        async with running(manifests=[manifest], config=self.config(), base=folder) as node:
            reply = await node.ask("eve", "x")
            assert reply["ok"] is False
            assert "identity" in json.dumps(reply), reply

    async def test_arguments_without_a_canonical_form_are_refused_and_said_so(self, folder: Path) -> None:
        program = folder / "agent.py"
        program.write_text(PROGRAM)
        endpoint = {"command": [sys.executable, str(program), str(folder / "node.jwks.json")], "identity": True}
        manifest = {"agent_id": "percy", "runtime": "process", "endpoint": endpoint}
        async with running(manifests=[manifest], config=self.config(), base=folder) as node:
            reply = await node.ask("percy", "who", context={"number": 2**60})
            assert (reply["ok"], reply["error_code"]) == (False, "BAD_INPUT")
            assert "canonical" in reply["error"]


ONESHOT = """
import os, sys
from a2a_fabric.identity import NodeIdentityVerifier

verifier = NodeIdentityVerifier({"near": sys.argv[1]}, audience="percy")
given = sys.argv[2].encode() if len(sys.argv) > 2 else sys.stdin.buffer.read()
print(verifier.verify(os.environ["FABRIC_IDENTITY"], given, capability="who").principal_id)
"""

CLAUDE = """
import json, os, sys
from a2a_fabric.identity import NodeIdentityVerifier

verifier = NodeIdentityVerifier({"near": sys.argv[1]}, audience="percy")
task = sys.stdin.buffer.read()
caller = verifier.verify(os.environ["FABRIC_IDENTITY"], task, capability="who").principal_id
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s"}))
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": caller, "session_id": "s"}))
"""

PROMPTED = """
import json, sys
from a2a_fabric.identity import NodeIdentityVerifier

verifier = NodeIdentityVerifier({"near": sys.argv[1]}, audience="percy")
for line in sys.stdin:
    message = json.loads(line)
    method, params, result = message.get("method"), message.get("params") or {}, {}
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
    elif method == "session/new":
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        verified = verifier.verify(params["_meta"]["a2a-fabric/identity"], params["prompt"], capability="who")
        content = {"type": "text", "text": verified.principal_id}
        update = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": content}}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": update}), flush=True)
        result = {"stopReason": "end_turn"}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

PROGRAM = """
import sys
from a2a_fabric import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.identity import NodeIdentityVerifier

agent = Agent("percy", verify=NodeIdentityVerifier({"near": sys.argv[1]}, audience="percy"))


@agent.capability
async def who(number: int = 0, *, call: Call) -> dict[str, object]:
    return {"principal": call.auth.principal_id}


agent.run(stdio=True, argv=[])
"""


@pytest.mark.parametrize(
    ("runtime", "endpoint"),
    [
        ("http", {}),
        ("http", {"request": {"q": "${task}"}}),
        ("acp", {}),
        ("agentzero", {"protocol": "a2a", "token": "t"}),
        ("rest", {"mode": "tasks"}),
        ("rpc", {}),
    ],
)
async def test_every_runtime_over_http_signs_its_requests(
    tmp_path: Path, runtime: str, endpoint: dict[str, Any]
) -> None:
    heard: list[tuple[str, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                raw = next((line for line in head.splitlines() if line.startswith(IDENTITY_HEADER)), "")
                heard.append((raw.partition(": ")[2], body))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    manifest = {
        "agent_id": "far",
        "runtime": runtime,
        "endpoint": {"uri": uri, **endpoint},
        "capabilities": [{"name": "echo"}],
    }
    config = {"identity": {"sign": True, "key_file": "node.key"}, "store": "memory:"}
    async with running(manifests=[manifest], config=config, base=tmp_path) as node:
        await node.ask("far", "echo", "?", timeout_ms=2000)
    server.close()
    assert heard
    assert all(token for token, _ in heard)
