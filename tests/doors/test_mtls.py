"""mTLS with real handshakes: who a client certificate belongs to, and certificates that change while the node runs."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import msgspec
import pytest
from a2a.types import GetExtendedAgentCardRequest, a2a_pb2_grpc
from cryptography import x509
from typer.testing import CliRunner

from a2a_fabric.app import Fabric
from a2a_fabric.cli.program import app
from a2a_fabric.cli.up import follow_tls
from a2a_fabric.config import Config, TLSSettings
from a2a_fabric.core.errors import ConfigError
from tests.fixtures.certificates import Authority
from tests.fixtures.mcp_client import client
from tests.fixtures.node import PSK, WAIT_TIMEOUT
from tests.fixtures.percy import Percy
from tests.fixtures.tls_node import TLSNode, call, running_tls
from tests.marks import requirement

SPIFFE = x509.UniformResourceIdentifier("spiffe://corp.example/ns/build/sa/ci")
LAB = x509.DNSName("scanner.lab.example")
MAIL = x509.RFC822Name("Ann@corp.example")
KEY = "the-key-of-ci-12"
AUTH: dict[str, Any] = {
    "keys": [{"id": "ci", "key": KEY, "scopes": ["agent:percy", "agent:other"], "trust": "org"}],
    "certificates": [
        {"match": "uri:spiffe://corp.example/ns/*/sa/ci", "id": "ci", "scopes": ["agent:percy"], "trust": "local"},
        {"match": "dns:*.lab.example", "trust": "public"},
        {"match": "email:ann@CORP.example", "id": "ann"},
    ],
}
ASK = {"agent_id": "percy", "capability": "reason", "task": "think"}


@requirement("001-28", "001-55")
async def test_a_certificate_says_who_calls_and_the_envelope_says_mtls(tmp_path: Path) -> None:
    percy = Percy()
    async with running_tls(
        percy.agent, folder=tmp_path, tls={"client_certificates": "required"}, config={"auth": AUTH}
    ) as tls:
        for name, principal in (
            (SPIFFE, ("mtls", "ci", "local")),
            (MAIL, ("mtls", "ann", "org")),
        ):  # fmt: skip
            async with tls.session(tls.trust(name)) as session:
                status, reply = await call(session, tls.url, "fabric.call", ASK)
                assert (status, reply["ok"]) == (200, True)
            auth = percy.calls[-1].auth
            assert (auth.mode, auth.principal_id, auth.trust) == principal
        async with tls.session(tls.trust(LAB)) as session:
            _, listed = await call(session, tls.url, "fabric.agent.list", {})
            assert listed["result"]["count"] == 0  # of trust tier `public` there is none


async def test_every_door_takes_the_certificate(tmp_path: Path) -> None:
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": "required"}, config={"auth": AUTH}
    ) as tls:
        async with tls.session(tls.trust(MAIL)) as session:
            for path in ("/v1/agents", "/a2a/agents", "/agents/percy/.well-known/agent-card.json", "/mcp/list_agents"):
                async with asyncio.timeout(WAIT_TIMEOUT), session.get(tls.url + path) as reply:
                    assert (path, reply.status) == (path, 200)
                    assert "percy" in await reply.text()
            listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {}}}}  # fmt: skip
            headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
                       "Mcp-Method": "tools/list"}  # fmt: skip
            async with session.post(f"{tls.url}/mcp", json=listing, headers=headers) as reply:
                assert "percy_reason" in await reply.text()
        async with tls.session(tls.trust(MAIL)) as session, session.ws_connect(f"{tls.url}/mcp/call") as socket:
            async with asyncio.timeout(WAIT_TIMEOUT):
                await socket.send_json({"id": "1", "name": "fabric.agent.list", "arguments": {}})
                assert "percy" in (await socket.receive()).data


@pytest.mark.parametrize("mode", ["off", "optional", "required"])
async def test_certificates_are_off_optional_or_required(tmp_path: Path, mode: str) -> None:
    certificates = [] if mode == "off" else AUTH["certificates"]
    auth = {**AUTH, "certificates": certificates}
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": mode}, config={"auth": auth}
    ) as tls:
        async with tls.session(tls.trust(with_certificate=False)) as session:
            if mode == "required":
                with pytest.raises(aiohttp.ClientError):
                    await call(session, tls.url, "fabric.call", ASK, KEY)
            else:
                assert (await call(session, tls.url, "fabric.call", ASK, KEY))[0] == 200
                assert (await call(session, tls.url, "fabric.call", ASK))[0] == 401
        async with tls.session(tls.trust(SPIFFE)) as session:
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == (401 if mode == "off" else 200)


async def test_a_certificate_of_an_unknown_authority_is_refused_at_the_handshake(tmp_path: Path) -> None:
    stranger = Authority("a stranger")
    for mode in ("optional", "required"):
        async with running_tls(
            Percy().agent, folder=tmp_path, tls={"client_certificates": mode}, config={"auth": AUTH}
        ) as tls:
            for context in (tls.trust(SPIFFE, signed_by=stranger), tls.trust(SPIFFE, lifetime=timedelta(hours=-1))):
                async with tls.session(context) as session:
                    with pytest.raises(aiohttp.ClientError):
                        await call(session, tls.url, "fabric.call", ASK, KEY)


async def test_a_certificate_and_a_key_combine_to_the_narrower_or_are_refused(tmp_path: Path) -> None:
    percy = Percy()
    async with running_tls(
        percy.agent, folder=tmp_path, tls={"client_certificates": "optional"}, config={"auth": AUTH}
    ) as tls:
        async with tls.session(tls.trust(SPIFFE)) as session:
            assert (await call(session, tls.url, "fabric.call", ASK, KEY))[0] == 200
            auth = percy.calls[-1].auth
            assert (auth.principal_id, auth.trust) == ("ci", "org")  # the key's tier, which is the narrower
            assert (auth.scp, auth.narrowed_by) == (("agent:percy", "agent:other"), (("agent:percy",),))
            status, reply = await call(session, tls.url, "fabric.call", {**ASK, "agent_id": "other"}, KEY)
            assert reply["error_code"] == "AUTH_DENIED"  # the certificate does not allow it
            status, reply = await call(session, tls.url, "fabric.call", ASK, PSK)
            assert (status, "belongs to 'ci', the other credentials to 'psk'" in reply["error"]) == (401, True)
            assert (await call(session, tls.url, "fabric.call", ASK, "no such key"))[0] == 401
        async with tls.session(tls.trust(x509.DNSName("unknown.example"))) as session:
            for token in (None, KEY):
                status, reply = await call(session, tls.url, "fabric.call", ASK, token)
                assert (status, "belongs to no caller" in reply["error"]) == (401, True)
        async with tls.session(tls.trust(SPIFFE)) as session:
            headers = {"Origin": "https://evil.example"}
            body = {"name": "fabric.call", "arguments": ASK}
            async with session.post(f"{tls.url}/mcp/call", json=body, headers=headers) as page:
                assert page.status == 403


async def test_a_revoked_mapping_counts_at_once_on_open_connections(tmp_path: Path) -> None:
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": "required"}, config={"auth": AUTH}
    ) as tls:
        fabric = tls.node.fabric
        async with tls.session(tls.trust(SPIFFE)) as session:
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == 200
            auth = msgspec.convert({**AUTH, "certificates": AUTH["certificates"][1:]}, type(fabric.config.auth))
            fabric.reload(msgspec.structs.replace(fabric.config, auth=auth))
            status, reply = await call(session, tls.url, "fabric.call", ASK)
            assert (status, "belongs to no caller" in reply["error"]) == (401, True)
            fabric.reload(fabric.config)
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == 200


async def test_a_certificate_that_expires_while_the_connection_is_open_is_refused(tmp_path: Path) -> None:
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": "required"}, config={"auth": AUTH}
    ) as tls:
        async with asyncio.timeout(WAIT_TIMEOUT * 2):
            while True:  # on a busy machine the first certificate may be over before its handshake
                async with tls.session(tls.trust(SPIFFE, lifetime=timedelta(seconds=4))) as session:
                    try:
                        status, _ = await call(session, tls.url, "fabric.call", ASK)
                    except aiohttp.ClientError:
                        continue
                    if status != 200:
                        continue
                    while status == 200:
                        await asyncio.sleep(0.05)
                        status, reply = await call(session, tls.url, "fabric.call", ASK)
                    assert (status, reply["error_code"]) == (401, "AUTH_EXPIRED")
                    return


async def server_certificate(tls: TLSNode, context: ssl.SSLContext) -> bytes:
    host, port = tls.url.removeprefix("https://").split(":")
    async with asyncio.timeout(WAIT_TIMEOUT):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


async def test_a_renewed_certificate_counts_from_the_next_connection_on(tmp_path: Path) -> None:
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": "required"}, config={"auth": AUTH}
    ) as tls:
        context = tls.trust(SPIFFE)
        async with tls.session(context) as session:
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == 200
            before = await server_certificate(tls, context)
            renewed = ssl.PEM_cert_to_DER_cert(tls.renew().decode())
            assert await server_certificate(tls, context) == renewed != before
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == 200  # the open connection goes on
            (tmp_path / "key.pem").write_text("half writ")
            assert await server_certificate(tls, context) == renewed
            with pytest.raises(ConfigError, match=r"key\.pem"):
                tls.tls.reload()
            assert await server_certificate(tls, context) == renewed
            (tmp_path / "clients.pem").write_bytes(Authority("the clients' new authority").pem)
            tls.renew()
            assert (await call(session, tls.url, "fabric.call", ASK))[0] == 200
        async with tls.session(context) as session:  # its authority is no longer trusted
            with pytest.raises(aiohttp.ClientError):
                await call(session, tls.url, "fabric.call", ASK)
    assert "goes on with the certificate that it read before" in tls.node.log.getvalue()


async def test_other_files_are_taken_and_the_log_says_that_grpc_waits_for_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"client_certificates": "required"}
    async with running_tls(Percy().agent, folder=tmp_path, tls=settings, config={"auth": AUTH}) as tls:
        context, running = tls.trust(SPIFFE), tls.node.fabric.config
        before, prepare = await server_certificate(tls, context), follow_tls(tls.tls, tmp_path)
        renewed = ssl.PEM_cert_to_DER_cert(tls.renew().decode())
        for name in ("cert.pem", "key.pem"):
            (tmp_path / name).rename(tmp_path / f"new-{name}")
        assert isinstance(running.tls, TLSSettings)
        files = msgspec.structs.replace(running.tls, cert="new-cert.pem", key="new-key.pem")
        prepare(msgspec.structs.replace(running, tls=files, doors=(GRPC_DOORS[0],)))()
        assert await server_certificate(tls, context) == renewed != before
        assert "the gRPC port follows the files that it began with" in caplog.text


async def find_grpc(tls: TLSNode, *names: x509.GeneralName) -> str:
    """The address of gRPC on the card of percy."""
    card_url = f"{tls.url}/agents/percy/.well-known/agent-card.json"
    headers = {} if names else {"Authorization": f"Bearer {PSK}"}
    context = tls.trust(*names, with_certificate=bool(names))
    async with tls.session(context) as session, session.get(card_url, headers=headers) as reply:
        card = json.loads(await reply.read())
    [address] = [each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
    return str(address)


async def ask_grpc(address: str, credentials: grpc.ChannelCredentials | None, token: str | None = None) -> str:
    """The name on the card of percy, over gRPC."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    open_channel = (
        grpc.aio.insecure_channel(address) if credentials is None else grpc.aio.secure_channel(address, credentials)
    )
    async with open_channel as channel, asyncio.timeout(WAIT_TIMEOUT):
        stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        card = await stub.GetExtendedAgentCard(GetExtendedAgentCardRequest(tenant="percy"), metadata=metadata)
        return str(card.name)


