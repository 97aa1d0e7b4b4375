"""How gRPC agents are reached: TLS, the guard, servers that are none, and a node without the library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Target, ignore_event
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.result import Result
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.grpc.runtime import GRPCRuntime, build
from a2a_fabric.runtimes.proto import messages
from a2a_fabric.runtimes.proto.service import SERVICE
from tests.fixtures.agents.calling import call_of
from tests.fixtures.agents.grpc_matrix import MatrixAgent
from tests.fixtures.agents.grpc_serving import done, serving
from tests.fixtures.certificates import Authority
from tests.fixtures.node import WAIT_TIMEOUT

ROOT = Path(__file__).parents[2]
AUTHORITY, STRANGER = Authority(), Authority("nobody knows this one")


@asynccontextmanager
async def reaching(
    uri: str, base: Path = ROOT, guard: Guard | None = None, **endpoint: Any
) -> AsyncIterator[GRPCRuntime]:
    manifest = Manifest(agent_id="tested", endpoint={"uri": uri, **endpoint}, capabilities=(Capability(name="free"),))
    context = RuntimeContext(http=cast(HTTPClient, None), base=base, guard=guard)  # this one makes no requests
    runtime = build(manifest, context)
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            yield runtime
    finally:
        await runtime.aclose()
        await runtime.aclose()


async def ask(runtime: GRPCRuntime) -> Result:
    return await runtime(call_of("free", "hello"), ignore_event)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With everything that a client of a TLS server may have."""
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.pem)
    (tmp_path / "other.pem").write_bytes(STRANGER.pem)
    for name, authority in (("client", AUTHORITY), ("stranger", STRANGER)):
        key, certificate = authority.vouch_for(name)
        (tmp_path / f"{name}.key").write_bytes(key)
        (tmp_path / f"{name}.pem").write_bytes(certificate)
    return tmp_path


def secured(name: str, *, wants_client: bool = False) -> grpc.ServerCredentials:
    pair = AUTHORITY.vouch_for(name)
    roots = AUTHORITY.pem if wants_client else None
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=wants_client)


async def test_tls_with_an_authority_of_ones_own(folder: Path) -> None:
    async with serving(MatrixAgent(), secured("127.0.0.1")) as port:
        async with reaching(f"grpcs://127.0.0.1:{port}", folder, ca="ca.pem") as runtime:
            assert (await ask(runtime)).data["seen"]["task"] == "hello"
        async with reaching(f"grpc://127.0.0.1:{port}", folder, tls=True, ca="ca.pem") as runtime:
            assert await runtime.health() == "online"
        wrong: list[dict[str, Any]] = [{"ca": "other.pem"}, {}]
        for endpoint in wrong:
            async with reaching(f"grpcs://127.0.0.1:{port}", folder, **endpoint) as runtime:
                with pytest.raises(AgentOffline):
                    await ask(runtime)
        async with reaching(f"grpc://127.0.0.1:{port}", folder) as runtime:  # plain, as to this machine by default
            with pytest.raises(AgentOffline):
                await ask(runtime)


async def test_a_certificate_must_name_the_host_or_the_name_that_is_given(folder: Path) -> None:
    async with serving(MatrixAgent(), secured("oracle.example")) as port:
        uri = f"grpcs://127.0.0.1:{port}"
        async with reaching(uri, folder, ca="ca.pem") as runtime:
            with pytest.raises(AgentOffline):
                await ask(runtime)
        async with reaching(uri, folder, ca="ca.pem", server_name="oracle.example") as runtime:
            assert (await ask(runtime)).data["seen"]["task"] == "hello"
        guard = Guard(allow=["127.0.0.1"])
        async with reaching(uri, folder, guard, ca="ca.pem", server_name="oracle.example") as runtime:
            assert (await ask(runtime)).data["seen"]["task"] == "hello"


async def test_a_client_certificate_is_shown_to_those_who_want_one(folder: Path) -> None:
    async with serving(MatrixAgent(), secured("127.0.0.1", wants_client=True)) as port:
        uri = f"grpcs://127.0.0.1:{port}"
        async with reaching(uri, folder, ca="ca.pem", cert="client.pem", key="client.key") as runtime:
            assert (await ask(runtime)).data["seen"]["task"] == "hello"
        wrong: list[dict[str, Any]] = [{}, {"cert": "stranger.pem", "key": "stranger.key"}]
        for given in wrong:
            async with reaching(uri, folder, ca="ca.pem", **given) as runtime:
                with pytest.raises(FabricError):
                    await ask(runtime)


