"""The admin API: what operators and viewers may do, and what is never shown."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.console.bench import OPERATOR, SECRET, VIEWER, administer, serving
from tests.fixtures.node import PSK, Node, eventually
from tests.fixtures.schema_bombs import doubling
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with serving(tmp_path_factory.mktemp("node")) as found:
        yield found


READS: dict[str, dict[str, Any]] = {
    "overview": {}, "agents": {}, "agents.live": {"agent_ids": ["louder"]}, "agent": {"agent_id": "louder"}, "jobs": {},
    "keys": {}, "views": {}, "settings": {}, "messages": {}, "calls": {},
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "agent.switch": {"agent_id": "filed", "on": False},
    "agent.plan": {"source": "http://127.0.0.1:1"},
    "agent.add": {"entries": [{"agent_id": "x", "endpoint": {"uri": "http://127.0.0.1:1"}}]},
    "agent.probe": {"agent_id": "louder"},
    "job.cancel": {"job_id": "job_0"},
    "job.retry": {"job_id": "job_0"},
    "job.answer": {"job_id": "job_0", "answers": {"a": {}}},
    "key.create": {"name": "eve", "scopes": ["*"]},
    "key.revoke": {"name": "eve"},
}


@pytest.mark.parametrize("name", READS)
async def test_a_viewer_may_read_everything(node: Node, name: str) -> None:
    reply = await administer(node, name, READS[name], token=VIEWER)
    assert reply.status == 200, reply.body
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", CHANGES)
async def test_a_viewer_that_sends_a_change_by_hand_is_refused_at_both_addresses(node: Node, name: str) -> None:
    for reply in (
        await administer(node, name, CHANGES[name], token=VIEWER),
        await node.send(
            "POST", "/mcp/call", token=VIEWER, json={"name": f"fabric.admin.{name}", "arguments": CHANGES[name]}
        ),
    ):
        assert reply.status == 403, name
        assert "Viewers may not change anything" in reply.json["error"]
        assert reply.json["trace"]["trace_id"]


@pytest.mark.parametrize("name", [*READS, *CHANGES])
async def test_a_key_without_a_role_may_neither_read_nor_change_whatever_it_may_call(node: Node, name: str) -> None:
    for token in ("the-key-of-caller", "the-key-of-unlimited"):
        reply = await administer(node, name, READS.get(name) or CHANGES.get(name) or {}, token=token)
        assert (reply.status, name) == (200 if name == "calls" else 403, name)
    assert (await administer(node, name, token=None)).status == 401


async def has_ended(node: Node, job_id: str) -> bool:
    return bool((await administer(node, "job", {"job_id": job_id, "wait_ms": 5000})).json["result"]["complete"])


async def has_log_lines(node: Node) -> bool:
    return bool((await administer(node, "log")).json["result"]["lines"])


async def test_contents_are_for_operators_and_viewers_see_how_things_go(node: Node) -> None:
    secret = "nobody but the caller and the operator"
    for name in ("shout", "fail"):
        given = {"agent_id": "louder", "capability": name, "task": "", "context": {"text": secret}, "async": True}
        job_id = (await node.operation("fabric.call", given))["result"]["job_id"]
        await eventually(lambda job_id=job_id: has_ended(node, job_id))  # type: ignore[misc]
        seen = (await administer(node, "job", {"job_id": job_id})).json["result"]
        assert secret.lower() in json.dumps(seen).lower()
        hidden = await administer(node, "job", {"job_id": job_id}, token=VIEWER)
        assert hidden.json["result"]["job"]["state"] == seen["job"]["state"]
        assert secret.lower() not in hidden.body.decode().lower()
    assert secret.lower() not in (await administer(node, "jobs", token=VIEWER)).body.decode().lower()
    assert (await administer(node, "log", token=VIEWER)).status == 403
    await eventually(lambda: has_log_lines(node))  # a thread writes them
    assert (await administer(node, "messages", {"conversation_id": "any"}, token=VIEWER)).status == 403


async def test_callers_without_a_role_see_only_their_own_calls(node: Node) -> None:
    await node.ask("louder", "shout", "hey", context={"text": "secret of the operator"})
    own = (await administer(node, "calls", token="the-key-of-caller")).json["result"]["calls"]
    assert own == []
    assert (await administer(node, "calls", token=VIEWER)).json["result"]["calls"]


async def test_a_key_with_the_scope_of_operators_may_change_things(node: Node) -> None:
    made = (await administer(node, "key.create", {"name": "kim", "scopes": ["agent:louder"]}, token=OPERATOR)).json
    assert made["result"]["key"].startswith("fabric_")
    listed = (await administer(node, "keys", token=VIEWER)).json["result"]
    assert [key["name"] for key in listed["keys"]] == ["kim"]
    assert made["result"]["key"] not in json.dumps(listed)
    assert (await administer(node, "key.revoke", {"name": "kim"}, token=OPERATOR)).status == 200
    again = await administer(node, "key.revoke", {"name": "kim"}, token=OPERATOR)
    assert (again.status, again.json["error_code"]) == (409, "CONFLICT")


async def test_the_scope_of_everything_does_not_open_the_console(node: Node) -> None:
    everything = (await administer(node, "key.create", {"name": "all", "scopes": ["*"]})).json["result"]["key"]
    assert (await administer(node, "overview", token=everything)).status == 403


async def test_settings_are_shown_as_loaded_and_no_secret_is_among_them(node: Node) -> None:
    reply = await administer(node, "settings", token=VIEWER)
    rows = {row["name"]: row for row in reply.json["result"]["settings"]}
    assert rows["node_id"]["value"] == "test"
    assert rows["limits.timeout_ms"]["is_default"]
    assert rows["auth.keys.0.key"]["is_masked"]
    assert rows["jobs.webhook_secret"]["is_masked"]
    for secret in (PSK, VIEWER, OPERATOR, SECRET):
        assert secret not in reply.body.decode()


async def test_an_agent_is_switched_off_and_on_in_its_file_and_the_rest_of_the_file_stays(
    node: Node,
) -> None:
    def read() -> str:
        return Path(node.fabric.config.agents[0]).read_text()

    before = read()
    assert (await administer(node, "agent.switch", {"agent_id": "filed", "on": False})).status == 200
    assert yaml.safe_load(read())[0]["enabled"] is False
    assert "# a remark that stays" in read()
    told = await node.operation("fabric.agent.describe", {"agent_id": "filed"})
    assert told["error_code"] == "AGENT_NOT_FOUND"
    rows = (await administer(node, "agents")).json["result"]["agents"]
    assert {row["agent_id"]: row["status"] for row in rows}["filed"] == "off"
    assert (await administer(node, "agent.switch", {"agent_id": "filed", "on": True})).status == 200
    assert (await node.operation("fabric.agent.describe", {"agent_id": "filed"}))["ok"]
    assert yaml.safe_load(read())[0]["enabled"] is True
    assert read().replace("enabled: true\n", "").split() == before.split()


async def test_a_tool_is_switched_off_and_on(node: Node) -> None:
    switch = {"agent_id": "filed", "tool": "say"}
    assert (await administer(node, "agent.switch", {**switch, "on": False})).status == 200
    agent = (await administer(node, "agent", {"agent_id": "filed"})).json["result"]
    assert [each["name"] for each in agent["agent"]["capabilities"]] == ["sing"]
    assert agent["excluded"] == ["say"]
    assert (await administer(node, "agent.switch", {**switch, "on": True})).status == 200
    agent = (await administer(node, "agent", {"agent_id": "filed"})).json["result"]
    assert [each["name"] for each in agent["agent"]["capabilities"]] == ["say", "sing"]


@contextmanager
def broken(file: Path) -> Iterator[None]:
    """The file cannot be read as YAML within the block."""
    before = file.read_text()
    file.write_text(before + "  broken: [\n")
    try:
        yield
    finally:
        file.write_text(before)


@pytest.mark.parametrize("agent_id", ["filed", "louder"])
async def test_agents_are_shown_while_their_file_is_being_edited(node: Node, agent_id: str) -> None:
    with broken(Path(node.fabric.config.agents[0])):
        reply = await administer(node, "agent", {"agent_id": agent_id})
    assert reply.status == 200, reply.json
    details = reply.json["result"]
    assert details["agent"]["agent_id"] == agent_id
    assert (details["editable"], details["path"]) == (False, None)
    assert "not valid YAML" in details["trouble"]


async def test_an_agent_in_no_file_cannot_be_switched_and_the_reply_says_so(node: Node) -> None:
    reply = await administer(node, "agent.switch", {"agent_id": "louder", "on": False})
    assert reply.status == 409
    assert "no agents.yaml" in reply.json["error"]


async def test_a_dropped_mcp_json_is_shown_before_it_is_added_and_secrets_are_not_copied(node: Node) -> None:
    servers = {
        "mcpServers": {"far": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer sk-12345678"}}}
    }
    plan = (await administer(node, "agent.plan", {"source": json.dumps(servers)})).json["result"]
    assert [entry["agent_id"] for entry in plan["entries"]] == ["far"]
    assert "sk-12345678" not in json.dumps(plan)
    assert plan["variables"]
    assert (await node.operation("fabric.agent.describe", {"agent_id": "far"}))["error_code"] == "AGENT_NOT_FOUND"


async def test_programs_cannot_be_added_where_other_machines_reach_the_node(node: Node) -> None:
    """The test's node has a public address."""
    for source in ("python -m http.server", json.dumps({"mcpServers": {"p": {"command": "sh", "args": ["-c", "id"]}}})):
        reply = await administer(node, "agent.plan", {"source": source})
        assert (reply.status, reply.json["error_code"]) == (403, "AUTH_DENIED")
    entry = {"agent_id": "p", "runtime": "process", "endpoint": {"command": ["sh", "-c", "id"]}}
    assert (await administer(node, "agent.add", {"entries": [entry]})).status == 403


