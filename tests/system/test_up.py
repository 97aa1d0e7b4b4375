"""`a2a-fabric up`: the first minute of a newcomer, and the last seconds of a node."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import websockets

from a2a_fabric.identity.keyfile import KeyFile
from tests.marks import requirement
from tests.system.node import WAIT_TIMEOUT, Node, run, running_node, until

GATED = """
import json, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / "started").touch()
ends_at = time.monotonic() + 30
while not (here / "gate").exists() and time.monotonic() < ends_at:
    time.sleep(0.01)
print(json.dumps({"answer": "worth waiting for"}))
"""


def agents_yaml(folder: Path, *names: str) -> Path:
    """Agents that answer with their own name, each a program run once per call."""
    file = folder / "agents.yaml"
    draft = folder / ".agents.yaml"
    entries = [
        {
            "agent_id": name,
            "runtime": "process",
            "endpoint": {"command": [sys.executable, "-c", f"print('this is {name}')"], "protocol": "oneshot"},
            "capabilities": [{"name": "greet"}],
        }
        for name in names
    ]
    draft.write_text(json.dumps(entries, indent=1))  # JSON is YAML
    draft.replace(file)
    return file


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Node]:
    """A node with an agent that answers once the file `gate` is there."""
    entry = {
        "agent_id": "gated",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", GATED, str(tmp_path)], "protocol": "oneshot"},
        "capabilities": [{"name": "wait"}],
    }
    (tmp_path / "agents.yaml").write_text(json.dumps({"agents": [entry]}))
    with running_node(tmp_path) as node:
        yield node


def begin_a_call(node: Node) -> subprocess.Popen[str]:
    calling = node.start("call", "gated", "wait", "go")
    until((node.folder / "started").exists, "the agent to start")
    return calling


@requirement("000-13")
def test_without_any_configuration_the_demo_agents_are_up_and_the_three_commands_work_as_pasted(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        banner = node.said
        assert node.url in banner
        assert node.token in banner
        pasted = [line.strip() for line in banner.splitlines() if line.startswith("    ")]
        assert len(pasted) == 3
        env = {"PATH": os.environ["PATH"], "FABRIC_HOME": str(node.home)}
        replies = [
            subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=20, check=True).stdout
            for line in pasted
        ]
        assert "percy" in replies[0]
        assert "26.2 mi = 42.1648128 km" in replies[1]  # of an MCP server
        task = json.loads(replies[2])["task"]  # an A2A task, of an ACP agent
        assert task["artifacts"][0]["parts"] == [{"text": ".... . .-.. .-.. --- / .-- --- .-. .-.. -.."}]
        assert node.printed == ""


def test_a_key_is_made_once_readable_by_its_user_alone_and_used_again(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    keys = []
    for _ in range(2):
        with running_node(tmp_path) as node:
            keys.append(node.token)
            assert stat.S_IMODE((node.home / "key").stat().st_mode) == 0o600
            assert node.run("agents").returncode == 0
    assert keys[0] == keys[1]
    assert len(keys[0]) >= 32
    assert keys[1] not in node.said  # printed once, when it was made


def test_nodes_that_start_at_the_same_time_agree_on_one_key(tmp_path: Path) -> None:
    files = [KeyFile(tmp_path / "deep" / "key") for _ in range(16)]
    with ThreadPoolExecutor(len(files)) as pool:
        keys = set(pool.map(KeyFile.create, files))
    assert len(keys) == 1
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["key"]
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-key-for-everybody\n")
    (tmp_path / "key").chmod(0o644)
    done = run("up", home=tmp_path, folder=tmp_path)
    assert done.returncode == 1
    assert "other users can read this key (mode 0644)" in done.stderr
    assert "chmod 600" in done.stderr
    assert "Traceback" not in done.stderr


@requirement("001-24")
def test_fabric_psk_is_the_key_and_no_other_is_made(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with running_node(tmp_path, FABRIC_PSK="a-shared-secret") as node:
        assert "a-shared-secret" not in node.said
        assert not (node.home / "key").exists()
        assert node.run("agents", FABRIC_TOKEN="a-shared-secret").returncode == 0
        denied = node.run("agents", "--token", "another-secret")
        assert denied.returncode == 1
        assert "not valid on this node" in denied.stderr
        assert "Credentials are required" in node.run("agents").stderr


def test_an_anonymous_node_makes_no_key_and_stays_on_loopback(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    (tmp_path / "fabric.yaml").write_text("auth: {anonymous: true}\n")
    with running_node(tmp_path) as node:
        assert node.run("agents").returncode == 0
        assert not (node.home / "key").exists()
    open_to_all = run("up", "--listen", "0.0.0.0:0", home=tmp_path, folder=tmp_path)
    assert open_to_all.returncode == 1
    assert "loopback only" in open_to_all.stderr


def test_when_the_usual_port_is_taken_the_next_free_one_is_used_with_a_remark(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with socket.socket() as occupier:
        occupier.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            occupier.bind(("127.0.0.1", 8000))
            occupier.listen()
        except OSError:
            pass  # another process has it, which will do
        with running_node(tmp_path, listen=None) as node:
            assert re.search(r"Port 8000 is taken; using 80\d\d\.", node.said)
            assert node.run("agents").returncode == 0


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with socket.create_server(("127.0.0.1", 0)) as occupier:
        port = occupier.getsockname()[1]
        done = run("up", "--listen", f"127.0.0.1:{port}", home=tmp_path, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop the program that listens there, or choose another port; 0 is any free one\n"
    )


def test_a_misspelt_file_of_agents_is_named_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("up", "--agents", "agent.yaml", "--listen", "127.0.0.1:0", home=tmp_path / "home", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "Error: agent.yaml: there is no such file or folder\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["home"] or not list(tmp_path.iterdir())


def test_the_banner_says_where_things_are_kept(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with running_node(tmp_path) as node:
        assert f"  Store   sqlite:{tmp_path / 'fabric.db'}\n" in node.said
        assert ' call one greet "..."\n' in node.said
    assert not (tmp_path / "node.json").exists()


def test_quiet_means_quiet(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with running_node(tmp_path, "--quiet") as node:
        assert "this is one" in node.run("call", "one", "greet").stdout
        node.signal()
        assert node.wait() == 0
        assert node.said == ""
        assert node.printed == ""


def test_with_a_file_of_agents_the_demo_agents_stay_away(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one").rename(tmp_path / "mine.yaml")
    with running_node(tmp_path, "--agents", "mine.yaml") as node:
        listed = node.json("agents")
        assert [agent["agent_id"] for agent in listed["agents"]] == ["one"]


def test_a_broken_file_of_agents_stops_the_start_naming_file_line_and_key(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(
        "- agent_id: one\n  endpoint: {uri: 'http://127.0.0.1:1'}\n  fallback: [two]\n"
    )
    done = run("up", "--listen", "127.0.0.1:0", home=tmp_path, folder=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "Error: agents.yaml:3: [0].fallback: unknown key 'fallback' (nearest: fallbacks)"


def test_after_the_first_interrupt_a_running_call_finishes(gated: Node) -> None:
    calling = begin_a_call(gated)
    gated.signal(signal.SIGINT)
    until(lambda: "1 running calls may finish" in gated.said, "the node to drain")
    (gated.folder / "gate").touch()
    answer, _ = calling.communicate(timeout=WAIT_TIMEOUT)
    assert answer == "worth waiting for\n"
    assert calling.returncode == 0
    assert gated.wait() == 0
    assert not (gated.home / "node.json").exists()


def test_the_second_interrupt_stops_at_once(gated: Node) -> None:
    calling = begin_a_call(gated)
    gated.signal(signal.SIGTERM)
    until(lambda: "1 running calls may finish" in gated.said, "the node to drain")
    gated.signal(signal.SIGINT)
    assert gated.process.wait(20) == 0
    _, complaint = calling.communicate(timeout=WAIT_TIMEOUT)
    assert calling.returncode == 1
    assert "Traceback" not in complaint


def plain_call(node: Node) -> tuple[int, dict[str, Any]]:
    body = {"name": "fabric.call", "arguments": {"agent_id": "gated", "capability": "wait", "task": "go"}}
    headers = {"Authorization": f"Bearer {node.token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=WAIT_TIMEOUT)
    with closing(connection):
        connection.request("POST", "/mcp/call", json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, json.load(reply)


def test_a_plain_call_that_the_second_interrupt_ends_is_told_so(gated: Node) -> None:
    with ThreadPoolExecutor() as pool:
        calling = pool.submit(plain_call, gated)
        until((gated.folder / "started").exists, "the agent to start")
        gated.signal(signal.SIGTERM)
        until(lambda: "1 running calls may finish" in gated.said, "the node to drain")
        gated.signal(signal.SIGINT)
        status, envelope = calling.result(WAIT_TIMEOUT)
    assert (status, envelope["error_code"]) == (503, "NODE_STOPPED")
    assert envelope["trace"]["trace_id"]


@requirement("001-10", "000-14")
def test_an_edit_of_the_agents_file_takes_effect_while_the_node_runs(tmp_path: Path) -> None:
    agents_yaml(tmp_path, "one")
    with running_node(tmp_path) as node:
        agents_yaml(tmp_path, "one", "two")
        until(lambda: "2 in the catalog" in node.said, "the edit to be seen")
        assert "this is two" in node.run("call", "two", "greet").stdout


@requirement("001-06")
def test_a_broken_edit_keeps_the_last_good_agents_and_shows_in_the_health(tmp_path: Path) -> None:
    file = agents_yaml(tmp_path, "one")
    with running_node(tmp_path) as node:
        file.write_text("- agent_id: one\n  endpint: {}\n")
        until(lambda: "not reloaded" in node.said, "the edit to be seen")
        health = node.json("health")
        assert health["registry"] == "degraded"
        assert "agents.yaml:2: [0].endpint: unknown key 'endpint' (nearest: endpoint)" in str(health["problems"])
        assert "nearest: endpoint" in node.run("health").stdout
        assert "this is one" in node.run("call", "one", "greet").stdout
        agents_yaml(tmp_path, "one")
        until(lambda: node.json("health")["registry"] == "ok", "the mended file to be taken")


def test_the_demo_process_ends_with_its_node_even_if_that_is_killed(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        port = int(re.findall(r":(\d+)", str(node.json("describe", "scribe")["endpoint"]["uri"]))[-1])
        node.process.kill()
        node.wait()
        until(lambda: _refuses(port), "scribe to end")


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_a_websocket_message_may_be_as_large_as_a_body_and_no_larger(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text("limits: {body_bytes: 2048}\n")
    agents_yaml(tmp_path, "ann")
    with running_node(tmp_path) as node:
        headers = {"Authorization": f"Bearer {node.token}"}
        async with websockets.connect(node.url.replace("http", "ws") + "/mcp/call", additional_headers=headers) as ws:
            await ws.send(json.dumps({"name": "fabric.health"}).ljust(2048))
            assert json.loads(await asyncio.wait_for(ws.recv(), 30))["data"]["ok"] is True
            await ws.send(json.dumps({"name": "fabric.health"}).ljust(2049))
            with pytest.raises(websockets.ConnectionClosedError, match="1009"):
                await asyncio.wait_for(ws.recv(), 30)
        (tmp_path / "fabric.yaml").write_text("limits: {body_bytes: 4096}\n")
        until(lambda: "changed: limits.body_bytes" in node.said, "the new limit")
        async with websockets.connect(node.url.replace("http", "ws") + "/mcp/call", additional_headers=headers) as ws:
            await ws.send(json.dumps({"name": "fabric.health"}).ljust(4096))
            assert json.loads(await asyncio.wait_for(ws.recv(), 30))["data"]["ok"] is True
