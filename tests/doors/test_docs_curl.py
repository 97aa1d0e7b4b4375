"""Every curl line of the documentation is typed by some test, so that none of them can become untrue."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running
from tests.fixtures.pages import DOCS, HERE, ROOT, blocks, console_commands, needs_curl, page, typed
from tests.matrix.agents.listening import listening
from tests.system.node import running_node

pytestmark = needs_curl

TYPED_BY = {
    "README.md": "tests/system/test_readme.py",
    "a2a.md": "tests/doors/test_a2a_docs.py",
    "console.md": "tests/doors/test_docs_curl.py",
    "directory.md": "tests/doors/test_directory_docs.py",
    "discovery.md": "tests/doors/test_discovery_docs.py",
    "jobs.md": "tests/system/test_docs_jobs.py",
    "registering.md": "tests/doors/test_docs_curl.py",
    "rest.md": "tests/doors/test_rest_docs.py",
    "writing-an-agent.md": "tests/doors/test_docs_curl.py",
}
_CURL = re.compile(r"^\s*(?:\$ )?curl ", re.MULTILINE)


def test_every_page_with_a_curl_line_has_a_test_that_types_it() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    assert {each.name for each in pages if _CURL.search(each.read_text("utf-8"))} == TYPED_BY.keys()
    for name, test in TYPED_BY.items():
        assert name.removesuffix(".md") in (ROOT / test).read_text("utf-8")


def test_the_admin_api_is_asked_as_the_page_about_the_console_says(tmp_path: Path) -> None:
    (tmp_path / "percy.py").write_text("from a2a_fabric import Agent\n\nagent = Agent('percy')\n")
    (tmp_path / "agents.yaml").write_text("- {agent_id: percy, endpoint: {uri: 'python:percy:agent'}}\n")
    commands = [each for each in console_commands(page("console.md")) if each.startswith("curl")]
    with running_node(tmp_path, "--agents", "agents.yaml", PYTHONPATH=str(tmp_path)) as node:
        replies = [json.loads(typed(each.replace(HERE, node.url), TOKEN=node.token)) for each in commands]
    assert [reply["ok"] for reply in replies] == [True, True], replies
    assert "enabled: false" in (tmp_path / "agents.yaml").read_text()


def greeter() -> Agent:
    agent = Agent("hello")

    @agent.capability
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return agent


async def test_an_agent_registers_as_the_page_about_registering_says() -> None:
    [command] = blocks(page("registering.md"), "sh")
    async with listening(greeter().app) as agent, running() as node:
        line = command.replace(HERE, node.url).replace("http://127.0.0.1:8001", agent)
        environ = {"TOKEN": PSK, "FABRIC_TOKEN": PSK, "FABRIC_URL": node.url}
        reply, _, shown = (await asyncio.to_thread(typed, line, **environ)).partition("Hello, Ada!\n")
        printed = json.loads(reply)
        assert printed["success"] is True
        assert printed["registration"]["owner"]
        assert re.search(r"^registered +\d+ s ago by psk:psk$", shown, re.M), shown
        assert re.search(r"^expires +in 24 h unless it passes a check$", shown, re.M), shown


async def test_the_first_agent_of_the_page_about_writing_agents_is_asked_with_curl(tmp_path: Path) -> None:
    text = page("writing-an-agent.md")
    (tmp_path / "hello_agent.py").write_text(blocks(text, "python")[0])
    command, expected = re.findall(r"^    \$ (curl .*)\n    (.*)$", text, re.MULTILINE)[0]
    program = [sys.executable, str(tmp_path / "hello_agent.py"), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*program, stderr=PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_TIMEOUT):
            hello, url = (await process.stderr.readline()).decode().strip().rsplit(" ", 1)
        assert f"    {hello} http://" in text
        printed = await asyncio.to_thread(typed, command.replace("http://127.0.0.1:8001", url))
        assert printed.partition('"trace"')[0] == expected.partition('"trace"')[0]
    finally:
        process.terminate()
        await process.wait()