@pytest.mark.parametrize(
    "entry",
    [
        {"endpoint": {"uri": "python:subprocess:getoutput"}},  # the runtime is implied
        {"runtime": "python", "endpoint": {"uri": "python:subprocess:getoutput"}},
        {"runtime": "claude-subprocess", "endpoint": {}},  # another name of `claude`
        {"runtime": "local", "endpoint": {}},
        {"runtime": "agent-client", "endpoint": {}},
        {"runtime": "git", "endpoint": {"uri": "https://git.example/agent.git", "link": "x"}},
        {"runtime": "tool", "endpoint": {}},
        {"runtime": "of-a-plug-in", "endpoint": {"uri": "https://agent.example"}},
        {"endpoint": {"uri": "https://agent.example"}, "origin": {"location": "local", "registry": "r", "folder": "/"}},
    ],
)
async def test_nothing_that_runs_on_the_machine_of_such_a_node_is_added(node: Node, entry: dict[str, Any]) -> None:
    """The test's node has a public address."""
    for action in ("agent.plan", "agent.add"):
        reply = await administer(node, action, {"entries": [{"agent_id": "p", **entry}]})
        assert (reply.status, reply.json["error_code"]) == (403, "AUTH_DENIED"), (action, reply.json)


NEW_AGENT: dict[str, Any] = {"agent_id": "new", "endpoint": {"uri": "http://127.0.0.1:1"}}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([NEW_AGENT, NEW_AGENT], "agent 'new' is declared twice"),
        ([{**NEW_AGENT, "tools": {"rename": {"a_*": "b"}}}], "needs the same one `*` on both sides"),
        ([{**NEW_AGENT, "tools": {"derive": {"a": {"from": "b", "result": "["}}}}], "not a JMESPath expression"),
        ([{**NEW_AGENT, "capabilities": [{"name": "say", "input_schema": doubling()}]}], "input_schema"),
    ],
)
async def test_entries_with_which_the_file_could_not_be_read_are_refused(
    node: Node, entries: list[dict[str, Any]], reason: str
) -> None:
    def read() -> str:
        return Path(node.fabric.config.agents[0]).read_text()

    before = read()
    reply = await administer(node, "agent.add", {"entries": entries})
    assert (reply.status, reply.json["error_code"]) == (400, "BAD_INPUT"), reply.json
    assert "Nothing was changed" in reply.json["error"]
    assert reason in reply.json["error"]
    assert read() == before


