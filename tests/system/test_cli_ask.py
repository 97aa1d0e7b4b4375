"""`a2a-fabric ask` and `a2a-fabric chat` beside a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks import requirement
from tests.system.node import Node, running_node

AGENTS = """
- agent_id: basil
  endpoint: {uri: "python:kitchen:suggest"}
  signals: [recipe, cook]
  capabilities: [{name: suggest-meal, triggers: [what should I cook], side_effects: none}]
- agent_id: wim
  endpoint: {uri: "python:kitchen:forecast"}
  signals: [weather]
  capabilities: [{name: forecast, side_effects: none}]
"""
CODE = """
def suggest(task):
    return {"answer": f"basil: {task}"}

def forecast(task):
    return {"answer": f"wim: {task}"}
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder: Path = tmp_path_factory.mktemp("ask") / "node"
    folder.mkdir()
    (folder / "agents.yaml").write_text(AGENTS)
    (folder / "kitchen.py").write_text(CODE)
    with running_node(folder) as found:
        yield found


@requirement("003-38")
def test_the_agent_that_fits_answers_and_stderr_says_why(node: Node) -> None:
    done = node.run("ask", "what should I cook?")
    assert (done.returncode, done.stdout) == (0, "basil: what should I cook?\n")
    assert "'basil' answers, because the request has its trigger 'what should i cook'." in done.stderr
    as_json = json.loads(node.run("ask", "the weather", "--json").stdout)
    assert as_json["result"]["_fabric"]["agent_id"] == "wim"


@requirement("003-38")
def test_why_shows_the_candidates_and_calls_nothing(node: Node) -> None:
    done = node.run("ask", "--why", "a", "recipe", "for", "bad", "weather")
    assert done.returncode == 0
    assert done.stdout.startswith("'basil' answers")
    assert "wim" in done.stdout
    route = json.loads(node.run("ask", "--why", "weather", "--json").stdout)
    assert route["candidates"][0]["agent_id"] == "wim"


@requirement("003-38")
def test_a_request_that_fits_no_agent_fails_and_says_so(node: Node) -> None:
    done = node.run("ask", "qwertz")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No agent fits" in done.stderr
    assert node.run("ask", "--why", "qwertz").returncode == 1
    failed = node.run("ask", "qwertz", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["error_code"] == "BAD_INPUT"


@requirement("003-27", "003-38")
def test_a_chat_on_a_pipe_is_one_conversation_in_which_a_switch_holds(node: Node) -> None:
    said = "talk to basil\nthe weather\nswitch back\nthe weather\n\n/quit\nnever read\n"
    done = node.run("chat", "--conversation", "piped", stdin=said)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1::2] == ["basil: the weather", "wim: the weather"]
    as_json = node.run("chat", "--json", stdin="a recipe\nswitch back\nqwertz\n")
    assert as_json.returncode == 1  # the last request failed
    first = json.loads(as_json.stdout.splitlines()[0])
    assert first["result"]["_fabric"]["agent_id"] == "basil"
