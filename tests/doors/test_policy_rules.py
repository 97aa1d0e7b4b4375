"""The operator's rules at every door: what they deny is neither called, listed, counted, suggested nor named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from a2a_fabric.agent import Agent
from a2a_fabric.cli.program import app
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.rules import PolicyRule
from tests.doors.test_views import listed
from tests.fixtures.mcp_client import client, words
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

CI, GUEST = "the-key-of-ci-12", "the-key-of-guest"
KEYS = {"keys": [{"id": "ci", "key": CI}, {"id": "guest", "key": GUEST}]}
POLICY: list[dict[str, Any]] = [
    {"name": "ci-may-read", "effect": "allow", "principals": ["ci"], "capabilities": ["get-*"]},
    {"name": "ci-no-vault", "effect": "deny", "principals": ["ci"], "agents": ["vault"]},
    {"name": "not-by-rest", "effect": "deny", "principals": ["guest"], "doors": ["rest"], "agents": ["vault"]},
    {"name": "far-away", "effect": "deny", "principals": ["guest"], "origins": ["10.0.0.0/8"]},
]


def vault() -> Agent:
    agent = Agent("vault", description="Keeps secrets.", tags=["safe"])

    async def act(number: int = 1) -> dict[str, Any]:
        """Do it."""
        return {"number": number}

    for name in ("get_note", "open_safe"):
        agent.capability(name=name)(act)
    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(vault(), Percy().agent, config={"auth": KEYS, "policy": POLICY}) as found:
        yield found


def put_in_force(node: Node, *tables: dict[str, Any]) -> None:
    node.fabric.active_policy.replace([msgspec.convert(each, PolicyRule) for each in tables])


async def test_what_a_rule_denies_is_refused_with_the_rule_and_listed_nowhere(node: Node) -> None:
    async def operation(name: str, **arguments: Any) -> Any:
        return await node.operation(name, arguments, token=CI)

    refused = await operation("fabric.call", agent_id="vault", capability="open_safe", task="x")
    assert (refused["error_code"], refused["error_details"]["rule"]) == ("AUTH_DENIED", "ci-no-vault")
    assert "rule 'ci-no-vault' denies this caller capability 'open_safe' of agent 'vault'" in refused["error"]
    assert (await operation("fabric.call", agent_id="vault", capability="get_note", task="x"))["ok"]
    seen = [
        await operation("fabric.agent.list"),
        await operation("fabric.tool.list"),
        await operation("fabric.agent.describe", agent_id="vault"),
        await operation("fabric.agent.search", query="open safe"),
        (await node.send("GET", "/agents/vault/.well-known/agent-card.json", token=CI)).json,
        (await node.send("GET", "/.well-known/agent-card.json", token=CI)).json,
        (await node.send("GET", "/v1/agents", token=CI)).json,
        (await node.send("GET", "/a2a/agents", token=CI)).json,
        (await node.send("GET", "/.well-known/ai-catalog.json", token=CI)).json,
    ]
    assert "get_note" in str(seen)
    assert "open_safe" not in str(seen).replace("query='open safe'", "")
    assert await listed(node, token=CI) >= {"vault_get_note", "percy_reason"}
    assert "vault_open_safe" not in await listed(node, token=CI)
    async with client(node, "2026-07-28", token=CI) as connected:
        denied = await connected.call_tool("vault_open_safe", {})
        missing = await connected.call_tool("vault_no_safe", {})
        assert words(denied).replace("open_safe", "no_safe") == words(missing)
    task = {"agentId": "vault", "capability": "open_safe", "input": {}}
    assert (await node.send("POST", "/v1/tasks", token=CI, json=task)).status in (403, 404)
    message = {
        "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "metadata": {"skill": "open_safe"}}
    }
    a2a = await node.send("POST", "/agents/vault/message:send", token=CI, json=message, headers={"A2A-Version": "1.0"})
    assert a2a.status >= 400
    rpc = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "a2a/task",
        "params": {"agentId": "vault", "action": "open_safe", "input": {}},
    }
    assert "error" in (await node.send("POST", "/a2a", token=CI, json=rpc)).json
    assert (await operation("fabric.message.send", to_agent="vault", payload=1))["error_code"] == "AUTH_DENIED"


async def test_an_agent_that_a_rule_hides_looks_like_none(node: Node) -> None:
    put_in_force(node, {"name": "no-safes", "effect": "deny", "principals": ["ci"], "tags": ["safe"]})
    for name, arguments in (
        ("fabric.call", {"capability": "open_safe", "task": "x"}),
        ("fabric.agent.describe", {}),
        ("fabric.route.preview", {"capability": "open_safe"}),
        ("fabric.message.send", {"payload": 1}),
    ):
        hidden, unknown = [
            await node.operation(name, {("to_agent" if "send" in name else "agent_id"): agent, **arguments}, token=CI)
            for agent in ("vault", "fault")
        ]
        del hidden["trace"], unknown["trace"]
        assert json.dumps(hidden).replace("vault", "fault") == json.dumps(unknown), name
    assert "vault" not in str((await node.operation("fabric.agent.list", {}, token=CI))["result"])
    assert (await node.operation("fabric.agent.list", {}))["result"]["count"] == 2
    nearest = await node.operation("fabric.call", {"agent_id": "vaults", "capability": "x"}, token=CI)
    assert "'vault'" not in nearest["error"]


async def test_a_tool_that_a_rule_denies_is_refused_with_the_rule(node: Node) -> None:
    put_in_force(node, {"name": "no-maths", "effect": "deny", "principals": ["ci"], "agents": ["math.*"]})
    refusals = [
        await node.operation(f"fabric.tool.math.{name}", {"expression": "1"}, token=CI)
        for name in ("calculate", "nothing")
    ]
    assert [each["error_details"]["rule"] for each in refusals] == ["no-maths", "no-maths"]
    assert refusals[0]["error"].replace("calculate", "nothing") == refusals[1]["error"]


async def test_the_refusal_of_every_door_names_the_rule_also_to_the_operator(node: Node) -> None:
    put_in_force(node, {"name": "nobody-opens", "effect": "deny", "agents": ["vault"]})
    message = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
    for token in (CI, PSK):
        call = {"agent_id": "vault", "capability": "open_safe", "task": "x"}
        refusals = [str(await node.operation("fabric.call", call, token=token))]
        async with client(node, "2026-07-28", token=token) as connected:
            refusals.append(words(await connected.call_tool("vault_open_safe", {})))
            assert "rule" not in words(await connected.call_tool("percy_open_safe", {}))
        for path in ("/agents/vault/message:send", "/agents/nobody/message:send"):
            reply = await node.send("POST", path, token=token, json=message, headers={"A2A-Version": "1.0"})
            refusals.append(str(reply.json))
        assert "nobody-opens" not in refusals.pop()
        assert all("rule 'nobody-opens'" in refusal for refusal in refusals), refusals


async def test_the_verdict_and_its_rule_are_in_the_preview(node: Node) -> None:
    async def preview(capability: str, **how: Any) -> Any:
        arguments = {"agent_id": "vault", "capability": capability}
        return (await node.operation("fabric.route.preview", arguments, **how))["result"]["policy"]

    assert await preview("open_safe", token=CI) == {
        "allowed": False,
        "reason": "Refused by policy: rule 'ci-no-vault' denies this caller capability 'open_safe' of agent 'vault'",
        "rule": "ci-no-vault",
    }
    assert (await preview("get_note", token=CI))["rule"] == "ci-may-read"
    assert await preview("open_safe") == {"allowed": True, "reason": "asked for"}


async def test_the_user_of_stdio_is_a_caller_of_the_mcp_door(node: Node) -> None:
    put_in_force(node, {"name": "no-stdio", "effect": "deny", "doors": ["mcp"], "agents": ["vault"]})
    user = node.fabric.narrow_to_view(Principal(mode="none", principal_id="stdio", trust="local"), None)
    assert [each.agent_id for each in node.fabric.registry.visible_to(user).agents] == ["percy"]


async def test_a_rule_for_one_door_holds_there_alone(node: Node) -> None:
    asked = {"agent_id": "vault", "capability": "get_note", "task": ""}
    assert (await node.operation("fabric.call", asked, token=GUEST))["ok"]
    assert "vault" not in (await node.send("GET", "/v1/agents", token=GUEST)).body.decode()
    assert "vault" in str(await listed(node, token=GUEST))
    task = {"agentId": "vault", "capability": "get_note", "input": {}}
    assert (await node.send("POST", "/v1/tasks", token=GUEST, json=task)).status in (403, 404)


async def test_a_rule_by_origin_knows_the_address_and_the_site(node: Node) -> None:
    asked = {"agent_id": "vault", "capability": "get_note", "task": ""}
    put_in_force(node, {"name": "here", "effect": "deny", "origins": ["127.0.0.0/8"]})
    assert (await node.operation("fabric.call", asked))["error_details"]["rule"] == "here"
    put_in_force(node, {"name": "site", "effect": "deny", "origins": ["https://evil.example"]})
    assert (await node.operation("fabric.call", asked))["ok"]
    page = await node.operation("fabric.call", asked, headers={"Origin": "https://evil.example"})
    assert page["error_details"]["rule"] == "site"


async def test_a_rule_that_begins_to_hold_ends_what_a_session_may_do_but_not_the_session(node: Node) -> None:
    async with client(node, "legacy", token=GUEST) as connected:
        assert not (await connected.call_tool("vault_get_note", {})).is_error
        put_in_force(node, {"name": "closed", "effect": "deny", "agents": ["vault"]})
        refused = await connected.call_tool("vault_get_note", {})
        assert refused.is_error
        assert "vault_get_note" not in {tool.name for tool in (await connected.list_tools()).tools}
        put_in_force(node)
        assert not (await connected.call_tool("vault_get_note", {})).is_error


async def test_a_job_follows_the_rules_of_the_time_when_it_runs(node: Node) -> None:
    percy = {"agent_id": "percy", "capability": "reason", "task": "think", "async": True}
    accepted = await node.operation("fabric.call", percy, token=CI)
    job_id = accepted["result"]["job_id"]

    async def has_ended() -> bool:
        status = await node.operation("fabric.job.status", {"job_id": job_id}, token=CI)
        return status["result"]["state"] in ("completed", "failed")

    await eventually(has_ended)
    stored = await node.fabric.store.jobs.get(job_id)
    assert stored is not None
    assert stored.call.auth.entry
    assert (stored.call.auth.entry.door, stored.call.auth.entry.rules) == ("fabric", None)
    call = stored.call
    put_in_force(node, {"name": "closed", "effect": "deny", "agents": ["percy"], "doors": ["fabric"]})
    with pytest.raises(Exception, match="rule 'closed' denies"):
        async with asyncio.timeout(WAIT_TIMEOUT):
            await node.fabric.gateway.call(call, _ignore)


async def _ignore(event: Any) -> None:
    """A caller that wants only the result."""


async def test_an_agent_never_sees_the_rules_of_its_caller() -> None:
    percy = Percy()
    async with running(percy.agent, config={"auth": KEYS, "policy": POLICY}) as node:
        assert (await node.ask("percy", "reason"))["ok"]
        await node.operation("fabric.call", {"agent_id": "percy", "capability": "reason", "task": "x"}, token=CI)
        assert b"ci-may-read" not in msgspec.json.encode(percy.calls)


async def test_rules_are_reloaded_and_a_broken_edit_changes_nothing(node: Node) -> None:
    asked = {"agent_id": "vault", "capability": "open_safe", "task": "x"}
    open_to_all = msgspec.structs.replace(node.fabric.config, policy=())
    assert node.fabric.reload(open_to_all).applied == ("policy",)
    assert (await node.operation("fabric.call", asked, token=CI))["ok"]
    twice = msgspec.convert([POLICY[0], POLICY[0]], tuple[PolicyRule, ...])
    node.fabric.reload(node.fabric.config)
    with pytest.raises(ConfigError, match="two rules named"):
        node.fabric.reload(msgspec.structs.replace(node.fabric.config, policy=twice))
    assert (await node.operation("fabric.call", asked, token=CI))["error_details"]["rule"] == "ci-no-vault"


@requirement("001-41")
async def test_calls_from_an_untrusted_origin_are_refused_and_no_fallback_answers(node: Node) -> None:
    put_in_force(node, {"name": "untrusted", "effect": "deny", "origins": ["127.0.0.0/8"], "principals": ["guest"]})
    refused = await node.operation(
        "fabric.call", {"agent_id": "percy", "capability": "reason", "task": "x"}, token=GUEST
    )
    assert refused["error_code"] == "AUTH_DENIED"
    assert (await node.operation("fabric.agent.list", {}, token=GUEST))["result"]["count"] == 0


def test_the_command_line_explains_verdicts_and_tests_them(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(json.dumps({"auth": KEYS, "policy": POLICY}))
    manifest = {"agent_id": "vault", "runtime": "http", "endpoint": {"uri": "http://127.0.0.1:9/"},
                "capabilities": [{"name": "get_note"}, {"name": "open_safe"}]}  # fmt: skip
    (tmp_path / "agents.yaml").write_text(json.dumps([manifest]))
    config = ["--config", str(tmp_path / "fabric.yaml")]

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["policy", *arguments, *config, "--json"])

    explained = run("explain", "ci", "vault", "open-safe")
    assert explained.exit_code == 0
    assert json.loads(explained.output)["rule"] == "ci-no-vault"
    allowed = json.loads(run("explain", "guest", "vault", "open_safe", "--door", "mcp").output)
    assert allowed == {"verdict": "allow", "rule": None, "reason": "no rule matches, and the credentials allow it"}
    assert json.loads(run("explain", "guest", "vault", "x", "--door", "rest").output)["rule"] == "not-by-rest"
    assert "no capability 'x'" in json.loads(run("explain", "psk", "vault", "x").output)["reason"]
    assert "--trust TIER --scope SCOPE" in run("explain", "nobody", "vault", "x").output
    stored = run("explain", "nobody", "vault", "open_safe", "--trust", "local", "--scope", "agent:vault")
    assert json.loads(stored.output)["verdict"] == "allow"
    assert "There is no door 'mpc'" in run("explain", "psk", "vault", "x", "--door", "mpc").output
    cases = [
        {"principal": "ci", "agent": "vault", "capability": "get_note", "expect": "allow", "rule": "ci-may-read"},
        {"principal": "guest", "agent": "vault", "capability": "x", "address": "10.0.0.1", "expect": "deny"},
    ]
    (tmp_path / "good.yaml").write_text(json.dumps({"cases": cases}))
    assert run("test", str(tmp_path / "good.yaml")).exit_code == 0
    (tmp_path / "bad.yaml").write_text(json.dumps({"cases": [{**cases[0], "expect": "deny"}]}))
    failed = run("test", str(tmp_path / "bad.yaml"))
    assert failed.exit_code == 1
    assert json.loads(failed.output)["failed"] == 1
    (tmp_path / "fabric.yaml").write_text(json.dumps({"policy": [{"name": "x", "effect": "forbid"}]}))
    broken = CliRunner().invoke(app, ["policy", "test", str(tmp_path / "good.yaml"), *config])
    assert broken.exit_code == 1
    check = ["check", *config, "--json"]
    rule = {"name": "x", "effect": "deny", "agents": ["valut"]}
    (tmp_path / "fabric.yaml").write_text(json.dumps({"policy": [rule]}))
    assert any(
        "rule 'x' names 'valut'" in each for each in json.loads(CliRunner().invoke(app, check).output)["warnings"]
    )
    (tmp_path / "fabric.yaml").write_text(json.dumps({"policy": [{**rule, "doors": ["mpc"]}]}))
    assert "there is no door 'mpc' (nearest: mcp)" in CliRunner().invoke(app, check).output
