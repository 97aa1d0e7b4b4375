"""The health of the node itself: named checks, whether requests may be sent to it, and its drain before it stops.

Three questions have three answers. *Is it alive?* The process answers. *Is it ready?* It does not drain, and every
check that readiness depends on is at most degraded. *Is it well?* Every check is ok. Load balancers ask without
credentials, so a result has two texts: `reason` for everyone, and `detail`, with names and addresses, for the operator.

The store is asked at most once a second, however many callers ask about the node. A store that can be read but not
written (a full disk, a standby) is no better than one that is away, so twice a minute the question is a write, too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from a2a_fabric.core.errors import (
    STORE_AWAY,
    STORE_BACK,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)

_log = logging.getLogger(__name__)

CheckStatus = Literal["ok", "degraded", "down"]

_STORE_TIMEOUT = 2.0
_CACHE_SECONDS = 1.0
_WRITE_EVERY = 30.0  # seconds; sooner if a part of the node could not use the store
_FAILURE_SECONDS = 3.0  # for which a failure of real work counts, even if a small write succeeds after it
_TELL_EVERY = 30.0  # seconds; the log knows that it is the same outage
_MAX_REASON = 300
_RECENT = 60.0  # seconds for which a question about readiness shows that a load balancer watches


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    status: CheckStatus = "ok"
    reason: str | None = None
    detail: str | None = None  # the reason for the operator, if it says more


OK = NodeCheck()


class StoreCheck:
    """Asks the store the smallest question, and lets it write now and then.

    `ask` and `write` raise if the store cannot be used; None: there is no store, or nothing to write.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[object]] | None, write: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self._ask = ask
        self._write = write
        self._task: asyncio.Task[NodeCheck] | None = None
        self._checked_at = 0.0
        self._write_at = 0.0  # when the next write is due
        self._failure: StoreError | None = None  # of real work
        self._failed_at = 0.0
        self._last: NodeCheck = OK
        self._told_at = 0.0

    def note_failure(self, error: StoreError) -> None:
        """A part of the node could not use the store. Quick, and never waits."""
        self._write_at = 0.0
        if isinstance(error, StoreUnavailable | StoreUnusable) and not isinstance(error, StoreBusy):
            self._failure, self._failed_at = error, time.monotonic()

    async def __call__(self) -> NodeCheck:
        """Callers within the same second share one question."""
        if self._ask is None:
            return OK
        if self._task is None or (self._task.done() and time.monotonic() - self._checked_at > _CACHE_SECONDS):
            self._task = asyncio.ensure_future(self._probe(self._ask))
        return await asyncio.shield(self._task)

    async def _probe(self, ask: Callable[[], Awaitable[object]]) -> NodeCheck:
        problem = "The store does not answer"
        try:
            async with asyncio.timeout(_STORE_TIMEOUT):
                await ask()
                problem = "The store cannot be written"
                await self._write_if_due()
            result = self._judge_recent_work(problem)
        except Exception as exc:  # a store may raise any exception
            text = str(exc)[:_MAX_REASON] or f"no answer within {_STORE_TIMEOUT:g} s"
            result = NodeCheck(status="down", reason=problem, detail=text)
        finally:
            self._checked_at = time.monotonic()
        self._tell(result)
        self._last = result
        return result

    def _tell(self, result: NodeCheck) -> None:
        """An outage is one line in the log, and one at its end, also if it lasts and other parts notice it late."""
        now = time.monotonic()
        if result is OK and self._last is not OK:
            _log.info("The store can be used again", extra=STORE_BACK)
        elif result is not OK and (self._last is OK or now - self._told_at > _TELL_EVERY):
            self._told_at = now
            _log.warning("%s: %s", result.reason, result.detail, extra=STORE_AWAY)

    async def _write_if_due(self) -> None:
        """After a failure, every question is a write, until one succeeds."""
        if self._write is None or time.monotonic() < self._write_at:
            return
        self._write_at = 0.0
        await self._write()
        self._write_at = time.monotonic() + _WRITE_EVERY

    def _judge_recent_work(self, problem: str) -> NodeCheck:
        """A full disk may have room for a small write: what the node wanted to write counts more."""
        if self._failure is None or time.monotonic() - self._failed_at > _FAILURE_SECONDS:
            self._failure = None
            return OK
        return NodeCheck(status="down", reason=problem, detail=self._failure.message[:_MAX_REASON])


class NodeHealth:
    """The checks of one node. `add_check` before it serves."""

    def __init__(self, store: StoreCheck | None = None) -> None:
        self._store = store or StoreCheck(None)
        self._checks: dict[str, tuple[Callable[[], NodeCheck], bool]] = {}
        self._remote_checks: dict[str, Callable[[], Awaitable[NodeCheck]]] = {}
        self._readiness_asked_at: float | None = None
        self.is_draining = False

    def add_check(self, name: str, check: Callable[[], NodeCheck], *, decides_readiness: bool = False) -> None:
        """`check` must be quick and never wait. With `decides_readiness`, a node whose check is down is not ready."""
        self._checks[name] = check, decides_readiness

    def add_remote_check(self, name: str, check: Callable[[], Awaitable[NodeCheck]]) -> None:
        """`check` asks another process, with a deadline of its own. Readiness never depends on it."""
        self._remote_checks[name] = check

    def start_draining(self) -> None:
        """From now on the node says that it is not ready; it serves requests as before."""
        self.is_draining = True

    @property
    def is_watched(self) -> bool:
        """Whether a load balancer or orchestrator asked for readiness within the last minute."""
        asked_at = self._readiness_asked_at
        return asked_at is not None and time.monotonic() - asked_at < _RECENT

    async def check_all(self) -> dict[str, NodeCheck]:
        """All checks by name, `doors` and `store` first."""
        remote = asyncio.gather(*(check() for check in self._remote_checks.values()))
        own = await self.check_own()
        return own | dict(zip(self._remote_checks, await remote, strict=True))

    async def check_own(self) -> dict[str, NodeCheck]:
        """Those of this process."""
        draining = NodeCheck(status="down", reason="The node is about to stop")
        results = {"doors": draining if self.is_draining else OK, "store": await self._store()}
        return results | {name: check() for name, (check, _) in self._checks.items()}

    async def check_readiness(self) -> dict[str, NodeCheck]:
        """Only the checks that readiness depends on."""
        self._readiness_asked_at = time.monotonic()
        needed = {"doors", "store", *(name for name, (_, decides) in self._checks.items() if decides)}
        return {name: result for name, result in (await self.check_own()).items() if name in needed}


def is_ready(results: dict[str, NodeCheck]) -> bool:
    """Of the checks that readiness depends on."""
    return all(result.status != "down" for result in results.values())


def is_well(results: dict[str, NodeCheck]) -> bool:
    return all(result.status == "ok" for result in results.values())
