"""The snippets on an agent's page, run as they are: by a shell, Python, Node, and as entries of MCP clients."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import build_entries, parse_servers
from a2a_fabric.mcp_clients.client_config import list_servers
from a2a_fabric.mcp_clients.clients import CLIENTS
from tests.console.bench import TIMEOUT, browsing, visiting
from tests.fixtures.node import PSK, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRICKY = 'it\'s true that "null" is $HOME, `pwd` and \\n false 100%'


def make_odd() -> Agent:
    agent = Agent("odd", description="Repeats what it is given.")

    @agent.capability
    async def repeat(text: Literal['it\'s true that "null" is $HOME, `pwd` and \\n false 100%'], flag: bool) -> Any:
        """Give it back."""
        return {"text": text, "flag": flag}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(make_odd()) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(node: Node) -> dict[str, dict[str, str]]:
    """The text of each tab, without the key and with it."""
    found: dict[str, dict[str, str]] = {"without": {}, "with": {}}
    async with browsing() as browser, visiting(browser, node, "/agents/odd?do=repeat") as page:
        await page.locator(".reach pre").wait_for(timeout=TIMEOUT)
        for name in ("curl", "Python", "TypeScript", "Claude", "Cursor", "A2A"):
            await page.get_by_role("tab", name=name, exact=True).click()
            found["without"][name] = await page.locator(".reach pre").inner_text()
        await page.get_by_label("Put my key in").check()
        for name in found["without"]:
            await page.get_by_role("tab", name=name, exact=True).click()
            found["with"][name] = await page.locator(".reach pre").inner_text()
    return found


async def execute(*command: str, key: bool = True, **more: str) -> str:
    environ = {**os.environ, **more, **({"FABRIC_TOKEN": PSK} if key else {})}
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


def need(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: apt-get install {package}")
    return found


async def test_no_snippet_has_the_key_in_it_unless_the_reader_wants_that(shown: dict[str, dict[str, str]]) -> None:
    assert not [name for name, text in shown["without"].items() if PSK in text]
    assert all(PSK in text and "FABRIC_TOKEN" not in text for text in shown["with"].values())


@pytest.mark.parametrize("kind", ["without", "with"])
async def test_curl_calls_the_agent(shown: dict[str, dict[str, str]], kind: str) -> None:
    need("curl", "curl")
    reply = json.loads(await execute("bash", "-c", shown[kind]["curl"], key=kind == "without"))
    assert reply["result"] == {"text": TRICKY, "flag": True}, reply


async def test_curl_sends_a_message_of_a2a(shown: dict[str, dict[str, str]]) -> None:
    need("curl", "curl")
    reply = json.loads(await execute("bash", "-c", shown["without"]["A2A"]))
    assert json.dumps(TRICKY)[1:-1] in json.dumps(reply), reply


@pytest.mark.parametrize("kind", ["without", "with"])
async def test_python_calls_the_agent(shown: dict[str, dict[str, str]], kind: str) -> None:
    printed = await execute(sys.executable, "-c", shown[kind]["Python"], key=kind == "without")
    assert printed.strip() == repr({"text": TRICKY, "flag": True})


@pytest.mark.parametrize("kind", ["without", "with"])
async def test_typescript_calls_the_agent(shown: dict[str, dict[str, str]], kind: str, tmp_path: Path) -> None:
    """It has no types in it, so that Node of any version runs it."""
    script = tmp_path / "call.mjs"
    script.write_text(shown[kind]["TypeScript"].replace("console.log(result)", "console.log(JSON.stringify(result))"))
    printed = await execute(need("node", "nodejs"), str(script), key=kind == "without")
    assert json.loads(printed) == {"text": TRICKY, "flag": True}


async def call_through_another_node(config: dict[str, Any]) -> dict[str, Any]:
    """Import the entry as `a2a-fabric import` does, set the variable that it wants, and call the agent through it."""
    imported = build_entries([parse_servers(config, "mcp.json")], {}, References())
    (entry,) = imported.entries
    (variable,) = imported.variables
    value = str(config["mcpServers"]["odd"]["headers"]["Authorization"]).replace("${env:FABRIC_TOKEN}", PSK)
    async with running(manifests=[entry], environ={variable.name: value}) as other:
        envelope = await other.ask("odd", "repeat", context={"text": TRICKY, "flag": False})
    assert envelope["ok"], envelope
    return dict(envelope["result"])


async def test_the_entry_for_cursor_is_read_by_our_reader_and_connects(shown: dict[str, dict[str, str]]) -> None:
    entry = shown["without"]["Cursor"]
    assert list(list_servers(CLIENTS["cursor"], entry, "mcp.json")) == ["odd"]
    result = await call_through_another_node(json.loads(entry))
    assert (result["text"], result["flag"]) == (TRICKY, False)


async def test_the_command_for_claude_code_makes_an_entry_that_connects(shown: dict[str, dict[str, str]]) -> None:
    """The shell hands the words to a stand-in, which writes the entry that Claude Code writes for them."""
    dump = f"claude() {{ {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"; }}\n"
    words = json.loads(await execute("bash", "-c", dump + shown["without"]["Claude"]))
    assert words[:4] == ["mcp", "add", "--transport", "http"]
    name, url, flag, header = words[4:]
    key, _, value = header.partition(": ")
    assert (name, flag) == ("odd", "--header")
    config = {"mcpServers": {name: {"type": "http", "url": url, "headers": {key: value}}}}
    assert list(list_servers(CLIENTS["claude-code"], json.dumps(config), ".claude.json")) == ["odd"]
    result = await call_through_another_node(config)
    assert (result["text"], result["flag"]) == (TRICKY, False)
