"""Three nodes in a row, over Fabric, A2A and MCP in turn: a mandate gets narrower, and the agent checks it offline."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from mcp.server.mcpserver import Context, MCPServer

from a2a_fabric.core.forwarding import IDENTITY_META_KEY
from a2a_fabric.identity import (
    NodeIdentityVerifier,
    SigningKey,
    create_key_file,
    issue_mandate,
    narrow_mandate,
    prove_mandate,
)
from a2a_fabric.identity.forwarded import read_identity
from a2a_fabric.identity.mandates import decode_link, split_mandate
from a2a_fabric.identity.revocations import add_revocation
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import Node, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

ISSUER, PLANNER = SigningKey.generate(), SigningKey.generate()
A, B, C = "alpha", "beta", "gamma"  # the names of the nodes
KEYS = {"node-a": "the-key-of-node-a-at-node-b", "node-b": "the-key-of-node-b-at-node-c"}


class Chain:
    """The nodes, and what the agent at the end was told."""

    def __init__(self, folder: Path, keys: dict[str, SigningKey]) -> None:
        self.folder = folder
        self.keys = keys
        self.first: Node
        self.second: Node
        self.third: Node
        self.seen: list[dict[str, Any]] = []
        self.tokens: list[str] = []

    def mandate(self, scopes: tuple[str, ...] = ("agent:*",), **more: Any) -> str:
        """Alice lets a planner act for her, and the planner lets the first node."""
        given = {"issuer": "corp", "principal": "alice", "delegate": "planner", "now": time.time(), "seconds": 3600}
        first = issue_mandate(ISSUER, scopes=scopes, delegate_key=PLANNER.public_key, **{**given, **more})
        given_on = narrow_mandate(
            first, PLANNER, delegate="node-a", now=time.time(), delegate_key=self.keys["a"].public_key
        )
        return prove_mandate(given_on, PLANNER, now=time.time(), seconds=600)

    async def ask(self, capability: str = "greet", token: str | None = None) -> Any:
        arguments = {"agent_id": "percy", "capability": capability, "task": "", "context": {"name": "Bob"}}
        body = {"name": "fabric.call", "arguments": arguments}
        return (await self.first.send("POST", "/mcp/call", token=token or self.mandate(), json=body)).json


def make_server(chain: Chain) -> MCPServer[Any]:
    """An agent that answers only what a node it trusts has signed, and that has a mandate of a principal."""
    verifier = NodeIdentityVerifier(
        {C: chain.folder / "c.jwks.json"},
        audience="the-last-agent",
        issuers={"corp": chain.folder / "issuer.json"},
        requires_mandate=True,
    )
    server: MCPServer[Any] = MCPServer("percy")

    def verify(tool: str, arguments: dict[str, Any], ctx: Context[Any]) -> str:
        token = str(dict(ctx.request_context.meta or {}).get(IDENTITY_META_KEY, ""))
        chain.tokens.append(token)
        verified = verifier.verify(token, arguments, capability=tool)
        assert verified.mandate is not None
        chain.seen.append(
            {
                "principal": verified.principal_id,
                "actors": verified.actors,
                "delegates": verified.mandate.delegates,
                "scp": verified.mandate.last.scp,
                "cap": verified.mandate.last.cap,
                "trace_id": verified.identity.trace_id,
            }
        )
        return f"hello {arguments['name']}"

    @server.tool()
    def greet(name: str, ctx: Context[Any]) -> str:
        return verify("greet", {"name": name}, ctx)

    @server.tool()
    def think(name: str, ctx: Context[Any]) -> str:
        return verify("think", {"name": name}, ctx)

    return server


def percy(runtime: str, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": "percy", "runtime": runtime, "trust_tier": "org", "endpoint": endpoint}


def node_config(name: str, label: str, **auth: Any) -> dict[str, Any]:
    issuer = {
        "id": "corp",
        "issuer": "corp",
        "jwks_file": "issuer.json",
        "accepts": ["mandate"],
        "revoked_file": "revoked.json",
        "trust": "local",
    }
    return {
        "node_id": label,
        "store": "memory:",
        "identity": {"key_file": f"{name}.key"},
        "auth": {"issuers": [issuer], **auth},
        "doors": [{"kind": "fabric"}, {"kind": "a2a"}, {"kind": "mcp"}],
    }


def trusting(node: str, label: str, key: str) -> dict[str, Any]:
    return {
        "keys": [{"id": key, "key": KEYS[key]}],
        "nodes": [{"name": label, "jwks_file": f"{node}.jwks.json", "callers": [key]}],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    keys = {name: create_key_file(folder / f"{name}.key") for name in "abc"}
    for name, key in keys.items():
        folder.joinpath(f"{name}.jwks.json").write_bytes(msgspec.json.encode({"keys": [key.public_jwk]}))
    folder.joinpath("issuer.json").write_bytes(msgspec.json.encode({"keys": [ISSUER.public_jwk]}))
    add_revocation(folder / "revoked.json", "nobody")
    built = Chain(folder, keys)
    async with serving(make=lambda: make_server(built)) as server:
        last = percy("mcp", uri=server.url, identity={"audience": "the-last-agent"})
        third = running(manifests=[last], config=node_config("c", C, **trusting("b", B, "node-b")), base=folder)
        async with third as built.third:
            signing = {"audience": C, "receiver_keys": "c.jwks.json", "capabilities": ["greet"]}
            headers = {"Authorization": f"Bearer {KEYS['node-b']}"}
            middle = percy("a2a", uri=f"{built.third.url}/agents/percy", headers=headers, identity=signing)
            second = running(manifests=[middle], config=node_config("b", B, **trusting("a", A, "node-a")), base=folder)
            async with second as built.second:
                signing = {"audience": B, "receiver_keys": "b.jwks.json", "scopes": ["agent:percy"]}
                outer = percy("fabric", uri=built.second.url, psk=KEYS["node-a"], agent="percy", identity=signing)
                async with running(manifests=[outer], config=node_config("a", A), base=folder) as built.first:
                    yield built


@requirement("000-25", "000-26", "001-26", "001-27", "001-29")
async def test_the_last_agent_knows_offline_on_whose_behalf_it_is_called(chain: Chain) -> None:
    envelope = await chain.ask()
    assert envelope["ok"], envelope
    assert "hello Bob" in json.dumps(envelope["result"])
    seen = chain.seen[-1]
    assert seen["principal"] == "corp:alice"
    assert seen["actors"] == ("planner", "node-a", A, B, C)
    assert seen["delegates"] == ("planner", "node-a", B, C, "the-last-agent")
    assert (seen["scp"], seen["cap"]) == (("agent:percy",), ("greet",))
    assert seen["trace_id"] == envelope["trace"]["trace_id"]


@requirement("001-29")
async def test_what_a_hop_took_away_is_gone_for_those_behind_it(chain: Chain) -> None:
    before = len(chain.seen)
    envelope = await chain.ask("think")  # the second node passes on no more than `greet`
    assert envelope["ok"] is False
    assert len(chain.seen) == before
    narrow = chain.mandate(scopes=("agent:wilma",))
    assert (await chain.ask(token=narrow))["error_code"] == "AUTH_DENIED"


async def test_a_revoked_mandate_is_refused_at_the_first_node_and_in_the_middle(chain: Chain) -> None:
    token = chain.mandate()
    assert (await chain.ask(token=token))["ok"] is True
    add_revocation(chain.folder / "revoked.json", decode_link(split_mandate(token)[0]).mnd)
    envelope = await chain.ask(token=token)
    assert (envelope["ok"], envelope["error_code"]) == (False, "AUTH_INVALID")


async def test_the_nodes_keys_alone_are_not_enough(chain: Chain) -> None:
    arguments = {"agent_id": "percy", "capability": "greet", "task": "", "context": {"name": "Eve"}}
    body = {"name": "fabric.call", "arguments": arguments}
    reply = await chain.second.send("POST", "/mcp/call", token=KEYS["node-a"], json=body)
    assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID")
    assert "signed by node" in reply.json["error"]
    card = await chain.third.send("POST", "/agents/percy", token=KEYS["node-b"], json={})
    assert card.status == 401


async def test_what_the_last_agent_got_cannot_be_used_again_by_anybody(chain: Chain) -> None:
    assert (await chain.ask())["ok"] is True
    token, seen = chain.tokens[-1], len(chain.seen)
    for url, key in ((chain.second, KEYS["node-a"]), (chain.third, KEYS["node-b"])):
        headers = {"x-fabric-identity": token}
        reply = await url.send("POST", "/mcp/call", token=key, headers=headers, json={"name": "fabric.health"})
        assert reply.status == 401, reply.body
    assert len(chain.seen) == seen


async def test_no_part_of_the_mandate_that_the_last_agent_got_opens_an_earlier_node(chain: Chain) -> None:
    assert (await chain.ask())["ok"] is True
    mandate = read_identity(chain.tokens[-1])[0].mandate
    assert mandate is not None
    links = split_mandate(mandate)
    body = {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "think", "task": ""}}
    for count in range(1, len(links)):
        for node in (chain.first, chain.second, chain.third):
            reply = await node.send("POST", "/mcp/call", token="~".join(links[:count]), json=body)
            assert (reply.status, reply.json["error_code"]) == (401, "AUTH_INVALID"), (count, reply.body)


async def test_a_principal_without_a_mandate_is_named_and_the_agent_that_wants_one_refuses(chain: Chain) -> None:
    before = len(chain.seen)
    envelope = await chain.first.ask("percy", "greet", "", context={"name": "Bob"})  # with the operator's key
    assert envelope["ok"] is False
    assert len(chain.seen) == before
    identity, _ = read_identity(chain.tokens[-1])
    assert (identity.sub, identity.actors, identity.mandate) == ("psk", (A, B, C), None)
