"""Callers with tokens of other issuers: signed ones and opaque ones, at every door, and where to get them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import grpc.aio
import httpx2
import jwt
import msgspec
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2, a2a_pb2_grpc
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from a2a_fabric.agent import Agent
from a2a_fabric.app import Fabric
from a2a_fabric.config import Config
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AuthInvalid, ConfigError, RateLimited
from a2a_fabric.identity.token_verifiers import KeySet, VerifiedToken
from a2a_fabric.identity.trusted_issuers import TrustedIssuer, TrustedTokens
from a2a_fabric.web.server import bind_socket, url_from_socket
from tests.doors.rest_bench import text, to
from tests.fixtures.authority import US, Authority, authority
from tests.fixtures.mcp_client import MemoryTokenStorage
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUDIENCE = "https://fabric.example"
SECRET = "a secret that two parties share, and nobody else"


def percy() -> Agent:
    agent = Agent("percy", trust_tier="org")

    @agent.capability
    async def greet(task: str, call: Call) -> dict[str, Any]:
        caller = call.auth
        return {"answer": f"hello {task}", "caller": [caller.mode, caller.principal_id, caller.delegate_id, caller.scp]}

    return agent


def secret_one() -> Agent:
    agent = Agent("vault", trust_tier="local")

    @agent.capability(name="open")
    async def open_it(task: str) -> dict[str, str]:
        return {"answer": "open"}

    return agent


def trusting(server: Authority, **more: Any) -> dict[str, Any]:
    client_id, client_secret = US
    return {
        "id": "corp",
        "issuer": server.issuer,
        "audience": [AUDIENCE],
        "client_id": client_id,
        "client_secret": client_secret,
        "grants": {"staff": ["agent:percy"]},
        **more,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Authority]:
    async with authority() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(server: Authority) -> AsyncIterator[Node]:
    shared = {"id": "hmac", "issuer": "https://legacy.example", "audience": [AUDIENCE], "secret": SECRET}
    keys = [{"id": "bob", "key": "the-api-key-of-bob"}]
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "discovery")]
    config = {
        "auth": {"keys": keys, "issuers": [trusting(server), {**shared, "scopes": ["agent:percy"]}]},
        "doors": [*doors, {"kind": "a2a", "grpc": "127.0.0.1:0"}],
    }
    async with running(percy(), secret_one(), config=config) as found:
        yield found


def good(server: Authority, **claims: Any) -> str:
    return server.sign(**{"aud": AUDIENCE, "scope": "openid staff", **claims})


async def asked(node: Node, token: str, agent: str = "percy", capability: str = "greet") -> Any:
    given = {"agent_id": agent, "capability": capability, "task": "you"}
    return await node.send("POST", "/mcp/call", token=token, json={"name": "fabric.call", "arguments": given})


@requirement("004-21", "004-22")
@pytest.mark.parametrize("kind", ["api key", "api key in its header", "jwt", "jwt by a shared secret", "oauth 2.0"])
async def test_the_rest_door_takes_api_keys_jwt_and_oauth_tokens(node: Node, server: Authority, kind: str) -> None:
    shown: dict[str, dict[str, str]] = {
        "api key": {"authorization": "Bearer the-api-key-of-bob"},
        "api key in its header": {"x-api-key": "the-api-key-of-bob"},
        "jwt": {"authorization": f"Bearer {good(server)}"},
        "jwt by a shared secret": {"authorization": f"Bearer {by_secret()}"},
        "oauth 2.0": {"authorization": f"Bearer {server.hand_out(scope='staff', aud=AUDIENCE)}"},
    }
    body = to("percy", text("you"))
    reply = await node.send("POST", "/v1/messages", token=None, headers=shown[kind], json=body)
    assert reply.status in (200, 201, 202), reply.body
    wrong = {name: f"{value}x" for name, value in shown[kind].items()}
    refused = await node.send("POST", "/v1/messages", token=None, headers=wrong, json=body)
    assert refused.status == 401
    assert refused.json["error"]["code"] == "UNAUTHORIZED"


def by_secret(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    told = {"iss": "https://legacy.example", "sub": "eve", "aud": AUDIENCE, "exp": int(time.time()) + 60, **claims}
    return jwt.encode(told, secret, algorithm=algorithm)


class TestSigned:
    async def test_the_call_is_the_token_owners_with_what_the_token_allows(self, node: Node, server: Authority) -> None:
        reply = await asked(node, good(server, client_id="some-app"))
        check_envelope(reply.json)
        assert reply.json["result"]["caller"] == ["jwt", "corp:alice", "some-app", ["agent:percy"]]
        refused = await asked(node, good(server, scope="openid"))
        assert (refused.status, refused.json["error_code"]) == (403, "AUTH_DENIED")

    async def test_trust_tiers_hold_for_tokens_too(self, node: Node, server: Authority) -> None:
        refused = await asked(node, good(server, scope="*"), "vault", "open")
        assert refused.json["ok"] is False
        assert refused.json["error_code"] in ("AUTH_DENIED", "AGENT_NOT_FOUND")

    @pytest.mark.parametrize(
        ("claims", "code"),
        [
            ({"exp": int(time.time()) - 3600}, "AUTH_EXPIRED"),
            ({"exp": None}, "AUTH_INVALID"),
            ({"exp": "tomorrow"}, "AUTH_INVALID"),
            ({"nbf": int(time.time()) + 3600}, "AUTH_INVALID"),
            ({"iat": int(time.time()) + 3600}, "AUTH_INVALID"),
            ({"aud": "https://other.example"}, "AUTH_INVALID"),
            ({"aud": f"{AUDIENCE}.evil"}, "AUTH_INVALID"),
            ({"aud": None}, "AUTH_INVALID"),
            ({"aud": 7}, "AUTH_INVALID"),
            ({"iss": "https://other.example"}, "AUTH_INVALID"),
            ({"iss": None}, "AUTH_INVALID"),
            ({"subject": None}, "AUTH_INVALID"),
            ({"subject": ""}, "AUTH_INVALID"),
            ({"subject": "a\nb"}, "AUTH_INVALID"),
            ({"subject": "x" * 300}, "AUTH_INVALID"),
            ({"key": ec.generate_private_key(ec.SECP256R1())}, "AUTH_INVALID"),
            ({"headers": {"kid": "no-such-key"}}, "AUTH_INVALID"),
            ({"headers": {"crit": ["unheard-of"], "unheard-of": 1}}, "AUTH_INVALID"),
            ({"filler": "x" * 20_000}, "AUTH_INVALID"),
        ],
    )
    async def test_a_token_that_is_not_good_is_refused_and_says_why(
        self, node: Node, server: Authority, claims: dict[str, Any], code: str
    ) -> None:
        refused = await asked(node, good(server, **claims))
        assert (refused.status, refused.json["error_code"]) == (401, code)
        check_envelope(refused.json)

    async def test_no_token_is_signed_with_nothing_with_a_public_key_or_with_another_secret(
        self, node: Node, server: Authority
    ) -> None:
        claims = jwt.decode(good(server), options={"verify_signature": False})
        unsigned = jwt.encode(claims, "", "none")
        confused = jwt.encode(claims, server.key_id * 8, "HS256", headers={"kid": server.key_id})
        for token in (
            unsigned,
            confused,
            by_secret("another secret, as long as the true one"),
            by_secret(iss=server.issuer),
        ):
            assert (await asked(node, token)).status == 401

    async def test_an_audience_may_lie_below_ours_and_be_one_of_several(self, node: Node, server: Authority) -> None:
        for audience in (f"{AUDIENCE}/mcp", f"{AUDIENCE}/", ["https://other.example", AUDIENCE]):
            assert (await asked(node, good(server, aud=audience))).json["ok"] is True

    async def test_keys_are_fetched_once_and_again_when_one_is_missing(self) -> None:
        async with authority() as own:
            await self._fetched_as_needed(own)

    async def _fetched_as_needed(self, server: Authority) -> None:
        async def fetch() -> bytes:
            fetched.append(1)
            return (await published(server)).encode()

        fetched: list[int] = []
        keys = KeySet(server.issuer, fetch, min_interval=0)
        first = await keys.find_key(server.key_id, "ES256")
        assert await keys.find_key(server.key_id, "ES256") is first
        assert len(fetched) == 1
        server.roll()
        assert (await keys.find_key(server.key_id, "ES256")).key_id != first.key_id
        assert len(fetched) == 2
        for name, algorithm in (("unheard-of", "ES256"), (server.key_id, "RS256")):
            with pytest.raises(AuthInvalid):
                await keys.find_key(name, algorithm)
        assert (await keys.find_key(None, "ES256")).key_id == server.key_id  # there is only one

    async def test_who_invents_key_names_makes_no_storm(self, node: Node, server: Authority) -> None:
        await asked(node, good(server, jti="settled"))
        before = server.asked.count("/jwks")
        for number in range(5):
            await asked(node, good(server, headers={"kid": f"invented-{number}"}))
        assert server.asked.count("/jwks") <= before + 1

    async def test_keys_in_a_file_need_no_server(self, server: Authority, tmp_path: Path) -> None:
        (tmp_path / "keys.json").write_text(await published(server))
        alone = {"id": "corp", "issuer": server.issuer, "audience": [AUDIENCE], "jwks_file": "keys.json"}
        config = {"auth": {"issuers": [{**alone, "scopes": ["*"]}]}, "store": "memory:"}
        async with running(percy(), config=config, base=tmp_path) as node:
            before = len(server.asked)
            assert (await asked(node, good(server, scope=None))).json["ok"] is True
            assert len(server.asked) == before
            assert "resource_metadata" not in (await asked(node, "none")).headers["www-authenticate"]

    async def test_an_expired_token_is_refused_though_it_was_good_a_moment_ago(
        self, node: Node, server: Authority
    ) -> None:
        """The skew that is allowed for is behind us when it begins."""
        token = good(server, exp=int(time.time()) - 24)
        assert (await asked(node, token)).json["ok"] is True

        async def is_over() -> bool:
            await asyncio.sleep(0.25)
            return bool((await asked(node, token)).status == 401)

        await eventually(is_over)
        reply = await asked(node, token)
        assert (reply.status, reply.json["error_code"]) == (401, "AUTH_EXPIRED")


async def published(server: Authority) -> str:
    """The issuer's keys."""
    async with httpx2.AsyncClient(timeout=WAIT_TIMEOUT) as http:
        return (await http.get(f"{server.url}/jwks")).text


