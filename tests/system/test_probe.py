"""`a2a-fabric probe`, as a user runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.fixtures.agents.calling import HERE as AGENTS
from tests.fixtures.node import PSK, running_in_thread
from tests.marks import requirement
from tests.system.node import run, running_node, until

PROGRAM = [sys.executable, str(AGENTS / "jsonl_program.py")]


class Folder:
    """A folder to work in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *words: str, stdin: str | None = None, **env: str) -> CompletedProcess[str]:
        return run(*words, home=self.path, folder=self.path, stdin=stdin, **env)

    def text(self, name: str) -> str:
        return (self.path / name).read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def other_node() -> Iterator[str]:
    with running_in_thread() as url:
        yield url


@requirement("001-18")
def test_a_program_is_recognised_added_and_called(folder: Folder) -> None:
    (folder.path / "agents.yaml").write_text("# mine\nagents: []\n")
    looked = folder("probe", *PROGRAM)
    assert looked.returncode == 0, looked.stderr
    assert "JSON lines" in looked.stderr
    assert "offers echo" in looked.stderr
    (entry,) = yaml.safe_load(looked.stdout)
    assert entry == {
        "agent_id": "jsonl_program",
        "runtime": "process",
        "description": "bad habits",
        "endpoint": {"command": PROGRAM},
    }
    refused = folder("probe", *PROGRAM, "--add", stdin="n\n")
    assert (refused.returncode, folder.text("agents.yaml")) == (0, "# mine\nagents: []\n")
    added = folder("probe", *PROGRAM, "--add", "--id", "habits", stdin="y\n")
    assert added.returncode == 0, added.stderr
    assert folder.text("agents.yaml").startswith("# mine\n")
    again = folder("probe", *PROGRAM, "--add", "--id", "habits", "--yes")
    assert "The agent is in agents.yaml already" in again.stderr
    with running_node(folder.path) as node:
        answer = node.run("call", "habits", "echo", "hello", "--json")
        assert json.loads(answer.stdout)["result"]["request"]["name"] == "echo"


@requirement("001-18")
def test_another_node_is_recognised_and_its_key_never_written(folder: Folder, other_node: str) -> None:
    words = ("probe", other_node, "--id", "lab", "--header", f"Authorization=Bearer {PSK}", "--add", "--yes", "--json")
    done = json.loads(folder(*words).stdout)
    assert (done["ok"], done["added"]) == (True, True)
    assert {"protocol", "outcome", "seconds", "found"} == set(done["tried"][0])
    (variable,) = done["variables"]
    entry = {"agent_id": "lab", "runtime": "fabric", "endpoint": {"uri": other_node, "psk": f"env:{variable['name']}"}}
    assert {**done["manifest"], "description": ""} == {**entry, "description": ""}
    assert PSK not in folder.text("agents.yaml") + json.dumps(done)
    checked = folder("check", **{variable["name"]: PSK})
    assert checked.returncode == 0, checked.stderr


def test_the_node_that_runs_with_the_file_adds_agents_and_programs_only_where_that_is_safe(
    folder: Folder, other_node: str
) -> None:
    (folder.path / "agents.yaml").write_text("agents: []\n")
    (folder.path / "fabric.yaml").write_text("public_url: http://127.0.0.1:1\n")  # as if other machines reached it
    (folder.path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"p": {"command": PROGRAM[0], "args": PROGRAM[1:]}}})
    )
    with running_node(folder.path) as node:
        header = f"Authorization=Bearer {PSK}"
        words = ("probe", other_node, "--id", "lab", "--header", header, "--add", "--yes")
        added = node.run(*words)
        assert f"The node at {node.url} wrote agents.yaml and uses it now" in added.stderr
        assert [each["agent_id"] for each in node.json("agents")["agents"]] == ["lab"], (
            "the reply came after the change"
        )
        assert PSK not in folder.text("agents.yaml")
        again = node.json(*words)
        assert (again["added"], again["node"]) == (False, node.url)
        elsewhere = node.run("import", "mcp.json", "--yes", FABRIC_URL=node.url)
        assert (elsewhere.returncode, "Programs cannot be added here" in elsewhere.stderr) == (1, True)
        imported = node.run("import", "mcp.json", "--yes", "--no-check")
        assert "This command wrote agents.yaml, because the node refused: Programs cannot" in imported.stderr
        until(lambda: len(node.json("agents")["agents"]) == 2, "the node to follow the file")
        both = node.run("tools", "disable", "lab.x", "--agents", "agents.yaml", "--url", node.url)
        assert "Leave out --url" in both.stderr
    offline = folder("tools", "disable", "lab.x", FABRIC_HOME=str(folder.path / "home"))
    assert "No node runs with agents.yaml, so this command wrote it" in offline.stderr


def test_secrets_for_a_program_become_references(folder: Folder) -> None:
    words = ("--env", "API_TOKEN=very-secret-1", "--env", "MODE=quick", "--env", "KEPT=env:OTHER", "--add", "--yes")
    done = folder("probe", *PROGRAM, *words, OTHER="x")
    assert done.returncode == 0, done.stderr
    (entry,) = yaml.safe_load(folder.text("agents.yaml"))["agents"]
    assert entry["endpoint"]["env"] == {"API_TOKEN": "env:API_TOKEN", "MODE": "quick", "KEPT": "env:OTHER"}
    assert "very-secret-1" not in done.stdout + done.stderr + folder.text("agents.yaml")
    assert "Set API_TOKEN" in done.stderr


def test_an_id_that_is_taken_or_none_is_refused(folder: Folder) -> None:
    (folder.path / "agents.yaml").write_text("- {agent_id: taken, endpoint: {uri: 'http://127.0.0.1:9/'}}\n")
    before = folder.text("agents.yaml")
    for wanted, why in (("taken", "Choose another --id"), ("no spaces", "--id")):
        done = folder("probe", *PROGRAM, "--id", wanted, "--add", "--yes")
        assert done.returncode == 1
        assert why in done.stderr
    assert folder.text("agents.yaml") == before


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("http://127.0.0.1:9/",), 1, "No connection"),
        (("./no-such-program",), 1, "cannot be found"),
        (("--", sys.executable, "-c", "print('hello')"), 1, "exited with code 0"),
        (("",), 2, "name an address or a program"),
        (("http://127.0.0.1:9/", "--header", "nothing"), 1, "NAME=VALUE"),
        (("http://127.0.0.1:9/", "--header", "X=env:NOT_SET_ANYWHERE"), 1, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_what_cannot_be_found_out_says_why(folder: Folder, words: tuple[str, ...], code: int, told: str) -> None:
    done = folder("probe", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_printed_for_failures_too(folder: Folder) -> None:
    done = folder("probe", "http://127.0.0.1:9/", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["manifest"]) == (1, False, None)
