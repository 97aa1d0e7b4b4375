"""A real node: `python -m a2a_fabric up` as a process of its own, and the command beside it as a user would run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import msgspec

from a2a_fabric.cli.program import COMMANDS
from tests.fixtures.forked.commands import forked_command

COMMAND = [sys.executable, "-m", "a2a_fabric"]
QUICK = tuple(
    f"a2a_fabric.cli.{row.module}" for name, row in COMMANDS.items() if name not in ("up", "mcp")
)  # what a command imports
WAIT_TIMEOUT = 60.0  # on a machine that has other things to do

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, timeout: float = WAIT_TIMEOUT) -> T:
    """What `look` finds, as soon as it finds something."""
    ends_at = time.monotonic() + timeout
    while time.monotonic() < ends_at:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout:g} s in vain for {what}")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Ours without anything that would lead a node or client elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FABRIC_")}
    return {**inherited, "FABRIC_HOME": str(home), "COLUMNS": "80", **more}


class Node:
    """A running node and the folder where it was started."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, home: Path) -> None:
        self.process = process
        self.folder = folder
        self.home = home
        self.url = ""

    @property
    def said(self) -> str:
        return (self.home / "stderr").read_text()

    @property
    def printed(self) -> str:
        return (self.home / "stdout").read_text()

    @property
    def token(self) -> str:
        return (self.home / "key").read_text().strip()

    def wait_until_ready(self) -> None:
        def look() -> str | None:
            assert self.process.poll() is None, f"the node ended: {self.said}"
            return self._healthy_url()

        self.url = until(look, "the node to be healthy")

    def _healthy_url(self) -> str | None:
        try:
            url: str = msgspec.json.decode((self.home / "node.json").read_bytes())["url"]
            with urlopen(f"{url}/health", timeout=2) as reply:  # noqa: S310  # our own node
                return url if reply.status == 200 else None
        except OSError:
            return None

    def run(self, *words: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """A command beside the node, with no option that says where it is."""
        return run(*words, home=self.home, folder=self.folder, stdin=stdin, **env)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on while the test does."""
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.folder,
            env=environment(self.home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return msgspec.json.decode(done.stdout)

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(WAIT_TIMEOUT)


def run(
    *words: str, home: Path, folder: Path, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command to its end. Hundreds are run, so they are forked; the others here are started as a user would."""
    return subprocess.run(
        forked_command("a2a_fabric.__main__", *words, imports=QUICK),
        cwd=folder,
        env=environment(home, **env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT,
        check=False,
    )


@contextmanager
def running_node(folder: Path, *words: str, listen: str | None = "127.0.0.1:0", **env: str) -> Iterator[Node]:
    """Started in `folder`, ready when handed out, killed if the test has not stopped it."""
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    options = [*words, "--listen", listen] if listen else [*words]
    with (home / "stdout").open("wb") as stdout, (home / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "up", *options],
            cwd=folder,
            env=environment(home, **env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    node = Node(process, folder, home)
    try:
        node.wait_until_ready()
        yield node
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT_TIMEOUT)
