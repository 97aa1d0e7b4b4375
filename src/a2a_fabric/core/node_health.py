"""The health of the node itself: named checks, whether requests may be sent to it, and its drain before it stops.

Three questions have three answers. *Is it alive?* The process answers. *Is it ready?* It does not drain, and every
check that readiness depends on is at most degraded. *Is it well?* Every check is ok. Load balancers ask without
credentials, so a result has two texts: `reason` for everyone, and `detail`, with names and addresses, for the operator.

The store is asked at most once a second, however many callers ask about the node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from a2a_fabric.core.errors import STORE_AWAY, STORE_BACK

_log = logging.getLogger(__name__)

CheckStatus = Literal["ok", "degraded", "down"]

_STORE_TIMEOUT = 2.0
_CACHE_SECONDS = 1.0
_MAX_REASON = 300
_RECENT = 60.0  # seconds for which a question about readiness shows that a load balancer watches


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    status: CheckStatus = "ok"
    reason: str | None = None
    detail: str | None = None  # the reason for the operator, if it says more


OK = NodeCheck()


class StoreCheck:
    """Asks the store the smallest question. `ask` raises if the store cannot be used; None: there is no store."""

    def __init__(self, ask: Callable[[], Awaitable[object]] | None) -> None:
        self._ask = ask
        self._task: asyncio.Task[NodeCheck] | None = None
        self._checked_at = 0.0
        self._last: NodeCheck = OK

    async def __call__(self) -> NodeCheck:
        """Callers within the same second share one question."""
        if self._ask is None:
            return OK
        if self._task is None or (self._task.done() and time.monotonic() - self._checked_at > _CACHE_SECONDS):
            self._task = asyncio.ensure_future(self._probe(self._ask))
        return await asyncio.shield(self._task)

    async def _probe(self, ask: Callable[[], Awaitable[object]]) -> NodeCheck:
        try:
            async with asyncio.timeout(_STORE_TIMEOUT):
                await ask()
        except Exception as exc:  # a store may raise any exception
            text = str(exc)[:_MAX_REASON] or f"no answer within {_STORE_TIMEOUT:g} s"
            result = NodeCheck(status="down", reason="The store does not answer", detail=text)
        else:
            result = OK
        finally:
            self._checked_at = time.monotonic()
        if result.status != self._last.status:  # one line for an outage, and one for its end
            if result is OK:
                _log.info("The store answers again", extra=STORE_BACK)
            else:
                _log.warning("The store did not answer: %s", result.detail, extra=STORE_AWAY)
        self._last = result
        return result


class NodeHealth:
    """The checks of one node. `add_check` before it serves."""

    def __init__(self, store: StoreCheck | None = None) -> None:
        self._store = store or StoreCheck(None)
        self._checks: dict[str, tuple[Callable[[], NodeCheck], bool]] = {}
        self._readiness_asked_at: float | None = None
        self.is_draining = False

    def add_check(self, name: str, check: Callable[[], NodeCheck], *, decides_readiness: bool = False) -> None:
        """`check` must be quick and never wait. With `decides_readiness`, a node whose check is down is not ready."""
        self._checks[name] = check, decides_readiness

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
        draining = NodeCheck(status="down", reason="The node is about to stop")
        results = {"doors": draining if self.is_draining else OK, "store": await self._store()}
        return results | {name: check() for name, (check, _) in self._checks.items()}

    async def check_readiness(self) -> dict[str, NodeCheck]:
        """Only the checks that readiness depends on."""
        self._readiness_asked_at = time.monotonic()
        needed = {"doors", "store", *(name for name, (_, decides) in self._checks.items() if decides)}
        return {name: result for name, result in (await self.check_all()).items() if name in needed}


def is_ready(results: dict[str, NodeCheck]) -> bool:
    """Of the checks that readiness depends on."""
    return all(result.status != "down" for result in results.values())


def is_well(results: dict[str, NodeCheck]) -> bool:
    return all(result.status == "ok" for result in results.values())