@requirement("001-48")
async def test_the_overview_counts_calls_and_failures_without_touching_the_call_itself(node: Node) -> None:
    await node.ask("louder", "shout", context={"text": "a"})
    await node.ask("louder", "fail", context={"text": "b"})
    await node.fabric.admin.activity.sample()
    told = (await administer(node, "overview")).json["result"]
    assert told["activity"]["calls_total"] >= 2
    assert told["activity"]["errors_total"] >= 1
    assert told["store"]["state"] == "ok"
    assert told["agents"]["total"] >= 3


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("nothing", {}),
        ("agent", {}),
        ("agent", {"agent_id": 7}),
        ("agents.live", {"agent_ids": ["x"] * 201}),
        ("jobs", {"states": ["sleeping"]}),
        ("log", {"wait_ms": 10**9}),
        ("key.create", {"name": "a b", "scopes": ["*"]}),
        ("key.create", {"name": "a", "scopes": ["agent"]}),
        ("key.create", {"name": "a", "scopes": ["*"], "view": "none"}),
        ("agent.plan", {"source": ""}),
        ("agent.plan", {"source": "{"}),
        ("agent.add", {"entries": [{"agent_id": "x"}]}),
    ],
)
async def test_bad_input_gets_a_typed_error_with_a_trace(node: Node, name: str, body: dict[str, Any]) -> None:
    reply = await administer(node, name, body)
    assert 400 <= reply.status < 500, reply.body
    assert reply.json["error_code"] in ("BAD_INPUT", "BAD_CONFIG")
    assert reply.json["trace"]["trace_id"] == reply.headers["x-trace-id"]


