"""Callers with passports and mandates, at every door: who they act for, what they may do, and how it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2
import jwt
import msgspec
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2, a2a_pb2_grpc
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.core.propagation import MANDATE_META_KEY, PASSPORT_META_KEY, new_id
from a2a_fabric.identity.mandates import issue_mandate, narrow_mandate, prove_mandate, split_mandate
from a2a_fabric.identity.passports import PASSPORT_HEADER, format_time, issue_passport
from a2a_fabric.identity.revocations import add_revocation
from a2a_fabric.identity.signing import SigningKey, encode_base64url, encode_canonical
from a2a_fabric.identity.token_verifiers import (
    MAX_KEY_AGE,
    MIN_FETCH_INTERVAL,
    IssuerUnavailable,
    KeySet,
    make_verified,
)
from a2a_fabric.testing import FakeClock
from tests.doors.rest_bench import text, to
from tests.fixtures.authority import Authority, authority
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

ISSUER, PLANNER = SigningKey.generate(), SigningKey.generate()
NARROW_KEY = "the-key-of-the-reader"


def percy() -> Agent:
    agent = Agent("percy", trust_tier="org")

    @agent.capability
    async def greet(task: str, call: Call) -> dict[str, Any]:
        return {"answer": f"hello {task}", "auth": msgspec.to_builtins(call.auth)}

    @agent.capability
    async def think(task: str) -> dict[str, Any]:
        return {"answer": "hm"}

    return agent


def wilma() -> Agent:
    agent = Agent("wilma", trust_tier="org")

    @agent.capability
    async def greet(task: str) -> dict[str, Any]:
        return {"answer": "hello"}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Authority]:
    async with authority() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("issuer")
    folder.joinpath("keys.json").write_bytes(msgspec.json.encode({"keys": [ISSUER.public_jwk]}))
    add_revocation(folder / "revoked.json", "nobody")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(server: Authority, folder: Path) -> AsyncIterator[Node]:
    issuer = {"id": "corp", "issuer": "corp", "jwks_file": "keys.json", "revoked_file": "revoked.json"}
    tokens = {"id": "login", "issuer": server.issuer, "audience": ["https://node.example"], "scopes": ["*"]}
    keys = [{"id": "reader", "key": NARROW_KEY, "scopes": ["capability:greet"]}]
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "discovery")]
    config = {
        "public_url": "https://node.example",
        "auth": {"issuers": [issuer, tokens], "keys": keys},
        "doors": [*doors, {"kind": "a2a", "grpc": "127.0.0.1:0"}],
    }
    async with running(percy(), wilma(), config=config, base=folder) as found:
        yield found


def passport(principal: str = "alice", scopes: tuple[str, ...] = ("agent:percy",), **more: Any) -> dict[str, str]:
    given = {"expires_at": datetime.now(UTC) + timedelta(hours=1), "agent_passport_id": "bot-7", **more}
    issued = issue_passport(given.pop("key", ISSUER), principal_id=principal, scopes=scopes, **given)
    return {PASSPORT_HEADER: json.dumps(issued)}


def mandate(scopes: tuple[str, ...] = ("agent:percy",), **more: Any) -> str:
    given = {"issuer": "corp", "principal": "alice", "delegate": "planner", "now": time.time(), "seconds": 3600, **more}
    return issue_mandate(ISSUER, scopes=scopes, **given)


def mandate_of_key(**more: Any) -> str:
    """One that the planner can narrow, and that needs a proof."""
    return mandate(delegate_key=PLANNER.public_key, **more)


def prove(token: str, key: SigningKey = PLANNER, seconds: float = 600, audience: tuple[str, ...] = ()) -> str:
    return prove_mandate(token, key, now=time.time(), seconds=seconds, audience=audience)


async def call(
    node: Node,
    headers: dict[str, str] | None = None,
    token: str | None = None,
    agent: str = "percy",
    name: str = "greet",
) -> Any:
    arguments = {"agent_id": agent, "capability": name, "task": "you"}
    body = {"name": "fabric.call", "arguments": arguments}
    return await node.send("POST", "/mcp/call", token=token, headers=headers or {}, json=body)


class TestPassports:
    @requirement("001-25", "001-26", "001-27", "000-26")
    async def test_the_agent_gets_the_identity_that_the_passport_proves(self, node: Node) -> None:
        headers = passport()
        reply = await call(node, headers)
        check_envelope(reply.json)
        auth = reply.json["result"]["auth"]
        assert (auth["mode"], auth["principal_id"]) == ("passport", "corp:alice")
        assert (auth["agent_passport_id"], auth["key_id"]) == ("bot-7", ISSUER.key_id)
        assert auth["signature"] == json.loads(headers[PASSPORT_HEADER])["signature"]
        assert auth["scp"] == ["agent:percy"]

    @requirement("001-20", "001-26")
    async def test_its_scopes_are_all_that_it_may_do(self, node: Node) -> None:
        refused = await call(node, passport(), agent="wilma")
        assert (refused.status, refused.json["error_code"]) == (403, "AUTH_DENIED")
        listed = await node.send(
            "POST", "/mcp/call", token=None, headers=passport(), json={"name": "fabric.agent.list", "arguments": {}}
        )
        assert [each["agent_id"] for each in listed.json["result"]["agents"]] == ["percy"]
        assert (await call(node, passport(scopes=()))).status == 403

    @requirement("001-26")
    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"key": SigningKey.generate()}, "AUTH_INVALID"),
            ({"expires_at": datetime.now(UTC) - timedelta(minutes=2)}, "AUTH_EXPIRED"),  # a clock two minutes slow
            ({"audience": ["https://other.example"]}, "AUTH_INVALID"),
            ({"issuer": "somebody else"}, "AUTH_INVALID"),
        ],
    )
    async def test_one_that_is_not_good_here_is_refused(self, node: Node, wrong: dict[str, Any], code: str) -> None:
        for token in (None, NARROW_KEY):  # a good key beside it does not help
            reply = await call(node, passport(**wrong), token=token)
            assert (reply.status, reply.json["error_code"]) == (401, code), reply.body
            assert reply.json["trace"]["trace_id"]

    @requirement("001-26")
    async def test_one_that_is_not_valid_yet_truncated_or_signed_again_is_refused(self, node: Node) -> None:
        text = passport()[PASSPORT_HEADER]
        later = datetime.now(UTC) + timedelta(minutes=2)
        fields = {name: value for name, value in json.loads(text).items() if name != "signature"}
        future = {**fields, "not_before": format_time(later)}
        forgeries = [
            json.dumps({**future, "signature": ISSUER.sign(encode_canonical(future))}),
            json.dumps({**fields, "signature": PLANNER.sign(encode_canonical(fields))}),
            json.dumps({**fields, "key_id": PLANNER.key_id, "signature": PLANNER.sign(encode_canonical(fields))}),
            text[:-20],
            text[: len(text) // 2],
            encode_base64url(text.encode())[:-4],
        ]
        for forged in forgeries:
            reply = await call(node, {PASSPORT_HEADER: forged})
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID"), reply.body

    async def test_a_key_id_that_is_a_path_or_an_address_opens_nothing(self, node: Node, server: Authority) -> None:
        for key_id in ("../../keys.json", f"{server.url}/jwks", "file:keys.json"):
            forged = {**json.loads(passport()[PASSPORT_HEADER]), "key_id": key_id}
            before = len(server.asked)
            assert (await call(node, {PASSPORT_HEADER: json.dumps(forged)})).status == 401
            assert f"{server.url}/jwks" not in server.asked[before:]

    @pytest.mark.parametrize("value", ["", "{}", "null", "a.b.c", "nonsense", '{"principal_id": 3}', "e30"])
    async def test_nonsense_is_refused_even_with_the_operators_key(self, node: Node, value: str) -> None:
        reply = await node.send(
            "POST", "/mcp/call", headers={PASSPORT_HEADER: value}, json={"name": "fabric.health", "arguments": {}}
        )
        assert reply.status == 401, reply.body

    async def test_a_passport_that_the_node_cannot_check_is_never_ignored(self) -> None:
        async with running(percy()) as plain:  # trusts no issuer
            reply = await plain.send(
                "POST", "/mcp/call", headers=passport(), json={"name": "fabric.health", "arguments": {}}
            )
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
            assert "auth.issuers" in reply.json["error"]

    async def test_two_passports_are_none(self, node: Node) -> None:
        connection = await asyncio.open_connection(*node.url.removeprefix("http://").split(":"))
        reader, writer = connection
        lines = "".join(f"{PASSPORT_HEADER}: {passport(who)[PASSPORT_HEADER]}\r\n" for who in ("alice", "bob"))
        body = json.dumps({"name": "fabric.health", "arguments": {}})
        writer.write(
            f"POST /mcp/call HTTP/1.1\r\nHost: x\r\n{lines}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert b" 401 " in await reader.readline()
        writer.close()

    async def test_it_ends_when_its_issuer_revokes_it(self, node: Node, folder: Path) -> None:
        headers = passport(agent_passport_id="lost-one")
        assert (await call(node, headers)).json["ok"] is True
        add_revocation(folder / "revoked.json", "lost-one", "the laptop was lost")
        reply = await call(node, headers)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert "revoked" in reply.json["error"]
        assert (await call(node, passport())).json["ok"] is True


class TestTwoCredentials:
    async def test_a_key_and_a_passport_allow_what_both_allow(self, node: Node) -> None:
        assert (await call(node, passport(), token=NARROW_KEY)).json["result"]["auth"]["principal_id"] == "corp:alice"
        for agent, name in (("percy", "think"), ("wilma", "greet")):  # the one is the passport's, the other the key's
            assert (await call(node, passport(), token=NARROW_KEY, agent=agent, name=name)).status == 403
        assert (await call(node, passport(), name="think")).json["ok"] is True
        assert (await call(node, token=NARROW_KEY, agent="wilma")).json["ok"] is True

    async def test_the_operators_key_does_not_widen_a_passport(self, node: Node) -> None:
        arguments = {"agent_id": "wilma", "capability": "greet", "task": "you"}
        body = {"name": "fabric.call", "arguments": arguments}
        assert (await node.send("POST", "/mcp/call", headers=passport(), json=body)).status == 403

    async def test_a_token_of_another_principal_is_refused(self, node: Node, server: Authority) -> None:
        token = server.sign(aud="https://node.example")  # of login:alice, who is not corp:alice
        reply = await call(node, passport(), token=token)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert "login:alice" in reply.json["error"]

    async def test_two_keys_of_different_callers_are_refused(self, node: Node) -> None:
        headers = {"x-api-key": NARROW_KEY}
        assert (await call(node, headers, token=NARROW_KEY)).json["ok"] is True
        reply = await node.send(
            "POST", "/mcp/call", headers=headers, json={"name": "fabric.health", "arguments": {}}
        )  # beside the operator's key
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert (await call(node, {"x-api-key": "wrong"}, token=NARROW_KEY)).status == 401


class TestMandates:
    @requirement("001-29", "001-27")
    async def test_the_agent_is_told_who_acts_for_whom(self, node: Node) -> None:
        narrowed = narrow_mandate(
            mandate_of_key(cog="home"), PLANNER, delegate="worker", now=time.time(), capabilities=["greet"]
        )
        auth = (await call(node, token=narrowed)).json["result"]["auth"]
        assert (auth["mode"], auth["principal_id"], auth["delegate_id"]) == ("mandate", "corp:alice", "worker")
        assert (auth["cog_id"], auth["scp"], auth["cap"]) == ("home", ["agent:percy"], ["capability:greet"])
        assert auth["mandate_id"].startswith("mnd-")
        assert "mandate" not in auth  # every holder could use it, so no agent gets the mandate itself here
        assert (await call(node, token=narrowed, name="think")).status == 403
        assert (await call(node, token=mandate(), name="think")).json["ok"] is True

    async def test_revoking_one_revokes_what_was_derived_from_it(self, node: Node, folder: Path) -> None:
        first = mandate_of_key()
        narrowed = narrow_mandate(first, PLANNER, delegate="worker", now=time.time())
        first = prove(first)
        auth = (await call(node, token=first)).json["result"]["auth"]
        assert (await call(node, token=narrowed)).json["ok"] is True
        add_revocation(folder / "revoked.json", auth["mandate_id"])
        for token in (first, narrowed):
            reply = await call(node, token=token)
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")

    async def test_a_holder_cannot_cut_its_link_off(self, node: Node) -> None:
        first = mandate_of_key()
        narrowed = narrow_mandate(first, PLANNER, delegate="worker", now=time.time(), capabilities=["greet"])
        assert (await call(node, token=narrowed)).json["ok"] is True
        refused = await call(node, token=first, name="think")
        assert (refused.status, refused.json["error_code"]) == (401, "AUTH_INVALID")
        assert "a2a-fabric mandate prove" in refused.json["error"]
        assert (await call(node, token=prove(first), name="think")).json["ok"] is True
        own = SigningKey.generate()
        to_own = narrow_mandate(first, PLANNER, delegate="worker", now=time.time(), delegate_key=own.public_key)
        for token in (
            f"{first}~{prove(to_own, own).rpartition('~')[2]}",  # the proof of another link
            prove(first, own),
            prove(first, seconds=-60),
            to_own,
        ):
            assert (await call(node, token=token)).status == 401
        for key in (own, PLANNER):  # by its holder, or by the delegate who hands it over
            assert (await call(node, token=prove(to_own, key))).json["ok"] is True

    async def test_a_proof_for_another_node_is_refused(self, node: Node) -> None:
        elsewhere = prove(mandate_of_key(), audience=("https://other.example",))
        reply = await call(node, token=elsewhere)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
        assert "https://other.example" in reply.json["error"]
        here = prove(mandate_of_key(), audience=("https://other.example", "https://node.example"))
        assert (await call(node, token=here)).json["ok"] is True

    async def test_a_link_alone_or_of_another_mandate_is_refused(self, node: Node) -> None:
        narrowed = narrow_mandate(mandate_of_key(), PLANNER, delegate="worker", now=time.time())
        first, second = split_mandate(narrowed)
        for token in (second, f"{mandate()}~{second}", f"{first}~{second}~{second}", f"{first}~"):
            assert (await call(node, token=token)).status == 401

    @requirement("001-29")
    async def test_one_that_is_expired_early_too_long_or_for_another_node_is_refused(self, node: Node) -> None:
        now = time.time()
        wrong: list[tuple[str, str]] = [
            (mandate(now=now - 7200), "AUTH_EXPIRED"),
            (mandate(now=now + 120), "AUTH_INVALID"),  # a clock two minutes fast
            (mandate(audience=["https://other.example"]), "AUTH_INVALID"),
            (mandate(issuer="somebody"), "AUTH_INVALID"),
            (mandate()[:-9], "AUTH_INVALID"),
            ("~".join([mandate()] * 8), "AUTH_INVALID"),
            ("~".join([mandate()[:120]] * 100), "AUTH_INVALID"),
        ]
        for token, code in wrong:
            reply = await call(node, token=token)
            assert (reply.status, reply.json["error_code"]) == (401, code), reply.body

    async def test_a_link_that_claims_more_than_the_one_before_is_refused(self, node: Node) -> None:
        first, second = split_mandate(narrow_mandate(mandate_of_key(), PLANNER, delegate="worker", now=time.time()))
        claims = jwt.decode(second, options={"verify_signature": False})
        headers = {"typ": "mandate+jwt", "kid": PLANNER.key_id}
        wider = [{"scp": ["*"]}, {"exp": claims["exp"] + 60}, {"dep": 7}, {"prn": "bob"}, {"iss": "login"}]
        for more in wider:
            forged = jwt.encode({**claims, **more}, PLANNER.private_key, "EdDSA", headers=headers)
            reply = await call(node, token=f"{first}~{forged}")
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID"), reply.body

    async def test_a_delegate_cannot_take_the_name_of_another_one(self, node: Node) -> None:
        arguments = {"agent_id": "percy", "capability": "greet", "task": "you", "async": True}
        body = {"name": "fabric.call", "arguments": arguments}
        accountant = mandate(delegate="accountant")
        job_id = (await node.send("POST", "/mcp/call", token=accountant, json=body)).json["result"]["job_id"]
        status = {"name": "fabric.job.status", "arguments": {"job_id": job_id}}
        assert (await node.send("POST", "/mcp/call", token=accountant, json=status)).json["ok"] is True
        for name in ("accountant", "planner~accountant"):
            taken = narrow_mandate(mandate_of_key(), PLANNER, delegate=name, now=time.time())
            assert (await node.send("POST", "/mcp/call", token=taken, json=status)).json["ok"] is False

    async def test_a_mandate_in_the_form_of_a_plain_token_is_revoked_as_well(self, node: Node, folder: Path) -> None:
        claims = {"iss": "corp", "prn": "alice", "sub": "planner", "mnd": "mnd-plain", "scp": ["agent:percy"]}
        times = {"aud": "https://node.example", "exp": time.time() + 600}
        token = jwt.encode({**claims, **times}, ISSUER.private_key, "EdDSA", headers={"kid": ISSUER.key_id})
        assert (await call(node, token=token)).json["result"]["auth"]["mode"] == "mandate"
        add_revocation(folder / "revoked.json", "mnd-plain")
        assert (await call(node, token=token)).status == 401

    async def test_delegates_of_one_principal_do_not_see_each_others_jobs(self, node: Node) -> None:
        arguments = {"agent_id": "percy", "capability": "greet", "task": "you", "async": True}
        body = {"name": "fabric.call", "arguments": arguments}
        one, other = mandate(), mandate(delegate="another")
        job_id = (await node.send("POST", "/mcp/call", token=one, json=body)).json["result"]["job_id"]
        status = {"name": "fabric.job.status", "arguments": {"job_id": job_id}}
        own = await node.send("POST", "/mcp/call", token=one, json=status)
        assert own.json["ok"] is True
        assert one.encode() not in own.body
        assert (await node.send("POST", "/mcp/call", token=other, json=status)).json["ok"] is False
        refused = await node.send("POST", "/mcp/call", token=None, headers=passport(), json=status)
        assert refused.json["ok"] is False


class TestKeysOfIssuers:
    async def test_a_new_key_in_the_file_counts_and_a_removed_one_does_not(self) -> None:
        clock = FakeClock()
        published = [ISSUER]

        async def read() -> bytes:
            if not published:
                raise IssuerUnavailable("corp", "is away")
            return msgspec.json.encode({"keys": [key.public_jwk for key in published]})

        keys = KeySet("corp", read, clock=clock)
        await keys.find_key(ISSUER.key_id, "EdDSA")
        published[:] = [PLANNER]
        clock.advance(MIN_FETCH_INTERVAL + 1)
        await keys.find_key(PLANNER.key_id, "EdDSA")
        with pytest.raises(AuthInvalid):
            await keys.find_key(ISSUER.key_id, "EdDSA")
        published.clear()  # away: what was fetched counts for a day, and then nothing does
        clock.advance(MAX_KEY_AGE - 60)
        await keys.find_key(PLANNER.key_id, "EdDSA")
        clock.advance(120)
        for _ in range(2):
            with pytest.raises(IssuerUnavailable):
                await keys.find_key(PLANNER.key_id, "EdDSA")
        published.append(PLANNER)
        await keys.find_key(PLANNER.key_id, "EdDSA")

    async def test_verified_credentials_are_checked_again_when_the_keys_may_have_changed(self) -> None:
        now = time.time()
        verified = await make_verified(Principal(), now + 86_400, 5.0)
        assert verified.fresh_until - now < 60
        assert verified.valid_until == now + 86_400


@requirement("001-25")
@pytest.mark.parametrize("kind", ["passport", "mandate"])
class TestEveryDoor:
    def headers(self, kind: str) -> dict[str, str]:
        return passport() if kind == "passport" else {"Authorization": f"Bearer {mandate()}"}

    def wrong(self, kind: str) -> dict[str, str]:
        wrong = passport(key=PLANNER)
        return wrong if kind == "passport" else {"Authorization": f"Bearer {mandate()[:-8]}AAAAAAAA"}

    async def test_mcp_and_its_socket(self, node: Node, kind: str) -> None:
        async with (
            asyncio.timeout(WAIT_TIMEOUT),
            httpx2.AsyncClient(headers=self.headers(kind), timeout=WAIT_TIMEOUT) as http,
            Client(streamable_http_client(f"{node.url}/mcp", http_client=http)) as client,
        ):
            result = await client.call_tool("percy_greet", {"task": "you"})
            assert result.structured_content["auth"]["principal_id"] == "corp:alice"
            assert "wilma_greet" not in {tool.name for tool in (await client.list_tools()).tools}
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        async with websockets.connect(url, additional_headers=self.headers(kind), subprotocols=["mcp"]):  # type: ignore[list-item]
            pass
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(url, additional_headers=self.wrong(kind))

    async def test_rest_the_directory_and_discovery(self, node: Node, kind: str) -> None:
        requests: list[tuple[str, Any]] = [
            ("/v1/messages", to("percy", text("you"))),
            ("/a2a", {"jsonrpc": "2.0", "id": 1, "method": "a2a/discover", "params": {}}),
            ("/search", {"query": "greet"}),
        ]
        for path, body in requests:
            reply = await node.send("POST", path, token=None, headers=self.headers(kind), json=body)
            assert reply.status in (200, 201, 202), reply.body
            assert b"wilma" not in reply.body
            refused = await node.send("POST", path, token=None, headers=self.wrong(kind), json=body)
            assert refused.status == 401, refused.body

    async def test_a2a_over_json_and_grpc(self, node: Node, kind: str) -> None:
        path = "/agents/percy/.well-known/agent-card.json"
        card = (await node.send("GET", path, token=None, headers=self.headers(kind))).json
        place = next(each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
        message = a2a_pb2.Message(message_id=f"1-{kind}", role="ROLE_USER", parts=[a2a_pb2.Part(text="you")])
        request = a2a_pb2.SendMessageRequest(message=message, tenant="percy")
        request.message.metadata.update({"skill": "greet"})
        async with grpc.aio.insecure_channel(place["url"].removeprefix("http://")) as channel:
            service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            metadata = tuple((name.lower(), value) for name, value in self.headers(kind).items())
            assert "hello you" in str(await service.SendMessage(request, metadata=metadata, timeout=WAIT_TIMEOUT))
            wrong = tuple((name.lower(), value) for name, value in self.wrong(kind).items())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.SendMessage(request, metadata=wrong, timeout=WAIT_TIMEOUT)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def is_refused(call: Awaitable[Any]) -> bool:
    """By an error, or by a result that a model can read."""
    try:
        return bool((await call).is_error)
    except MCPError:
        return True


async def is_logged(node: Node, trace_id: str) -> bool:
    return any(trace_id in line and "AUTH_INVALID" in line for line in node.log.getvalue().splitlines())


def in_metadata(kind: str, **more: Any) -> dict[str, Any]:
    """The credentials of one message, as its metadata has them."""
    if kind == "passport":
        return {PASSPORT_META_KEY: json.loads(passport(**more)[PASSPORT_HEADER])}
    return {MANDATE_META_KEY: mandate(**more)}


@requirement("001-25")
@pytest.mark.parametrize("kind", ["passport", "mandate"])
class TestMessagesWithCredentials:
    """A passport or a mandate in the metadata of a message, beside the credentials of the connection."""

    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_mcp_meta(self, node: Node, kind: str, mode: str) -> None:
        async with (
            asyncio.timeout(WAIT_TIMEOUT),
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {NARROW_KEY}"}, timeout=WAIT_TIMEOUT) as http,
            Client(streamable_http_client(f"{node.url}/mcp", http_client=http), mode=mode) as client,
        ):
            for _ in range(2):  # the second call could take the fast path
                plain = await client.call_tool("wilma_greet", {"task": "you"})
                assert plain.is_error is False
                result = await client.call_tool("percy_greet", {"task": "you"}, meta=in_metadata(kind))  # type: ignore[arg-type]
                assert result.structured_content["auth"]["principal_id"] == "corp:alice"
            for name in ("wilma_greet", "percy_think"):  # what the passport, and what the key does not allow
                assert await is_refused(client.call_tool(name, {"task": "you"}, meta=in_metadata(kind)))  # type: ignore[arg-type]
            for wrong in ({PASSPORT_META_KEY: "nonsense"}, {MANDATE_META_KEY: NARROW_KEY}, {PASSPORT_META_KEY: 3}):
                with pytest.raises(MCPError):
                    await client.call_tool("percy_greet", {"task": "you"}, meta=wrong)  # type: ignore[arg-type]

    async def test_mcp_over_a_socket(self, node: Node, kind: str) -> None:
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        headers = {"Authorization": f"Bearer {NARROW_KEY}"}
        async with (
            asyncio.timeout(WAIT_TIMEOUT),
            websockets.connect(url, additional_headers=headers, subprotocols=["mcp"]) as socket,  # type: ignore[list-item]
        ):

            async def ask(method: str, **params: Any) -> Any:
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
                return json.loads(await socket.recv())

            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            await ask("initialize", **about)
            await socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            call = {"name": "percy_greet", "arguments": {"task": "you"}}
            answer = await ask("tools/call", **call, _meta=in_metadata(kind))
            assert answer["result"]["structuredContent"]["auth"]["principal_id"] == "corp:alice"
            answer = await ask("tools/call", **call)  # it counted for that message only
            assert answer["result"]["structuredContent"]["auth"]["principal_id"] == "reader"
            answer = await ask("tools/call", **call, _meta={PASSPORT_META_KEY: "{}"})
            refusal = answer["error"]["data"]
            assert refusal["error"]["code"] == "AUTH_INVALID"
            await eventually(lambda: is_logged(node, refusal["trace"]["trace_id"]))
            answer = await ask("tools/call", **call, _meta={MANDATE_META_KEY: {}})
            assert "a mandate is a text" in answer["error"]["message"]

    @pytest.mark.parametrize("place", ["message", "request"])
    async def test_a2a_metadata(self, node: Node, kind: str, place: str) -> None:
        async def send(metadata: dict[str, Any], token: str = NARROW_KEY, agent: str = "percy") -> Any:
            message = {"messageId": new_id(), "role": "ROLE_USER", "parts": [{"text": "you"}]}
            body: dict[str, Any] = {"message": {**message, "metadata": {"skill": "greet"}}}
            if place == "message":
                body["message"]["metadata"] |= metadata
            else:
                body["metadata"] = metadata
            headers = {"A2A-Version": "1.0"}
            return await node.send("POST", f"/agents/{agent}/message:send", token=token, headers=headers, json=body)

        reply = await send(in_metadata(kind))
        assert b"corp:alice" in reply.body, reply.body
        assert b"corp:alice" not in (await send({})).body
        assert (await send(in_metadata(kind), agent="wilma")).status in (403, 404)
        assert (await send({PASSPORT_META_KEY: {}})).status == 401
        both = {**in_metadata("passport"), **in_metadata("mandate", principal="bob")}
        assert (await send(both)).status == 401  # they disagree
        secret = in_metadata(kind)[PASSPORT_META_KEY if kind == "passport" else MANDATE_META_KEY]
        assert (secret["signature"] if kind == "passport" else secret) not in str(reply.json.get("history", ""))

    async def test_a2a_metadata_over_grpc(self, node: Node, kind: str) -> None:
        path = "/agents/percy/.well-known/agent-card.json"
        card = (await node.send("GET", path, token=NARROW_KEY)).json
        place = next(each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
        message = a2a_pb2.Message(message_id=new_id(), role="ROLE_USER", parts=[a2a_pb2.Part(text="you")])
        request = a2a_pb2.SendMessageRequest(message=message, tenant="percy")
        request.message.metadata.update({"skill": "greet", **in_metadata(kind)})
        async with grpc.aio.insecure_channel(place["url"].removeprefix("http://")) as channel:
            service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            metadata = (("authorization", f"Bearer {NARROW_KEY}"),)
            assert "corp:alice" in str(await service.SendMessage(request, metadata=metadata, timeout=WAIT_TIMEOUT))
