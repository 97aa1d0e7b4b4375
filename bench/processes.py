"""The processes that are measured: started on free ports, pinned to a core, with their CPU time and memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import load_native

TOKEN = "bench-key-bench-key"
PORT = "@port@"  # stands for the port of a node in its settings
_START = 300.0  # seconds until a node answers, beside other work, too
_SLOW_START = 600.0  # under valgrind, beside other work
_PROCESS_CPU_CLOCK = 2  # Linux: the clock of a process is its inverted pid and this kind of clock


class Cores(NamedTuple):
    """One core for the measured process, one for the load and the agent; None on a machine with one core."""

    gateway: int | None
    load: int | None


class ServerProcess(NamedTuple):
    port: int
    pid: int


def pin_to_cores() -> Cores:
    """Pin this process, which generates the load, to its core."""
    if (os.cpu_count() or 1) < 2:
        return Cores(None, None)
    os.sched_setaffinity(0, {1})
    return Cores(gateway=0, load=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(
    *argv: str, core: int | None = None, env: dict[str, str] | None = None, cwd: str | None = None
) -> Iterator[int]:
    """Start a process, yield its pid, and end it with the block."""
    child = subprocess.Popen(
        argv,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )
    if core is not None:
        os.sched_setaffinity(child.pid, {core})
    try:
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def module(
    name: str,
    *argv: str,
    core: int | None = None,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    prefix: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """Start a module that serves the port in its first argument; the caller waits until it answers.

    `prefix` comes before the command: a program under which it runs.
    """
    port = free_port()
    with process(*prefix, python, "-m", name, str(port), *argv, core=core, env=env) as pid:
        yield ServerProcess(port, pid)


@contextmanager
def agent(core: int | None = None, pause_ms: int | None = None) -> Iterator[ServerProcess]:
    """An HTTP agent at `/` and a slow one at `/slow`; in C where it can be compiled.

    `pause_ms` is the time between two events of a stream.
    """
    with _upstream("bench.agent", core, *([] if pause_ms is None else ["", str(pause_ms)])) as served:
        yield served


@contextmanager
def mcp_server(core: int | None = None) -> Iterator[ServerProcess]:
    """An MCP server at `/mcp`, and one of the handshake era at `/events`; in C where it can be compiled."""
    with _upstream("bench.mcp_upstream", core) as served:
        yield served


@contextmanager
def _upstream(name: str, core: int | None, *options: str) -> Iterator[ServerProcess]:
    program = load_native.program("agent")
    port = free_port()
    argv = (program,) if program else (sys.executable, "-m", name)
    with process(*argv, str(port), *options, core=core) as pid:
        wait_for(port)
        yield ServerProcess(port, pid)


def stdio_server(core: int | None) -> list[str]:
    """The command of the MCP server as a program on stdin and stdout, pinned to this core."""
    program = load_native.program("agent")
    argv = [program] if program else [sys.executable, "-m", "bench.mcp_upstream"]
    return [*argv, "stdio", "" if core is None else str(core)]


@contextmanager
def forwarder(upstream: int, core: int | None = None) -> Iterator[ServerProcess]:
    with module("bench.forwarder", f"http://127.0.0.1:{upstream}/", core=core) as served:
        wait_for(served.port)
        yield served


@contextmanager
def node(
    manifests: str,
    core: int | None = None,
    *,
    wait: bool = True,
    settings: str = "",
    source: Path | None = None,
    prefix: Sequence[str] = (),
    log: str = "{file: fabric.log}",
) -> Iterator[ServerProcess]:
    """A node with auth, trace, log (to a file) and metrics.

    `log` are its settings of the log, `settings` further lines of YAML, in which
    `PORT` is its port; `source` is the folder of another version of
    the code.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "agents.yaml").write_text(manifests)
        Path(folder, "fabric.yaml").write_text(
            f"listen: 127.0.0.1:{port}\nlog: {log}\nauth: {{psk: 'env:BENCH_PSK'}}\n"
            + settings.replace(PORT, str(port))
        )
        argv = (*prefix, sys.executable, "-m", "a2a_fabric", "up", "--quiet", "--config", f"{folder}/fabric.yaml")
        env = {"BENCH_PSK": TOKEN, "FABRIC_HOME": folder, **({"PYTHONPATH": str(source)} if source else {})}
        with process(*argv, core=core, env=env) as pid:
            if wait:
                wait_for(port, within=_SLOW_START if prefix else _START)
            yield ServerProcess(port, pid)


def wait_for(port: int, path: str = "/health", within: float = _START) -> None:
    ends_at = time.monotonic() + within
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()
            return
        except OSError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.005)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far, in the kernel's own resolution."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CPU_CLOCK)


def wait_until_idle(pid: int, within: float = 60) -> None:
    """Wait until a process hardly works any more."""
    ends_at = time.monotonic() + within
    busy = 1.0
    while busy > 0.1 and time.monotonic() < ends_at:
        before = cpu_seconds(pid)
        time.sleep(1)
        busy = cpu_seconds(pid) - before


def child_of(pid: int) -> int:
    """The first process that this process has started; the process itself if there is none."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        if parent == pid:
            return int(status.parent.name)
    return pid


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
