"""Other clients' files as agents: every known shape, secrets by reference, an agents.yaml that keeps its comments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.agents_yaml import add_entries, unified_diff
from a2a_fabric.importing.secrets import References, is_secret
from a2a_fabric.importing.servers import build_entries, parse_servers, read_servers, to_agent_id

FILES = {
    "mcp.json": '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "srv"]}}}',
    "settings.json": '{"mcp": {"servers": {"files": {"type": "stdio", "command": "npx", "args": ["-y", "srv"]}}}}',
    "vscode.json": '{\n// mine\n"servers": {"files": {"command": "npx", "args": ["-y", "srv",], /* x */},},}',
    "librechat.yaml": "version: 1\nmcpServers:\n  files:\n    command: npx\n    args: [-y, srv]\n",
    "config.toml": '[mcp_servers.files]\ncommand = "npx"\nargs = ["-y", "srv"]\n',
}


@pytest.mark.parametrize("name", FILES)
def test_every_clients_file_gives_the_same_server(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (server,) = read_servers(tmp_path / name).servers
    assert (server.name, server.command) == ("files", ("npx", "-y", "srv"))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", '{"mcpServers": {\n"x": }', "a.json:2: not valid JSON"),
        ("a.json", "[]", "no `mcpServers`"),
        ("a.json", '{"mcpServers": 3}', "no `mcpServers`"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.toml", "a = [", "not valid TOML"),
        ("a.json", "\x00", "not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_servers(tmp_path / name)
    assert complaint in caught.value.message
    assert name in caught.value.message


def imported(servers: dict[str, Any], *present: Manifest) -> Any:
    found = parse_servers({"mcpServers": servers}, "test")
    return build_entries([found], {each.agent_id: each for each in present}, References())


def test_what_cannot_be_used_is_left_out_with_a_remark() -> None:
    done = imported(
        {
            "off": {"command": "x", "disabled": True},
            "off2": {"command": "x", "enabled": False},
            "odd": 3,
            "empty": {},
            "socket": {"type": "websocket", "url": "wss://x.example"},
            "good": {"command": "x", "alwaysAllow": [], "timeout": 3},
        }
    )
    assert [entry["agent_id"] for entry in done.entries] == ["good"]
    told = "\n".join(done.remarks)
    for each in ("off: skipped, it is disabled", "off2: skipped", "odd: skipped", "empty: skipped", "socket: skipped"):
        assert each in told
    assert "good: ignored alwaysAllow, timeout" in told


def test_secrets_become_references_and_the_rest_stays() -> None:
    done = imported(
        {
            "hub": {
                "command": "docker",
                "args": ["run", "--port", "80", "--api-key", "hunter2hunter2", "--token=abc"],
                "env": {"GITHUB_TOKEN": "ghp_abcdefghijklmnop1234", "LOG_LEVEL": "debug", "RETRIES": 3, "TOKEN": "t"},
            },
            "web": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer abc", "X-Org": "acme"}},
            "query": {"url": "https://x.example/mcp?apiKey=123abc"},
        }
    )
    hub, web, query = (entry["endpoint"] for entry in done.entries)
    assert hub["env"] == {
        "GITHUB_TOKEN": "env:GITHUB_TOKEN", "LOG_LEVEL": "debug", "RETRIES": "3", "TOKEN": "env:HUB_TOKEN",
    }  # fmt: skip
    assert hub["command"][:4] == ["docker", "run", "--port", "80"]
    assert hub["command"][4:] == ["--api-key", "env:API_KEY", "env:HUB_TOKEN_2"]
    assert web == {
        "transport": "http",
        "uri": "https://x.example/mcp",
        "headers": {"Authorization": "env:WEB_AUTHORIZATION", "X-Org": "acme"},
    }
    assert query["uri"] == "env:QUERY_URL"
    assert {each.name for each in done.variables} == {
        "GITHUB_TOKEN", "HUB_TOKEN", "API_KEY", "HUB_TOKEN_2", "WEB_AUTHORIZATION", "QUERY_URL",
    }  # fmt: skip
    assert "ghp_" not in str(done)
    assert "hunter2" not in str(done)


def test_references_to_variables_stay_references() -> None:
    env = {"A": "${HOME_KEY}", "B": "$OTHER", "C": "${env:THIRD}", "D": "${input:my-key}", "E": "Bearer ${X}"}
    done = imported({"s": {"command": "run", "args": ["${workspaceFolder}/x"], "env": env}})
    endpoint = done.entries[0]["endpoint"]
    assert endpoint["env"] == {
        "A": "env:HOME_KEY", "B": "env:OTHER", "C": "env:THIRD", "D": "env:MY_KEY", "E": "env:S_E",
    }  # fmt: skip
    assert endpoint["command"] == ["run", "./x"]


def test_two_secrets_of_one_name_get_two_variables() -> None:
    done = imported(
        {
            "a": {"command": "x", "env": {"API_KEY": "one"}},
            "b": {"command": "y", "env": {"API_KEY": "two"}},
            "c": {"command": "z", "env": {"API_KEY": "one"}},
        }
    )
    assert [entry["endpoint"]["env"]["API_KEY"] for entry in done.entries] == [
        "env:API_KEY", "env:B_API_KEY", "env:API_KEY",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "is_one"),
    [
        ("API_KEY", "x", True),
        ("password", "x", True),
        ("KEY_FILE", "/etc/key", False),
        ("MAX_TOKENS", "100", False),
        ("TOKEN", "true", False),
        ("SOMETHING", "sk-abcdefgh1234", True),
        ("DATABASE", "postgres://u:p@host/db", True),
        ("X", "a0" * 20, True),
        ("PATH", "/usr/local/lib/node_modules/something/very/long1", False),
        ("PACKAGE", "@modelcontextprotocol/server-filesystem", False),
    ],
)
def test_secrets_are_known_by_name_or_by_looks(name: str, value: str, is_one: bool) -> None:
    assert is_secret(name, value) is is_one


def test_ids_are_made_valid_and_unique() -> None:
    assert to_agent_id("My Files (local)") == "My-Files-local"
    assert to_agent_id("@@") == "server"
    taken = Manifest(agent_id="files", endpoint={"uri": "http://127.0.0.1:1"})
    done = imported({"files": {"command": "a"}, "fi les": {"command": "b"}, "fi-les": {"command": "c"}}, taken)
    assert [entry["agent_id"] for entry in done.entries] == ["files-2", "fi-les", "fi-les-2"]


def test_importing_twice_adds_nothing() -> None:
    servers = {"files": {"command": "a"}, "fi les": {"command": "b"}}
    first = imported(servers)
    present = [Manifest(agent_id=each["agent_id"], endpoint=each["endpoint"]) for each in first.entries]
    assert imported(servers, *present).entries == ()


NEW = [{"agent_id": "new", "runtime": "mcp", "endpoint": {"transport": "stdio", "command": ["x"]}}]
ADDED = "- agent_id: new\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only words\n",
        "[]\n",
        "agents:\n",
        "agents: []  # none yet\n",
        "agents:\n# none yet\ntools: []\n",
        "- agent_id: a\n  endpoint: {uri: x}",
        "- agent_id: a # one\n  endpoint:\n    uri: x\n\n# the end\n",
        "agents:\n- agent_id: a\n  endpoint: {}\ntools: [x]  # left alone\n",
        "agents:\n    - agent_id: a\n      description: |\n        two\n        lines\n      endpoint: {}\n# end\n",
        "tools: []\n",
    ],
)
def test_an_agents_file_is_extended_and_keeps_every_line(text: str) -> None:
    after = add_entries(text, NEW, "agents.yaml")
    assert ADDED in after
    removed = [
        line for line in unified_diff(text, after, "x").splitlines() if line.startswith("-") and "--- " not in line
    ]
    assert all("[]" in line for line in removed)
    for comment in ("# only words", "# none yet", "# one", "# the end", "# left alone", "# end"):
        assert (comment in text) == (comment in after)


def test_a_list_on_one_line_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="--agents"):
        add_entries("agents: [{agent_id: a, endpoint: {}}]\n", NEW, "agents.yaml")
