"""Seven public MCP servers behind one node, as other people's clients see them, and the table of it in docs/mcp.md."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conformance.clients.claude_code import CLAUDE_CODE, SILENT_AND_PATIENT
from tests.conformance.clients.client import ClientUnderTest, install_client, short
from tests.conformance.clients.codex import CODEX, settings
from tests.conformance.clients.inspector import INSPECTOR
from tests.conformance.clients.place import Place, path_with
from tests.conformance.commands import CommandFailed
from tests.conformance.model_apis.messages import MessagesAPI
from tests.conformance.model_apis.move import ModelAPI
from tests.conformance.model_apis.responses import ResponsesAPI
from tests.conformance.model_stub import ModelStub, serving_model
from tests.conformance.npm import Npm
from tests.fixtures.environments import NotInstalled
from tests.fixtures.mcp_clients.looks import QUICK_LOOKS, Look, Seen, find_faults, look_with_python_program
from tests.fixtures.public_servers import (
    IMAGE_TOOL,
    RESOURCE,
    PublicServers,
    list_directly,
    node_with_public_servers,
)

_PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
_BEGIN, _END = "<!-- clients: begin -->", "<!-- clients: end -->"
_HEAD = """\
| client | tools listed | servers called | image | resource | progress | cancel | date |
|---|---|---|---|---|---|---|---|"""
_PREFIX = "mcp__fabric__"

PlaceLook = Callable[[Place, PublicServers], Awaitable[Seen]]


@dataclass(frozen=True)
class Row:
    client: str
    seen: Seen | None
    faults: list[str]
    reason: str = ""  # why it was skipped

    def __str__(self) -> str:
        if self.seen is None and not self.faults:
            return f"  skipped  {self.client} ({self.reason})"
        return "\n           ".join([f"  {'FAIL' if self.faults else 'pass'}     {self.client}", *self.faults])


async def are_seen(npm: Npm, *, writes_table: bool) -> bool:
    """Whether every client that can be installed sees all."""
    print("\npublic servers behind one node")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            with node_with_public_servers(Path(folder)) as servers:
                listed = await list_directly(servers)
                for client, look in {**QUICK_LOOKS, **_build_slow_looks(npm)}.items():
                    rows.append(await _examine(client, look, servers, listed))
                    print(rows[-1], flush=True)
                if writes_table:
                    _write_table(rows, servers, listed)
        except NotInstalled as missing:
            print(f"  skipped  the servers cannot be installed here ({missing})")
    return not any(row.faults for row in rows)


async def _examine(client: str, look: Look, servers: PublicServers, listed: set[str]) -> Row:
    try:
        seen = await look(servers)
    except NotInstalled as missing:
        return Row(client, None, [], short(missing))
    except (CommandFailed, ValueError, KeyError) as failed:
        return Row(client, None, [short(failed)])
    return Row(client, seen, find_faults(seen, servers, listed))


def _build_slow_looks(npm: Npm) -> dict[str, Look]:
    return {
        "CrewAI": look_with_python_program("crewai", "crewai_client.py"),
        "MCP Inspector, handshake": _look_with(INSPECTOR, npm, _inspect_in("legacy")),
        "MCP Inspector, 2026-07-28": _look_with(INSPECTOR, npm, _inspect_in("modern")),
        "Claude Code": _look_with(CLAUDE_CODE, npm, _ask_claude_code),
        "Codex": _look_with(CODEX, npm, _ask_codex),
    }


def _look_with(client: ClientUnderTest, npm: Npm, look_from: PlaceLook) -> Look:
    async def look(servers: PublicServers) -> Seen:
        try:
            program = await install_client(client, npm)
        except CommandFailed as failed:
            raise NotInstalled(str(failed)) from failed
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            return await look_from(Place(servers.node, Path(home), program, path_with(npm.node)), servers)

    return look


def _inspect_in(era: str) -> PlaceLook:
    async def look(place: Place, servers: PublicServers) -> Seen:
        async def ask(method: str, *words: str) -> Any:
            where = (servers.url, "--transport", "http", "--header", f"Authorization: {place.bearer}")
            said = await place.run("--cli", *where, "--protocol-era", era, "--method", method, *words, may_fail=True)
            return json.loads(said.stdout)

        async def call(tool: str, arguments: Mapping[str, object]) -> list[dict[str, Any]]:
            words = [
                f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in arguments.items()
            ]
            result = await ask("tools/call", "--tool-name", tool, *(["--tool-arg", *words] if words else []))
            content: list[dict[str, Any]] = result["content"]
            return content

        tools = [tool["name"] for tool in (await ask("tools/list"))["tools"]]
        answers = {}
        for name, wanted in servers.calls.items():
            parts = await call(wanted.tool, wanted.arguments)
            answers[name] = "\n".join(part.get("text", "") for part in parts)
        images = [part["mimeType"] for part in await call(IMAGE_TOOL, {}) if part["type"] == "image"]
        [document] = (await ask("resources/read", "--uri", RESOURCE))["contents"]
        return Seen(tools=tools, answers=answers, image=images[0] if images else "nothing", resource=document["text"])

    return look


async def _ask_claude_code(place: Place, servers: PublicServers) -> Seen:
    server = {"type": "http", "url": servers.url, "headers": {"Authorization": place.bearer}}
    file = place.home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"fabric": server}}), "utf-8")
    async with _model(MessagesAPI(), servers) as model:
        words = ("-p", "Ask all servers.", "--output-format", "json", "--allowedTools", f"{_PREFIX}*")
        allowed = [_PREFIX + call.tool for call in servers.calls.values()]
        account = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
        options = (*words, *allowed, "--mcp-config", str(file), "--strict-mcp-config")
        await place.run(*options, env={**SILENT_AND_PATIENT, **account})
    return _seen_by_model(model, servers)


async def _ask_codex(place: Place, servers: PublicServers) -> Seen:
    await place.connect("codex", "--http")
    async with _model(ResponsesAPI(), servers) as model:
        words = ("exec", "--json", "--skip-git-repo-check", "--strict-config", "--sandbox", "read-only")
        env = {"STUB_KEY": "none", "FABRIC_TOKEN": servers.node.token}
        await place.run(*words, *settings(model.url), "Ask all servers.", env=env)
    return _seen_by_model(model, servers)


def _model(api: ModelAPI, servers: PublicServers) -> Any:
    """A stub that asks for one tool of each server, one after another."""
    return serving_model(api, *((_PREFIX + call.tool, call.arguments) for call in servers.calls.values()))


def _seen_by_model(model: ModelStub, servers: PublicServers) -> Seen:
    if model.complaints:
        raise ValueError(f"a model API would refuse: {model.complaints[:3]}")
    tools = [name.removeprefix(_PREFIX) for name in model.offered if name.startswith(_PREFIX)]
    return Seen(tools=tools, answers=dict(zip(servers.calls, model.answers, strict=False)))


def _write_table(rows: list[Row], servers: PublicServers, listed: set[str]) -> None:
    text = _PAGE.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    today = datetime.now(UTC).date().isoformat()
    lines = "\n".join([_HEAD, *(_render_row(row, servers, listed, today) for row in rows)])
    _PAGE.write_text(f"{before}{_BEGIN}\n{lines}\n{_END}{after}", "utf-8")


def _render_row(row: Row, servers: PublicServers, listed: set[str], today: str) -> str:
    seen = row.seen
    if seen is None:
        return f"| {row.client} | {'failed' if row.faults else 'not installed'} | | | | | | {today} |"
    tools = f"{len(listed & {*seen.tools})} of {len(listed)}"
    shown = (seen.image, seen.resource, seen.progress, seen.cancelled)
    marks = ["–" if each is None else "yes" if each else "no" for each in shown]
    reached = sum(call.answer in seen.answers.get(name, "") for name, call in servers.calls.items())
    return f"| {row.client} | {tools} | {reached} of {len(servers.calls)} | {' | '.join(marks)} | {today} |"
