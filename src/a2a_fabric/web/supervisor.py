"""The process that `up --workers N` starts first: it owns the listening sockets, starts the workers and watches them.

Each worker has a socket of its own on the same port (SO_REUSEPORT), which the supervisor keeps open. So connections
that wait for a worker that died wait on, and the next worker accepts them.

All workers have one piece of memory in which they count what they use of the limits of the node. What a worker held
that has ended is given back by the supervisor.

Supervisor and worker are connected by a pair of sockets. The worker writes one byte when its node is up, and serves
clients only when the supervisor has answered: then the others are up, too. If the supervisor dies, the worker reads
the end of the pair and stops, so no worker is left behind.

The first SIGINT or SIGTERM is passed on, and the workers finish their calls. A worker that has answered its clients
writes one byte, and serves the other workers until the supervisor answers: then no client waits any more for an agent
that this worker holds. SIGHUP, SIGUSR1 and the second signal are passed on, too. A worker that is not up yet gets
SIGHUP and SIGUSR1 when it is up: they would end an interpreter that starts."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.held_signals import hand_over_signals, hold_signals
from a2a_fabric.core.shared_counts import SECRET_BYTES, SharedCounts
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.web.server import bind_socket

_log = logging.getLogger(__name__)
_READY, _GO = b"r", b"g"
_DONE, _END = b"d", b"e"
_START_TIMEOUT = 120.0  # seconds until a worker's node must be up
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0  # seconds before a worker is started again
_STABLE_SECONDS = 10.0  # a worker that ran for so long is started again at once
_STOP_GRACE = 10.0  # seconds beyond the drain time until workers are killed


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told on its command line. The descriptors are inherited."""

    number: int
    count: int
    folder: str
    listener: int
    control: int
    counts: int


def bind_worker_sockets(host: str, port: int, count: int, *, exact_port: bool) -> list[socket.socket]:
    """One listening socket for each worker, all on one port. Raises ConfigError."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("--workers needs a system on which processes can share a port (SO_REUSEPORT). Use one worker")
    with bind_socket(host, port, exact_port=exact_port) as alone:  # fails if another node has the port, shared or not
        chosen: int = alone.getsockname()[1]
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(bind_socket(host, chosen, exact_port=True, is_shared=True)) for _ in range(count)
        ]
        stack.pop_all()
    return sockets


def create_counts(workers: int) -> int:
    """The descriptor of the memory in which the workers count what they use of the limits of the node."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("a2a-fabric")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    size = SharedCounts.measure(workers)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, secrets.token_bytes(SECRET_BYTES), size - SECRET_BYTES)
    return descriptor


def open_counts(descriptor: int, workers: int, number: int) -> SharedCounts:
    return SharedCounts(memoryview(mmap.mmap(descriptor, SharedCounts.measure(workers))), workers, number)


