"""Secrets in `.env` beside the configuration, and in the file of --env-file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.node import run, running_node

# An agent that answers with what it finds in its environment.
SHOW = "import json, os, sys; sys.stdout.write(json.dumps({n: os.environ.get(n, '') for n in ('ASKED', 'OTHER')}))"


def write_agent(folder: Path, **env: str) -> None:
    entry = {
        "agent_id": "show",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", SHOW], "protocol": "oneshot", "env": env},
        "capabilities": [{"name": "env"}],
    }
    (folder / "agents.yaml").write_text(json.dumps([entry]))


def check(folder: Path, *words: str, **env: str) -> Any:
    return json.loads(run("check", "--json", *words, home=folder / "home", folder=folder, **env).stdout)


def test_env_beside_the_configuration_is_for_references_alone_and_real_variables_win(tmp_path: Path) -> None:
    write_agent(tmp_path, ASKED="env:SHOWN")
    (tmp_path / ".env").write_text("# mine\nexport SHOWN='from the file'\nOTHER=hidden\nFABRIC_PSK=key-of-the-file\n")
    with running_node(tmp_path) as node:
        assert "the key in FABRIC_PSK" in node.said
        shown = node.run("call", "show", "env", "--json", FABRIC_TOKEN="key-of-the-file")
        assert json.loads(shown.stdout)["result"] == {"ASKED": "from the file", "OTHER": ""}
    with running_node(tmp_path, SHOWN="from the shell") as node:
        shown = node.run("call", "show", "env", "--json", FABRIC_TOKEN="key-of-the-file")
        assert json.loads(shown.stdout)["result"]["ASKED"] == "from the shell"


def test_a_variable_that_is_not_set_is_named_by_up_and_check(tmp_path: Path) -> None:
    write_agent(tmp_path, ASKED="env:NOWHERE_SET")
    report = check(tmp_path)
    assert report["ok"] is False
    assert any("NOWHERE_SET (for show)" in warning and ".env" in warning for warning in report["warnings"])
    with running_node(tmp_path) as node:
        assert "Warning: not set: NOWHERE_SET (for show)" in node.said


def test_the_named_file_wins_over_the_default_one(tmp_path: Path) -> None:
    write_agent(tmp_path, ASKED="env:SHOWN")
    (tmp_path / ".env").write_text("SHOWN=default\n")
    (tmp_path / "other.env").write_text('\ufeffSHOWN="a \\"word\\""  # why\n')
    with running_node(tmp_path, "--env-file", "other.env") as node:
        shown = node.run("call", "show", "env", "--json")
        assert json.loads(shown.stdout)["result"]["ASKED"] == 'a "word"'


@pytest.mark.parametrize(
    ("text", "complaint"), [("A\n", "other.env:1"), ("A=1\nB='x\n", "other.env:2"), (None, "such")]
)
def test_a_named_file_that_is_wrong_stops_and_a_default_file_only_warns(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    write_agent(tmp_path)
    if text is not None:
        (tmp_path / "other.env").write_text(text)
        (tmp_path / ".env").write_text(text)
    report = check(tmp_path, "--env-file", "other.env")
    assert report["ok"] is False
    assert complaint in report["problems"][0]
    lenient = check(tmp_path)
    assert lenient["ok"] is True
    assert bool(lenient["warnings"]) == (text is not None)
