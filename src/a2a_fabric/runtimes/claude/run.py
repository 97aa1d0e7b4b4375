"""One run of the program for one call: fed, heard out, and ended with everybody it has started."""

from __future__ import annotations

import asyncio

import msgspec

from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.runtimes.claude.hearing import Hearing
from a2a_fabric.runtimes.claude.outcome import hopeless
from a2a_fabric.runtimes.process_child import Child, LineTooLong, lines_of

EXIT_TIMEOUT = 5.0  # for the program to end by itself after its last word


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    line_bytes: int
    grace: float


class Run:
    """A started program; whoever starts it also sees it off."""

    def __init__(self, child: Child, limits: Limits) -> None:
        self._child = child
        self._limits = limits
        self._patience = 0.0
        self._feeding: asyncio.Future[None] | None = None

    async def heard_out(self, stdin: bytes, hearing: Hearing, emit: Emit, ends_at: float) -> str:
        """Until the result, which `hearing` then has; without one, how the program ended."""
        self._feeding = asyncio.ensure_future(_feed(self._child, stdin))
        await self._listen(hearing, emit, ends_at)
        if hearing.result is None:
            return await self._obituary()
        self._patience = EXIT_TIMEOUT
        return ""

    async def see_off(self) -> None:
        """One that has said its last word may end by itself; any other is told to. Nobody of its group stays."""
        try:
            async with asyncio.timeout(self._patience):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        finally:
            await self.stop()

    async def stop(self) -> None:
        await self._child.stop(self._limits.grace)
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding])

    async def _listen(self, hearing: Hearing, emit: Emit, ends_at: float) -> None:
        try:
            async for line in lines_of(self._child.stdout, self._limits.line_bytes):
                for event in hearing.take(line):
                    await emit(event)
                if hearing.result is not None:
                    return
                if hearing.retry is not None:
                    self._check_hope(hearing, ends_at)
        except LineTooLong as exc:
            limit = self._limits.line_bytes
            raise UpstreamRefused(self._child.program.tell(f"printed a line longer than {limit} bytes")) from exc

    def _check_hope(self, hearing: Hearing, ends_at: float) -> None:
        assert hearing.retry is not None  # noqa: S101
        error = hopeless(hearing, hearing.retry, ends_at - asyncio.get_running_loop().time())
        if error is not None:
            raise error

    async def _obituary(self) -> str:
        """The end of its output is the end of the program, as a rule."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        return self._child.obituary


def death_of(hearing: Hearing, obituary: str) -> FabricError:
    """Of a program that said nothing about the end of its work: whether it has begun decides what that means."""
    if not hearing.has_begun:
        return AgentOffline(obituary)
    return UpstreamInterrupted(obituary)


async def _feed(child: Child, words: bytes) -> None:
    try:
        child.stdin.write(words)
        await child.stdin.drain()
        child.stdin.close()
    except ConnectionError:
        pass  # it does not care for its input
