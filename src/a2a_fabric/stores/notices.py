"""Bells inside one process: who waits for a topic is woken by whoever changed it.

Every store uses one board. What tells of changes elsewhere (a poll, a database's
own notices) rings the same bells through `post`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout


class Bell:
    """Remembers that it rang until somebody has waited for it."""

    __slots__ = ("_rang",)

    def __init__(self) -> None:
        self._rang = asyncio.Event()

    def ring(self) -> None:
        self._rang.set()

    async def wait(self, timeout: float) -> bool:
        try:
            with Deadline(timeout):
                await self._rang.wait()
        except CallTimeout:
            return False
        self._rang.clear()
        return True


class NoticeBoard:
    """The bells of one process, by topic. Belongs to one event loop."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}

    @contextmanager
    def watch(self, topic: str) -> Iterator[Bell]:
        bell = Bell()
        self._bells.setdefault(topic, set()).add(bell)
        try:
            yield bell
        finally:
            others = self._bells[topic]
            others.discard(bell)
            if not others:
                del self._bells[topic]

    def post(self, topic: str) -> None:
        for bell in self._bells.get(topic, ()):
            bell.ring()

    def post_all(self, topics: Iterable[str] | None = None) -> None:
        """Ring these, or everything: for when all that is known is that something happened."""
        for topic in list(self._bells) if topics is None else topics:
            self.post(topic)

    @property
    def watched(self) -> list[str]:
        return list(self._bells)
