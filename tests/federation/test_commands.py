"""Making, checking, entering and exporting agents by commands, as a user types them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.federation.pages import serving_pages
from tests.federation.sample import EXAMPLE, ROOT, copy_example, make_repository
from tests.marks import requirement
from tests.system.node import run, running_node, until

CARD: dict[str, Any] = {
    "name": "basil",
    "version": "1.0.0",
    "description": "Cooks.",
    "signals": ["pinterest.com", "recipe"],
    "skills": [{"id": "cook", "description": "Cooks.", "triggers": ["cook this"]}],
    "context": "personal",
    "invocation": {"type": "claude-subprocess", "systemPrompt": "./CLAUDE.md"},
    "provider": {"name": "Kitchen"},
    "observability": {"attributes": {}},
}


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Any]:
    """Run a command in the test's folder; the report as JSON."""

    def command(*words: str, code: int = 0) -> Any:
        done = run(*words, "--json", home=tmp_path / "home", folder=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    return command


def write_agent(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.json").write_text(json.dumps({**CARD, **changes}, indent=1))
    (folder / "CLAUDE.md").write_text("Cook.")
    return folder


def test_agents_that_several_commands_add_at_once_are_all_there(tmp_path: Path, command: Callable[..., Any]) -> None:
    names = [f"basil-{number}" for number in range(4)]
    for name in names:
        write_agent(tmp_path / name, name=name)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: command("agents", "add", name), names))
    assert sorted(json.loads((tmp_path / "registry.json").read_text())["agents"]) == names


def list_messages(report: Any, level: str) -> str:
    return "\n".join(
        f"{each['place']}: {each['field']}: {each['message']}" for each in report["findings"] if each["level"] == level
    )


def test_the_example_has_no_errors_and_its_index_is_current(tmp_path: Path) -> None:
    done = run("agents", "lint", str(EXAMPLE), home=tmp_path, folder=ROOT)
    assert done.returncode == 0, done.stdout
    assert "3 agents, 0 errors" in done.stderr
    assert run("registry", "index", str(EXAMPLE), "--check", home=tmp_path, folder=ROOT).returncode == 0


@requirement("003-19", "003-35", "003-36")
def test_likely_mistakes_are_warnings_with_file_line_and_field(tmp_path: Path, command: Callable[..., Any]) -> None:
    folder = write_agent(
        tmp_path / "agents" / "basil",
        signals=["help", "Recipe", "do it", "recipe"],
        capabilities=[{"name": "ParseRecipe", "description": "x"}],
        dependencies={"mcps": [{"name": "notion", "capabilities": ["bake"]}]},
        context=None,
        observability=None,
    )
    (folder / ".mcp.json").write_text(
        json.dumps(
            {
                "mcpServers": {
                    "mail": {"command": "/opt/mail", "env": {"MAIL_TOKEN": "abcdef123456", "OTHER": "${OTHER}"}},
                    "web": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer abc"}},
                }
            },
            indent=1,
        )
    )
    (folder / "notes.md").write_text("line\nthe key is ghp_" + "a" * 36 + "\n")
    (folder / ".env").write_text("X=1")
    report = command("agents", "lint", "agents")
    assert report["errors"] == 0
    warnings = list_messages(report, "warning")
    for words in (
        "agent.json:6: signals[0]: 'help' is vague",
        "agent.json:7: signals[1]: 'Recipe' is not in lowercase",
        "signals[2]: 'do it' is vague",
        "capabilities[0].name: 'ParseRecipe' is not snake_case",
        "`context` is missing",
        "`observability` is missing",
        "dependencies.mcps[0].name: the MCP server 'notion' is not in .mcp.json",
        "dependencies.mcps[0].capabilities[0]: the agent has no skill 'bake'",
        "mcpServers.mail.command: '/opt/mail' is a path of one machine",
        "mcpServers.mail.env.MAIL_TOKEN: this is a credential",
        "mcpServers.web.headers.Authorization: this is a credential",
        "notes.md:2: : this looks like a secret",
        ".env: : secrets do not belong into an agent's folder",
    ):
        assert words in warnings, words
    assert "OTHER" not in warnings
    assert "ghp_aaa" not in warnings
    assert command("agents", "lint", "agents", "--strict", code=1)["ok"] is False


