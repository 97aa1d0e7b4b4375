"""Forked programs behave as started ones do: pipes, exit codes, signals, folder and environment."""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path
from subprocess import PIPE

from tests.fixtures.forked.commands import forked_command

WAIT_TIMEOUT = 30.0


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(forked_command(*words, imports=()), stdin=PIPE, stdout=PIPE, stderr=PIPE)


def test_it_reads_and_writes_its_pipes_and_ends_with_its_own_code() -> None:
    fine, bad = start("json.tool"), start("json.tool")
    assert fine.communicate(b"[1]", WAIT_TIMEOUT) == (b"[\n    1\n]\n", b"")
    assert fine.returncode == 0
    printed, said = bad.communicate(b"[", WAIT_TIMEOUT)
    assert (printed, bad.returncode) == (b"", 1)
    assert b"Expecting value" in said


def test_it_is_where_it_was_started_with_what_it_was_given(tmp_path: Path) -> None:
    command = forked_command("timeit", "-n1", "-r1", "import os; print(os.getcwd(), os.environ['WORD'])", imports=())
    env = {**os.environ, "WORD": "here"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=WAIT_TIMEOUT, check=True)
    assert done.stdout.decode().startswith(f"{tmp_path} here\n")


def test_killing_the_stand_in_ends_the_program() -> None:
    with start("json.tool") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"[")  # so it waits for more
        process.stdin.flush()
        process.kill()
        ready, _, _ = select.select([process.stdout.fileno()], [], [], WAIT_TIMEOUT)
        assert ready, "somebody still holds the pipe"
        assert process.stdout.read() == b""
