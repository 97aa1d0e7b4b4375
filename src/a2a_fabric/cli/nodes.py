"""The nodes of this machine: `up --detach`, `status`, `stop` and `logs`.

A node in the background is the same command without --detach, in a session of its own, with its output in a file.
Nodes are found by the entries that they keep while they run: `announce_node` writes them, `client/local_node.py` reads
them. A process is signalled only if it is the one that wrote the entry: numbers of processes are used again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import format_age, print_json, print_line, print_table, remark, report_errors
from a2a_fabric.client.local_node import RunningNode, StateFolder, read_birth
from a2a_fabric.config import read_environment
from a2a_fabric.core.errors import BadInput, ConfigError
from a2a_fabric.core.files import replace_text, report_write_errors
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import OutboundError

LOG_VARIABLE = "FABRIC_DETACHED_LOG"  # tells a node in the background where its output goes
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 60.0
_POLL = 0.05
_ASK_TIMEOUT = 3.0
_LAST_LINES = 20
_MAX_LOG_BYTES = 16 * 1024 * 1024  # beyond this, the next start begins a new file
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

NodeState = Literal["ready", "degraded", "not ready", "not answering", "crashed"]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `status`."""

    name: str
    status: NodeState
    pid: int
    url: str
    started_at: float
    folder: str
    log: str | None = None
    reasons: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()


def check_name(state: StateFolder, name: str) -> None:
    """Raises ConfigError if it cannot be the name of a node that is to start."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name: '{name[:80]}' is no name: use letters, digits, dashes and underscores")
    entry = state.read_entry(name)
    if entry is not None and entry.is_running and entry.pid != os.getpid():
        raise ConfigError(
            f"A node named '{name}' runs already at {entry.url} (process {entry.pid}). Stop it with: a2a-fabric stop "
            f"{name}; or choose another name with --name"
        )


def start_detached(arguments: Sequence[str], name: str | None, *, as_json: bool) -> None:
    """Start `up` in the background, and wait until its node answers. Raises ConfigError if it does not come up."""
    if sys.platform == "win32":
        raise ConfigError("--detach: this system has no sessions for it. Start the node as a service instead")
    state = StateFolder(read_environment())
    chosen = name or default_name(Path.cwd())
    check_name(state, chosen)
    if state.key.read() is None:
        state.key.create()  # so that the node does not print a new one into its log
    log = state.logs / f"{chosen}.log"
    own_options = ("--detach", "-d", "--json")
    words = [word for word in arguments if word not in own_options]
    if name is None:
        words += ["--name", chosen]
    with report_write_errors(log):
        state.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begins_at = os.fstat(handle).st_size
    try:
        process = subprocess.Popen(  # noqa: S603  # our own command, as the user wrote it
            [sys.executable, "-m", "a2a_fabric", *words],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
            env={**os.environ, LOG_VARIABLE: str(log)},
        )
    finally:
        os.close(handle)
    entry = _wait_for_start(state, chosen, process, log, begins_at)
    if as_json:
        print_json({"name": entry.name, "pid": entry.pid, "url": entry.url, "log": str(log)})
        return
    print_line(f"Fabric is up at {entry.url}  (node '{chosen}', process {entry.pid})")
    remark(f"Its log is {log}. Stop it with: a2a-fabric stop {chosen}")


def _wait_for_start(
    state: StateFolder, name: str, process: subprocess.Popen[bytes], log: Path, begins_at: int
) -> RunningNode:
    """Raises ConfigError with the last lines of the log."""
    ends_at = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < ends_at:
        entry = state.read_entry(name)
        if entry is not None and entry.pid == process.pid and asyncio.run(_ask(entry)).status != "not answering":
            return entry
        if process.poll() is not None:
            lines = "\n".join(_read_last_lines(log, _LAST_LINES, begins_at))
            raise ConfigError(f"The node ended with code {process.returncode} instead of starting. It said:\n{lines}")
        time.sleep(_POLL)
    process.terminate()
    lines = "\n".join(_read_last_lines(log, _LAST_LINES, begins_at))
    raise ConfigError(f"The node did not answer within {_START_TIMEOUT:g} s and was stopped. It said:\n{lines}")


def show_status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this node.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the nodes of this machine: running, not ready, crashed.

    These are the nodes that this user started with `up`. With a name, the exit code is 1 unless that node is ready.

    Example: a2a-fabric status
    """
    state = StateFolder(read_environment())
    with report_errors(as_json=as_json):
        entries = state.list_entries() if name is None else [_find_entry(state, name)]
        reports = asyncio.run(_ask_all(entries))
    if as_json:
        print_json({"nodes": reports, "count": len(reports)})
    else:
        _print_reports(reports)
    if name is not None and reports[0].status not in ("ready", "degraded"):
        raise typer.Exit(1)


