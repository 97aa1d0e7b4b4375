"""`a2a-fabric import`, `up --import` and `connect`, as a user runs them."""

from __future__ import annotations

import json
import stat
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from a2a_fabric.mcp_clients.clients import CLIENTS, Machine
from tests.fixtures.mcp_servers.serving import EVERYDAY
from tests.system.node import run, running_node, until

SERVERS = {
    "mcpServers": {
        "every day": {"command": EVERYDAY[0], "args": EVERYDAY[1:], "env": {"SOME_TOKEN": "very-secret-1"}},
        "off": {"command": "nothing", "disabled": True},
    }
}

# A developer may have these set, and the own files of a developer must stay as they are.
ELSEWHERE = ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")


class Folder:
    """An empty home and a folder to work in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / "home"
        self.home.mkdir(exist_ok=True)

    def __call__(self, *words: str, stdin: str | None = None, **env: str) -> CompletedProcess[str]:
        own = {"HOME": str(self.home), **dict.fromkeys(ELSEWHERE, "")}
        return run(*words, home=self.home, folder=self.path, stdin=stdin, **{**own, **env})

    def put(self, name: str, text: str) -> Path:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
        return self.path / name

    def text(self, name: str) -> str:
        return (self.path / name).read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_import_shows_the_difference_asks_and_writes(folder: Folder) -> None:
    folder.put("mcp.json", json.dumps(SERVERS))
    mine = "# mine\n- agent_id: percy  # first\n  endpoint: {uri: http://127.0.0.1:1}\n"
    folder.put("agents.yaml", mine)
    refused = folder("import", "mcp.json", stdin="n\n")
    assert refused.returncode == 0
    assert folder.text("agents.yaml") == mine
    done = folder("import", "mcp.json", stdin="y\n")
    assert done.returncode == 0, done.stderr
    assert "+- agent_id: every-day" in done.stdout
    assert "SOME_TOKEN" in done.stderr
    assert "MCP clients of this node will see" in done.stderr
    assert "off: skipped, it is disabled" in done.stderr
    assert folder.text("agents.yaml").startswith(mine)
    assert "very-secret-1" not in folder.text("agents.yaml") + done.stdout + done.stderr
    assert "env:SOME_TOKEN" in folder.text("agents.yaml")
    checked = folder("check", SOME_TOKEN="x")
    assert checked.returncode == 0, checked.stderr
    again = folder("import", "mcp.json", "--yes")
    assert "Nothing to add" in again.stderr


def test_import_for_programs(folder: Folder) -> None:
    folder.put("mcp.json", json.dumps(SERVERS))
    looked = json.loads(folder("import", "mcp.json", "--json").stdout)
    assert looked["written"] is False
    assert not (folder.path / "other.yaml").exists()
    done = json.loads(folder("import", "mcp.json", "--json", "--yes", "--agents", "other.yaml").stdout)
    assert (done["ok"], done["written"], done["path"]) == (True, True, "other.yaml")
    assert [each["agent_id"] for each in done["entries"]] == ["every-day"]
    assert [each["name"] for each in done["variables"]] == ["SOME_TOKEN"]
    assert "agent_id: every-day" in folder.text("other.yaml")


def test_import_of_a_broken_file_writes_nothing(folder: Folder) -> None:
    folder.put("mcp.json", '{"mcpServers": {')
    done = folder("import", "mcp.json", "--yes")
    assert done.returncode == 1
    assert "mcp.json:1: not valid JSON" in done.stderr
    assert not (folder.path / "agents.yaml").exists()


def test_up_uses_a_clients_file_without_writing_anything(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps(SERVERS))
    with running_node(tmp_path, "--import", "mcp.json") as node:

        def is_described() -> bool:
            return any(each["agent_id"] == "every-day" and each["capabilities"] for each in agents(node))

        until(is_described, "the server to be described")
        answer = node.run("call", "every-day", "add", "--json", "--context", '{"a": 20, "b": 22}')
        assert json.loads(answer.stdout)["result"] == {"sum": 42}
        assert [each["agent_id"] for each in agents(node)] == ["every-day"]
    assert not (tmp_path / "agents.yaml").exists()


def agents(node: Any) -> Any:
    listed = node.json("agents")
    return listed["agents"] if isinstance(listed, dict) else listed


@pytest.mark.parametrize("client", list(CLIENTS))
def test_connect_writes_what_the_client_reads(folder: Folder, client: str) -> None:
    done = json.loads(folder("connect", client, "--json").stdout)
    assert done["action"] == "connected"
    written = Path(done["path"])
    assert written.is_relative_to(folder.home)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    entry = entry_in(written, client)
    first = entry["cmd" if client == "goose" else "command"]
    command = first if client == "opencode" else [first, *entry["args"]]
    assert Path(command[0]).is_absolute()
    assert command[1:] == ["-m", "a2a_fabric", "mcp"]


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_connecting_twice_changes_nothing_and_undo_leaves_no_trace(folder: Folder, client: str) -> None:
    written = Path(json.loads(folder("connect", client, "--json").stdout)["path"])
    text = written.read_text()
    assert json.loads(folder("connect", client, "--json").stdout)["action"] == "already connected"
    assert written.read_text() == text
    assert json.loads(folder("connect", client, "--undo", "--json").stdout)["action"] == "disconnected"
    assert not written.exists()
    assert json.loads(folder("connect", client, "--undo", "--json").stdout)["action"] == "not connected"


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({"FABRIC_HOME": "state"}, {"FABRIC_HOME": "{folder}/state"}),
        ({"FABRIC_HOME": "", "XDG_STATE_HOME": "{folder}/x"}, {"XDG_STATE_HOME": "{folder}/x"}),
        (
            {"FABRIC_HOME": "", "XDG_STATE_HOME": "", "FABRIC_URL": "http://127.0.0.1:7777"},
            {"FABRIC_URL": "http://127.0.0.1:7777"},
        ),
    ],
)
def test_connect_keeps_what_finds_the_node(folder: Folder, variables: dict[str, str], kept: dict[str, str]) -> None:
    """Codex, for one, starts servers with few of its own variables: they would find another node, or none."""
    given = {name: value.format(folder=folder.path) for name, value in variables.items()}
    written = Path(json.loads(folder("connect", "codex", "--json", **given).stdout)["path"])
    wanted = {name: value.format(folder=folder.path) for name, value in kept.items()}
    assert entry_in(written, "codex")["env"] == wanted


@pytest.mark.parametrize(
    ("client", "variable", "place"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_connect_goes_where_the_client_was_told_to_look(folder: Folder, client: str, variable: str, place: str) -> None:
    elsewhere = folder.path / "elsewhere"
    done = json.loads(folder("connect", client, "--json", **{variable: str(elsewhere)}).stdout)
    assert Path(done["path"]) == (elsewhere / place).resolve()


def entry_in(path: Path, client: str) -> Any:
    known = CLIENTS[client]  # type: ignore[index]  # one of them
    parsers: dict[str, Callable[[str], Any]] = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    value = parsers[known.file_format](path.read_text())
    return value[known.key]["fabric"]


def test_a_linked_or_read_only_agents_file_is_not_replaced(folder: Folder) -> None:
    folder.put("mcp.json", json.dumps(SERVERS))
    real = folder.put("dotfiles/agents.yaml", "# mine\n")
    link = folder.path / "agents.yaml"
    link.symlink_to(real)
    assert folder("import", "mcp.json", "--yes", "--no-check").returncode == 0
    assert link.is_symlink()
    assert "every-day" in real.read_text()
    before = real.read_text()
    real.chmod(0o400)
    refused = folder("tools", "disable", "every-day.echo")
    assert refused.returncode == 1
    assert "read-only" in refused.stderr
    other = folder("import", "mcp.json", "--yes", "--json", "--agents", "nowhere/agents.yaml")
    assert other.returncode == 1
    assert "cannot be written" in json.loads(other.stdout)["error"]
    assert real.read_text() == before
    broken = folder("import", str(folder.put("broken.json", "{")), "--json")
    assert "not valid JSON" in json.loads(broken.stdout)["error"]


def test_connect_keeps_what_is_there_and_a_copy_of_it(folder: Folder) -> None:
    before = '{\n    "theme": "dark",\n    "mcpServers": {"mine": {"command": "x"}}\n}\n'
    file = folder.put("home/.cursor/mcp.json", before)
    done = folder("connect", "cursor")
    assert done.returncode == 0, done.stderr
    assert "Cursor: connected" in done.stdout
    value = json.loads(file.read_text())
    assert (value["theme"], list(value["mcpServers"])) == ("dark", ["mine", "fabric"])
    assert file.read_text().startswith('{\n    "theme"')
    (backup,) = file.parent.glob("mcp.json.*")
    assert backup.read_text() == before
    folder("connect", "cursor", "--url", "http://127.0.0.1:8123")
    assert entry_in(file, "cursor")["url"] == "http://127.0.0.1:8123/mcp"
    folder("connect", "cursor", "--undo")
    assert json.loads(file.read_text()) == json.loads(before)
    assert not backup.exists()


def test_undo_brings_back_an_entry_of_the_same_name(folder: Folder) -> None:
    before = {"mcpServers": {"fabric": {"command": "weaver"}}}
    file = folder.put("home/.gemini/settings.json", json.dumps(before))
    assert "Gemini CLI: updated" in folder("connect", "gemini").stdout
    folder("connect", "gemini", "--undo")
    assert json.loads(file.read_text()) == before


def test_codexs_file_keeps_its_comments(folder: Folder) -> None:
    before = '# mine\nmodel = "o"\n\n[mcp_servers.other]\ncommand = "x"  # this\n\n[profiles.a]\nmodel = "p"\n'
    file = folder.put("home/.codex/config.toml", before)
    folder("connect", "codex", "--http")
    assert entry_in(file, "codex") == {"url": "http://127.0.0.1:8000/mcp", "bearer_token_env_var": "FABRIC_TOKEN"}
    assert file.read_text().startswith(before.rstrip())
    folder("connect", "codex")
    assert entry_in(file, "codex")["args"] == ["-m", "a2a_fabric", "mcp"]
    folder("connect", "codex", "--undo")
    assert file.read_text().rstrip() == before.rstrip()


@pytest.mark.parametrize(
    ("client", "name", "text", "complaint"),
    [
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {', "not valid JSON"),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": []}', "not a table"),
        ("codex", ".codex/config.toml", "a = [", "not valid TOML"),
        ("codex", ".codex/config.toml", 'mcp_servers = "none"\n', "not a table"),
        ("goose", ".config/goose/config.yaml", "extensions: [", "not valid YAML"),
        ("goose", ".config/goose/config.yaml", "extensions: []\na: 1\nextensions: {}\n", "written twice"),
        ("goose", ".config/goose/config.yaml", "extensions: [a]\n", "not a table"),
        ("goose", ".config/goose/config.yaml", "{extensions: {a: {cmd: x}}}\n", "cannot be changed safely"),
    ],
)
def test_a_file_that_cannot_be_changed_stays_as_it_is(
    folder: Folder, client: str, name: str, text: str, complaint: str
) -> None:
    file = folder.put(f"home/{name}", text)
    done = folder("connect", client)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert str(file) in done.stderr
    assert file.read_text() == text
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_print_shows_the_entry_and_changes_nothing(folder: Folder) -> None:
    shown = folder("connect", "vscode", "--http", "--print")
    value = json.loads(shown.stdout)
    assert value["servers"]["fabric"]["headers"] == {"Authorization": "Bearer ${input:fabric-token}"}
    assert value["inputs"][0]["password"] is True
    assert not (folder.home / ".config").exists()
    shown = folder("connect", "claude-code", "--print", "--config", "fabric.yaml", "--name", "mine")
    args = json.loads(shown.stdout)["mcpServers"]["mine"]["args"]
    assert args[-2:] == ["--config", str(folder.path / "fabric.yaml")]


def test_misuse_is_told(folder: Folder) -> None:
    unknown = folder("connect", "claude")
    assert unknown.returncode == 2
    assert "claude-code" in unknown.stderr
    impossible = folder("connect", "claude-desktop", "--http")
    assert impossible.returncode == 2
    assert "leave out --http" in " ".join(impossible.stderr.split())


@pytest.mark.parametrize(
    ("platform", "client", "path"),
    [
        ("darwin", "claude-desktop", "/h/Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", "claude-desktop", "/roaming/Claude/claude_desktop_config.json"),
        ("linux", "claude-desktop", "/h/.config/Claude/claude_desktop_config.json"),
        ("darwin", "vscode", "/h/Library/Application Support/Code/User/mcp.json"),
        ("win32", "vscode", "/roaming/Code/User/mcp.json"),
        ("linux", "codex", "/h/.codex/config.toml"),
        ("linux", "claude-code", "/h/.claude.json"),
        ("darwin", "cline", "/h/.cline/data/settings/cline_mcp_settings.json"),
        ("darwin", "goose", "/h/.config/goose/config.yaml"),
        ("win32", "goose", "/roaming/Block/goose/config/config.yaml"),
        ("darwin", "zed", "/h/.config/zed/settings.json"),
        ("win32", "lmstudio", "/h/.lmstudio/mcp.json"),
    ],
)
def test_each_system_has_its_own_places(platform: str, client: str, path: str) -> None:
    machine = Machine(platform=platform, home="/h", environ={"APPDATA": "/roaming"})
    assert str(CLIENTS[client].path(machine)) == path  # type: ignore[index]  # one of them


def test_what_connect_writes_can_be_started(folder: Folder) -> None:
    value = json.loads(folder("connect", "cursor", "--print").stdout)["mcpServers"]["fabric"]
    assert value["command"] == sys.executable
    assert folder(*value["args"][2:], "--help").returncode == 0
