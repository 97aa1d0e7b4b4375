"""What readers of the registry wait for: its next change, and agents that were never asked what they offer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from a2a_fabric.core.propagation import new_id

_log = logging.getLogger(__name__)


class RegistryChanges:
    """`revision` is different after each change and after each start of the node."""

    def __init__(self) -> None:
        self._start_id = new_id()[:8]
        self._count = 0
        self._signal = asyncio.Event()
        self._is_stopped = False

    @property
    def revision(self) -> str:
        return f"{self._start_id}.{self._count}"

    def notify(self) -> None:
        """Something changed."""
        self._count += 1
        signal, self._signal = self._signal, asyncio.Event()
        signal.set()

    async def wait(self, revision: str, timeout: float) -> None:
        """Wait until this revision is outdated, at most `timeout` seconds."""
        if revision == self.revision and timeout > 0 and not self._is_stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._signal.wait()

    def stop(self) -> None:
        """The node stops: end all waiting requests."""
        self._is_stopped = True
        self._signal.set()


class PendingDescriptions:
    """The operator's agents whose capabilities are not known, because they were not asked yet.

    `has_any` is False nearly always; then nothing waits.
    """

    def __init__(self, timeout: float) -> None:
        self.has_any = False
        self._timeout = timeout
        self._agents: set[str] = set()
        self._reported: set[str] = set()
        self._all_described = asyncio.Event()

    def add(self, agent_id: str) -> None:
        self._agents.add(agent_id)
        self.has_any = True
        self._all_described.clear()

    def discard(self, agent_id: str) -> None:
        self._agents.discard(agent_id)
        self.has_any = bool(self._agents)
        if not self.has_any:
            self._all_described.set()

    def is_last(self, agent_id: str) -> bool:
        return self._agents == {agent_id}

    def includes(self, agent_id: str) -> bool:
        return agent_id in self._agents

    async def wait(self) -> None:
        """Wait until each of them was asked, but not longer than the time-out; then the log names the others."""
        if not self.has_any:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._all_described.wait()
        except TimeoutError:
            silent = sorted(self._agents - self._reported)
            self._reported.update(silent)
            if silent:
                _log.warning(
                    "listed without what these agents offer, because they did not answer within %g s: %s",
                    self._timeout,
                    ", ".join(silent[:20]),
                )