GRPC_DOORS = [{"kind": "a2a", "grpc": "127.0.0.1:0"}, {"kind": "fabric"}]


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_grpc_takes_certificates_too_and_follows_its_files(tmp_path: Path, mode: str) -> None:
    config = {"auth": AUTH, "doors": GRPC_DOORS}
    async with running_tls(Percy().agent, folder=tmp_path, tls={"client_certificates": mode}, config=config) as tls:
        address = await find_grpc(tls, MAIL)
        key, certificate = tls.clients.vouch_for("client", MAIL)
        known = grpc.ssl_channel_credentials(tls.authority.pem, key, certificate)
        assert await ask_grpc(address, known)
        without = grpc.ssl_channel_credentials(tls.authority.pem)
        if mode == "optional":
            assert await ask_grpc(address, without, KEY)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask_grpc(address, without)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask_grpc(address, without, KEY)
        with pytest.raises(grpc.aio.AioRpcError, match="belongs to 'ann', the other credentials to 'ci'"):
            await ask_grpc(address, known, KEY)
        other_key, other = tls.clients.vouch_for("client", x509.DNSName("unknown.example"))
        with pytest.raises(grpc.aio.AioRpcError, match="belongs to no caller"):
            await ask_grpc(address, grpc.ssl_channel_credentials(tls.authority.pem, other_key, other))
        for stranger in (Authority("a stranger").vouch_for("client", MAIL),
                         tls.clients.vouch_for("client", MAIL, lifetime=timedelta(hours=-1))):  # fmt: skip
            with pytest.raises(grpc.aio.AioRpcError) as unreached:
                await ask_grpc(address, grpc.ssl_channel_credentials(tls.authority.pem, *stranger))
            assert unreached.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError):
            await ask_grpc(address, None, KEY)  # without TLS
        tls.authority = Authority("another authority of the node")
        tls.renew()
        assert await ask_grpc(address, grpc.ssl_channel_credentials(tls.authority.pem, key, certificate))


