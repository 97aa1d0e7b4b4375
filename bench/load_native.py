"""The programs in C: a load generator and an agent, compiled when they are first needed, into `.bench`.

The compiler is `CC`, `cc`, `gcc` or `clang`, else the one in the `ziglang` package, which gets an environment of its
own. `BENCH_RIG=python` keeps all of it away.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import msgspec

from bench.load import Limit, Load, RequestPlan
from tests.fixtures.environments import NotInstalled, python_of

SOURCES = Path(__file__).parent / "native"
PROGRAMS = Path(__file__).parents[1] / ".bench"
_FLAGS = ("-O2", "-std=gnu11")
_COMPILED_WITHIN = 120.0  # seconds
_LONGEST = 600.0  # seconds; every run ends by itself before that
_SPARE_SECONDS = 90.0  # for opening connections, and for the last replies


class _Figures(msgspec.Struct):
    """What the generator prints."""

    calls: int
    seconds: float
    wrong: int
    broken: int
    events: int
    load_cpu: float
    cpu: list[float]
    core_busy: float
    wrong_reply: str
    latencies: list[float]
    firsts: list[float]


@cache
def program(name: str) -> str | None:
    """The path of the compiled `load` or `agent`; None where there is no compiler."""
    if os.environ.get("BENCH_RIG") == "python":
        return None
    text = b"".join((SOURCES / each).read_bytes() for each in ("common.h", f"{name}.c"))
    path = PROGRAMS / f"{name}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not path.exists():
        compiler = _find_compiler()
        if compiler is None:
            return None
        PROGRAMS.mkdir(exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")  # two runs may begin at the same time
        command = [*compiler, *_FLAGS, "-o", str(made), str(SOURCES / f"{name}.c"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILED_WITHIN)
        if done.returncode:
            raise SystemExit(f"{command[0]} cannot compile {name}.c: {done.stderr.strip()[-500:]}")
        made.rename(path)
    return str(path)


def _find_compiler() -> list[str] | None:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return [name]
    try:
        return [python_of("ziglang"), "-m", "ziglang", "cc"]
    except NotInstalled:
        return None


async def run(
    binary: str, port: int, plan: RequestPlan, connections: int, limit: Limit, pid: int | None, core: int | None
) -> Load:
    """Raises ConnectionError if the server does not accept connections or sessions."""
    options: list[str | bytes] = [str(port), "--connections", str(connections), "--expect", plan.expected]
    for message in plan.messages:
        options += ["--request", message]
    for message in plan.opening:
        options += ["--open", message]
    if plan.ending:
        options += ["--end", plan.ending]
    if plan.event:
        options += ["--count", plan.event]
    for name, value in (("seconds", limit.seconds), ("calls", limit.calls), ("rate", limit.rate)):
        if value:
            options += [f"--{name}", str(value)]
    if pid is not None:
        options += ["--pid", str(pid)]
    if core is not None:
        options += ["--core", str(core)]
    pipe = asyncio.subprocess.PIPE
    generator = await asyncio.create_subprocess_exec(binary, *options, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit.seconds + _SPARE_SECONDS if limit.seconds else _LONGEST):
            output, errors = await generator.communicate()
    except TimeoutError:
        raise ConnectionError("the load generator did not end") from None
    finally:
        if generator.returncode is None:
            generator.kill()
            await generator.wait()
    if generator.returncode:
        raise ConnectionError(errors.decode(errors="replace").strip() or f"exit code {generator.returncode}")
    figures = msgspec.json.decode(output, type=_Figures)
    return Load(
        figures.calls + figures.broken,
        figures.seconds,
        figures.latencies,
        figures.wrong + figures.broken,
        figures.firsts,
        figures.events,
        sum(figures.cpu),
        figures.load_cpu,
        figures.core_busy if core is not None else None,
        figures.wrong_reply,
    )
