"""What the page about jobs tells people to type and to write works as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from a2a_fabric.cli.program import app
from a2a_fabric.core.job import JOB_STATES, translate_state
from a2a_fabric.jobs.webhooks import sign_webhook
from tests.system.node import WAIT_TIMEOUT, Node, environment, running_node

PAGE = (Path(__file__).parents[2] / "docs/jobs.md").read_text()


def commands(heading: str) -> list[str]:
    """The lines after `$` below a heading, continued ones joined."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    text = "\n".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL)).replace("\\\n", "")
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def shell(lines: list[str], node: Node) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", "set -e\n" + "\n".join(lines).replace("http://127.0.0.1:8000", node.url)],
        cwd=node.folder,
        env=environment(node.home, PATH=path, TOKEN=node.token),
        capture_output=True,
        text=True,
        timeout=3 * WAIT_TIMEOUT,
        check=False,
    )


def test_the_first_steps_and_the_replay_work_as_pasted(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        done = shell(commands("First steps") + commands("Coming back"), node)
    assert done.returncode == 0, done.stderr
    assert "So 12 * 7 + 16 = 100\nsteps: 3\n" in done.stdout
    frames = re.findall(r"^id: (\d+)$", done.stdout, re.M)
    assert frames[0] == "4"
    final = json.loads(done.stdout.strip().splitlines()[-1].removeprefix("data: "))
    assert (final["event"], final["data"]["ok"]) == ("final", True)


def test_the_commands_of_the_store_work_as_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line.replace("postgresql://fabric@db.example/fabric", "sqlite:copy.db") for line in commands("The store")]
    assert len(lines) == 5
    assert CliRunner().invoke(app, ["store", "migrate"]).exit_code == 0
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        done = CliRunner().invoke(app, words)
        assert (program, done.exit_code) == ("a2a-fabric", 0), line
    assert (tmp_path / "copy.db").exists()


def test_the_table_of_states_is_whole_and_right() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.split("## States")[1].split("\n## ")[0], re.M))
    assert told == {"state": "status"} | {state: translate_state(state, "stream") for state in JOB_STATES}


def test_the_check_of_a_webhooks_signature_is_right() -> None:
    names: dict[str, object] = {}
    exec(next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "hmac" in block), names)  # noqa: S102
    check = names["is_genuine"]
    assert callable(check)
    headers = sign_webhook("job_1", b'{"a":1}', "a-secret-of-ours", 1_700_000_000)
    assert check(headers, b'{"a":1}', "a-secret-of-ours")
    assert not check(headers, b'{"a":2}', "a-secret-of-ours")
    assert not check(headers, b'{"a":1}', "another-secret")