async def test_polling_leaves_no_line_in_the_log_and_changes_leave_one(node: Node) -> None:
    node.fabric.telemetry.log.flush()
    before = node.log.getvalue().count("/admin/v1/")
    await administer(node, "overview")
    await administer(node, "agent.probe", {"agent_id": "louder"})
    node.fabric.telemetry.log.flush()
    lines = [line for line in node.log.getvalue().splitlines() if "/admin/v1/" in line]
    assert len(lines) - before == 1
    assert json.loads(lines[-1])["operation"] == "/admin/v1/agent.probe"


async def test_the_pages_are_served_under_a_strict_policy_and_kept_by_browsers(node: Node) -> None:
    shell = await node.send("GET", "/console/agents/percy", token=None)
    assert shell.status == 200
    policy = shell.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert shell.headers["cache-control"] == "no-cache"
    text = shell.body.decode()
    assert "<style" not in text
    assert "onclick" not in text.lower()
    address = text.split('src="')[-1].split('"')[0]
    file = await node.send("GET", address, token=None)
    assert (file.status, "immutable" in file.headers["cache-control"]) == (200, True)
    old = await node.send("GET", address.replace("/files/", "/files/0"), token=None)
    assert (old.status, old.headers["cache-control"]) == (200, "no-store")
    assert (await node.send("GET", "/console/files/x/..%2f..%2fpages.py", token=None)).status in (200, 404)
    assert b"ConsolePages" not in (await node.send("GET", "/console/files/x/..%2f..%2fpages.py", token=None)).body
    assert (await node.send("GET", "/console/files/x/pages.py", token=None)).status == 404


async def test_a_browser_is_greeted_with_a_page_and_everyone_else_as_before(node: Node) -> None:
    page = await node.send("GET", "/", token=None, headers={"Accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html")
    assert b'href="/console"' in page.body
    plain = await node.send("GET", "/", token=None)
    assert plain.json["name"] == "a2a-fabric"


async def test_every_operation_is_in_the_document_at_docs(node: Node) -> None:
    document = (await node.send("GET", "/admin/openapi.json", token=None)).json
    assert {f"/{name}" for name in (*READS, *CHANGES)} < document["paths"].keys()
    assert document["paths"]["/key.create"]["post"]["tags"] == ["operators"]
    assert document["paths"]["/keys"]["post"]["tags"] == ["viewers"]
    schemas = document["components"]["schemas"]
    assert schemas["key.create"]["required"] == ["name", "scopes"]
    for name in set(re.findall(r"#/components/schemas/([^\"]+)", json.dumps(document))):
        assert name in schemas


async def test_scripts_of_other_sites_are_refused_where_no_key_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path, auth={"anonymous": True}, public_url=None, key=None) as open_node:
        own = await administer(open_node, "overview", token=None, headers={"Origin": open_node.url})
        assert own.status == 200
        for origin in ("http://evil.example", "http://localhost.evil.example", "null"):
            other = await administer(open_node, "overview", token=None, headers={"Origin": origin})
            assert other.status in (401, 403), origin


async def test_the_console_can_be_switched_off(tmp_path: Path) -> None:
    async with serving(tmp_path, console={"enabled": False}) as off:
        assert (await off.send("GET", "/console", token=None)).status == 404
        page = await off.send("GET", "/", token=None, headers={"Accept": "text/html"})
        assert page.headers["content-type"] == "application/json"
        assert (await administer(off, "overview")).status == 200