def _print_reports(reports: Sequence[NodeReport]) -> None:
    if not reports:
        remark("No node of yours runs on this machine. Start one with: a2a-fabric up --detach")
        return
    print_table(
        ("name", "status", "process", "url", "started"),
        [(each.name, each.status, str(each.pid), each.url, format_age(each.started_at)) for each in reports],
    )
    for each in reports:
        for reason in each.reasons:
            remark(f"{each.name}: {reason}")
        if each.last_lines:
            remark(f"The last lines of {each.log}:")
            for line in each.last_lines:
                remark(f"  {line}")


async def _ask_all(entries: Sequence[RunningNode]) -> list[NodeReport]:
    return list(await asyncio.gather(*map(_ask, entries)))


async def _ask(entry: RunningNode) -> NodeReport:
    if not entry.is_running:
        lines = () if entry.log is None else tuple(_read_last_lines(Path(entry.log), 5))
        reason = f"process {entry.pid} has ended without a stop. Start it again, or: a2a-fabric stop {entry.name}"
        return _report(entry, "crashed", (reason,), lines)
    async with aclosing(OutboundClient(verify=False)) as http:  # only the status is read, from this machine
        try:
            reply = await http.request("GET", f"{entry.url}/readyz", timeout=_ASK_TIMEOUT, limit=1 << 16)
            page = msgspec.json.decode(reply.body)
            if reply.status != 200:
                return _report(entry, "not ready", tuple(page.get("reasons", ())))
            health = await http.request("GET", f"{entry.url}/health", timeout=_ASK_TIMEOUT, limit=1 << 16)
            checks: dict[str, str] = msgspec.json.decode(health.body).get("checks", {}) if health.status == 200 else {}
        except (OutboundError, msgspec.DecodeError, AttributeError) as exc:
            return _report(entry, "not answering", (str(exc)[:200],))
    bad = tuple(f"the check '{name}' is {status}" for name, status in checks.items() if status != "ok")
    return _report(entry, "degraded" if bad else "ready", bad)


def _report(
    entry: RunningNode, status: NodeState, reasons: tuple[str, ...] = (), last_lines: tuple[str, ...] = ()
) -> NodeReport:
    return NodeReport(
        name=entry.name,
        status=status,
        pid=entry.pid,
        url=entry.url,
        started_at=entry.started_at,
        folder=entry.folder,
        log=entry.log,
        reasons=reasons,
        last_lines=last_lines,
    )


