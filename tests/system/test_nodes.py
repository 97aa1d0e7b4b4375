"""Nodes in the background: `init`, `up --detach`, `status`, `logs`, `stop`; crashes, stale entries, bad names."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from a2a_fabric.client.local_node import RunningNode, StateFolder, read_birth
from tests.system.node import COMMAND, environment, run, until


class Machine:
    """A user's home; ends what is left running in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.state = StateFolder({"FABRIC_HOME": str(self.home)})

    def run(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run(*words, home=self.home, folder=folder or self.folder)

    def json(self, *words: str, folder: Path | None = None) -> Any:
        done = self.run(*words, "--json", folder=folder)
        return msgspec.json.decode(done.stdout)

    def up(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """As a user would: `up` imports too much to be forked, and reads its own command line."""
        return subprocess.run(
            [*COMMAND, "up", *words],
            cwd=self.folder / name,
            env=environment(self.home),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, name: str) -> Any:
        folder = self.folder / name
        if not (folder / "fabric.yaml").exists():
            assert self.run("init", name, "--yes", "--listen", "127.0.0.1:0").returncode == 0
        done = self.up(name, "--detach", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return msgspec.json.decode(done.stdout)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    found.home.mkdir(mode=0o700)
    try:
        yield found
    finally:
        for entry in found.state.list_entries():
            if entry.is_running and entry.pid != os.getpid():
                os.kill(entry.pid, signal.SIGKILL)


def test_two_nodes_in_the_background_are_seen_read_and_stopped(machine: Machine) -> None:
    one, two = machine.start("one"), machine.start("two")
    assert one["name"] == "one"
    assert one["url"] != two["url"]
    nodes = machine.json("status")["nodes"]
    assert [(each["name"], each["status"]) for each in nodes] == [("one", "ready"), ("two", "ready")]
    assert nodes[0]["folder"] == str(machine.folder / "one")
    assert machine.run("health", "--url", one["url"]).returncode == 0
    again = machine.up("one", "-d")
    assert again.returncode == 1
    assert f"A node named 'one' runs already at {one['url']}" in again.stderr
    assert "Fabric is up at" in machine.run("logs", "one").stdout
    assert (machine.home / "key").read_text().strip() not in Path(one["log"]).read_text()
    assert Path(one["log"]).stat().st_mode & 0o077 == 0
    unnamed = machine.run("stop")
    assert (unnamed.returncode, "Several nodes run: one, two" in unnamed.stderr) == (1, True)
    assert machine.run("stop", "one").stdout == "one: stopped\n"
    assert machine.run("status", "one").returncode == 1  # it is known no more
    assert machine.run("stop").stdout == "two: stopped\n"
    assert machine.json("status") == {"nodes": [], "count": 0}
    assert "Stopped." in machine.run("logs", "two").stdout  # also after its end


def test_a_node_that_crashed_is_told_with_its_last_lines(machine: Machine) -> None:
    started = machine.start("fragile")
    with Path(started["log"]).open("a") as log:
        log.write("MemoryError: \x1b[31mno more\n")
    os.kill(started["pid"], signal.SIGKILL)
    until(lambda: machine.json("status")["nodes"][0]["status"] == "crashed", "the node to have crashed")
    told = machine.run("status", "fragile")
    assert told.returncode == 1
    assert "MemoryError: ?[31mno more" in told.stderr  # nothing that a terminal would obey
    restarted = machine.start("fragile")
    assert restarted["pid"] != started["pid"]
    assert machine.json("status")["nodes"][0]["status"] == "ready"
    os.kill(restarted["pid"], signal.SIGKILL)
    until(lambda: machine.run("stop", "fragile").stdout == "fragile: was not running\n", "the entry to be removed")
    assert machine.json("status")["count"] == 0


def test_a_node_that_ended_and_that_its_parent_has_not_collected_does_not_run(machine: Machine) -> None:
    """As in a container whose first process collects none."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    entry = RunningNode(
        url="http://127.0.0.1:9", pid=child.pid, started_at=0.0, name="ended", folder="/", born=read_birth(child.pid)
    )
    machine.state.nodes.mkdir(mode=0o700)
    (machine.state.nodes / "ended.json").write_bytes(msgspec.json.encode(entry))
    assert entry.is_running
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not entry.is_running
    assert machine.json("status")["nodes"][0]["status"] == "crashed"
    assert machine.run("stop").stdout == "ended: was not running\n"
    child.communicate()


def test_a_node_that_does_not_start_says_why(machine: Machine) -> None:
    assert machine.run("init", "wrong", "--yes").returncode == 0
    (machine.folder / "wrong" / "fabric.yaml").write_text("lissten: 127.0.0.1:0\n")
    done = machine.up("wrong", "--detach")
    assert done.returncode == 1
    assert "The node ended with code 1 instead of starting. It said:" in done.stderr
    assert "lissten" in done.stderr
    assert machine.json("status")["count"] == 0


def test_another_process_with_the_number_of_a_crashed_node_is_left_alone(machine: Machine) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        stale = RunningNode(
            url="http://127.0.0.1:9", pid=bystander.pid, started_at=0.0, name="stale", folder="/", born="1"
        )
        machine.state.nodes.mkdir(mode=0o700)
        (machine.state.nodes / "stale.json").write_bytes(msgspec.json.encode(stale))
        assert machine.json("status")["nodes"][0]["status"] == "crashed"
        assert machine.run("stop", "stale").stdout == "stale: was not running\n"
        assert bystander.poll() is None
        bystander.communicate(b"\n")


@pytest.mark.parametrize("name", ["../key", "a/b", "", "x" * 65, "nobody"])
def test_names_that_are_none_are_refused(machine: Machine, name: str) -> None:
    (machine.home / "key").write_text("a secret")
    for command in ("status", "stop", "logs"):
        done = machine.run(command, name)
        assert (done.returncode, done.stdout) == (1, "")
        assert "There is no node named" in done.stderr


def test_init_writes_what_check_accepts_and_overwrites_nothing(machine: Machine) -> None:
    written = machine.json("init", "new", "--with", "unit")
    folder = machine.folder / "new"
    assert {Path(each).name for each in written["files"]} == {
        "fabric.yaml", "agents.yaml", ".env", ".gitignore", "a2a-fabric.service"
    }  # fmt: skip
    assert (folder / ".env").stat().st_mode & 0o077 == 0
    assert machine.run("check", folder=folder).returncode == 0
    key = (folder / ".env").read_text().partition("FABRIC_PSK=")[2].strip()
    assert key == (machine.home / "key").read_text().strip()  # so that commands of this user are let in
    assert key not in (folder / "fabric.yaml").read_text()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = machine.run("init", "new", "--yes", "--with", "compose")
    assert again.returncode == 1
    assert "there is already fabric.yaml, agents.yaml, .env. Nothing was changed" in again.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_unit_of_init_is_right_in_a_folder_with_any_name(machine: Machine) -> None:
    name = 'my node, 100% "mine"'
    done = machine.run("init", name, "--yes", "--with", "unit")
    assert done.returncode == 0
    assert f"cd {shlex.quote(name)} && a2a-fabric up" in done.stderr
    folder = (machine.folder / name).resolve()
    unit = folder / "a2a-fabric.service"
    lines = dict(line.partition("=")[::2] for line in unit.read_text().splitlines() if "=" in line)
    escaped = str(folder).replace("%", "%%")
    assert lines["WorkingDirectory"] == escaped
    quoted = escaped.replace('"', '\\"')
    assert lines["ReadWritePaths"] == f'"{quoted}"'
    if (analyze := shutil.which("systemd-analyze")) is not None:
        unit.write_text(unit.read_text().replace(f"User={lines['User']}", "User=daemon"))
        done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_init_keeps_the_address_of_a_server_with_its_password_in_env(machine: Machine) -> None:
    address = "postgresql://fabric:secret-word@db.example/fabric"
    assert machine.run("init", "new", "--yes", "--store", address, "--listen", "0.0.0.0:8000").returncode == 0
    assert "secret-word" not in (machine.folder / "new" / "fabric.yaml").read_text()
    assert f"FABRIC_STORE={address}" in (machine.folder / "new" / ".env").read_text()


def test_the_compose_file_of_init_has_a_node_and_its_database(machine: Machine) -> None:
    assert machine.run("init", "new", "--yes", "--with", "compose").returncode == 0
    compose = yaml.safe_load((machine.folder / "new" / "compose.yaml").read_text())
    assert set(compose["services"]) == {"node", "postgres"}
    assert compose["services"]["node"]["ports"] == ["127.0.0.1:8000:8000"]
    assert machine.run("init", "other", "--yes", "--with", "compose", "--listen", "127.0.0.1:9000").returncode == 0
    other = yaml.safe_load((machine.folder / "other" / "compose.yaml").read_text())["services"]["node"]
    assert other["ports"] == ["127.0.0.1:9000:9000"]
    assert other["environment"]["FABRIC_HEALTH_URL"] == "http://127.0.0.1:9000/readyz"  # the image asks port 8000
    secrets = (machine.folder / "new" / ".env").read_text()
    password = secrets.partition("POSTGRES_PASSWORD=")[2].splitlines()[0]
    assert f"FABRIC_STORE=postgresql://fabric:{password}@postgres/fabric" in secrets
    config = yaml.safe_load((machine.folder / "new" / "fabric.yaml").read_text())
    assert (config["listen"], config["store"]) == ("0.0.0.0:8000", "env:FABRIC_STORE")


def take_terminal() -> None:
    """Ctrl-C is for the process whose terminal stdin is."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A person at a terminal who runs `a2a-fabric init`, reads a question and types an answer."""

    def __init__(self, machine: Machine, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [*COMMAND, "init", *words],
            cwd=machine.folder,
            env=environment(
                machine.home, TERM="xterm", PATH=f"{make_systemctl(machine)}{os.pathsep}{os.environ['PATH']}"
            ),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def answer(self, question: str, text: str) -> None:
        self.read_until(question)
        os.write(self._ours, text.encode())

    def read_until(self, words: str) -> None:
        ends_at = time.monotonic() + 60
        begin = len(self.seen)
        while words not in self.seen[begin:]:
            assert time.monotonic() < ends_at, self.seen
            assert self._read(), self.seen

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(60)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._ours, 4096)
        except OSError:  # the program has ended
            return False
        self.seen += chunk.decode()
        return bool(chunk)


def make_systemctl(machine: Machine) -> Path:
    """`init` offers a unit only where there is systemd."""
    folder = machine.folder / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "systemctl").write_text("#!/bin/sh\n")
    (folder / "systemctl").chmod(0o755)
    return folder


SHARED, STORE, UNIT = "reach this node? [y/N]", "[sqlite:fabric.db]", "unit for systemd? [y/N]"


def test_init_asks_three_questions_on_a_terminal_and_takes_their_defaults(machine: Machine) -> None:
    terminal = Terminal(machine, "new")
    for question in (SHARED, STORE, UNIT):
        terminal.answer(question, "\n")
    assert terminal.end() == 0
    assert "Start it with: cd new && a2a-fabric up --detach" in terminal.seen
    folder = machine.folder / "new"
    assert {path.name for path in folder.iterdir()} == {"fabric.yaml", "agents.yaml", ".env", ".gitignore"}
    config = yaml.safe_load((folder / "fabric.yaml").read_text())
    assert (config["listen"], config["store"]) == ("127.0.0.1:8000", "sqlite:fabric.db")
    again = Terminal(machine, "new")
    assert (again.end(), "there is already" in again.seen, SHARED in again.seen) == (1, True, False)


def test_init_asks_again_until_an_answer_can_be_used(machine: Machine) -> None:
    terminal = Terminal(machine, "new")
    terminal.answer(SHARED, "perhaps\n")
    terminal.answer(SHARED, "y\n")
    terminal.answer(STORE, "sqlit:jobs.db\n")
    terminal.answer(STORE, "somewhere\n")
    terminal.answer(STORE, "sqlite:\n")
    terminal.answer(STORE, "sqlite:my jobs # 1.db\n")
    terminal.answer(UNIT, "y\n")
    assert terminal.end() == 0
    assert "nearest: sqlite" in terminal.seen
    assert "Other machines can reach it" in terminal.seen
    folder = machine.folder / "new"
    assert (folder / "a2a-fabric.service").exists()
    config = yaml.safe_load((folder / "fabric.yaml").read_text())
    assert (config["listen"], config["store"]) == ("0.0.0.0:8000", "sqlite:my jobs # 1.db")
    assert machine.run("check", folder=folder).returncode == 0


@pytest.mark.parametrize("end", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
def test_init_that_is_left_writes_nothing(machine: Machine, end: str) -> None:
    terminal = Terminal(machine, "new")
    terminal.answer(SHARED, "\n")
    terminal.answer(STORE, end)
    assert (terminal.end(), "Aborted" in terminal.seen) == (1, True)
    assert not (machine.folder / "new").exists()


@pytest.mark.parametrize("store", ["sqlit:x", "sqlite:", "x", "sqlite:a\nlisten: 0.0.0.0:1"])
def test_init_refuses_a_store_that_is_none_and_writes_nothing(machine: Machine, store: str) -> None:
    refused = machine.run("init", "new", "--yes", "--store", store)
    assert (refused.returncode, "store" in refused.stderr) == (1, True)
    assert not (machine.folder / "new").exists()


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999"])
def test_init_refuses_an_address_that_is_none_and_writes_nothing(machine: Machine, listen: str) -> None:
    assert machine.run("init", "new", "--yes", "--listen", listen).returncode == 1
    assert not (machine.folder / "new").exists()
