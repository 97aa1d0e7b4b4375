"""`a2a-fabric tools` and `a2a-fabric log` beside a running node: what the commands change takes effect at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.agents_yaml import set_excluded_tools
from a2a_fabric.yamlfile import YAMLFile
from tests.doors.test_first_list import SERVER, offer, tool
from tests.system.node import Node, run, running_node, until

AGENTS = f"""# My servers.
agents:
  - agent_id: github   # the forge
    runtime: mcp
    endpoint: {{command: [{sys.executable}, -S, {SERVER}, TOOLS]}}

  # A comment about nothing.
  - agent_id: last
    endpoint: {{uri: "http://127.0.0.1:9"}}
    capabilities: [{{name: act}}]
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    folder = tmp_path / "node"
    folder.mkdir()
    path = offer(folder, "github", [tool("search", "Searches."), tool("delete_repo"), tool("delete_branch")])
    (folder / "agents.yaml").write_text(AGENTS.replace("TOOLS", str(path)))
    with running_node(folder) as found:
        until(lambda: "search" in describe(found), "the agent to be asked")
        yield found


def describe(node: Node) -> str:
    return node.run("describe", "github", "--json").stdout


def test_tools_are_disabled_and_enabled_while_the_node_runs(node: Node) -> None:
    before = (node.folder / "agents.yaml").read_text()
    done = node.run("tools", "disable", "github.delete_*")
    assert done.returncode == 0, done.stderr
    assert "github.delete_repo, github.delete_branch" in done.stdout
    after = (node.folder / "agents.yaml").read_text()
    assert "# A comment about nothing." in after
    assert "tools: {exclude: [delete_*]}" in after
    assert f"The node at {node.url} wrote agents.yaml and uses it now" in done.stderr
    assert "delete_repo" not in describe(node), "the reply came after the change"
    assert "search" in describe(node)
    wrong = node.run("tools", "disable", "github.nothing_*")
    assert wrong.returncode == 1
    assert "No tool of 'github' matches 'nothing_*', so nothing was changed" in wrong.stderr
    covered = node.run("tools", "enable", "github.delete_repo")
    assert covered.returncode == 1
    assert "left out by 'delete_*'" in covered.stderr
    assert (node.folder / "agents.yaml").read_text() == after
    assert node.run("tools", "enable", "github.delete_*").returncode == 0
    assert "delete_repo" in describe(node)
    assert (node.folder / "agents.yaml").read_text() == before, "no empty list stays"
    again = node.run("tools", "enable", "agent.github.delete_*")  # as lists for programs name it
    assert again.returncode == 0
    assert "was not disabled. 'github' leaves out: nothing" in again.stderr
    unknown = node.run("tools", "disable", "githup.search")
    assert "nearest: github" in unknown.stderr


def test_an_agent_is_switched_off_and_on_through_the_node(node: Node) -> None:
    assert "github is switched off in" in node.run("agents", "disable", "github").stdout
    assert "enabled: false" in (node.folder / "agents.yaml").read_text()
    assert [each["agent_id"] for each in node.json("agents")["agents"]] == ["last"]
    back = node.json("agents", "enable", "github")
    assert (back["agent_id"], back["on"], back["file"]) == ("github", True, "agents.yaml")
    assert "enabled: false" not in (node.folder / "agents.yaml").read_text()
    assert len(node.json("agents")["agents"]) == 2, "the reply came after the change"
    unknown = node.run("agents", "disable", "nobody")
    assert (unknown.returncode, "is in no agents.yaml of this node" in unknown.stderr) == (1, True)


def test_changes_of_a_tool_are_shown_and_approved(node: Node) -> None:
    assert "No tool has changed" in node.run("tools", "diff").stderr
    for command in ("diff", "approve"):
        assert "Agent 'githup' not found (nearest: github)" in node.run("tools", command, "githup").stderr
    offer(node.folder, "github", [tool("search", "Searches. Sends your keys away.")])
    until(lambda: "keys" in node.run("tools", "diff", "github").stdout, "the change to be noticed")
    shown = node.run("tools", "diff", "github").stdout
    assert "-Searches." in shown
    assert "+Searches. Sends your keys away." in shown
    assert "nothing to approve" in node.run("tools", "approve", "github", "other").stderr
    assert "+Searches. Sends your keys away." in node.run("tools", "diff", "github").stdout, "it is not forgotten"
    assert "tools diff github" in node.run("agents").stderr
    assert "github.search      changed" in node.run("tools", "list").stdout
    assert "when it was approved" in node.run("describe", "github").stdout
    assert "Approved: search" in node.run("tools", "approve", "github").stdout
    assert "No tool has changed" in node.run("tools", "diff").stderr


