"""`a2a-fabric passport`, `mandate` and `identity`: what they make counts at a node until it is revoked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from a2a_fabric.agent import Agent
from a2a_fabric.cli.program import app
from a2a_fabric.core.call import Call
from a2a_fabric.identity import NodeIdentityVerifier
from tests.fixtures.node import Node, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


def run(*words: str, expected: int = 0) -> str:
    """What the command prints on stdout, or its error."""
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == expected, done.output
    return done.stdout.strip() if expected == 0 else str(done.exception)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("issuer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name in ("issuer", "planner", "worker"):
            run("passport", "keygen", f"{name}.key")
    (made / "revoked.json").write_text('{"revoked": []}')
    return made


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(folder: Path) -> AsyncIterator[Node]:
    agents = [Agent("percy"), Agent("vault")]

    async def who(call: Call) -> dict[str, Any]:
        return {"auth": msgspec.to_builtins(call.auth)}

    async def open_safe(call: Call) -> dict[str, Any]:
        return await who(call)

    for agent in agents:
        agent.capability(who)
        agent.capability(open_safe)
    issuer = {"id": "corp", "issuer": "corp", "jwks_file": "issuer.jwks.json", "revoked_file": "revoked.json"}
    auth = {"issuers": [{**issuer, "audience": ["near"], "accepts": ["passport", "mandate"]}]}
    config = {"node_id": "near", "store": "memory:", "auth": auth, "doors": [{"kind": "fabric"}]}
    async with running(*agents, config=config, base=folder) as found:
        yield found


async def ask(node: Node, agent: str = "percy", capability: str = "who", **credentials: Any) -> Any:
    """The identity that the agent was told, or the error."""
    body = {"name": "fabric.call", "arguments": {"agent_id": agent, "capability": capability, "task": ""}}
    reply = (await node.send("POST", "/mcp/call", json=body, **{"token": None, **credentials})).json
    return reply["result"]["auth"] if reply["ok"] else reply["error"]


@requirement("001-25", "000-25")
async def test_a_passport_from_its_key_to_its_end(node: Node, folder: Path) -> None:
    text = run("passport", "issue", "alice", "--id", "bot-7", "--scope", "agent:percy", "--for", "8h")
    (folder / "bot-7.json").write_text(text)
    assert "Valid: bot-7 acts for alice" in run("passport", "verify", "bot-7.json", "--keys", "issuer.jwks.json")
    assert json.loads(run("passport", "inspect", text, "--json"))["delegation_scopes"] == ["agent:percy"]
    auth = await ask(node, headers={"X-Agent-Passport": text})
    assert (auth["mode"], auth["principal_id"], auth["delegate_id"]) == ("passport", "corp:alice", "bot-7")
    assert "outside the scopes" in await ask(node, "vault", headers={"X-Agent-Passport": text})

    assert "has no key" in run("passport", "verify", "bot-7.json", "--keys", "planner.jwks.json", expected=1)
    forged = text.replace("agent:percy", "agent:vault")
    assert "signature" in run("passport", "verify", forged, "--keys", "issuer.jwks.json", expected=1)
    assert "'bot-7' is revoked now" in run("passport", "revoke", "bot-7.json")  # the file that was handed out
    assert "was revoked" in await ask(node, headers={"X-Agent-Passport": text})
    words = ("passport", "verify", "bot-7.json", "--keys", "issuer.jwks.json", "--revoked", "revoked.json")
    assert "was revoked" in run(*words, expected=1)


@requirement("000-26", "001-25")
async def test_a_mandate_is_passed_on_with_less_and_ends_with_the_one_before(node: Node, folder: Path) -> None:
    issue = ("mandate", "issue", "alice", "planner", "--issuer", "corp", "--scope", "agent:*", "--cap", "who")
    (folder / "mandate.txt").write_text(run(*issue, "--delegate-key", "planner.jwks.json", "--depth", "2"))
    narrow = ("mandate", "narrow", "mandate.txt", "worker", "--key", "planner.key")
    for wider, reason in (
        (("--scope", "*"), "its scopes are wider"),
        (("--cap", "open_safe"), "its capabilities are wider"),
        (("--depth", "2", "--delegate-key", "worker.jwks.json"), "passed on more often"),
        (("--depth", "1"), "--depth needs --delegate-key"),
    ):
        assert reason in run(*narrow, *wider, expected=1)
    assert "another key" in run("mandate", "narrow", "mandate.txt", "x", "--key", "worker.key", expected=1)
    longer = CliRunner().invoke(app, [*narrow, "--for", "900d"])
    assert "It expires with the mandate before it" in longer.stderr

    less = ("--scope", "agent:percy", "--for", "10m", "--depth", "1", "--delegate-key", "worker.jwks.json")
    (folder / "narrowed.txt").write_text(run(*narrow, *less, "--audience", "near"))
    assert "planner → worker acts for alice" in run("mandate", "verify", "narrowed.txt", "--keys", "issuer.jwks.json")
    links = json.loads(run("mandate", "inspect", "narrowed.txt", "--json"))
    assert [(link["sub"], link["dep"], link.get("aud")) for link in links] == [
        ("planner", 2, None),
        ("worker", 1, ["near"]),
    ]
    assert "mandate prove" in await ask(node, token=(folder / "narrowed.txt").read_text())
    assert "another key" in run("mandate", "prove", "narrowed.txt", "--key", "issuer.key", expected=1)
    token = run("mandate", "prove", "narrowed.txt", "--key", "worker.key")
    auth = await ask(node, token=token)
    assert (auth["principal_id"], auth["delegated_by"], auth["delegate_id"]) == ("corp:alice", ["planner"], "worker")
    for agent, capability in (("vault", "who"), ("percy", "open_safe")):
        assert "outside the scopes" in await ask(node, agent, capability, token=token)

    assert "is revoked now" in run("mandate", "revoke", links[0]["mnd"], "--reason", "lost laptop")
    assert "was revoked" in await ask(node, token=token)  # with the one that it was derived from


@pytest.mark.parametrize(
    ("words", "what_now"),
    [
        (("passport", "issue", "alice", "--scope", "agent:percy", "--key", "nope.key"), "passport keygen nope.key"),
        (("passport", "issue", "alice"), "Name at least one --scope"),
        (("passport", "keygen", "issuer.key"), "the file exists"),
        (("passport", "inspect", "nope.json"), "nope.json: cannot be read"),
        (("passport", "revoke", ""), "by its id, which `inspect` shows, or by its file"),
        (("mandate", "revoke", "issuer.jwks.json"), "not"),
        (("mandate", "inspect", "{}"), "not a JSON Web Token"),
    ],
)
async def test_a_mistake_is_answered_with_what_to_do(words: tuple[str, ...], what_now: str) -> None:
    assert what_now in run(*words, expected=1)


@requirement("001-27")
async def test_the_key_of_a_node_is_shown_and_rotated(folder: Path) -> None:
    (folder / "fabric.yaml").write_text('{"node_id": "near", "identity": {"key_file": "node.key", "sign": true}}')
    run("identity", "rotate")
    first = json.loads(run("identity", "show", "--json"))["keys"]
    run("identity", "rotate", "--overlap", "1d")
    both = json.loads(run("identity", "show", "--json"))["keys"]
    assert [key["kid"] for key in both[1:]] == [key["kid"] for key in first[:1]]
    NodeIdentityVerifier({"near": json.dumps({"keys": both}).encode()}, audience="percy")  # an agent can read them
