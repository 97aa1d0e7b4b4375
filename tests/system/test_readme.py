"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.pages import console_commands
from tests.system.node import Node, environment, run, running_node

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


def _python_blocks(page: str) -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "FabricClient" in block]


@pytest.mark.parametrize("block", [*_python_blocks("python-client.md"), *_python_blocks("quickstart.md")])
def test_the_python_of_the_pages_finds_the_node_and_works(block: str, node: Node) -> None:
    script = block if "import SyncFabricClient" in block else f"from a2a_fabric import SyncFabricClient\n{block}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=node.folder,
        env=environment(node.home),
    )
    assert done.returncode == 0, done.stderr
    assert "84" in done.stdout


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_the_agents_of_the_readme_exist_and_its_commands_work(tmp_path: Path) -> None:
    port, root = _free_port(), Path(__file__).parents[2]
    (tmp_path / "hello.py").write_text(_block(README, "python", "Agent("))
    entries = _block(README, "yaml", "agent_id: words").replace(":8001", f":{port}")
    (tmp_path / "examples").symlink_to(root / "examples")
    (tmp_path / "agents.yaml").write_text(entries)
    commands = [command.replace(":8001", f":{port}") for command in _commands("## Your own agents")]
    assert [command.split()[1] for command in commands] == ["probe", "check", "up", "call"]
    hello = subprocess.Popen([sys.executable, "hello.py", "--port", str(port)], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        assert hello.stderr is not None
        assert b"listens on" in hello.stderr.readline()
        with running_node(tmp_path, *shlex.split(commands[2])[2:]) as node:
            for command in (commands[0], commands[1], commands[3]):
                done = node.run(*shlex.split(command)[1:])
                assert done.returncode == 0, f"{command}: {done.stderr}"
            assert "Hello, Ada!" in done.stdout
            counted = node.run("call", "words", "count", "one two three")
            assert "3" in counted.stdout, counted.stderr
    finally:
        hello.kill()
        hello.communicate()


def test_the_commands_for_mcp_clients_work(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text('{"mcpServers": {"mine": {"command": "true"}}}')
    for command in _commands("## Claude, Cursor"):
        words = shlex.split(command.replace("~", str(tmp_path)))[1:]
        done = run(*words, home=tmp_path, folder=tmp_path, stdin="y\n", HOME=str(tmp_path))
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert "agent_id: mine" in (tmp_path / "agents.yaml").read_text()
