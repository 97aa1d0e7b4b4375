"""Three ways to follow a run from its start until it is at rest: along its stream, by looking, or by waiting.

The stream tells everything at once and gives the run a name that it can be cancelled by, so it is
the usual way. A stream that breaks or falls silent is no reason to lose the run: it goes on at the
server, and can be looked at. Whoever leaves before the end cancels the run; if its name is not
known by then, as soon as it is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamInterrupted
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import StreamedReply
from a2a_fabric.runtimes.acp.hearing import Hearing
from a2a_fabric.runtimes.acp.runs import AgentUnknown, Runs, Start
from a2a_fabric.runtimes.acp.wire import Run, RunEvent
from a2a_fabric.runtimes.farewells import Farewells
from a2a_fabric.runtimes.http_exchange import bounded
from a2a_fabric.runtimes.json_api import decoded
from a2a_fabric.runtimes.polling import polled

Mode = Literal["stream", "async", "sync"]

QUIET = 5.0  # seconds without an event, after which we look whether the stream has missed the end

Work = asyncio.Task[Run | None]


class Following:
    def __init__(self, runs: Runs, mode: Mode, farewells: Farewells, quiet: float = QUIET) -> None:
        self._runs = runs
        self._mode = mode
        self._farewells = farewells
        self._quiet = quiet

    async def to_rest(self, start: Start, hearing: Hearing) -> Run:
        """Raises FabricError and AgentUnknown. `hearing` knows the run's name as soon as the server says it."""
        work: Work = asyncio.ensure_future(self._heard_out(start, hearing))
        try:
            run = await self._outcome(work, hearing)
            return run if run is not None and run.is_at_rest else await self._looked_after(hearing)
        except (BadInput, AgentUnknown):  # nothing has begun
            raise
        except BaseException:
            hearing.end()
            if not self._farewells.say(self._cancelled(work, hearing)):
                work.cancel()
            raise

    async def _outcome(self, work: Work, hearing: Hearing) -> Run | None:
        """None: the stream is over or of no more use, and the run has to be looked at."""
        while not work.done():
            moves = hearing.moves
            await asyncio.wait({work}, timeout=self._quiet)
            if not work.done() and moves == hearing.moves and await self._is_at_rest(hearing):
                await _ended(work)
                return None
        try:
            return work.result()
        except UpstreamInterrupted:
            if hearing.run_id is None:
                raise
            return None

    async def _looked_after(self, hearing: Hearing) -> Run:
        if hearing.run_id is None:
            raise UpstreamInterrupted("The agent's stream ended before it said anything of its run")
        seen = await polled(lambda: self._look(hearing), lambda seen: seen is not None and seen.is_at_rest)
        assert seen is not None  # noqa: S101  # that was the condition
        return seen

    async def _cancelled(self, work: Work, hearing: Hearing) -> None:
        named = asyncio.ensure_future(hearing.named.wait())
        try:
            await asyncio.wait({work, named}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(named)
            await _ended(work)
        if hearing.run_id is not None:
            await self._runs.cancel(hearing.run_id)

    async def _heard_out(self, start: Start, hearing: Hearing) -> Run | None:
        if self._mode == "stream":
            return await self._along(start, hearing)
        run = await self._runs.begin(start, self._mode)
        hearing.name(run.run_id)
        return run

    async def _along(self, start: Start, hearing: Hearing) -> Run | None:
        async with self._runs.stream(start) as reply:
            if run_id := reply.headers.get("run-id"):
                hearing.name(run_id)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await self._events(reply, hearing)
            run = decoded(await bounded(reply, self._runs.api.reply_bytes), Run)
            hearing.name(run.run_id)
            return run

    async def _events(self, reply: StreamedReply, hearing: Hearing) -> Run | None:
        events = sse.Events(self._runs.api.reply_bytes)
        async for chunk in reply.chunks():
            for data in events.feed(chunk):
                if (run := await hearing.hear(decoded(data, RunEvent))) is not None:
                    return run
        for data in events.rest():
            if (run := await hearing.hear(decoded(data, RunEvent))) is not None:
                return run
        return None

    async def _is_at_rest(self, hearing: Hearing) -> bool:
        """A mere glance: whatever goes wrong with it, the stream is still there."""
        if hearing.run_id is None:
            return False
        try:
            return (await self._runs.look(hearing.run_id)).is_at_rest
        except FabricError:
            return False

    async def _look(self, hearing: Hearing) -> Run | None:
        """At the run; those who listen hear what they have missed. None: it is under way."""
        assert hearing.run_id is not None  # noqa: S101  # checked by `_looked_after`
        if hearing.heard is None:
            return await self._runs.look(hearing.run_id)
        for event in (await self._runs.events(hearing.run_id))[hearing.heard :]:
            if (run := await hearing.hear(event)) is not None:
                return run
        return None


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancelled if it is not done; what it raised then is of no more interest."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