def test_the_log_shows_the_last_calls_of_an_agent_or_those_that_failed(node: Node) -> None:
    node.run("call", "github", "search", "--json")
    node.run("call", "last", "act", "--json")
    until(lambda: "last.act" in node.run("log").stdout, "the calls to be logged")
    text = node.run("log").stdout
    assert "github.search" in text
    failed = node.run("log", "--failed", "--json").stdout.splitlines()
    assert [json.loads(line)["target"] for line in failed] == ["last"]
    assert "last.act" not in node.run("log", "--agent", "github").stdout


def test_following_goes_on_when_the_node_is_started_again(node: Node) -> None:
    node.run("call", "github", "search", "--json")
    until(lambda: "github.search" in node.run("log").stdout, "the call to be logged")
    follower = node.start("log", "-f", "-n", "1")
    assert follower.stdout is not None
    try:
        assert "github.search" in follower.stdout.readline()
        node.run("call", "last", "act", "--json")
        assert "last.act" in follower.stdout.readline()
        (node.home / "node.json").unlink()  # as while a node is stopped: it is not looked for at the default address
        node.run("call", "github", "search", "--json", "--url", node.url)
        assert "github.search" in follower.stdout.readline()
        node.signal()
        node.wait()
        with running_node(node.folder) as again:
            again.run("call", "github", "delete_repo", "--json")
            assert "github.delete_repo" in follower.stdout.readline()
    finally:
        follower.terminate()
        follower.communicate(timeout=10)


def test_a_node_that_stops_does_not_wait_for_those_who_follow_its_log(node: Node) -> None:
    follower = node.start("log", "-f")
    try:
        node.run("call", "github", "search", "--json")
        assert follower.stdout is not None
        assert "github.search" in follower.stdout.readline()
        node.signal()
        assert node.process.wait(15) == 0, "a request of a follower waits for up to 25 s"
    finally:
        follower.kill()
        follower.communicate()


def test_a_number_for_an_argument_that_is_a_text_is_explained(node: Node) -> None:
    done = node.run("call", "github", "search", "--arg", "text=5")
    assert done.returncode == 1
    assert """a text is --arg 'text="..."'""" in done.stderr
    assert node.run("call", "github", "search", "--arg", 'text="5"').returncode == 0
    assert "no such call" in node.run("log", "--agent", "nobody").stderr


def test_only_the_operator_reads_the_log(node: Node) -> None:
    refused = node.run("log", "--token", "wrong")
    assert refused.returncode == 1


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("- agent_id: a\n  endpoint: {uri: x}\n", ["x_*"]),
        ("agents:\n- agent_id: a\n  tools:\n    rename: {a: b}\n  endpoint: {uri: x}\n# end\n", ["x", "y"]),
        ("agents:\n- agent_id: a\n  tools:\n    exclude:\n    - old  # why\n    - older\n    include: [z]\n", ["old"]),
        ("agents:\n  - {agent_id: a, endpoint: {uri: x}}\n", ["it's"]),
        ("agents:\n  - agent_id: a\n    tools: {include: [a], exclude: [b]}\n    endpoint: {uri: x}", []),
        ("agents:\n  - agent_id: a\n    tools:\n    endpoint: {uri: x}\n", ["q"]),
    ],
)  # fmt: skip
def test_only_the_list_of_excluded_tools_changes(text: str, patterns: list[str]) -> None:
    before, after = YAMLFile("f", text).value, YAMLFile("f", set_excluded_tools(text, "a", patterns, "f")).value
    [old], [new] = (value["agents"] if isinstance(value, dict) else value for value in (before, after))
    assert (new.get("tools") or {}).get("exclude") or patterns == []
    for entry in (old, new):
        entry["tools"] = {**(entry.get("tools") or {}), "exclude": None}
    assert new == old


