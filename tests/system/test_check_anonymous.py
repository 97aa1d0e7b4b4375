"""`a2a-fabric check` says when callers without credentials are let in from other machines, and opens no port."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.system.node import run

OPEN = "listen: 0.0.0.0:0\nauth: {anonymous: true, psk: a-key-of-the-operator}\n"
CLOSED = "listen: 0.0.0.0:0\nauth: {psk: a-key-of-the-operator}\n"
DOOR = f"{CLOSED}doors: [{{kind: fabric}}, {{kind: directory, anonymous: org}}]\n"
LOCAL = "listen: 127.0.0.1:0\nauth: {anonymous: true}\n"


def check(folder: Path, config: str, *words: str) -> tuple[int, str, str]:
    (folder / "home").mkdir(exist_ok=True)
    (folder / "agents.yaml").write_text("[]")
    (folder / "fabric.yaml").write_text(config)
    done = run("check", "--config", "fabric.yaml", *words, home=folder / "home", folder=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("config", "named"), [(OPEN, "auth.anonymous"), (DOOR, "anonymous: org")])
def test_an_open_node_on_a_public_address_is_warned_about(tmp_path: Path, config: str, named: str) -> None:
    status, _, said = check(tmp_path, config)
    assert status == 0
    words = " ".join(said.split())
    assert "Warning: " in words
    assert named in words
    assert "without credentials" in words
    assert "127.0.0.1" in words  # what to do
    _, printed, _ = check(tmp_path, config, "--json")
    assert any(named in warning for warning in json.loads(printed)["warnings"])


@pytest.mark.parametrize("config", [CLOSED, LOCAL])
def test_other_nodes_are_not(tmp_path: Path, config: str) -> None:
    status, _, said = check(tmp_path, config)
    assert status == 0
    assert "without credentials" not in " ".join(said.split())  # another warning may say that there is no TLS


def test_an_open_node_without_any_key_on_a_public_address_does_not_start(tmp_path: Path) -> None:
    status, _, said = check(tmp_path, "listen: 0.0.0.0:0\nauth: {anonymous: true}\n")
    assert status == 1
    assert "loopback" in said


def test_it_opens_no_port_so_the_node_may_run_meanwhile(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, said = check(tmp_path, f'doors: [{{kind: a2a, grpc: "127.0.0.1:{port}"}}]\n')
    assert (status, "cannot listen" in said) == (0, False), said
