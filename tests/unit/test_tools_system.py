"""system.*: programs without a shell, the real clock, and an environment that is hidden by default."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.errors import BadInput
from a2a_fabric.tools.process import run_program
from tests.fixtures.programs import WAIT_TIMEOUT, processes_with, stand_still_until
from tests.unit.tool_bench import bench, files_in

ENVIRON = {"PATH": os.environ["PATH"], "TOKEN": "hidden", "LANG": "C.UTF-8", "GREETING": "hello"}


async def test_a_program_runs_and_its_time_is_measured(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        code = "import sys, time; time.sleep(0.2); print('out'); print('err', file=sys.stderr); sys.exit(3)"
        answer = await tools("system.execute", command=[sys.executable, "-c", code])
    assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == ("out\n", "err\n", 3)
    assert 200 <= answer["duration_ms"] < 30_000
    assert answer["command"].startswith(sys.executable)


async def test_a_line_is_split_into_words_like_a_shell_does(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        answer = await tools("system.execute", command="printf '%s-' 'a b' c\\ d '$HOME|;' *")
    assert answer["stdout"] == "a b-c d-$HOME|;-*-"


@pytest.mark.parametrize(
    "command",
    ["ls | wc", "ls; id", "ls && id", "echo $HOME", "echo `id`", "ls > f", "cat < f", "(id)", "ls\nid", "id &"],
)
async def test_a_line_that_needs_a_shell_is_refused(tmp_path: Path, command: str) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        await tools.fails("system.execute", "AUTH_DENIED", "DANGEROUS_COMMAND", command=command)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("command", ["", "'open", [], [""], ["a\0b"]])
async def test_a_command_that_is_none_is_a_parse_error(tmp_path: Path, command: Any) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        await tools.fails("system.execute", "BAD_INPUT", "PARSE_ERROR", command=command)


async def test_a_program_that_does_not_exist_is_an_exec_error(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        await tools.fails("system.execute", "UPSTREAM_ERROR", "EXEC_ERROR", command="no-such-program-here")


async def test_programs_see_only_the_listed_variables(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON, execute_env=("PATH", "GREETING", "EXTRA")) as tools:
        answer = await tools("system.execute", command="env", env={"EXTRA": "1"})
        assert sorted(answer["stdout"].split()) == ["EXTRA=1", "GREETING=hello", f"PATH={ENVIRON['PATH']}"]
        for name in ("TOKEN", "LD_PRELOAD"):
            await tools.fails("system.execute", "AUTH_DENIED", "ACCESS_DENIED", command="env", env={name: "x"})


async def test_the_working_folder_stays_inside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "up").symlink_to("..")
    async with bench(inside, execute=True, environ=ENVIRON) as tools:
        assert (await tools("system.execute", command="pwd"))["stdout"].strip() == str(inside)
        answer = await tools("system.execute", command="pwd", working_dir="sub")
        assert answer["stdout"].strip() == str(inside / "sub")
        for place in ("..", "/", "up"):
            await tools.fails("system.execute", "AUTH_DENIED", "ACCESS_DENIED", command="pwd", working_dir=place)
        await tools.fails("system.execute", "BAD_INPUT", "DIR_NOT_FOUND", command="pwd", working_dir="none")


SPAWN = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids", "ready")
"""
SPAWN_AND_WAIT = SPAWN + "time.sleep(600)"
SPAWN_AND_LEAVE = SPAWN + "print('done')"


