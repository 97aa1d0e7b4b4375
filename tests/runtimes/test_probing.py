"""Probing: real servers and programs of every kind are recognised, and what is none of them is not."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.probing import addresses, commands
from a2a_fabric.probing.findings import Finding, ProbeReport, suggest_agent_id
from tests.fixtures.agents.a2a_serving import serving as serving_a2a
from tests.fixtures.agents.calling import HERE as AGENTS
from tests.fixtures.agents.calling import is_alive
from tests.fixtures.agents.matrix import make
from tests.fixtures.agents.plain_http import app as silent_agent
from tests.fixtures.apis.shop import app as shop
from tests.fixtures.mcp_servers.serving import EVERYDAY, serving
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running
from tests.fixtures.peers import peer
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.http_agents import BEHAVIOURS, agents, dead_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 20.0  # enough for a machine that has other things to do


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[OutboundClient]:
    client = OutboundClient()
    yield client
    await client.aclose()


async def probed(http: OutboundClient, url: str, seconds: float = SECONDS, **headers: str) -> ProbeReport:
    return await addresses.probe_address(http, url, headers, seconds)


def found_in(report: ProbeReport) -> Finding:
    assert report.finding is not None, report.attempts
    return report.finding


async def started(*argv: str, seconds: float = SECONDS, **env: str) -> ProbeReport:
    return await commands.probe_command(argv, os.environ, env, AGENTS, seconds)


@requirement("001-18")
@pytest.mark.parametrize(
    ("era", "told"), [("stateless", "stateless"), ("handshake", "handshake"), ("both", "stateless")]
)
@pytest.mark.parametrize("path", ["/mcp", "", "/"])
async def test_mcp_servers_of_both_eras_are_found_at_their_address_and_above_it(
    http: OutboundClient, era: Any, told: str, path: str
) -> None:
    async with serving(era) as server:
        found = found_in(await probed(http, server.url.removesuffix("/mcp") + path))
    assert (found.runtime, found.endpoint) == ("mcp", {"transport": "http", "uri": server.url})
    assert (told in found.evidence, found.is_exact, found.name) == (True, path == "/mcp", "everyday")


async def test_a_session_that_was_opened_to_ask_is_given_back(http: OutboundClient) -> None:
    async with serving("handshake") as server:
        await probed(http, server.url)
        assert server.gate.methods.count("initialize") == 1


@requirement("001-18")
@pytest.mark.parametrize("versions", [("1.0",), ("0.3",)])
async def test_an_agent_card_is_found(http: OutboundClient, versions: tuple[str, ...]) -> None:
    async with serving_a2a("jsonrpc", versions=versions) as served:
        found = found_in(await probed(http, served.url))
        assert (found.runtime, found.endpoint["uri"]) == ("a2a", served.url)
        assert found.name
        card = found_in(await probed(http, f"{served.url}/.well-known/agent-card.json"))
        assert card.runtime == "a2a"


@requirement("001-18")
async def test_servers_of_other_protocols_are_told_apart(http: OutboundClient) -> None:
    async with peer("acp", AGENTS / "acp_server.py") as acp, peer("acp", AGENTS / "agentzero_server.py") as zero:
        found = found_in(await probed(http, acp))
        assert (found.runtime, found.endpoint) == ("acp", {"uri": acp})
        assert "echo" in found.evidence
        refused = await probed(http, zero)
        assert refused.finding is None
        assert any("asks for credentials" in look.outcome for look in refused.attempts if look.protocol == "agentzero")
        found = found_in(await probed(http, zero, authorization="Bearer the-token"))
        assert (found.runtime, found.endpoint, found.name) == ("agentzero", {"uri": zero}, "Agent Zero")


@requirement("001-18")
async def test_another_node_is_found_and_what_is_below_it_is_what_it_is(http: OutboundClient) -> None:
    async with running(make("percy")) as node:
        found = found_in(await probed(http, node.url))
        assert (found.runtime, found.endpoint) == ("fabric", {"uri": node.url})
        key = f"Bearer {PSK}"
        for path in ("/mcp", "/agents/percy/mcp"):
            assert found_in(await probed(http, node.url + path, authorization=key)).endpoint["uri"] == node.url + path
        refused = await probed(http, f"{node.url}/mcp")
        assert next(look.outcome for look in refused.attempts if look.protocol == "mcp").startswith(
            "asks for credentials"
        )


@requirement("001-18")
async def test_our_own_agents_and_documents_are_found(http: OutboundClient) -> None:
    async with listening(make("percy").app) as agent, listening(shop) as api:
        found = found_in(await probed(http, f"{agent}/agents/percy"))
        assert (found.runtime, found.is_plain_http, found.name) == ("http", True, "percy")
        above = found_in(await probed(http, api))
        assert (above.endpoint, above.is_exact) == ({"openapi": f"{api}/openapi.json"}, False)
        exact = found_in(await probed(http, f"{api}/shop.yaml"))
        assert (exact.endpoint, exact.is_exact, exact.name) == ({"openapi": f"{api}/shop.yaml"}, True, "Pet shop")


async def test_a_server_that_speaks_nothing_we_know_is_nothing(http: OutboundClient) -> None:
    async with listening(silent_agent) as url:
        report = await probed(http, url)
    assert report.finding is None
    assert [look.protocol for look in report.attempts] == [
        "mcp",
        "fabric",
        "http",
        "agentzero",
        "a2a",
        "acp",
        "openapi",
    ]


async def test_an_address_without_a_listener_is_probed_once(http: OutboundClient) -> None:
    report = await probed(http, f"http://127.0.0.1:{dead_port()}/")
    (look,) = report.attempts
    assert "No connection" in look.outcome


@pytest.mark.parametrize(
    "fault", ["hang", "reset", "not_http", "nested", "huge_reply", "redirect", "flood", "web_page"]
)
async def test_a_faulty_server_ends_the_probe_in_time(http: OutboundClient, fault: str) -> None:
    async with agents(defaultdict(lambda: BEHAVIOURS[fault])) as wild:
        async with asyncio.timeout(WAIT_TIMEOUT):
            report = await probed(http, wild.url("/x"), seconds=0.5)
    assert report.finding is None


async def test_of_a_stream_without_end_only_the_beginning_is_heard(http: OutboundClient) -> None:
    async with agents(defaultdict(lambda: BEHAVIOURS["hang_in_stream"])) as wild:
        async with asyncio.timeout(WAIT_TIMEOUT):
            report = await probed(http, wild.url("/x"), seconds=10 * WAIT_TIMEOUT)
    assert report.finding is None


@requirement("001-18")
@pytest.mark.parametrize(
    ("argv", "runtime", "name"),
    [
        (EVERYDAY, "mcp", "everyday"),
        ([sys.executable, str(AGENTS / "agent_client_program.py")], "agent-client", "sdk-agent"),
        ([sys.executable, str(AGENTS / "matrix.py")], "process", ""),
        ([sys.executable, str(AGENTS / "jsonl_program.py")], "process", ""),
    ],
)
async def test_programs_are_told_apart_by_what_they_answer(argv: list[str], runtime: str, name: str) -> None:
    report = await started(*argv)
    found = found_in(report)
    assert (found.runtime, found.name, found.endpoint["command"]) == (runtime, name, argv)
    assert [look.protocol for look in report.attempts] == [runtime]  # whatever was asked first


async def test_a_program_that_answers_nothing_is_asked_in_every_way_and_never_outlives_that(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $$ $! >> {note}; echo Loading...; wait"
    report = await started("sh", "-c", script, seconds=1.0)
    assert report.finding is None
    assert [look.protocol for look in report.attempts] == ["mcp", "agent-client", "process"]
    assert {look.outcome for look in report.attempts} == {"no answer within 1 s"}
    pids = [int(word) for word in note.read_text().split()]
    assert pids
    async with asyncio.timeout(WAIT_TIMEOUT):
        while any(map(is_alive, pids)):  # noqa: ASYNC110  # the system may take a moment to end what was killed
            await asyncio.sleep(0.01)


async def test_a_program_that_dies_is_quoted_and_one_that_is_not_there_is_asked_once() -> None:
    dead = await started(sys.executable, str(AGENTS / "jsonl_program.py"), "--die-at-once")
    assert all("out of cheese" in look.outcome for look in dead.attempts)
    (gone,) = (await started("no-such-program")).attempts
    assert "cannot be found" in gone.outcome


async def test_claude_is_known_by_its_name_and_asked_for_its_version(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "9.8.7 (Claude Code)"\n')
    program.chmod(0o755)
    found = found_in(await started(str(program)))
    assert (found.runtime, found.version) == ("claude", "9.8.7")
    assert found.endpoint == {"path": ".", "command": [str(program)]}


async def test_a_probe_that_is_cancelled_ends_its_program(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    probing = asyncio.ensure_future(started(sys.executable, "-c", program))
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not (note.exists() and note.read_text()):  # noqa: ASYNC110  # files send no events
            await asyncio.sleep(0.01)
        probing.cancel()
        await asyncio.wait([probing])
    assert not is_alive(int(note.read_text()))


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ({"uri": "http://127.0.0.1:9/agents/percy/mcp"}, "percy"),
        ({"uri": "https://tools.example.com/mcp"}, "tools.example.com"),
        ({"openapi": "http://x.example/shop/openapi.json"}, "shop"),
        ({"command": ["python3", "-u", "servers/weather.py", "--stdio"]}, "weather"),
        ({"command": ["npx", "-y", "@scope/server-files@1.2"]}, "server-files"),
        ({"command": ["uvx", "mcp-server-git"]}, "mcp-server-git"),
    ],
)
async def test_what_does_not_say_its_name_is_called_by_where_it_is(endpoint: dict[str, Any], name: str) -> None:
    assert suggest_agent_id(Finding(runtime="mcp", endpoint=endpoint, evidence="")) == name
