"""How others find the agents: the AI Catalog, server cards, and the search, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from a2a_fabric import FabricClient
from a2a_fabric.agent import Agent
from a2a_fabric.doors.discovery.catalog import MCP_VERSIONS
from tests.fixtures.mcp_client import client
from tests.fixtures.node import PSK, Node, eventually, running
from tests.marks import requirement
from tests.system.node import COMMAND, environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

CATALOG = "/.well-known/ai-catalog.json"
A2A, MCP = "application/a2a-agent-card+json", "application/mcp-server-card+json"
DOORS = ({"kind": "fabric"}, {"kind": "mcp"}, {"kind": "discovery", "publisher": "example.com"})
KEYS = [
    {"id": "outsider", "key": "outsider-key", "trust": "public"},
    {"id": "staff", "key": "staff-key-1", "trust": "org"},
]
IDENTIFIER = re.compile(r"^urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+$")  # as the catalog's own schema has it


def manifest(agent_id: str, *capabilities: str, **about: Any) -> dict[str, Any]:
    offered = [{"name": name, "description": f"Does {name}."} for name in capabilities]
    return {"agent_id": agent_id, "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": offered, **about}


MANIFESTS = [
    manifest("polyglot", "translate-text", tags=["language"], description="Knows languages.", version="2.1"),
    manifest("lawyer", "review_contract", tags=["law"], trust_tier="org", description="Translates legal words."),
    manifest("cook.v2", "parse-recipe", tags=["food"], trust_tier="public", display_name="Recipe Reader"),
    manifest("vault", "translate-secrets", trust_tier="local"),
]
CONFIG: dict[str, Any] = {"doors": DOORS, "auth": {"keys": KEYS}, "health": {"interval": 0}}


def shop() -> Agent:
    """An agent of this process, for what has to answer."""
    agent = Agent("shop", description="Sells things.")

    @agent.capability
    async def price(thing: str) -> dict[str, Any]:
        """What a thing costs."""
        return {"thing": thing, "euros": 3}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(shop(), manifests=MANIFESTS, config=CONFIG) as found:
        health = found.fabric.registry.health

        async def all_are_known() -> bool:  # their address has no listener, so all have the same share of their score
            return all(health.get(each["agent_id"]).status == "offline" for each in MANIFESTS)

        await eventually(all_are_known)
        yield found


async def found(node: Node, token: str = PSK, **wanted: Any) -> Any:
    reply = await node.send("POST", "/search", json=wanted, token=token)
    assert reply.status == 200, reply.body
    return reply.json


def ids(told: Any) -> list[str]:
    return [hit["agent_id"] for hit in told["results"]]


@requirement("000-23")
async def test_the_catalog_lists_every_agent_by_media_type_and_address(node: Node) -> None:
    reply = await node.send("GET", CATALOG)
    assert reply.headers["content-type"] == "application/ai-catalog+json"
    assert reply.json["specVersion"] == "1.0"
    assert reply.json["host"] == {"displayName": "A2A Fabric", "identifier": "example.com"}
    entries = {entry["identifier"]: entry for entry in reply.json["entries"]}
    assert len(entries) == len(reply.json["entries"])
    assert all(IDENTIFIER.match(identifier) for identifier in entries)
    assert all(entry["type"] == entry["mediaType"] for entry in entries.values())
    for agent_id in ("polyglot", "lawyer", "cook.v2", "vault", "shop"):
        entry = entries[f"urn:air:example.com:mcp:{agent_id}"]
        assert (entry["type"], entry["url"]) == (MCP, f"{node.url}/agents/{agent_id}/mcp/server-card")
        assert f"urn:air:example.com:a2a:{agent_id}" not in entries  # that door is not open
    polyglot = entries["urn:air:example.com:mcp:polyglot"]
    assert polyglot["displayName"] == "polyglot"
    assert (polyglot["description"], polyglot["version"]) == ("Knows languages.", "2.1")
    assert (polyglot["tags"], polyglot["capabilities"]) == (["language"], ["translate-text"])
    assert polyglot["metadata"] == {"agent_id": "polyglot", "trust_tier": "org"}
    assert entries["urn:air:example.com:gateway:mcp"]["url"] == f"{node.url}/mcp/server-card"
    assert entries["urn:air:example.com:gateway:search"]["type"] == "application/ai-registry+json"


async def test_every_address_in_the_catalog_leads_to_a_card_and_the_card_to_a_server(node: Node) -> None:
    entries = (await node.send("GET", CATALOG)).json["entries"]
    cards = [entry["url"] for entry in entries if entry["type"] == MCP]
    assert len(cards) == 6
    for url in cards:
        reply = await node.send("GET", url.removeprefix(node.url))
        assert (reply.status, reply.headers["content-type"]) == (200, MCP), url
        assert reply.json["$schema"].endswith("/server-card.schema.json")
        assert re.fullmatch(r"com\.example/[a-zA-Z0-9._-]+", reply.json["name"])
        assert len(reply.json["description"]) <= 100
        (remote,) = reply.json["remotes"]
        assert remote["type"] == "streamable-http"
        assert url == f"{remote['url']}/server-card"
        assert remote["headers"][0]["name"] == "Authorization"
        assert set(remote["supportedProtocolVersions"]) == set(MCP_VERSIONS)
    assert set(MCP_VERSIONS) == {*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS}
    async with client(node, path="/agents/shop/mcp") as connected:
        called = await connected.call_tool("price", {"thing": "hat"})
        assert called.structured_content == {"thing": "hat", "euros": 3}


@requirement("000-23")
async def test_a_caller_finds_only_what_they_may_know_of(node: Node) -> None:
    seen = {PSK: {"polyglot", "lawyer", "cook.v2", "vault", "shop"}, "outsider-key": {"cook.v2"}}
    seen["staff-key-1"] = seen[PSK] - {"vault"}
    for token, agents in seen.items():
        entries = (await node.send("GET", CATALOG, token=token)).json["entries"]
        assert {entry["metadata"]["agent_id"] for entry in entries if "metadata" in entry} == agents
        assert set(ids(await found(node, token))) == agents
        registry = await found(node, token, query={"text": "translate recipe secrets contract price"})
        assert {entry["metadata"]["agent_id"] for entry in registry["results"]} <= agents
    hidden = await node.send("GET", "/agents/vault/mcp/server-card", token="outsider-key")
    missing = await node.send("GET", "/agents/nobody/mcp/server-card", token="outsider-key")
    assert (hidden.status, missing.status) == (404, 404)
    assert hidden.json["error"].replace("vault", "") == missing.json["error"].replace("nobody", "")


async def test_without_a_key_no_caller_finds_anything_unless_the_operator_says_so(node: Node) -> None:
    for method, path in (("GET", CATALOG), ("GET", "/search?q=cook"), ("POST", "/search"), ("GET", "/mcp/server-card")):
        for token in (None, "wrong"):
            reply = await node.send(method, path, token=token)
            assert (reply.status, reply.json["errorCode"]) == (401, "UNAUTHENTICATED"), path
            assert reply.headers["www-authenticate"] == 'Bearer realm="fabric"'
            assert reply.headers["cache-control"] == "no-store"
    doors = [*DOORS[:2], {**DOORS[2], "anonymous": "public"}]
    async with running(manifests=MANIFESTS, config={**CONFIG, "doors": doors}) as public:
        reply = await public.send("GET", CATALOG, token=None)
        assert {entry["metadata"]["agent_id"] for entry in reply.json["entries"] if "metadata" in entry} == {"cook.v2"}
        assert reply.headers["cache-control"] == "public, max-age=60"
        assert reply.headers["access-control-allow-origin"] == "*"
        assert ids((await public.send("GET", "/search", token=None)).json) == ["cook.v2"]
        card = (await public.send("GET", "/agents/cook.v2/mcp/server-card", token=None)).json
        assert "headers" not in card["remotes"][0]
        assert (await public.send("GET", CATALOG, token="wrong")).status == 401


async def test_what_has_not_changed_is_not_sent_again(node: Node) -> None:
    for path in (CATALOG, "/agents/polyglot/mcp/server-card", "/search?q=translate"):
        first = await node.send("GET", path)
        assert first.headers["vary"] == "Authorization, X-API-Key"
        assert first.headers["cache-control"].startswith("private")
        for known in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
            again = await node.send("GET", path, headers={"If-None-Match": known})
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert (await node.send("GET", path, headers={"If-None-Match": '"other"'})).body == first.body
        head = await node.send("HEAD", path)
        assert (head.status, head.headers["etag"], head.body) == (200, first.headers["etag"], b"")
    other = await node.send("GET", CATALOG, token="outsider-key")
    assert other.headers["etag"] != (await node.send("GET", CATALOG)).headers["etag"]


async def test_addresses_are_those_that_the_operator_says() -> None:
    async with running(shop(), config={**CONFIG, "public_url": "https://fabric.example/"}) as node:
        text = json.dumps((await node.send("GET", "/.well-known/ai-catalog.json")).json)
        assert "https://fabric.example/agents/shop" in text
        assert node.url not in text


async def test_a_new_agent_is_in_the_catalog_and_is_found_at_once() -> None:
    async with running(manifests=MANIFESTS, config=CONFIG) as node:
        before = await node.send("GET", CATALOG)
        assert ids(await found(node, query="whales")) == []
        added = {"agent_id": "ahab", "endpoint": {"uri": "http://127.0.0.1:9/"}, "description": "Hunts whales."}
        assert (await node.operation("fabric.agent.register", added))["ok"]
        assert ids(await found(node, query="whale")) == ["ahab"]
        after = await node.send("GET", CATALOG, headers={"If-None-Match": before.headers["etag"]})
        assert after.status == 200
        assert "urn:air:example.com:mcp:ahab" in {entry["identifier"] for entry in after.json["entries"]}
        assert (await node.operation("fabric.agent.unregister", {"agent_id": "ahab"}))["ok"]
        assert ids(await found(node, query="whale")) == []
        assert (await node.send("GET", CATALOG)).headers["etag"] == before.headers["etag"]


async def test_a_large_catalog_is_a_list_of_smaller_ones() -> None:
    crowd = [manifest(f"agent-{number:02}", trust_tier="public" if number % 2 else "org") for number in range(25)]
    doors = [*DOORS[:2], {**DOORS[2], "max_agents": 10}]
    async with running(manifests=crowd, config={**CONFIG, "doors": doors}) as node:
        entries = (await node.send("GET", CATALOG)).json["entries"]
        parts = [entry for entry in entries if entry["type"] == "application/ai-catalog+json"]
        assert [part["url"] for part in parts] == [f"{node.url}{CATALOG}?part={number}" for number in (1, 2, 3)]
        seen: list[str] = []
        for part in parts:
            reply = await node.send("GET", part["url"].removeprefix(node.url))
            assert reply.headers["content-type"] == "application/ai-catalog+json"
            seen += [entry["metadata"]["agent_id"] for entry in reply.json["entries"]]
        assert seen == [f"agent-{number:02}" for number in range(25)]
        public = (await node.send("GET", f"{CATALOG}?part=2", token="outsider-key")).json["entries"]
        assert [entry["metadata"]["agent_id"] for entry in public] == ["agent-21", "agent-23"]
        for part_number in ("0", "4", "x", "-1", "9" * 30):
            assert (await node.send("GET", f"{CATALOG}?part={part_number}")).status == 400


@requirement("000-23")
async def test_the_search_ranks_and_explains(node: Node) -> None:
    told = await found(node, query="please translate my long text")
    assert ids(told) == ["polyglot", "vault", "lawyer"]
    scores = [hit["score"] for hit in told["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(isinstance(score, int) and 0 < score <= 100 for score in scores)
    best = told["results"][0]
    assert "'translate' is in its capability 'translate-text'" in best["why"]
    assert best["capabilities"] == ["translate-text"]
    assert (best["status"], best["why"][-1]) == ("offline", "it is offline, so it comes later")
    assert {"word": "translate", "field": "capability", "value": "translate-text", "how": "word"} in best["reasons"]
    assert best["links"] == {MCP: f"{node.url}/agents/polyglot/mcp/server-card"}
    assert (told["count"], told["total"], told["cursor"]) == (3, 3, None)


async def test_a_search_by_address_is_the_same_as_one_by_body(node: Node) -> None:
    same: list[tuple[str, dict[str, Any]]] = [
        ("q=translate+a+text", {"q": "translate a text"}),
        ("query=translate&tag=law", {"query": "translate", "tag": "law"}),
        ("tag=law&tag=food", {"tags": ["law", "food"]}),
        ("capability=Parse_Recipe", {"capability": "Parse_Recipe"}),
        ("trust_tier=public", {"trust_tier": "public"}),
        ("text=translate&limit=1", {"text": "translate", "limit": 1}),
    ]
    for query, body in same:
        by_address = await node.send("GET", f"/search?{query}")
        assert by_address.status == 200, query
        assert by_address.json == await found(node, **body)
        assert by_address.json["results"]


async def test_pages_follow_one_another(node: Node) -> None:
    seen: list[str] = []
    cursor = None
    while True:
        told = await found(node, query="translate", limit=1, cursor=cursor)
        seen += ids(told)
        cursor = told["cursor"]
        if cursor is None:
            break
    assert seen == ids(await found(node, query="translate"))


async def test_a_registry_client_gets_catalog_entries(node: Node) -> None:
    query = {"text": "translate a text", "filter": {"type": [MCP]}}
    body: dict[str, Any] = {"query": query, "federation": "none", "pageSize": 2}
    first = await found(node, **body)
    assert set(first) == {"results", "pageToken"}
    assert [entry["identifier"].rpartition(":")[2] for entry in first["results"]] == ["polyglot", "vault"]
    entry = first["results"][0]
    assert (entry["type"], entry["url"]) == (MCP, f"{node.url}/agents/polyglot/mcp/server-card")
    assert (entry["score"], entry["source"]) == (
        (await found(node, q="translate a text"))["results"][0]["score"],
        f"{node.url}/",
    )
    assert "translate-text" in entry["metadata"]["why"]
    rest = await found(node, **body, pageToken=first["pageToken"])
    assert set(rest) == {"results"}
    assert len(rest["results"]) == 1
    for narrowed, expected in (
        ({"tags": "law"}, ["lawyer"]),
        ({"capabilities": ["review-contract", "translate-text"]}, ["polyglot", "lawyer"]),
        ({"trust_tier": ["local"]}, ["vault"]),
        ({"publisher": ["example.com"], "tags": ["law"]}, ["lawyer"]),
        ({"publisher": ["example.org"]}, []),
        ({"type": "application/agent-skills+zip"}, []),
    ):
        told = await found(node, query={"text": "translate", "filter": narrowed})
        assert [entry["metadata"]["agent_id"] for entry in told["results"]] == expected, narrowed


async def test_an_agent_that_can_be_reached_in_two_ways_is_listed_twice(node: Node) -> None:
    doors = [*DOORS[:2], {"kind": "a2a"}, DOORS[2]]
    async with running(shop(), config={**CONFIG, "doors": doors}) as both:
        entries = {entry["identifier"]: entry for entry in (await both.send("GET", CATALOG)).json["entries"]}
        for name, place in (("a2a:shop", f"{both.url}/agents/shop"), ("gateway:a2a", both.url)):
            entry = entries[f"urn:air:example.com:{name}"]
            assert entry["type"] == A2A
            assert entry["url"] == f"{place}/.well-known/agent-card.json"
            card = await both.send("GET", entry["url"].removeprefix(both.url))
            assert (card.status, card.json["name"] != "") == (200, True)
        assert (await both.send("GET", "/agents/shop/mcp/server-card")).headers["content-type"] == MCP
        told = await found(both, query={"text": "price"}, pageSize=2)
        assert [entry["type"] for entry in told["results"]] == [A2A, MCP]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "no search"),
        (b"[]", "no search"),
        (b"\xff", "no search"),
        (b'{"query": 5}', "query"),
        (b'{"limit": 0}', "limit"),
        (b'{"limit": 101}', "limit"),
        (b'{"limit": "many"}', "limit"),
        (b'{"trust_tier": "royal"}', "trust_tier"),
        (b'{"cursor": "?"}', "cursor"),
        (b'{"cursor": "e30"}', "cursor"),
        (b'{"query": {}}', "text"),
        (b'{"query": {"text": "x", "filter": {"colour": "red"}}}', "colour"),
        (b'{"query": {"text": "x", "filter": {"trust_tier": ["local", "org"]}}}', "trust_tier"),
        (b'{"query": {"text": "x"}, "pageSize": 1000}', "page"),
        (b'{"query": "' + b"x" * 1001 + b'"}', "query"),
        (b"[" * 20_000, "no search"),
    ],
)
async def test_what_is_no_search_is_refused_with_the_reason(node: Node, body: bytes, says: str) -> None:
    reply = await node.send("POST", "/search", data=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.json["error_code"], reply.json["errorCode"]) == (400, "BAD_INPUT", "INVALID_ARGUMENT")
    assert says in reply.json["message"]
    assert "Traceback" not in reply.body.decode()


async def test_a_body_that_is_too_large_is_refused(node: Node) -> None:
    reply = await node.send("POST", "/search", data=b" " * 100_000)
    assert reply.status == 413
    assert (await node.send("GET", "/search?limit=all")).status == 400
    assert (await node.send("PUT", "/search")).status == 405


async def test_the_search_is_an_operation_of_every_door_and_of_the_client(node: Node) -> None:
    expected = ids(await found(node, query="translate"))
    wire = await node.operation("fabric.agent.search", {"query": "translate"})
    assert ids(wire["result"]) == expected
    async with client(node) as connected:
        told = await connected.call_tool("fabric_agent_search", {"query": "translate", "limit": 2})
        assert told.structured_content is not None
        assert ids(told.structured_content) == expected[:2]
    async with FabricClient(node.url, PSK) as fabric:
        assert [hit["agent_id"] for hit in await fabric.search("translate", tag=["law"])] == ["lawyer"]


async def test_the_command_searches(node: Node, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = environment(tmp_path, FABRIC_URL=node.url, FABRIC_TOKEN=PSK)
        command = [*COMMAND, "search", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)

    shown = await asyncio.to_thread(run, "translate", "a", "text")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split() == ["SCORE", "AGENT", "STATUS", "CAPABILITIES", "WHY"]
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:]] == ["polyglot", "vault", "lawyer"]
    as_json = await asyncio.to_thread(run, "--tag", "law", "--json")
    assert ids(msgspec.json.decode(as_json.stdout)) == ["lawyer"]
    nobody = await asyncio.to_thread(run, "submarine")
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert "No agent" in nobody.stderr