async def test_a_timeout_kills_the_program_and_its_children(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        started = time.monotonic()
        command = ["sh", "-c", "sleep 600 & echo $$ $! > pids; mv pids ready; wait"]
        await tools.fails("system.execute", "TIMEOUT", "TIMEOUT", command=command, timeout=1500)
        assert time.monotonic() - started < 60
    await _gone(tmp_path / "ready")


async def test_cancelling_the_call_kills_the_program_and_its_children(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        call = asyncio.create_task(tools("system.execute", command=[sys.executable, "-c", SPAWN_AND_WAIT]))
        await _until((tmp_path / "ready").exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await _gone(tmp_path / "ready")


@pytest.mark.parametrize("steps", range(4, 8))
async def test_cancelling_while_the_program_is_being_started_leaves_nothing_behind(tmp_path: Path, steps: int) -> None:
    begun, trace = tmp_path / "begun", f"600.{os.getpid()}{steps}"
    command = ["sh", "-c", f"sleep {trace} & touch {begun}; wait"]
    running = asyncio.ensure_future(
        run_program(command, cwd=tmp_path, env=os.environ, timeout=WAIT_TIMEOUT, limit=1000)
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    stand_still_until(lambda: begun.exists() or not processes_with(trace))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, WAIT_TIMEOUT)
    await _until(lambda: not processes_with(trace))


async def test_a_child_left_behind_does_not_hold_up_the_answer(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        started = time.monotonic()
        answer = await tools("system.execute", command=[sys.executable, "-c", SPAWN_AND_LEAVE])
        assert time.monotonic() - started < 60
    assert answer["stdout"] == "done\n"
    await _gone(tmp_path / "ready")


async def test_endless_output_is_cut_and_never_blocks_the_program(tmp_path: Path) -> None:
    async with bench(tmp_path, execute=True, environ=ENVIRON) as tools:
        code = "import sys; [sys.stdout.write('x' * 100_000) for _ in range(50)]; sys.stderr.write('end')"
        answer = await tools("system.execute", command=[sys.executable, "-c", code])
    assert len(answer["stdout"]) < 101_000
    assert "cut after" in answer["stdout"]
    assert (answer["stderr"], answer["exit_code"]) == ("end", 0)


async def _until(true: Any) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not true():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.01)


async def _gone(pids: Path) -> None:
    numbers = _numbers(pids)
    await _until(lambda: not any(_is_alive(number) for number in numbers))


def _numbers(pids: Path) -> list[int]:
    return [int(word) for word in pids.read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_the_environment_is_hidden_unless_it_is_listed(tmp_path: Path) -> None:
    async with bench(tmp_path, environ=ENVIRON) as tools:
        assert await tools("system.env") == {"variables": {}, "count": 0}
        await tools.fails("system.env", "AUTH_DENIED", "ACCESS_DENIED", name="TOKEN")
    async with bench(tmp_path, environ=ENVIRON, env=("GREETING", "UNSET")) as tools:
        assert await tools("system.env") == {"variables": {"GREETING": "hello"}, "count": 1}
        assert await tools("system.env", name="GREETING") == {"name": "GREETING", "value": "hello", "exists": True}
        assert await tools("system.env", name="UNSET") == {"name": "UNSET", "value": None, "exists": False}
        await tools.fails("system.env", "AUTH_DENIED", "ACCESS_DENIED", name="TOKEN")


async def test_the_time_is_told_in_real_timezones(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("system.datetime")
        kolkata = await tools("system.datetime", timezone="Asia/Kolkata")
    assert answer["timestamp"] == pytest.approx(time.time(), abs=5)
    assert (answer["timezone"], answer["formatted"]) == ("UTC", answer["iso"])
    assert datetime.fromisoformat(answer["iso"]).timestamp() == pytest.approx(answer["timestamp"])
    assert datetime.fromisoformat(kolkata["iso"]).utcoffset() == timedelta(hours=5, minutes=30)
    assert kolkata["timestamp"] == pytest.approx(time.time(), abs=5)


async def test_the_time_is_formatted(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        stamp = await tools("system.datetime", format="timestamp")
        mail = await tools("system.datetime", format="rfc2822", timezone="Europe/Paris")
        custom = await tools("system.datetime", format="custom", custom_format="%Y=%j 100%%")
    assert float(stamp["formatted"]) == stamp["timestamp"]
    assert parsedate_to_datetime(mail["formatted"]).timestamp() == pytest.approx(time.time(), abs=5)
    now = datetime.fromisoformat(custom["iso"])
    assert custom["formatted"] == f"{now.year}={now.timetuple().tm_yday:03} 100%"


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "America", "/etc/localtime", "UTC\0", "a" * 99])
async def test_an_unknown_timezone_is_a_datetime_error(tmp_path: Path, zone: str) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("system.datetime", "BAD_INPUT", "DATETIME_ERROR", timezone=zone)


@pytest.mark.parametrize("pattern", [None, "", "%", "%Q", "%9999999d", "%-d%"])
async def test_a_bad_pattern_is_a_datetime_error(tmp_path: Path, pattern: str | None) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("system.datetime", "BAD_INPUT", "DATETIME_ERROR", format="custom", custom_format=pattern)
        with pytest.raises(BadInput):
            await tools("system.datetime", format="klingon")
