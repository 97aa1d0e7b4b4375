"""The base install has no protobuf, no gRPC and no database driver: agents and clients over JSON need none of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from tests.system.node import COMMAND, WAIT_TIMEOUT, Node, environment, running_node, until

BLOCKED = ("a2a", "google", "grpc", "asyncpg", "nats")

# Python imports this module at its start, so the libraries are missing as if they had never been installed.
SITE = f"""
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def find_unblocked(name, path=None, target=None):
    return None if name.partition(".")[0] in {BLOCKED!r} else find_spec(name, path, target)

PathFinder.find_spec = find_unblocked
"""


def without_extras(folder: Path) -> str:
    """A PYTHONPATH under which the libraries of all extras are missing."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, "utf-8")
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


def send_message(node: Node, text: str) -> Any:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}], "metadata": {"skill": "reason"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    headers = {"content-type": "application/json", "a2a-version": "1.0", "authorization": f"Bearer {node.token}"}
    request = Request(f"{node.url}/agents/percy", msgspec.json.encode(body), headers)  # noqa: S310  # our own node
    with urlopen(request, timeout=30) as reply:  # noqa: S310
        return msgspec.json.decode(reply.read())


def test_the_demo_runs_and_a2a_clients_are_answered_without_any_extra(tmp_path: Path) -> None:
    with running_node(tmp_path, PYTHONPATH=without_extras(tmp_path)) as node:
        assert "result" in send_message(node, "What is 6 * 7?")
        listed = until(lambda: {agent["agent_id"] for agent in node.json("agents")["agents"]}, "the demo agents")
        assert {"percy", "scribe", "units"} <= listed
        assert not {"almanac", "primes"} & listed  # written with the A2A SDK and with gRPC


def test_what_needs_an_extra_says_which_one(tmp_path: Path) -> None:
    signing = "{key: 'env:CARD_KEY', key_id: a}"
    (tmp_path / "fabric.yaml").write_text(f"doors: [{{kind: a2a, signing: {signing}}}]\n", "utf-8")
    (tmp_path / "home").mkdir()
    variables = environment(tmp_path / "home", PYTHONPATH=without_extras(tmp_path), CARD_KEY="0123456789abcdef")
    command = [*COMMAND, "up", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=WAIT_TIMEOUT, check=False
    )
    assert done.returncode == 1
    assert "pip install 'a2a-fabric[a2a]'" in done.stderr
