"""`a2a-fabric connect` beside a configuration or a node: what the client gets, and what becomes of its file."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import yaml

from a2a_fabric.cli.connect import ClientFile
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import lock_folder
from a2a_fabric.mcp_clients.client_config import ClientEntry, add_entry, remove_entry
from a2a_fabric.mcp_clients.clients import CLIENTS, Machine
from a2a_fabric.protocols.mcp.wire import INITIALIZE_REQUEST
from tests.fixtures.mcp_servers.serving import EVERYDAY
from tests.system.node import COMMAND, environment, running_node, until
from tests.system.test_import import Folder, entry_in, folder

__all__ = ["folder"]

ECHO = 'import sys; sys.stdout.write(\'{"answer": "here"}\')'
AGENT: dict[str, Any] = {
    "agent_id": "echo",
    "runtime": "process",
    "endpoint": {"command": [sys.executable, "-c", ECHO], "protocol": "oneshot"},
    "capabilities": [{"name": "say"}, {"name": "sing"}],
}
ENTRY = ClientEntry(name="fabric", value={"command": "/bin/a2a-fabric", "args": ["mcp"]})


def test_the_client_gets_the_configuration_of_the_folder_and_connect_says_what_it_saw(folder: Folder) -> None:
    file = folder.put("agents.yaml", json.dumps([AGENT]))
    done = folder("connect", "cursor")
    assert done.returncode == 0, done.stderr
    assert "tools of 1 agent," in done.stderr
    assert f"It uses {file}" in done.stderr
    assert entry_in(folder.home / ".cursor/mcp.json", "cursor")["args"][-2:] == ["--agents", str(file)]
    folder.put("fabric.yaml", "node_id: n\n")
    assert json.loads(folder("connect", "cursor", "--json").stdout)["checked"]["agents"] == 1
    args = entry_in(folder.home / ".cursor/mcp.json", "cursor")["args"]
    assert args[-2:] == ["--config", str(folder.path / "fabric.yaml")]


def test_a_configuration_that_cannot_start_is_not_connected(folder: Folder) -> None:
    folder.put("agents.yaml", "- agent_id: [\n")
    done = folder("connect", "cursor")
    assert done.returncode == 1
    assert "agents.yaml" in done.stderr
    assert not (folder.home / ".cursor/mcp.json").exists()


def test_secrets_of_the_shell_are_passed_on_by_the_clients_own_means(folder: Folder) -> None:
    agent = {**AGENT, "endpoint": {**AGENT["endpoint"], "env": {"KEY": "env:ECHO_KEY", "OTHER": "env:IN_FILE"}}}
    folder.put("agents.yaml", json.dumps([agent]))
    folder.put(".env", "IN_FILE=x\n")
    done = folder("connect", "claude-code", ECHO_KEY="secret-1")
    assert "ECHO_KEY" in done.stderr
    text = (folder.home / ".claude.json").read_text()
    assert json.loads(text)["mcpServers"]["fabric"]["env"]["ECHO_KEY"] == "${ECHO_KEY}"
    assert "secret-1" not in text
    assert "IN_FILE" not in text


def test_a_node_with_a_key_of_its_own_gets_no_entry_that_ends_with_401(tmp_path: Path) -> None:
    nodes, empty = tmp_path / "node", tmp_path / "user"
    nodes.mkdir()
    empty.mkdir()
    (nodes / "agents.yaml").write_text(json.dumps([AGENT]))
    with running_node(nodes, FABRIC_PSK="a-key-of-its-own") as node:
        folder = Folder(empty)
        own = {"FABRIC_HOME": str(node.home)}
        refused = folder("connect", "cursor", **own)
        assert refused.returncode == 1
        assert "Set FABRIC_TOKEN" in refused.stderr
        assert "FABRIC_PSK" in refused.stderr
        assert not (folder.home / ".cursor").exists()
        done = folder("connect", "cursor", **own, FABRIC_PSK="a-key-of-its-own")
        assert done.returncode == 0, done.stderr
        assert "of 1 agent," in done.stderr
        entry = entry_in(folder.home / ".cursor/mcp.json", "cursor")
        assert entry["env"]["FABRIC_PSK"] == "${env:FABRIC_PSK}"
        impossible = folder("connect", "claude-desktop", **own, FABRIC_PSK="a-key-of-its-own")
        assert impossible.returncode == 1
        assert "cannot pass variables on" in impossible.stderr
        told = folder("mcp", stdin="", **own)
        assert told.returncode == 1
        assert "Set FABRIC_TOKEN to the node's key" in told.stderr


def test_mcp_with_the_files_of_the_running_node_uses_that_node(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(json.dumps([AGENT]))
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo_say", "arguments": {}}}
    lines = [INITIALIZE_REQUEST, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]
    with running_node(tmp_path) as node:
        done = subprocess.run(
            [*COMMAND, "mcp", "--agents", str(tmp_path / "agents.yaml")],
            input="".join(json.dumps(line) + "\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(node.home),
            check=False,
        )
        assert "here" in done.stdout
        until(lambda: '"capability":"say"' in node.said, "the node to log the call")


def test_imported_servers_are_taken_out_and_come_back(folder: Folder) -> None:
    before = '{\n  // my servers\n  "mcpServers": {\n    "mine": {"command": "x"}, // stays\n    "every": %s,\n  }\n}\n'
    before %= json.dumps({"command": EVERYDAY[0], "args": EVERYDAY[1:]})
    file = folder.put("home/.cursor/mcp.json", before)
    assert folder("import", str(file), "--yes").returncode == 0
    offered = folder("connect", "cursor")
    assert "twice: mine, every" in offered.stderr or "twice: every" in offered.stderr
    assert "--replace" in offered.stderr
    replaced = json.loads(folder("connect", "cursor", "--replace", "--json").stdout)
    assert "every" in replaced["moved"]
    assert "every" not in file.read_text()
    assert "// my servers" in file.read_text()
    undone = folder("connect", "cursor", "--undo")
    assert undone.returncode == 0, undone.stderr
    assert "every" in undone.stderr
    again = file.read_text()
    assert "// my servers" in again
    assert '"fabric"' not in again
    assert '"every"' in again
    assert again == before, "not edited since, so it is the same to the character"
    assert [each.name for each in file.parent.iterdir()] == ["mcp.json"]


@pytest.mark.parametrize(
    "text",
    [
        '{\n  // why\n  "a": 1, // one\n  "mcpServers": {\n    "b": {"command": "//x"} /* b */\n  }\n}\n',
        '\ufeff{\r\n\t"mcpServers": {\r\n\t\t"b": {},\r\n\t},\r\n}\r\n',
        '{"a": [1, 2,], "mcpServers": {"b": {"command": "x"}}}',
        '// only words\n{\n  "mcpServers": {\n    "b": {} // last\n  }\n}\n// end\n',
        '{ // why\n "mcpServers": {"b": {"command": "y",}, },\n}\n',
    ],
)
def test_json_with_comments_keeps_every_character_of_the_user(text: str) -> None:
    client = CLIENTS["cursor"]
    added = add_entry(client, ENTRY, text, "mcp.json").text
    assert added is not None
    assert '"fabric"' in added
    for word in ("// why", "// one", "/* b */", "// only words", "// last", "// end", "\ufeff"):
        assert (word in added) == (word in text)
    assert remove_entry(client, "fabric", added, text, "mcp.json", {}).text == text


@pytest.mark.parametrize("text", ['{"mcpServers": {}}', "\ufeff{\n}\n", "{}"])
def test_a_file_without_servers_is_the_same_again_and_not_empty(text: str) -> None:
    client = CLIENTS["cursor"]
    added = add_entry(client, ENTRY, text, "mcp.json").text
    assert added is not None
    assert remove_entry(client, "fabric", added, text, "mcp.json", {}).text == text


def test_a_file_that_its_user_has_emptied_since_is_still_json() -> None:
    client, text = CLIENTS["cursor"], '{"mcpServers": {"b": {"command": "x"}}}'
    added = add_entry(client, ENTRY, "", "mcp.json").text
    assert added is not None
    assert remove_entry(client, "fabric", added, text, "mcp.json", {}).text == "{}\n"


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { other = { command = "x", env = { A = "b" } } } # mine\n',
        '[mcp_servers]\nother = { command = "x" }\n',
        '[mcp_servers.other]\ncommand = "x"\n',
        '# one\r\n[mcp_servers.other]\r\ncommand = "x"\r\n',
        "a = 1 # mine",
    ],
)
def test_toml_tables_in_every_form_are_edited(text: str) -> None:
    client = CLIENTS["codex"]
    entry = ClientEntry(
        name="fabric", value={"command": "/bin/a2a-fabric", "args": ["mcp"], "env": {"FABRIC_HOME": "/h"}}
    )
    added = add_entry(client, entry, text, "config.toml").text
    assert added is not None
    assert tomllib.loads(added)["mcp_servers"]["fabric"] == entry.value
    undone = remove_entry(client, "fabric", added, text, "config.toml", {}).text
    assert undone == text
    edited = remove_entry(client, "fabric", added + "[own]\na = 1\n", text, "config.toml", {}).text
    assert edited is not None
    assert tomllib.loads(edited) == {**tomllib.loads(text), "own": {"a": 1}}
    assert ("# mine" in edited) == ("# mine" in text)
    assert ("\r" in added) == ("\n" not in added.replace("\r\n", ""))


def test_a_file_that_is_read_only_or_changed_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    file = ClientFile(path)
    change = add_entry(CLIENTS["cursor"], ENTRY, file.text, str(path))
    path.write_text('{"mcpServers": {}, "other": 1}')
    with pytest.raises(ConfigError, match="has just changed"):
        file.write(change)
    path.chmod(0o400)
    with pytest.raises(ConfigError, match="read-only"):
        ClientFile(path).write(change)
    assert path.read_text() == '{"mcpServers": {}, "other": 1}'
    assert [each.name for each in tmp_path.iterdir()] == ["mcp.json"]


def test_a_change_waits_for_that_of_another_command_and_is_then_refused(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    file = ClientFile(path)
    change = add_entry(CLIENTS["cursor"], ENTRY, file.text, str(path))
    with ThreadPoolExecutor(1) as pool:
        with lock_folder(path):
            written = pool.submit(file.write, change)
            wait([written], 0.3)
            path.write_text('{"mcpServers": {}, "other": 1}')
        with pytest.raises(ConfigError, match="has just changed"):
            written.result()
    assert path.read_text() == '{"mcpServers": {}, "other": 1}'


def test_the_saved_copy_is_as_private_as_the_file(folder: Folder) -> None:
    file = folder.put("home/.cursor/mcp.json", '{"mcpServers": {"b": {"headers": {"Authorization": "Bearer s"}}}}')
    file.chmod(0o600)
    copy = Path(json.loads(folder("connect", "cursor", "--json").stdout)["backup"])
    assert copy.read_text().count("Bearer s") == 1
    for path in (file, copy):
        assert oct(path.stat().st_mode & 0o777) == oct(0o600), path


def test_a_symbolic_link_stays_one_and_a_loop_is_told(folder: Folder) -> None:
    real = folder.put("dotfiles/mcp.json", '{"mcpServers": {}}\n')
    link = folder.home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert folder("connect", "cursor").returncode == 0
    assert link.is_symlink()
    assert "fabric" in real.read_text()
    loop = folder.home / ".lmstudio" / "mcp.json"
    loop.parent.mkdir()
    loop.symlink_to(loop)
    done = folder("connect", "lmstudio")
    assert done.returncode == 1
    assert "symbolic links" in done.stderr
    assert "Traceback" not in done.stderr


GOOSE = """# My settings.
GOOSE_PROVIDER: "anthropic"   # the best
extensions:
  # Built in.
  developer:
    bundled: true
    enabled: true
    name: developer
    type: builtin
  every:
    enabled: true
    type: stdio
    name: every
    cmd: COMMAND
    args: [ARGS]   # as it was
    env_keys: [EVERY_KEY]
