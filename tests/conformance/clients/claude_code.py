"""Claude Code without a screen: a stub stands in for its model, and the node for its MCP servers."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.clients.client import ClientUnderTest
from tests.conformance.clients.place import Place, expect
from tests.conformance.model_apis.messages import MessagesAPI
from tests.conformance.model_stub import ModelStub, serving_model

_PREFIX = "mcp__fabric__"
_TOOL = f"{_PREFIX}percy_reason"
SILENT_AND_PATIENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "MCP_CONNECTION_NONBLOCKING": "false",  # else it begins without servers that are slow to start
    "MCP_CONNECT_TIMEOUT_MS": "60000",
    "MCP_TIMEOUT": "60000",
    "ENABLE_TOOL_SEARCH": "false",  # so that the model is shown all tools at once
}


async def calls_what_it_is_given(place: Place) -> None:
    server = {"type": "http", "url": f"{place.node.url}/mcp", "headers": {"Authorization": place.bearer}}
    file = place.home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"fabric": server}}), "utf-8")
    await _converse(place, "claude given", "--mcp-config", str(file), "--strict-mcp-config")


async def reads_the_program_that_we_write(place: Place) -> None:
    await place.connect("claude-code")
    await _expect_listed(place, "Connected")
    await _converse(place, "claude program")


async def reads_the_address_that_we_write(place: Place) -> None:
    await place.connect("claude-code", "--http")
    await _expect_listed(place, "Connected", FABRIC_TOKEN=place.node.token)
    await _expect_listed(place, "Failed to connect", FABRIC_TOKEN="wrong")
    await _converse(place, "claude address", FABRIC_TOKEN=place.node.token)


async def keeps_its_own_when_we_leave(place: Place) -> None:
    """It keeps much more in that file than servers, and writes it anew whenever it runs."""
    await place.connect("claude-code")
    await _converse(place, "claude leaving")
    file = place.home / ".claude.json"
    before = json.loads(file.read_text("utf-8"))
    await place.connect("claude-code", "--undo")
    after = json.loads(file.read_text("utf-8"))
    expect(len(before) > 1 and after == {key: before[key] for key in before if key != "mcpServers"}, sorted(after))
    expect(
        "No MCP servers" in (await place.run("mcp", "list", env=SILENT_AND_PATIENT)).stdout, "it still lists a server"
    )


async def _expect_listed(place: Place, state: str, **env: str) -> None:
    said = await place.run("mcp", "list", env={**SILENT_AND_PATIENT, **env})
    line = next((line for line in said.stdout.splitlines() if line.startswith("fabric:")), said.last_words)
    expect(state in line, line)


async def _converse(place: Place, task: str, *options: str, **env: str) -> None:
    """Its model asks for our tool; what the agent says comes back, and out at the end."""
    async with serving_model(MessagesAPI(), (_TOOL, {"task": task, "depth": 2})) as model:
        words = ("-p", "Ask percy.", "--output-format", "stream-json", "--verbose", "--allowedTools", _TOOL)
        account = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
        said = await place.run(*words, *options, env={**SILENT_AND_PATIENT, **account, **env})
    events = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    await _expect_all_tools(place, events, model)
    place.expect_heard(task)
    answer = {"answer": f"percy heard {task}", "depth": 2}
    expect([json.loads(each) for each in model.answers] == [answer], model.answers)
    last = events[-1]
    expect(last["type"] == "result" and last["is_error"] is False and answer["answer"] in last["result"], last)


async def _expect_all_tools(place: Place, events: list[dict[str, Any]], model: ModelStub) -> None:
    """In its own list, and in what it shows to the model; there every name and schema was checked."""
    (init,) = (event for event in events if event.get("subtype") == "init")
    servers = [(server["name"], server["status"]) for server in init["mcp_servers"]]
    expect(servers == [("fabric", "connected")], servers)
    expect(not model.complaints, model.complaints)
    wanted = {_PREFIX + name for name in await place.tools()}
    for shown in ({*init["tools"]}, model.offered):
        ours = {name for name in shown if name.startswith(_PREFIX)}
        expect(ours == wanted, f"it shows {sorted(ours)}, and not {sorted(wanted)}")


CLAUDE_CODE = ClientUnderTest(
    package="@anthropic-ai/claude-code@2.1.325",
    entry="bin/claude.exe",  # so called on every system
    is_script=False,
    checks={
        "lists all tools and calls an agent (--mcp-config)": calls_what_it_is_given,
        "does so with what `connect claude-code` writes": reads_the_program_that_we_write,
        "does so with what `connect claude-code --http` writes": reads_the_address_that_we_write,
        "keeps its own settings after `connect claude-code --undo`": keeps_its_own_when_we_leave,
    },
)