class TestOpaque:
    async def test_the_issuer_is_asked_once_and_its_answer_kept_for_a_while(
        self, node: Node, server: Authority
    ) -> None:
        token = server.hand_out(scope="staff", client_id="some-app")
        before = server.asked.count("/introspect")
        replies = await asyncio.gather(*(asked(node, token) for _ in range(10)))
        assert [reply.json["ok"] for reply in replies] == [True] * 10
        assert server.asked.count("/introspect") == before + 1

    @pytest.mark.parametrize(
        "about",
        [
            {"active": False},
            {"active": "yes"},
            {"aud": "https://other.example"},
            {"iss": "https://other.example"},
            {"sub": None, "client_id": None},
            {"exp": 1},
        ],
    )
    async def test_what_it_does_not_vouch_for_is_refused(
        self, node: Node, server: Authority, about: dict[str, Any]
    ) -> None:
        refused = await asked(node, server.hand_out(**{"scope": "staff", **about}))
        assert refused.status == 401
        assert refused.json["error_code"] == ("AUTH_EXPIRED" if "exp" in about else "AUTH_INVALID")

    async def test_a_withdrawn_token_is_refused_as_soon_as_the_answer_is_old(self) -> None:
        async with authority() as own:
            config = {"auth": {"issuers": [trusting(own, introspection_seconds=1)]}}
            async with running(percy(), config=config) as node:
                token = own.hand_out(scope="staff")
                assert (await asked(node, token)).json["ok"] is True
                own.opaque[token]["active"] = False

                async def is_refused() -> bool:
                    return bool((await asked(node, token)).status == 401)

                await eventually(is_refused)

    async def test_a_withdrawn_token_is_worth_nothing_on_a_socket_that_is_open(self) -> None:
        async with authority() as own:
            config = {"auth": {"issuers": [trusting(own, introspection_seconds=1)]}}
            async with running(percy(), config=config) as node, asyncio.timeout(WAIT_TIMEOUT):
                token, url = own.hand_out(scope="staff"), node.url.replace("http", "ws", 1)
                headers = {"Authorization": f"Bearer {token}"}
                fabric = await websockets.connect(f"{url}/mcp/call", additional_headers=headers)
                mcp = await websockets.connect(f"{url}/mcp/ws", additional_headers=headers)

                async def ask(number: int) -> dict[str, Any]:
                    await fabric.send(json.dumps({"id": number, "name": "fabric.health"}))
                    answer: dict[str, Any] = json.loads(await fabric.recv())["data"]
                    return answer

                assert (await ask(0))["ok"] is True
                own.opaque[token]["active"] = False

                async def is_refused() -> bool:
                    return bool(not (await ask(1))["ok"])

                await eventually(is_refused)
                assert (await ask(2))["error"]["code"] == "AUTH_INVALID"
                await mcp.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
                with pytest.raises(websockets.ConnectionClosedError) as closed:
                    await mcp.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "AUTH_INVALID")
                await fabric.close()

    async def test_keys_of_the_node_are_told_to_no_caller(self, node: Node, server: Authority) -> None:
        before = len(server.asked)
        assert (await asked(node, "the-api-key-of-bob")).json["ok"] is True
        assert len(server.asked) == before


