"""gRPC and strangers: the node's certificate is its certificate, and a node for this machine alone stays one."""

from __future__ import annotations

import asyncio
import io
from contextlib import nullcontext
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
from a2a.types import GetExtendedAgentCardRequest, a2a_pb2_grpc
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from a2a_fabric.app import Fabric
from a2a_fabric.config import Config
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.a2a.grpc_tls import load_credentials
from a2a_fabric.doors.context import TLSFiles
from tests.doors.a2a_agents import adder
from tests.fixtures.certificates import Authority
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.marks import requirement

ASKED = GetExtendedAgentCardRequest(tenant="adder")
METADATA = (("authorization", f"Bearer {PSK}"),)
DOORS = [{"kind": "a2a", "grpc": "127.0.0.1:0"}]


async def place(node: Node) -> str:
    card = (await node.send("GET", "/agents/adder/.well-known/agent-card.json")).json
    [found] = [each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
    return str(found)


async def name_on_card(channel: grpc.aio.Channel) -> str:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
    async with asyncio.timeout(WAIT_TIMEOUT):
        return str((await stub.GetExtendedAgentCard(ASKED, metadata=METADATA)).name)


@requirement("004-30")
@pytest.mark.parametrize("password", [None, "open sesame"])
async def test_everything_over_grpc_travels_over_tls_too(tmp_path: Path, password: str | None) -> None:
    authority = Authority()
    key, certificate = authority.vouch_for("127.0.0.1")
    if password is not None:
        locked = BestAvailableEncryption(password.encode())
        key = load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "cert.pem").write_bytes(certificate)
    tls = {"cert": "cert.pem", "key": "key.pem", "password": password}
    async with running(adder(), config={"doors": DOORS, "tls": tls}, base=tmp_path) as node:
        trusting = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(await place(node), trusting) as channel:
            assert await name_on_card(channel) == "adder"
        async with grpc.aio.insecure_channel(await place(node)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await name_on_card(channel)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    (tmp_path / "cert.pem").write_text("no certificate")
    for cert, named in (("cert.pem", "key.pem"), ("missing.pem", "missing.pem")):
        with pytest.raises(ConfigError, match=named):
            load_credentials(TLSFiles(cert=tmp_path / cert, key=tmp_path / "key.pem"))


async def test_a_node_that_trusts_this_machine_does_not_listen_to_others() -> None:
    for grpc_at, is_refused in (("0.0.0.0:0", True), ("[::]:0", True), ("localhost:0", False)):
        table = {"doors": [{"kind": "a2a", "grpc": grpc_at}], "auth": {"anonymous": True}, "listen": "127.0.0.1:0"}
        node = Fabric(msgspec.convert(table, Config), psk=None, environ={}, log_stream=io.StringIO())
        refused = pytest.raises(ConfigError, match="loopback") if is_refused else nullcontext()
        with refused:
            async with node:
                pass
