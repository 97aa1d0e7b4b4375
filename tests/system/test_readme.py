"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.pages import console_commands
from tests.system.node import Node, environment, running_node

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICKSTART = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()


def _commands(heading: str) -> list[str]:
    """The commands below a heading, without the remarks behind them."""
    section = README.split(heading, 1)[1].split("\n## ", 1)[0]
    return [line.split("  #")[0].strip() for line in console_commands(section)]


def _block(text: str, language: str, holding: str) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return next(block for block in found if holding in block)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("readme")) as started:
        yield started


def _shell(command: str, node: Node) -> str:
    command = command.replace(".venv/bin/a2a-fabric", f"{sys.executable} -m a2a_fabric")
    command = command.replace("http://127.0.0.1:8000", node.url)
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=node.folder,
        env=environment(node.home, TOKEN=node.token),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [each for each in _commands("## First call") if "bin/a2a-fabric " in each])
def test_the_commands_of_the_first_call_work(command: str, node: Node) -> None:
    assert _shell(command, node).strip()


@pytest.mark.parametrize("command", [each for each in _commands("## First call") if each.startswith("curl")])
def test_the_curl_lines_work(command: str, node: Node) -> None:
    said = _shell(command, node)
    if "stream" in command:
        final = json.loads(said.strip().splitlines()[-1].removeprefix("data: "))
        assert (final["event"], final["data"]["ok"]) == ("final", True)
    elif "message:send" in command:
        task = json.loads(said)["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert f"`{task['artifacts'][0]['parts'][0]['text']}`" in README
    elif "/health" in command:
        assert json.loads(said)["status"] == "ok"
    else:
        assert json.loads(said)["ok"] is True


def test_the_agent_in_ten_lines_is_reached_through_the_node(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(_block(README, "python", "Agent("))
    (tmp_path / "agents.yaml").write_text(_block(QUICKSTART, "yaml", "python:hello:agent"))
    with running_node(tmp_path, "--agents", "agents.yaml") as node:
        assert node.run("check", "--agents", "agents.yaml").returncode == 0
        assert "Hello, Ada!" in node.run("call", "hello", "greet", "--arg", "name=Ada").stdout


def test_the_python_example_of_the_quickstart_runs(node: Node, tmp_path: Path) -> None:
    example = _block(QUICKSTART, "python", "FabricClient").replace('token="…"', f'token="{node.token}"')
    body = example.replace("http://127.0.0.1:8000", node.url).split("\n\n", 1)
    indented = "\n".join("    " + line for line in body[1].splitlines())
    script = tmp_path / "example.py"
    script.write_text(f"import asyncio\n{body[0]}\n\nasync def main():\n{indented}\n\nasyncio.run(main())\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "100" in done.stdout
    assert "final" in done.stdout
