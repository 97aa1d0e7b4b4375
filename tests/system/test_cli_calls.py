"""`a2a-fabric calls` and `a2a-fabric trace` beside a running node."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.marks import requirement
from tests.system.node import Node, running_node, until

AGENTS = """
- agent_id: echo
  runtime: process
  endpoint: {command: [cat], protocol: oneshot, args_as: text}
  capabilities: [{name: say}]
- {agent_id: gone, endpoint: {uri: "http://127.0.0.1:9"}, runtime: http, capabilities: [{name: say}], fallbacks: [echo]}
- {agent_id: alone, endpoint: {uri: "http://127.0.0.1:9"}, runtime: http, capabilities: [{name: say}]}
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder: Path = tmp_path_factory.mktemp("calls")
    (folder / "agents.yaml").write_text(AGENTS)
    (folder / "fabric.yaml").write_text("health: {interval: 0}\nauth: {keys: [{id: anna, key: the-key-of-anna}]}\n")
    with running_node(folder) as found:
        yield found


@requirement("001-57")
def test_calls_are_listed_and_one_is_shown_as_a_waterfall(node: Node) -> None:
    node.run("call", "gone", "say", "hello", "--json")
    node.run("call", "alone", "say", "hello", "--json")
    listed = node.run("calls")
    assert listed.returncode == 0, listed.stderr
    assert "gone.say by echo" in listed.stdout
    assert "alone.say" not in node.run("calls", "--agent", "gone").stdout
    failed = json.loads(node.run("calls", "--failed", "--json", "--since", "1h").stdout)
    assert [call["agent_id"] for call in failed] == ["alone"]
    assert "AGENT_OFFLINE" in node.run("trace", failed[0]["trace_id"]).stdout
    (call,) = json.loads(node.run("calls", "--agent", "gone", "--json").stdout)
    shown = node.run("trace", call["trace_id"][:8]).stdout.splitlines()
    assert shown[0] == f"trace {call['trace_id']}"
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    for expected in ("fabric gone.say", "caller psk", "attempt echo", "declared fallback of gone", "process echo.say"):
        assert expected in text
    spans = json.loads(node.run("trace", call["trace_id"], "--json").stdout)["spans"]
    assert {span["kind"] for span in spans} == {"door", "attempt", "runtime"}


def test_mistakes_are_explained(node: Node) -> None:
    assert "15m" in node.run("calls", "--since", "yesterday").stderr
    assert "too short" in node.run("trace", "12").stderr
    assert "Write the whole id" in node.run("trace", "00000000").stderr
    missing = node.run("trace", "00000000-0000-4000-8000-000000000000")
    assert missing.returncode == 1
    assert "nothing of this trace" in missing.stderr
    assert "no such call" in node.run("calls", "--agent", "nobody").stderr
    assert "no such call" in node.run("calls", "--token", "the-key-of-anna").stderr
    assert node.run("calls", "--token", "wrong").returncode == 1


def test_following_shows_calls_as_they_end_and_ends_with_the_node(node: Node) -> None:
    follower = node.start("calls", "-f", "--agent", "echo", "--json")
    assert follower.stdout is not None
    try:
        for word in ("one", "two"):
            node.run("call", "echo", "say", word, "--json")
        ids = {json.loads(line)["span_id"] for line in (follower.stdout.readline() for _ in range(2))}
        assert len(ids) == 2
    finally:
        follower.terminate()
        follower.communicate(timeout=10)


@requirement("001-48")
def test_the_log_begins_with_the_start_and_a_signal_begins_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(AGENTS)
    (tmp_path / "fabric.yaml").write_text("log: {file: node.log, format: json}\nhealth: {interval: 0}\n")
    log = tmp_path / "node.log"
    with running_node(tmp_path) as node:
        (start,) = until(lambda: [line for line in read_log(log) if line["event"] == "start"], "the first line")
        assert start["config"].endswith("fabric.yaml")
        assert (start["listen"], start["agents"]) == (node.url, 3)
        assert start["store"].startswith("sqlite:")
        node.run("call", "gone", "say", "hello", "--json")
        call = until(lambda: [line for line in read_log(log) if line["event"] == "call"], "the call's line")[0]
        assert (call["principal"], call["door"], call["runtime"], call["used"]) == ("psk", "fabric", "http", "echo")
        assert call["attempts"] == ["echo@local: ok"]
        log.rename(tmp_path / "node.log.old")
        node.process.send_signal(signal.SIGUSR1)
        node.run("call", "echo", "say", "hello", "--json")
        until(lambda: log.exists() and any(line["event"] == "call" for line in read_log(log)), "the new file")
        assert not any(line["event"] == "start" for line in read_log(log))


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