class Supervisor:
    """`command` starts a worker if its description follows; `report` tells the operator of what happens."""

    def __init__(
        self,
        command: Sequence[str],
        sockets: Sequence[socket.socket],
        folder: str,
        drain_timeout: float,
        report: Callable[[str], None],
    ) -> None:
        self._command = command
        self._sockets = sockets
        self._counts_descriptor = create_counts(len(sockets))
        self._counts = open_counts(self._counts_descriptor, len(sockets), 0)
        self._folder = folder
        self._drain_timeout = drain_timeout
        self._report = report
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._has_begun = asyncio.Event()  # all workers have been up once
        self._ready: set[int] = set()  # workers that have been up once
        self._up: set[int] = set()  # those that are up
        self._serving: set[int] = set()  # those that have clients, or may have
        self._all_done = asyncio.Event()  # the node stops, and no worker has a client any more
        self._held: dict[int, set[signal.Signals]] = {}  # signals for those that are not
        self._is_stopping = False
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Until a signal ends the node; returns the exit code."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            **{number: partial(self._stop, number) for number in (signal.SIGINT, signal.SIGTERM)},
            **{number: partial(self._notify, number) for number in (signal.SIGHUP, signal.SIGUSR1)},
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        hand_over_signals(handlers)
        tasks = [asyncio.ensure_future(self._keep_running(number)) for number in range(len(self._sockets))]
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            failed = not self._is_stopping  # a worker never came up, and said why
            if failed:
                self._stop(signal.SIGTERM)
            await self._wait_for_workers()
            return 1 if failed else 0
        finally:
            await cancel_and_wait(*tasks, stopping)
            for number in handlers:
                loop.remove_signal_handler(number)
            hold_signals()

    def _stop(self, number: signal.Signals) -> None:
        self._is_stopping = True
        for listener in self._sockets:  # each worker has its own copy, and closes the port when it is done with it
            listener.close()
        self._pass_on(number)
        self._stopping.set()
        self._note_done()

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def _notify(self, signal_number: signal.Signals) -> None:
        """A signal that ends a worker which has no handlers yet."""
        for number, process in self._processes.items():
            if number in self._up:
                with suppress(ProcessLookupError):
                    process.send_signal(signal_number)
            else:
                self._held.setdefault(number, set()).add(signal_number)

    async def _wait_for_workers(self) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        waits = [asyncio.ensure_future(process.wait()) for process in running]
        if not waits:
            return
        _, pending = await asyncio.wait(waits, timeout=self._drain_timeout + _STOP_GRACE)
        if pending:
            self._report(f"{len(pending)} workers did not stop within {self._drain_timeout + _STOP_GRACE:g} s")
            self._pass_on(signal.SIGKILL)
            await asyncio.wait(pending)

    async def _keep_running(self, number: int) -> None:
        """Returns when the worker ended as it should, or could not be started the first time."""
        pause = _FIRST_PAUSE
        while not self._is_stopping:
            started_at = time.monotonic()
            code = await self._run_worker(number)
            if self._is_stopping:
                return
            if number not in self._ready and not self._has_begun.is_set():
                return
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self._report(f"Worker {number} {reason}. It is started again.")
            has_run = time.monotonic() - started_at >= _STABLE_SECONDS
            pause = _FIRST_PAUSE if has_run else min(2 * pause, _MAX_PAUSE)
            await asyncio.sleep(pause)

    async def _run_worker(self, number: int) -> int:
        with ExitStack() as stack:
            own_end, worker_end = socket.socketpair()
            stack.callback(own_end.close)
            own_end.setblocking(False)
            with worker_end:
                start = WorkerStart(
                    number=number,
                    count=len(self._sockets),
                    folder=self._folder,
                    listener=self._sockets[number].fileno(),
                    control=worker_end.fileno(),
                    counts=self._counts_descriptor,
                )
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    msgspec.json.encode(start).decode(),
                    pass_fds=(start.listener, start.control, start.counts),
                    start_new_session=True,  # or Ctrl-C would reach the worker twice
                )
            self._up.discard(number)
            self._processes[number] = process
            if self._is_stopping:  # the signal came before this process existed
                process.terminate()
            starting = asyncio.ensure_future(self._begin(number, own_end))
            try:
                return await process.wait()
            except asyncio.CancelledError:
                process.kill()
                raise
            finally:
                self._up.discard(number)
                self._note_done(number)
                self._counts.clear(number)
                await cancel_and_wait(starting)

    async def _begin(self, number: int, control: socket.socket) -> None:
        """Wait until the worker is up, and let it serve when the others are."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                if await loop.sock_recv(control, 1) != _READY:
                    return  # it ended; its exit code says the rest
        except TimeoutError:
            self._report(f"Worker {number} was not up within {_START_TIMEOUT:g} s. It is killed.")
            self._processes[number].kill()
            return
        self._ready.add(number)
        self._up.add(number)
        for held in self._held.pop(number, ()):
            self._processes[number].send_signal(held)
        if len(self._ready) == len(self._sockets):
            self._has_begun.set()
        await self._has_begun.wait()
        self._serving.add(number)
        await loop.sock_sendall(control, _GO)
        with suppress(OSError):  # it was killed
            if await loop.sock_recv(control, 1) != _DONE:
                return
            self._note_done(number)
            if self._is_stopping:
                await self._all_done.wait()
            await loop.sock_sendall(control, _END)

    def _note_done(self, *numbers: int) -> None:
        """These workers have no clients any more."""
        self._serving.difference_update(numbers)
        if self._is_stopping and not self._serving:
            self._all_done.set()


async def wait_for_others(control: socket.socket) -> bool:
    """In a worker whose node is up: wait until the others are. False if the supervisor has gone."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)
    await loop.sock_sendall(control, _READY)
    return await loop.sock_recv(control, 1) == _GO


async def wait_until_others_are_done(control: socket.socket, timeout: float) -> None:
    """In a worker that has answered its clients: wait until the others have, if the whole node stops."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout):
            await loop.sock_sendall(control, _DONE)
            await loop.sock_recv(control, 1)


async def stop_with_supervisor(control: socket.socket, stop: Callable[[], None]) -> None:
    """In a worker: stop it if the supervisor dies, which is the only way in which the pair can end."""
    if not await asyncio.get_running_loop().sock_recv(control, 1):
        _log.warning("the supervisor of the workers is gone; this worker stops")
        stop()


def worker_command(arguments: Sequence[str]) -> list[str]:
    """The command line of a worker, without its description. `arguments` are those of this process."""
    return [sys.executable, "-m", "a2a_fabric", *arguments, "--worker"]