class TestIssuerAway:
    async def test_no_caller_is_taken_for_a_stranger_because_the_issuer_is_away(self) -> None:
        async with authority() as own, running(percy(), config={"auth": {"issuers": [trusting(own)]}}) as node:
            own.is_broken = True
            for token in (good(own), own.hand_out(scope="staff")):
                refused = await asked(node, token)
                assert (refused.status, refused.json["error_code"]) == (429, "RATE_LIMITED")
                assert int(refused.headers["retry-after"]) >= 1
                assert "cannot be checked now" in refused.json["error"]

    async def test_no_caller_waits_for_ever_behind_others_for_an_issuer_that_does_not_answer(self) -> None:
        class Silent:
            async def check(self, token: str) -> VerifiedToken:
                await asyncio.Event().wait()
                raise AssertionError

        tokens = TrustedTokens([TrustedIssuer("https://login.example", None, Silent())], timeout=0.05)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await asyncio.gather(*(tokens.verify(f"token-{number}") for number in range(20)))
        with pytest.raises(RateLimited, match="took too long"):
            tokens.get_principal("token-19")

    async def test_keys_that_are_there_stay_good_while_it_is_away(self) -> None:
        async with authority() as own, running(percy(), config={"auth": {"issuers": [trusting(own)]}}) as node:
            assert (await asked(node, good(own))).json["ok"] is True
            own.is_broken = True
            assert (await asked(node, good(own, jti="another"))).json["ok"] is True