@pytest.mark.parametrize(("node", "door"), [("required", "optional"), ("required", "off"), ("off", "required")])
async def test_each_listener_has_its_own_rule_for_certificates(tmp_path: Path, node: str, door: str) -> None:
    doors = [{**GRPC_DOORS[0], "grpc_client_certificates": door}, {"kind": "fabric"}]
    auth = AUTH if node != "off" else {"keys": AUTH["keys"]}
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": node}, config={"auth": auth, "doors": doors}
    ) as tls:
        address = await find_grpc(tls, *([MAIL] if node == "required" else []))
        without = grpc.ssl_channel_credentials(tls.authority.pem)
        if door == "required":
            with pytest.raises(grpc.aio.AioRpcError):
                await ask_grpc(address, without, KEY)
            key, certificate = tls.clients.vouch_for("client", MAIL)
            assert await ask_grpc(address, grpc.ssl_channel_credentials(tls.authority.pem, key, certificate), KEY)
        else:
            assert await ask_grpc(address, without, KEY)


def list_own_ports() -> set[int]:
    """Those at which this process listens, as the kernel lists them."""
    links = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    tables = (Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    rows = [line.split() for lines in tables for line in lines]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_port_behind_optional_certificates_answers_only_the_node_itself(tmp_path: Path) -> None:
    config = {"auth": AUTH, "doors": GRPC_DOORS}
    async with running_tls(
        Percy().agent, folder=tmp_path, tls={"client_certificates": "optional"}, config=config
    ) as tls:
        public = int((await find_grpc(tls, MAIL)).rpartition(":")[2])
        answers = []
        for port in list_own_ports() - {public}:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask_grpc(f"127.0.0.1:{port}", None, KEY)
            answers.append(refused.value.details())
        assert sum("This port is for the node itself" in str(answer) for answer in answers) == 1


async def test_the_node_shows_its_own_certificate_to_an_agent(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    config = {"auth": AUTH, "doors": [{"kind": "fabric"}, {"kind": "mcp"}, GRPC_DOORS[0]]}
    async with running_tls(
        Percy().agent, folder=tmp_path / "behind", tls={"client_certificates": "required"}, config=config
    ) as behind:
        key, certificate = behind.clients.vouch_for("client", MAIL)
        for name, content in (("front.key", key), ("front.pem", certificate), ("ca.pem", behind.authority.pem)):
            (tmp_path / name).write_bytes(content)
        files = {"cert": "front.pem", "key": "front.key", "ca": "ca.pem"}
        card, bare = f"{behind.url}/agents/percy", f"grpcs://{await find_grpc(behind, MAIL)}"
        manifests = [
            {"agent_id": "far", "runtime": "a2a", "endpoint": {"uri": card, "tls": files}},
            {"agent_id": "grpc", "runtime": "a2a", "endpoint": {"uri": card, "binding": "grpc", "tls": files}},
            {"agent_id": "tools", "runtime": "mcp", "endpoint": {"uri": f"{behind.url}/mcp", "tls": files}},
            {"agent_id": "bare", "runtime": "mcp", "endpoint": {"uri": f"{behind.url}/mcp", "tls": {"ca": "ca.pem"}}},
            {"agent_id": "no-grpc", "runtime": "a2a",
             "endpoint": {"uri": bare, "binding": "grpc", "tls": {"ca": "ca.pem"}}},
        ]  # fmt: skip
        async with running_tls(folder=tmp_path, manifests=manifests) as front:
            for agent_id, capability in (("far", "reason"), ("grpc", "reason"), ("tools", "percy_reason")):
                answered = await front.node.ask(agent_id, capability, "think")
                assert answered["ok"], answered
            for mode in ("legacy", "2026-07-28"):  # passed through to the server
                async with client(front.node, mode, path="/agents/tools/mcp") as connected:
                    called = await connected.call_tool("percy_reason", {"task": "think"})
                    assert not called.is_error, called
            assert not (await front.node.ask("bare", "percy_reason", "think"))["ok"]
            assert not (await front.node.ask("no-grpc", "message", "think"))["ok"]
            # The authority of the clients is replaced: only a certificate of the new one is let in.
            behind.clients = Authority("the clients' new authority")
            (behind.folder / "clients.pem").write_bytes(behind.clients.pem)
            behind.renew()
            key, certificate = behind.clients.vouch_for("client", MAIL)
            (tmp_path / "front.key").write_bytes(key)
            (tmp_path / "front.pem").write_bytes(certificate)
            answered = await front.node.ask("grpc", "reason", "think")
            assert answered["ok"], answered


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"listen": "0.0.0.0:0", "tls": "required"}, "would be served without TLS"),
        ({"tls": "required", "doors": [{"kind": "a2a", "grpc": "0.0.0.0:50051"}]}, "0.0.0.0:50051 would be served"),
        ({"auth": {"certificates": [{"match": "dns:x"}]}}, "certificates need `tls`"),
        (
            {
                "tls": {"cert": "c", "key": "k", "client_ca": "ca", "client_certificates": "required"},
                "auth": {"certificates": [{"match": "dns:x", "view": "v"}]},
            },
            "there is no view 'v'",
        ),
        (
            {
                "tls": {"cert": "c", "key": "k", "client_ca": "ca", "client_certificates": "required"},
                "auth": {
                    "certificates": [{"match": "dns:x", "id": "corp:ann"}],
                    "issuers": [{"id": "corp", "issuer": "https://x.example", "audience": ["x"]}],
                },
            },
            "'corp:ann' could also be a caller of the issuer",
        ),
    ],
)
async def test_a_mistake_stops_the_start(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        async with Fabric(msgspec.convert({"listen": "127.0.0.1:0", **config}, Config), psk=PSK, environ={}):
            pass


def test_plain_http_for_other_machines_and_names_that_look_alike_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text('{"listen": "0.0.0.0:8000"}')
    run = ["check", "--config", str(tmp_path / "fabric.yaml"), "--json"]
    environment = {**os.environ, "FABRIC_PSK": PSK}
    warned = json.loads(CliRunner().invoke(app, run, env=environment).output)
    assert any("0.0.0.0:8000 is served without TLS" in each for each in warned["warnings"])
    (tmp_path / "fabric.yaml").write_text('{"listen": "0.0.0.0:8000", "tls": "required"}')
    refused = json.loads(CliRunner().invoke(app, run, env=environment).output)
    assert "would be served without TLS" in refused["problems"][0]
    keys = [{"id": "ann", "key": "the-key-of-ann"}, {"id": "Ann", "key": "the-other-key"}]
    (tmp_path / "fabric.yaml").write_text(json.dumps({"tls": "required", "auth": {"keys": keys}}))
    lookalike = json.loads(CliRunner().invoke(app, run, env=environment).output)["warnings"]
    assert any("'Ann' can be mistaken for 'ann'" in each for each in lookalike)
    (tmp_path / "fabric.yaml").write_text('{"tls": "required"}')
    assert json.loads(CliRunner().invoke(app, run, env=environment).output)["ok"]