async def test_the_guard_judges_the_address_before_anything_is_sent() -> None:
    async with serving(MatrixAgent()) as port:
        for host in ("127.0.0.1", "localhost"):
            async with reaching(f"grpc://{host}:{port}", guard=Guard()) as runtime:
                with pytest.raises(AgentOffline, match="not a public address"):
                    await ask(runtime)
        async with reaching(f"grpc://localhost:{port}", guard=Guard(allow_private=True)) as runtime:
            assert (await ask(runtime)).data["seen"]["task"] == "hello"


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with serving(MatrixAgent()) as port, reaching(f"grpc://127.0.0.1:{port}", tls=False) as runtime:
        assert (await ask(runtime)).data["seen"]["task"] == "hello"


class Silent:
    """Only answers calls: no description, no health."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method != f"/{SERVICE}/Call":
            return None

        async def call(request: Any, context: Any) -> messages.Outcome:
            return done({"here": True})

        kinds = messages.CallRequest.FromString, messages.Outcome.SerializeToString
        return grpc.unary_unary_rpc_method_handler(call, *kinds)


async def test_an_agent_may_leave_out_what_it_does_not_need() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Silent(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with reaching(f"grpc://127.0.0.1:{port}") as runtime:
            assert (await ask(runtime)).data == {"here": True}
            assert await runtime.health() == "online"
            assert [each.name for each in (await runtime.describe()).capabilities] == ["free"]
    finally:
        await server.stop(None)


async def test_a_server_of_other_things_is_no_agent() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with reaching(f"grpc://127.0.0.1:{port}") as runtime:
            with pytest.raises(AgentOffline, match="UNIMPLEMENTED"):
                await ask(runtime)
    finally:
        await server.stop(None)


@asynccontextmanager
async def speaking(answer: bytes) -> AsyncIterator[int]:
    """A server that says this, whatever it hears, and then nothing more."""

    heard: set[asyncio.StreamWriter] = set()

    def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.add(writer)
        writer.write(answer)

    server = await asyncio.start_server(joined, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in heard:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n"], ids=["http", "ssh"])
async def test_what_speaks_another_protocol_is_offline(answer: bytes) -> None:
    async with speaking(answer) as port, reaching(f"grpc://127.0.0.1:{port}") as runtime:
        with pytest.raises(AgentOffline, match=f"127.0.0.1:{port} cannot be reached"):
            await ask(runtime)


async def test_a_server_that_says_nothing_is_left_when_time_is_up() -> None:
    async with speaking(b"") as port, reaching(f"grpc://127.0.0.1:{port}") as runtime:
        soon = Target(agent_id="tested", capability="free", timeout_ms=500)
        with pytest.raises(AgentOffline):
            await runtime(replace(call_of("free"), target=soon), ignore_event)


async def test_closing_the_runtime_ends_what_still_runs() -> None:
    async with serving(MatrixAgent()) as port:
        async with reaching(f"grpc://127.0.0.1:{port}") as runtime:
            assert await runtime.health() == "online"
        with pytest.raises(AgentOffline):
            await ask(runtime)


def test_without_the_library_the_node_says_what_to_install() -> None:
    """In a Python that finds no grpc, as after `pip install a2a-fabric`."""
    program = (
        "import sys\n"
        "sys.modules['grpc'] = None\n"
        "from a2a_fabric import plugins\n"
        "from a2a_fabric.core.errors import ConfigError\n"
        "try:\n"
        "    plugins.load_runtime('grpc')\n"
        "except ConfigError as error:\n"
        "    print(error.message)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'a2a-fabric[grpc]'" in said.stdout


def test_what_is_compiled_is_what_is_published(tmp_path: Path) -> None:
    """`scripts/generate` was run after the last change of the proto."""
    folder = ROOT / "src" / "a2a_fabric" / "runtimes" / "proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "src"), f"--pyi_out={tmp_path}"]
    command += [f"--descriptor_set_out={tmp_path / 'agent.binpb'}", str(folder / "agent.proto")]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "agent.binpb").read_bytes() == (folder / "agent.binpb").read_bytes()
    made = tmp_path / "a2a_fabric" / "runtimes" / "proto" / "agent_pb2.pyi"
    assert made.read_text() == (folder / "messages.pyi").read_text()