class TestEveryDoor:
    async def test_mcp_and_its_socket(self, node: Node, server: Authority) -> None:
        headers = {"Authorization": f"Bearer {good(server, jti='socket')}"}
        async with (
            asyncio.timeout(WAIT_TIMEOUT),
            httpx2.AsyncClient(headers=headers, timeout=WAIT_TIMEOUT) as http,
            Client(streamable_http_client(f"{node.url}/mcp", http_client=http)) as client,
        ):
            result = await client.call_tool("percy_greet", {"task": "you"})
            assert result.structured_content["answer"] == "hello you"
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        headers = {"Authorization": f"Bearer {good(server, jti='fresh')}"}
        async with websockets.connect(url, additional_headers=headers, subprotocols=["mcp"]):  # type: ignore[list-item]
            pass
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(url, additional_headers={"Authorization": "Bearer a.b.c"})

    async def test_the_directory_and_discovery(self, node: Node, server: Authority) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": "a2a/discover", "params": {}}
        reply = await node.send("POST", "/a2a", token=good(server, jti="directory"), json=request)
        assert "result" in reply.json
        assert (await node.send("POST", "/search", token=good(server, jti="s"), json={"query": "greet"})).status == 200
        assert (await node.send("POST", "/a2a", token="a.b.c", json=request)).status == 401

    async def test_a2a_over_grpc(self, node: Node, server: Authority) -> None:
        card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json", token=good(server, jti="c"))).json
        place = next(each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
        message = a2a_pb2.Message(message_id="1", role="ROLE_USER", parts=[a2a_pb2.Part(text="you")])
        request = a2a_pb2.SendMessageRequest(message=message, tenant="percy")
        async with grpc.aio.insecure_channel(place["url"].removeprefix("http://")) as channel:
            service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            metadata = (("authorization", f"Bearer {good(server, jti='grpc')}"),)
            reply = await service.SendMessage(request, metadata=metadata, timeout=WAIT_TIMEOUT)
            assert "hello you" in str(reply)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.SendMessage(request, metadata=(("authorization", "Bearer a.b.c"),), timeout=WAIT_TIMEOUT)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED

    async def test_cards_and_the_openapi_document_name_the_issuer(self, node: Node, server: Authority) -> None:
        where = f"{server.url}/.well-known/openid-configuration"
        card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
        scheme = card["securitySchemes"]["issuer1"]
        assert scheme["openIdConnectSecurityScheme"]["openIdConnectUrl"] == scheme["openIdConnectUrl"] == where
        assert {"schemes": {"issuer1": {"list": []}}} in card["securityRequirements"]
        document = (await node.send("GET", "/openapi.json")).json
        assert document["components"]["securitySchemes"]["issuer1"]["openIdConnectUrl"] == where
        assert "issuer2" not in card["securitySchemes"]  # there is no server behind a mere secret


class TestWhereToGetThem:
    async def test_a_refused_caller_is_told_why(self, node: Node, server: Authority) -> None:
        stranger = await node.send("POST", "/mcp", token=None, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert stranger.status == 401
        where = f"{node.url}/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer realm="fabric", scope="staff", resource_metadata="{where}"'
        assert stranger.headers["www-authenticate"] == challenge
        about = (await node.send("GET", "/.well-known/oauth-protected-resource/mcp", token=None)).json
        assert about["resource"] == f"{node.url}/mcp"
        assert about["authorization_servers"] == [server.issuer]
        assert about["scopes_supported"] == ["staff"]
        for path in ("/v1/agents", "/mcp/list_agents"):
            refused = await node.send("GET", path, token="a.b.c")
            assert 'error="invalid_token"' in refused.headers["www-authenticate"], path
            assert f'"{node.url}/.well-known/oauth-protected-resource"' in refused.headers["www-authenticate"]
        assert (await node.send("GET", "/.well-known/oauth-protected-resource", token=None)).json[
            "resource"
        ] == node.url

    @pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
    async def test_an_mcp_client_that_knows_only_our_address_gets_itself_a_token(self, mode: str) -> None:
        """Refused, it reads where to go, registers there, is let through by the user, and comes back."""
        listener = bind_socket("127.0.0.1", 0, exact_port=True)
        async with authority() as own:
            config = {"auth": {"issuers": [trusting(own, audience=[])]}, "public_url": url_from_socket(listener)}
            async with running(percy(), config=config, listener=listener) as node:
                sent_to: list[str] = []

                async def go(url: str) -> None:
                    sent_to.append(url)

                async def come_back() -> AuthorizationCodeResult:
                    async with httpx2.AsyncClient(timeout=WAIT_TIMEOUT) as browser:
                        reply = await browser.get(sent_to[-1])
                    told = parse_qs(urlsplit(reply.headers["location"]).query)
                    return AuthorizationCodeResult(code=told["code"][0], state=told["state"][0])

                about = OAuthClientMetadata(redirect_uris=[AnyUrl("http://localhost:1/back")], client_name="test")
                auth = OAuthClientProvider(f"{node.url}/mcp", about, MemoryTokenStorage(), go, come_back)
                async with (
                    asyncio.timeout(WAIT_TIMEOUT),
                    httpx2.AsyncClient(auth=auth, timeout=WAIT_TIMEOUT) as http,
                    Client(streamable_http_client(f"{node.url}/mcp", http_client=http), mode=mode) as client,
                ):
                    result = await client.call_tool("percy_greet", {"task": "you"})
                    assert result.structured_content["answer"] == "hello you"
                assert "scope=staff" in sent_to[0]


async def built(config: dict[str, Any], base: Path) -> None:
    async with Fabric(msgspec.convert({"store": "memory:", **config}, Config), base=base, environ={}):
        pass


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"audience": []}, "set `audience`"),
            ({"issuer": "http://login.example"}, "must begin with https://"),
            ({"jwks_url": "http://login.example/keys"}, "must begin with https://"),
            ({"jwks_url": "https://login.example/keys", "secret": SECRET}, "only one of"),
            ({"jwks_file": "missing.json"}, "No such file"),
            ({"introspection_url": "https://login.example/ask"}, "needs `client_id`"),
            ({"id": "bo"}, None),
        ],
    )
    async def test_what_cannot_work_is_refused_at_the_start(
        self, tmp_path: Path, given: dict[str, Any], why: str | None
    ) -> None:
        issuer = {"id": "corp", "issuer": "https://login.example", "audience": [AUDIENCE], **given}
        config = {"auth": {"issuers": [issuer], "keys": [{"id": "bob", "key": "the-key-of-bob"}]}}
        with nullcontext() if why is None else pytest.raises(ConfigError, match=why):
            await built(config, tmp_path)

    async def test_no_key_has_a_name_that_an_issuer_could_give(self, tmp_path: Path) -> None:
        issuers = [{"id": "corp", "issuer": "https://login.example", "audience": [AUDIENCE]}]
        keys = [{"id": "corp:alice", "key": "the-key-of-alice"}]
        with pytest.raises(ConfigError, match="could also be a caller"):
            await built({"auth": {"issuers": issuers, "keys": keys}}, tmp_path)

    async def test_issuers_are_there_once(self, tmp_path: Path) -> None:
        issuers = [{"id": name, "issuer": "https://login.example", "audience": [AUDIENCE]} for name in ("a", "b")]
        with pytest.raises(ConfigError, match="twice"):
            await built({"auth": {"issuers": issuers}}, tmp_path)

    async def test_a_key_may_stand_in_the_file_as_its_hash(self) -> None:
        digest = hashlib.sha256(b"the-key-of-carol").hexdigest()
        async with running(percy(), config={"auth": {"keys": [{"id": "carol", "key": f"sha256:{digest}"}]}}) as node:
            assert (await asked(node, "the-key-of-carol")).json["ok"] is True
            assert (await asked(node, f"sha256:{digest}")).status == 401
            headers = {"authorization": "ApiKey the-key-of-carol"}
            assert (await node.send("GET", "/v1/agents", token=None, headers=headers)).status == 200
