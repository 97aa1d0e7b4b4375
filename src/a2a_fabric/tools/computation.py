"""Runs the long computations of built-in tools in processes of their own.

A thread that computes in Python holds the interpreter lock, so the event loop, and with it every other caller, would
wait for it again and again. So work that may take more than a few milliseconds goes to a worker process of lower
priority: this file, run as a program. Small work is done in a thread, which is sooner than to reach a process.

A worker process is started when there is work for it, does one piece of work at a time, is killed if the time is up
or the caller no longer waits, and ends by itself after a minute without work. Requests and replies are pickled; both
ends are this module.

Each process in use is driven by a thread that waits for its reply (without the lock), so the shares, queues and
bounds of `WorkerThreads` hold for processes, too."""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import select
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Concatenate, ParamSpec, TypeVar, cast

from a2a_fabric.core.errors import FabricError, error_from_code
from a2a_fabric.core.limits import Share
from a2a_fabric.core.threads import WorkerThreads, run_in_worker_thread, worker_threads
from a2a_fabric.tools.toolkit import TIME_LIMIT, TimeLimit, tool_error

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 20_000  # characters or steps: a few milliseconds at most
_IDLE_SECONDS = 60.0
_MAX_MEMORY = 2 << 30
_POLL_SECONDS = 0.1  # how soon a worker is killed whose caller no longer waits
_HEAD_BYTES = 8
_SLICE_NANOSECONDS = 100_000_000  # the longest that Linux accepts
_KEEP_POLICY = 8
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call, for which there is no function in libc


class Computations:
    """The worker processes of a node. Belongs to one event loop."""

    def __init__(self, processes: int, share: Share) -> None:
        self._threads = WorkerThreads("computations of tools", processes, share)
        self._idle: list[_WorkerProcess] = []
        self._busy: set[_WorkerProcess] = set()
        self._closed = False

    async def run(
        self, principal_id: str | None, function: Callable[Concatenate[TimeLimit, P], T], *args: P.args, **_: P.kwargs
    ) -> T:
        """Raises RateLimited, TIMEOUT, and what the function raises. The function is found again by its name."""
        request = pickle.dumps((function.__module__, function.__qualname__, args))
        time_limit = TimeLimit(TIME_LIMIT)
        try:
            reply = await self._threads.run(principal_id, self._run_blocking, request, time_limit)
        finally:
            time_limit.end()
        outcome, value = pickle.loads(reply)  # noqa: S301  # from our own process
        if outcome == "fabric error":
            raise error_from_code(*value)
        if outcome == "error":
            raise value
        result: T = value
        return result

    def close(self) -> None:
        self._closed = True
        self._threads.close()
        for worker in (*self._idle, *self._busy):
            worker.kill()

    def _run_blocking(self, request: bytes, time_limit: TimeLimit) -> bytes:
        while (worker := self._take_idle()) is not None:
            self._busy.add(worker)
            try:
                return self._finish(worker, worker.run(request, time_limit))
            except _WorkerEnded:
                continue  # it ended after its minute without work, before it read the request
            finally:
                self._busy.discard(worker)
        worker = _WorkerProcess()
        self._busy.add(worker)
        try:
            return self._finish(worker, worker.run(request, time_limit))
        except _WorkerEnded as exc:
            raise tool_error("EXECUTION_ERROR", "The work needs too much memory; ask for less") from exc
        finally:
            self._busy.discard(worker)

    def _take_idle(self) -> _WorkerProcess | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _finish(self, worker: _WorkerProcess, reply: bytes) -> bytes:
        if self._closed:
            worker.kill()
        else:
            self._idle.append(worker)
        return reply


async def compute(
    computations: Computations | None,
    weight: int,
    function: Callable[Concatenate[TimeLimit, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function of a tool: in a thread if its work is small, else in a process. `weight` is about the number of
    characters that it looks at, or of steps that it makes. Its arguments and its result must be picklable."""
    if computations is None or weight <= SMALL:
        time_limit = TimeLimit(TIME_LIMIT)
        try:
            return await run_in_worker_thread(function, time_limit, *args, **kwargs)
        finally:
            time_limit.end()
    current = worker_threads.get()
    return await computations.run(None if current is None else current[1], function, *args, **kwargs)


class _WorkerEnded(Exception):
    """The process ended without a reply."""


class _WorkerProcess:
    def __init__(self) -> None:
        # Out of reach of Ctrl-C, but in our session: Linux may give each session an equal share of the processors,
        # whatever the priority of its processes.
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)

    def run(self, request: bytes, time_limit: TimeLimit) -> bytes:
        """Blocks. The process is gone after any error."""
        try:
            self._send(request)
            size = int.from_bytes(self._receive(_HEAD_BYTES, time_limit), "big")
            return self._receive(size, time_limit)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies):
            try:
                pipe.close()
            except OSError:
                pass  # what was not read is lost with the process

    def _send(self, request: bytes) -> None:
        """The worker reads a whole request before it does anything else, so this does not block for long."""
        try:
            _write(self._requests, request)
        except OSError as exc:
            raise _WorkerEnded from exc

    def _receive(self, size: int, time_limit: TimeLimit) -> bytes:
        descriptor = self._replies.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        pieces, missing = [], size
        while missing:
            time_limit.check()
            if not poll.poll(_POLL_SECONDS * 1000):
                continue
            piece = os.read(descriptor, min(missing, 1 << 20))
            if not piece:
                raise _WorkerEnded
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def main() -> None:
    """The worker: one request after another, until the parent closes the pipe or is silent for a minute."""
    _ask_for_long_slices(os.nice(10))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while select.select([source], [], [], _IDLE_SECONDS)[0]:
        head = source.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return
        _write(target, _answer(source.read(int.from_bytes(head, "big"))))


def _ask_for_long_slices(nice: int) -> None:
    """From Linux 6.12 on, a process that wakes interrupts one with a longer slice at once. By its priority alone it may
    have to wait for the end of a slice: some 3 ms for each worker on its core, which the node would wait, too."""
    number = _SCHED_SETATTR.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        # struct sched_attr: size, policy, flags, nice value, priority, slice, deadline, period
        attributes = struct.pack("=IIQiIQQQ", 48, 0, _KEEP_POLICY, nice, 0, _SLICE_NANOSECONDS, 0, 0)
        # An older kernel ignores the slice or refuses the call: the worker then has its priority alone.
        importlib.import_module("ctypes").CDLL(None).syscall(number, 0, attributes, 0)


def _answer(request: bytes) -> bytes:
    module, name, args = pickle.loads(request)  # noqa: S301  # from our own process
    try:
        function = getattr(importlib.import_module(module), name)
        return pickle.dumps(("result", function(TimeLimit(TIME_LIMIT), *args)))
    except FabricError as error:
        return pickle.dumps(("fabric error", (error.code, error.message, error.details)))
    except Exception as error:
        return pickle.dumps(("error", error))


def _write(target: IO[bytes], message: bytes) -> None:
    target.write(len(message).to_bytes(_HEAD_BYTES, "big") + message)
    target.flush()


if __name__ == "__main__":
    main()