def stop_nodes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The node.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All nodes of this machine.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running calls.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait.")] = _STOP_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Stop a node of this machine, and let it finish its calls.

    The name may be left out if only one node runs. The entry of a node that crashed is removed.

    Example: a2a-fabric stop
    """
    state = StateFolder(read_environment())
    with report_errors(as_json=as_json):
        if everything:
            entries = state.list_entries()
        else:
            entries = [_find_entry(state, name) if name is not None else _find_only(state)]
        outcomes = _stop_all(state, entries, timeout, now=now)
    if as_json:
        print_json({"nodes": [{"name": each, "outcome": outcome} for each, outcome in outcomes.items()]})
    elif not outcomes:
        remark("No node of yours runs on this machine.")
    else:
        for each, outcome in outcomes.items():
            print_line(f"{each}: {outcome}")
    if any(outcome.startswith("still") for outcome in outcomes.values()):
        raise typer.Exit(1)


def _stop_all(state: StateFolder, entries: Sequence[RunningNode], timeout: float, *, now: bool) -> dict[str, str]:
    """What became of each node, by name."""
    running = {entry.name: entry for entry in entries if entry.is_running}
    outcomes = {entry.name: "was not running" for entry in entries if entry.name not in running}
    for name in outcomes:
        (state.nodes / f"{name}.json").unlink(missing_ok=True)
    for _ in range(2 if now else 1):
        for entry in running.values():
            with suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGTERM)
        if now:
            time.sleep(_POLL)  # two signals at once would be one
    ends_at = time.monotonic() + timeout
    while running and time.monotonic() < ends_at:
        for name in [name for name, entry in running.items() if not entry.is_running]:
            del running[name]
            outcomes[name] = "stopped"
        time.sleep(_POLL)
    return outcomes | {
        name: f"still finishes its calls after {timeout:g} s; end them with: a2a-fabric stop --now {name}"
        for name in running
    }


def _find_entry(state: StateFolder, name: str) -> RunningNode:
    """Raises BadInput."""
    entry = state.read_entry(name) if _NAME.fullmatch(name) else None
    if entry is None:
        known = ", ".join(each.name for each in state.list_entries()) or "none"
        raise BadInput(f"There is no node named '{name[:80]}' on this machine (nodes: {known})")
    return entry


def _find_only(state: StateFolder) -> RunningNode:
    """Raises BadInput if there is none, or more than one."""
    entries = state.list_entries()
    running = [each for each in entries if each.is_running] or entries
    if len(running) == 1:
        return running[0]
    if not running:
        raise BadInput("No node of yours runs on this machine. Start one with: a2a-fabric up --detach")
    raise BadInput(f"Several nodes run: {', '.join(each.name for each in running)}. Name one, or use --all")


def show_logs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The node.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many lines.")] = 50,
) -> None:
    """Show what a node in the background has written.

    These are the lines of its output, also of its start and of a crash. `a2a-fabric log` asks a running node for its
    calls instead.

    Example: a2a-fabric logs -f
    """
    state = StateFolder(read_environment())
    path = _find_log(state, name)
    for line in _read_last_lines(path, last):
        print_line(line)
    if follow:
        with suppress(KeyboardInterrupt):
            for line in _follow_file(path):
                print_line(line)


def _find_log(state: StateFolder, name: str | None) -> Path:
    """Also of a node that has stopped. Raises BadInput."""
    if name is not None and _NAME.fullmatch(name) and (state.logs / f"{name}.log").exists():
        return state.logs / f"{name}.log"
    entry = _find_entry(state, name) if name is not None else _find_only(state)
    if entry.log is None:
        raise BadInput(f"Node '{entry.name}' was not started with --detach: it writes to its terminal or to `log.file`")
    return Path(entry.log)


def _read_last_lines(path: Path, number: int, begins_at: int = 0) -> list[str]:
    """Of the part after `begins_at`; empty if there is no such file. Control characters are replaced."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begins_at, size - _MAX_LOG_BYTES))
            lines = deque(file, maxlen=number)
    except OSError:
        return []
    return [_make_printable(line) for line in lines]


def _make_printable(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\n")
    return "".join(each if each.isprintable() or each == "\t" else "?" for each in text)


def _follow_file(path: Path) -> Iterator[str]:
    """New lines, for ever. A file that is cut or replaced is read from its beginning."""
    position, identity = _measure(path)
    while True:
        size, found = _measure(path)
        if found != identity or size < position:
            position, identity = 0, found
        if size > position:
            with suppress(OSError), path.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is still being written
                    position += len(line)
                    yield _make_printable(line)
        time.sleep(0.2)


def _measure(path: Path) -> tuple[int, Any]:
    try:
        status = path.stat()
    except OSError:
        return 0, None
    return status.st_size, (status.st_dev, status.st_ino)


@contextmanager
def announce_node(
    state: StateFolder, url: str, files: Iterable[Path] = (), name: str | None = None, log: str | None = None
) -> Iterator[None]:
    """Record the address of this process's node for as long as the node runs. `name`: else that of its folder."""
    pid = os.getpid()
    own_node = RunningNode(
        url=url,
        pid=pid,
        started_at=time.time(),
        files=tuple(sorted(str(file.resolve()) for file in files)),
        name=name or state.choose_name(default_name(Path.cwd())),
        folder=str(Path.cwd()),
        log=log,
        born=read_birth(pid),
    )
    entry = state.nodes / f"{own_node.name}.json"
    try:
        state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.nodes.mkdir(mode=0o700, exist_ok=True)
        text = msgspec.json.encode(own_node).decode()
        replace_text(state.node_file, text)
        replace_text(entry, text)
    except (OSError, ConfigError) as exc:
        reason = exc.message if isinstance(exc, ConfigError) else f"{state.folder}: {exc.strerror}"
        raise ConfigError(f"{reason}, or set FABRIC_HOME to a folder of yours") from exc
    try:
        yield
    finally:
        if state.read_node() == own_node:  # else a node that was started later has replaced it
            state.node_file.unlink(missing_ok=True)
        if state.read_entry(own_node.name) == own_node:
            entry.unlink(missing_ok=True)


def default_name(folder: Path) -> str:
    """The name of a node that was started in a folder: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-")[:64] or "node"