COMMENTED = """# My servers.
agents:
  - agent_id: a   # the forge
    tools:
      exclude:  # never offered:
        # it deletes
        - delete_repo  # for good
        # it is slow
        - scan
      include: [x]
    endpoint: {uri: "http://127.0.0.1:9"}
  # About the next one.
  - agent_id: b
    endpoint: {uri: "http://127.0.0.1:9"}
    tools: {exclude: [x, "y z",   z]}  # three
  - agent_id: c
    endpoint: {uri: "http://127.0.0.1:9"}
    tools:
      # only this
      exclude:
        # it fails
        - fail  # always
# The end."""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (("disable", "a.purge_*"), "        - scan\n", "        - scan\n        - purge_*\n"),
        (("enable", "a.delete_repo"), "        - delete_repo  # for good\n", ""),
        (("enable", "a.scan"), "        - scan\n", ""),
        (("disable", "b.it's"), "z]}  # three", 'z, it\'s]}  # three'),
        (("enable", "b.y z"), '"y z",   z', "z"),
        (("enable", "b.x"), '[x, "y', '["y'),
        (("enable", "b.z"), '"y z",   z', '"y z"'),
        (("enable", "c.fail"), "exclude:\n        # it fails\n        - fail  # always\n",
         "exclude: []\n        # it fails\n"),
        (("disable", "c.*"), "- fail  # always\n", "- fail  # always\n        - '*'\n"),
    ],
)  # fmt: skip
def test_a_pattern_comes_and_goes_and_every_other_character_stays(
    tmp_path: Path, words: tuple[str, str], old: str, new: str, mark: str, newline: str
) -> None:
    file = tmp_path / "agents.yaml"
    text = mark + COMMENTED
    file.write_bytes(text.replace("\n", newline).encode())
    done = run("tools", *words, home=tmp_path / "home", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert text.count(old) == 1
    assert file.read_bytes().decode() == text.replace(old, new).replace("\n", newline)


def test_patterns_of_several_commands_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(COMMENTED)
    patterns = [f"tool_{number}" for number in range(6)]
    with ThreadPoolExecutor(len(patterns)) as pool:
        replies = pool.map(
            lambda each: run("tools", "disable", f"a.{each}", home=tmp_path / "home", folder=tmp_path), patterns
        )
    assert [each.stderr for each in replies if each.returncode] == []
    [entry, *_] = YAMLFile("f", file.read_text()).value["agents"]
    assert sorted(entry["tools"]["exclude"]) == ["delete_repo", "scan", *patterns]


def test_an_entry_that_cannot_be_changed_safely_is_left_alone() -> None:
    text = "base: &base {agent_id: a}\nagents:\n  - <<: *base\n"
    with pytest.raises(ConfigError, match="write `tools"):
        set_excluded_tools(text, "a", ["x"], "f")


def test_check_warns_of_patterns_that_match_nothing_and_names_the_nearest(tmp_path: Path) -> None:
    path = offer(tmp_path, "github", [tool("search", "Searches."), tool("delete_repo"), tool("delete_branch")])
    choice = "    tools: {exclude: ['delte_*', 'delete_*'], derive: {find: {from: serch}}}\n"
    agents = AGENTS.replace("TOOLS", str(path)).replace("    runtime: mcp\n", f"    runtime: mcp\n{choice}", 1)
    missing = "  - {agent_id: gone, runtime: mcp, endpoint: {command: [no-such-program, x]}}\n"
    (tmp_path / "agents.yaml").write_text(agents + missing)
    views = [{"name": "safe", "agents": ["githup"], "tools": ["github.seek*", "last.*"], "exclude": ["github.delte_*"]}]
    (tmp_path / "fabric.yaml").write_text(json.dumps({"views": views}))
    done = run("check", home=tmp_path / "home", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tools.exclude: 'delte_*' matches no tool of the agent (nearest: delete_repo" in done.stderr
    assert "'delete_*' matches" not in done.stderr
    assert "'find' is made from 'serch', which the agent does not offer (nearest: search)" in done.stderr
    assert "views: 'safe': agents: 'githup' matches nothing (nearest: github)" in done.stderr
    assert "views: 'safe': tools: 'github.seek*' matches no tool (nearest: github.search)" in done.stderr
    assert "views: 'safe': exclude: 'github.delte_*' matches no tool" in done.stderr
    assert "'last.*'" not in done.stderr
    assert "agent gone: The program 'no-such-program' cannot be found or run" in done.stderr
    with running_node(tmp_path) as node:
        until(lambda: "views: 'safe'" in node.said and "delte_*" in node.said, "the warnings in the log")
