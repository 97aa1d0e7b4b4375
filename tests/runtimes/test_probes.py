"""Probes ask the agent's own address, and not only its host; they never ask it to work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.doors.test_health_evidence import has_status, listed
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening


class Host:
    """A server whose own health page is always well; what is at other places is up to the test."""

    def __init__(self, pages: dict[tuple[str, str], int], allow: str = "", otherwise: int = 404) -> None:
        self.pages = pages
        self.allow = allow
        self.otherwise = otherwise
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked = scope["method"], scope["path"]
        self.asked.append(asked)
        status = 200 if scope["path"] == "/health" else self.pages.get(asked, self.otherwise)
        headers = [(b"allow", self.allow.encode())] if asked[0] == "OPTIONS" and self.allow else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"ok": true, "result": {}}'})


@asynccontextmanager
async def node_before(host: Host, runtime: str = "http", **endpoint: Any) -> AsyncIterator[Node]:
    async with listening(host) as url:
        path = endpoint.pop("path", "/agents/percy")
        manifest = {
            "agent_id": "percy",
            "runtime": runtime,
            "endpoint": {"uri": url + path, **endpoint},
            "capabilities": [{"name": "reason"}],
        }
        async with running(manifests=[manifest]) as node:
            yield node


@requirement("001-47")
@pytest.mark.parametrize("runtime", ["http", "rpc"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, "online"), (401, "online"), (403, "online"), (405, "online"), (422, "online"), (501, "online"),
     (404, "offline"), (410, "offline"), (500, "offline"), (503, "offline")],
)  # fmt: skip
async def test_an_agent_is_as_its_own_address_answers(runtime: str, status: int, expected: str) -> None:
    host = Host({("GET", "/agents/percy"): status})
    async with node_before(host, runtime) as node:
        await has_status(node, "online", "offline", "degraded")
        assert (await listed(node))["status"] == expected
    assert ("GET", "/agents/percy") in host.asked
    assert ("GET", "/health") not in host.asked
    assert not any(method == "POST" for method, _ in host.asked)


async def test_a_missing_agent_says_why_it_is_offline_and_what_to_do() -> None:
    async with node_before(Host({})) as node:
        await has_status(node, "offline")
        shown = await node.operation("fabric.agent.describe", {"agent_id": "percy"})
        error = node.fabric.registry.health.get("percy").error or ""
    assert "HTTP 404" in error
    assert "`health`" in error
    assert shown["agent"]["status"] == "offline"


async def test_a_server_that_says_which_methods_it_takes_there_is_believed() -> None:
    async with node_before(Host({("OPTIONS", "/agents/percy"): 200}, allow="POST")) as node:
        await has_status(node, "online")


async def test_a_health_page_below_the_agents_own_address_is_its_own() -> None:
    async with node_before(Host({("GET", "/agents/percy/health"): 200})) as node:
        await has_status(node, "online")


async def test_an_agent_that_is_its_host_has_the_hosts_health_page() -> None:
    async with node_before(Host({}), path="") as node:
        await has_status(node, "online")


@pytest.mark.parametrize(("status", "expected"), [(200, "online"), (404, "offline"), (503, "offline")])
async def test_a_declared_health_check_decides(status: int, expected: str) -> None:
    host = Host({("GET", "/state/percy"): status}, otherwise=405)
    async with node_before(host, health="/state/percy") as node:
        await has_status(node, expected)


async def test_an_agent_that_answers_calls_where_it_answers_no_probes_is_online_until_it_is_gone() -> None:
    host = Host({("POST", "/agents/percy"): 200})
    async with listening(host) as url:
        manifest = {
            "agent_id": "percy",
            "runtime": "http",
            "endpoint": {"uri": f"{url}/agents/percy"},
            "capabilities": [{"name": "reason"}],
        }
        async with running(manifests=[manifest], config={"health": {"interval": 0.02}}) as node:
            await has_status(node, "offline")
            assert (await node.ask("percy", "reason"))["ok"]
            probes = host.asked.count(("GET", "/agents/percy"))

            async def has_been_probed() -> bool:
                return host.asked.count(("GET", "/agents/percy")) > probes + 5

            await eventually(has_been_probed)
            assert (await listed(node))["status"] == "online"
            host.pages.clear()
            assert not (await node.ask("percy", "reason"))["ok"]
            await has_status(node, "offline")


@pytest.mark.parametrize("path", ["/deploy", "/items/${arguments.id}"])
async def test_an_api_whose_get_is_a_call_is_not_asked_by_get(path: str) -> None:
    host = Host({("OPTIONS", "/deploy"): 405, ("OPTIONS", "/items/"): 405})
    async with node_before(host, path=path, method="GET") as node:
        await has_status(node, "online")
    assert {method for method, _ in host.asked} == {"OPTIONS"}


async def test_an_api_that_does_not_say_is_neither_online_nor_offline() -> None:
    host = Host({})
    async with node_before(host, path="/deploy", method="GET") as node:
        async with asyncio.timeout(30):
            while not host.asked:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.01)
        assert (await listed(node))["status"] == "unknown"
