"""The checklist of the first version, ticked off on one real node with a real agent in another process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.marks import requirement
from tests.system.node import Node, running_node, until

KEY = "a-key-of-the-checklist"
PERCY = """
import sys
from a2a_fabric import Agent

agent = Agent("percy")


@agent.capability
async def reason(task: str):
    for word in task.split():
        yield word + " "
    yield {"answer": task[::-1], "citations": []}


agent.run(port=int(sys.argv[1]))
"""
MANIFEST = """
- agent_id: percy
  endpoint:
    transport: http
    uri: http://127.0.0.1:%d/agents/percy
  capabilities:
    - name: reason
      streaming: true
      modalities: [text]
  trust_tier: org
  tags: [planner, dev]
"""


@contextmanager
def percy(folder: Path) -> Iterator[int]:
    """The agent, listening on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    (folder / "percy.py").write_text(PERCY)
    process = subprocess.Popen([sys.executable, folder / "percy.py", str(port)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port), "the agent")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def post(node: Node, name: str, key: str = KEY, accept: str = "application/json", **arguments: Any) -> str:
    request = urllib.request.Request(  # noqa: S310  # our own node
        node.url + "/mcp/call",
        json.dumps({"name": name, "arguments": arguments}).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": accept},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            return str(reply.read().decode())
    except HTTPError as error:
        return error.read().decode()


@requirement("000-01", "001-54", "001-46")
def test_a_node_with_a_yaml_registry_and_a_key_lists_describes_calls_and_streams_a_real_agent(tmp_path: Path) -> None:
    with percy(tmp_path) as port:
        (tmp_path / "agents.yaml").write_text(MANIFEST % port)
        with running_node(tmp_path, "--agents", "agents.yaml", FABRIC_PSK=KEY) as node:
            (listed,) = json.loads(post(node, "fabric.agent.list"))["agents"]
            assert (listed["agent_id"], listed["trust_tier"], listed["tags"]) == ("percy", "org", ["planner", "dev"])
            described = json.loads(post(node, "fabric.agent.describe", agent_id="percy"))["result"]["agent"]
            assert described["capabilities"][0]["name"] == "reason"

            asked = {"agent_id": "percy", "capability": "reason", "task": "one two"}
            reply = json.loads(post(node, "fabric.call", **asked))
            assert (reply["ok"], reply["result"]["answer"], reply["error"]) == (True, "owt eno", None)
            assert len(reply["trace"]["trace_id"]) == 36

            streamed = post(node, "fabric.call", accept="text/event-stream", stream=True, **asked)
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
            assert [event["event"] for event in events] == ["status", "token", "token", "final"]
            assert events[-1]["data"]["answer"] == "owt eno"

            tool = json.loads(post(node, "fabric.tool.agent.percy.reason", task="abc"))
            assert tool["result"]["answer"] == "cba"
            assert json.loads(post(node, "fabric.agent.list", key="a-wrong-key"))["error_code"] == "AUTH_INVALID"