def test_errors_name_file_line_and_field_and_every_folder_is_checked(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    write_agent(tmp_path / "agents" / "good")
    write_agent(tmp_path / "agents" / "twin")
    write_agent(tmp_path / "agents" / "odd", name="odd", version="one")
    write_agent(
        tmp_path / "agents" / "path", name="path", invocation={"type": "claude-subprocess", "systemPrompt": "../x"}
    )
    (tmp_path / "agents" / "bare").mkdir()
    (tmp_path / "agents" / "bare" / "CLAUDE.md").write_text("x")
    errors = list_messages(command("agents", "lint", "agents", code=1), "error")
    for words in (
        "twin/agent.json:2: name: there is another agent 'basil'",
        "odd/agent.json:3: version: ",
        "invocation.systemPrompt: '../x' leads out of the agent's folder",
        "bare: : the folder has no agent.json, which every agent must have",
    ):
        assert words in errors, (words, errors)


@requirement("003-28")
def test_a_registry_is_checked_with_its_index_its_folders_and_its_locations(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    rules = [
        {"condition": "herbs", "action": "delegate to rosa"},
        {"condition": "x", "action": "ask somebody politely"},
    ]
    with_others = {"dependencies": {"agents": ["absent", "gone"]}, "coordination": {"rules": rules}}
    write_agent(tmp_path / "agents" / "basil", **with_others)
    write_agent(tmp_path / "agents" / "forgotten", name="forgotten")
    registry = {
        "version": "3.0",
        "agents": {
            "basil": {"location": {"type": "local", "path": "./agents/basil"}, "signals": ["it"]},
            "gone": {"location": {"type": "local", "path": "./agents/gone"}},
            "loose": {"location": {"type": "git", "repo": "github.com/u/r"}},
        },
        "skillIndex": {"cook": "basil", "fly": "nowhere"},
        "routing": {"defaultAgent": "nowhere"},
    }
    (tmp_path / "registry.json").write_text(json.dumps(registry, indent=1))
    report = command("agents", "lint", ".", code=1)
    errors, warnings = list_messages(report, "error"), list_messages(report, "warning")
    assert "agents.gone.location.path: there is no agent.json" in errors
    assert "agents.loose.location: the code is not pinned" in errors
    assert "skillIndex.fly: there is no agent 'nowhere'" in warnings
    assert "routing.defaultAgent: there is no agent 'nowhere'" in warnings
    assert "agents.basil.signals[0]: 'it' is vague" in warnings
    assert "forgotten' has a card and is not in the registry" in warnings
    assert "dependencies.agents[0]: there is no agent 'absent'" in warnings
    assert "dependencies.agents[1]" not in warnings
    assert "coordination.rules[0].action: there is no agent 'rosa'" in warnings
    assert "coordination.rules[1]" not in warnings
    index = command("registry", "index", ".")
    assert index["skillIndex"] == {"cook": "basil"}
    assert json.loads((tmp_path / "registry.json").read_text())["skillIndex"] == {"cook": "basil"}


@requirement("003-33")
def test_a_breaking_change_without_a_major_version_is_seen_against_the_last_commit(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    folder = write_agent(tmp_path / "agents" / "basil")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q"], ["add", "agents"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    changed = {"id": "cook", "description": "Cooks.", "inputSchema": schema}
    cases: list[tuple[str, Any, str]] = [
        ("1.0.0", CARD["skills"], ""),
        ("1.1.0", [changed], "a breaking change needs a new MAJOR version after 1.0.0: 'cook' now requires 'x'"),
        ("1.1.0", [{"id": "bake", "description": "x"}], "'cook' is gone"),
        ("2.0.0", [{"id": "bake", "description": "x"}], ""),
        ("1.0.1", [*CARD["skills"], {"id": "bake", "description": "x"}], "a new skill needs a new MINOR version"),
        ("1.1.0", [*CARD["skills"], {"id": "bake", "description": "x"}], ""),
        ("0.9.0", CARD["skills"], "the version went back from 1.0.0"),
    ]
    for version, skills, problem in cases:
        write_agent(folder, version=version, skills=skills)
        warnings = list_messages(command("agents", "lint", "agents"), "warning")
        assert problem in warnings
        assert bool(problem) == ("version:" in warnings), (version, warnings)


def test_a_card_and_a_registry_at_a_url_are_checked(command: Callable[..., Any]) -> None:
    with serving_pages() as pages:
        pages["/agent.json"] = json.dumps({key: value for key, value in CARD.items() if key != "invocation"})
        pages["/registry.json"] = json.dumps({"version": "3.0", "agents": {}, "skillIndex": {"a": "b"}})
        report = command("agents", "lint", f"{pages.url}/agent.json", code=1)
        assert "needs an `invocation`" in list_messages(report, "error")
        report = command("agents", "lint", f"{pages.url}/registry.json")
        assert "there is no agent 'b'" in list_messages(report, "warning")


@pytest.mark.parametrize("kind", ["claude", "http", "grpc", "python"])
def test_a_new_folder_passes_the_check_and_is_not_written_twice(
    tmp_path: Path, command: Callable[..., Any], kind: str
) -> None:
    command("agents", "new", "my-agent", "--type", kind)
    report = command("agents", "lint", "agents", "--strict")
    assert (report["agents"], report["findings"]) == (1, [])
    assert command("agents", "lint", ".", "--strict")["agents"] == 1
    (tmp_path / "empty").mkdir()
    assert "there is no agent here" in list_messages(command("agents", "lint", "empty", code=1), "error")
    again = command("agents", "new", "my-agent", "--type", kind, code=1)
    assert "there is such a folder already" in again["error"]
    wrong = command("agents", "new", "My Agent", code=1)
    assert "cannot be the name of an agent" in wrong["error"]


@requirement("003-16", "003-17", "003-29")
def test_new_agents_answer_through_a_node_that_has_their_folder(tmp_path: Path, command: Callable[..., Any]) -> None:
    for kind in ("python", "http", "grpc"):
        command("agents", "new", f"my-{kind}", "--type", kind)
        command("agents", "add", f"agents/my-{kind}")
    ports = {}
    programs = []
    for kind in ("http", "grpc"):
        folder = tmp_path / "agents" / f"my-{kind}"
        port = ports[kind] = _find_port()
        old = {"http": "9001", "grpc": "9002"}[kind]
        for name in ("agent.json", "agent.py"):
            (folder / name).write_text((folder / name).read_text().replace(old, str(port)))
        programs.append(subprocess.Popen([sys.executable, "agent.py"], cwd=folder))
    try:
        with running_node(tmp_path) as node:  # which finds the registry in its folder
            for kind in ("python", "http", "grpc"):

                def call(kind: str = kind) -> Any:
                    done = node.run("call", f"my-{kind}", "answer", "hello", "--json")
                    return done.stdout if done.returncode == 0 else None

                assert f"My {kind.title()} read: hello" in until(call, f"the {kind} agent")
            listed = {each["agent_id"]: each for each in node.json("agents")["agents"]}
            assert listed["my-http"]["role"] == "Assistant"
            exported = node.json("agents", "export", "my-python", "--into", "exported")
            card = json.loads((tmp_path / exported["path"] / "agent.json").read_text())
            assert card["skills"][0]["id"] == "answer"
            assert card["invocation"]["url"].endswith("/agents/my-python")
            assert command("agents", "lint", "exported")["errors"] == 0
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_repositories_and_urls_are_entered_pinned(tmp_path: Path, command: Callable[..., Any]) -> None:
    commit = make_repository(tmp_path / "wise.git")
    entry = command("agents", "add", str(tmp_path / "wise.git"))["entry"]
    assert entry["location"] == {
        "type": "git",
        "repo": f"file://{tmp_path}/wise.git",
        "commit": commit,
        "localPath": "./agents/external/wise",
    }
    trusted = command("agents", "add", "github.com/user/other", "--trust", "--branch", "main")["entry"]
    assert trusted["location"]["trust"] is True
    assert "commit" not in trusted["location"]
    with serving_pages() as pages:
        pages["/agent.json"] = json.dumps({**CARD, "name": "far", "invocation": {"type": "http", "url": pages.url}})
        entry = command("agents", "add", f"{pages.url}/agent.json")["entry"]
        assert entry["location"] == {"type": "remote", "url": f"{pages.url}/agent.json"}
    (tmp_path / "empty").mkdir()
    assert "there is no agent.json" in command("agents", "add", "empty", code=1)["error"]
    assert "There is no folder 'absent'" in command("agents", "add", "absent", code=1)["error"]
    assert "already" in command("agents", "add", str(tmp_path / "wise.git"), code=1)["error"]


def test_an_old_registry_is_upgraded_once(tmp_path: Path, command: Callable[..., Any]) -> None:
    write_agent(tmp_path / "agents" / "basil")
    old = {"version": "2.0", "agents": [{"name": "basil", "signals": ["recipe"], "personality": "Warm."}]}
    (tmp_path / "registry.json").write_text(json.dumps(old))
    assert command("registry", "upgrade")["changed"] is True
    value = json.loads((tmp_path / "registry.json").read_text())
    assert value["version"] == "3.0"
    assert value["agents"]["basil"]["location"] == {"type": "local", "path": "./agents/basil"}
    assert value["agents"]["basil"]["personality"] == "Warm."
    assert command("registry", "upgrade")["changed"] is False
    assert "there is no such file" in command("registry", "show", "nowhere", code=1)["error"]


@requirement("003-27")
def test_a_registry_is_shown_with_its_routing(tmp_path: Path, command: Callable[..., Any]) -> None:
    copy_example(tmp_path)
    shown = command("registry", "show", "federation")
    assert {each["name"]: each["context"] for each in shown["agents"]} == {
        "basil": "personal",
        "calendar": "work",
        "units": "shared",
        "wise": "shared",
    }
    assert shown["routing"]["switch_commands"] == ["talk to", "switch to"]
    assert shown["routing"]["multi_agent_triggers"] == ["and also", "then"]
    assert shown["skillIndex"]["give-advice"] == "wise"
    assert shown["problems"] == {}