GOOSE_MODE: smart_approve   # the end
"""


def test_gooses_file_keeps_its_comments_and_its_servers_are_imported(folder: Folder) -> None:
    text = GOOSE.replace("COMMAND", EVERYDAY[0]).replace("ARGS", ", ".join(json.dumps(word) for word in EVERYDAY[1:]))
    file = folder.put("home/.config/goose/config.yaml", text)
    imported = folder("import", str(file), "--yes")
    assert imported.returncode == 0, imported.stderr
    assert "developer: skipped, it is built into the client" in imported.stderr
    assert "EVERY_KEY: 'env:EVERY_KEY'" in folder.text("agents.yaml")
    done = folder("connect", "goose", "--replace", "--name", "mine", EVERY_KEY="secret-1")
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load(file.read_text())
    assert list(written["extensions"]) == ["developer", "mine"]
    entry = written["extensions"]["mine"]
    assert (entry["type"], entry["name"], entry["enabled"], entry["env_keys"]) == ("stdio", "mine", True, ["EVERY_KEY"])
    for comment in ("# My settings.", "# the best", "# Built in.", "# the end"):
        assert comment in file.read_text()
    assert folder("connect", "goose", "--undo", "--name", "mine").returncode == 0
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(text)
    assert "# the best" in file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only words\n",
        "a: 1  # one",
        "extensions:\n  b: {cmd: x}   # b\na: 1\n",
        "extensions: {}\n",
        "extensions:\na: 1\n",
        "\ufeffa: 1\r\nextensions:\r\n    b:\r\n        cmd: x\r\n",
        "a: |\n  extensions:\n    b: 1\nextensions:\n  b:\n    description: |\n      words\n      more\n# end\n",
    ],
)
def test_yaml_is_edited_in_place(text: str) -> None:
    client = CLIENTS["goose"]
    added = add_entry(client, ENTRY, text, "config.yaml").text
    assert added is not None
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(added)
    assert after == {**before, "extensions": {**(before.get("extensions") or {}), "fabric": ENTRY.value}}
    assert all(word in added for word in ("# b", "# one", "# only words", "# end") if word in text)
    assert ("\n" in added.replace("\r\n", "")) is ("\r\n" not in text)
    undone = remove_entry(client, "fabric", added, text, "config.yaml", {}).text
    assert undone == text
    edited = remove_entry(client, "fabric", f"{added}\nown: 1\n", text, "config.yaml", {}).text
    assert edited is not None
    rest = {key: value for key, value in before.items() if value or key != "extensions"}
    assert yaml.safe_load(edited) == {**rest, "own": 1}
    assert (added.endswith("\n"), added.startswith("\ufeff")) == (text[-1:] in ("", "\n"), text.startswith("\ufeff"))


@pytest.mark.parametrize(("client", "older"), [
    ("cline", ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
    ("lmstudio", ".cache/lm-studio/mcp.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
])  # fmt: skip
def test_a_file_at_an_older_place_is_used_if_none_is_where_it_belongs(folder: Folder, client: str, older: str) -> None:
    file = folder.put(f"home/{older}", "{}\n")
    assert Path(json.loads(folder("connect", client, "--json").stdout)["path"]) == file.resolve()
    usual = CLIENTS[client].path(Machine(platform="linux", home=str(folder.home), environ={}))  # type: ignore[index]
    Path(usual).parent.mkdir(parents=True, exist_ok=True)
    Path(usual).write_text("{}\n")
    assert Path(json.loads(folder("connect", client, "--json").stdout)["path"]) == Path(usual).resolve()
