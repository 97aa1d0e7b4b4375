"""One call under way: a message is sent, what the agent says is taken in, and a task is followed to its end.

A stream may break, a connection may be lost, an agent may answer that it has only begun. As
long as we know which task it is, it is asked how it stands, again and again, ever more slowly;
and whoever leaves meanwhile has it cancelled. One that tells by itself how its task goes on is
asked when it says so, and otherwise seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, suppress

import msgspec

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.runtimes.a2a.gathering import Gathering
from a2a_fabric.runtimes.a2a.line import Errand, Line
from a2a_fabric.runtimes.a2a.outgoing import Manner, Outgoing
from a2a_fabric.runtimes.a2a.pushes import News, Pushes, is_about_pushing
from a2a_fabric.runtimes.a2a.refusals import LOST_TASK, UNSUPPORTED, reason_of
from a2a_fabric.runtimes.a2a.said import Said

_FIRST_WAIT = 0.05  # seconds
_LONGEST_WAIT = 2.0
_SLOWER = 1.5
_FAILURES = 6  # in a row: then the agent is gone
_LOOKS = 4  # for a task that may only be about to exist
_LOOK_WITHIN = 15.0  # for one look at how things stand


def waits() -> Iterator[float]:
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(_LONGEST_WAIT, wait * _SLOWER)


class Exchange:
    def __init__(
        self,
        line: Line,
        message: Outgoing,
        manner: Manner,
        errand: Errand,
        gathering: Gathering,
        emit: Emit | None,
        pushes: Pushes | None = None,
    ) -> None:
        self.message = message
        self.gathering = gathering
        self.pushes = pushes  # None: the agent does not tell by itself, or cannot reach us, or will not
        self.refuses_pushes = False
        self.cannot_list = False  # the agent does not tell which tasks it has
        self._line = line
        self._manner = manner
        self._errand = errand
        self._look = Errand(headers=errand.headers, timeout=min(_LOOK_WITHIN, errand.timeout))
        self._emit = emit  # None: nobody listens
        self._can_subscribe = True
        self._first: asyncio.Future[Said | None] | None = None
        self._stream: AsyncGenerator[Said, None] | None = None

    async def heard_out(self, *, streamed: bool) -> None:
        """Until the task has ended or asks. Raises FabricError."""
        await (self._streamed() if streamed else self._plain())
        if self.gathering.state == "completed" and not self.gathering.has_answer:
            with suppress(FabricError):  # then it has none
                await self._take(await self._line.get(self.gathering.task_id, self._look, with_history=True))

    async def _streamed(self) -> None:
        try:
            self._stream = self._line.stream(self.message, self._manner, self._errand)
            await self._heard(self._stream, await self._begun(anext(self._stream, None)))
        except UpstreamInterrupted:
            if not self.gathering.task_id:
                raise
        except (UpstreamRefused, BadInput) as exc:
            if reason_of(exc) not in UNSUPPORTED or self.gathering.state != "unknown":
                raise
            await self._plain()  # its card promised too much
        if self.gathering.is_over:
            return
        if not self.gathering.task_id:
            raise UpstreamInterrupted("The agent's stream ended before its answer")
        await self._followed(0.0)

    async def _plain(self) -> None:
        self._can_subscribe = False
        try:
            await self._take(await self._sent())
            wait = self.pushes.patience if self.pushes is not None and self.pushes.is_asked else None
        except UpstreamInterrupted:
            wait = 0.0
            self.gathering.task_id = self.gathering.task_id or await self._found()
            if not self.gathering.task_id:
                raise
        if not self.gathering.is_over:
            if not self.gathering.task_id:
                raise UpstreamFailed("The agent's task has no id, so it cannot be asked how it stands")
            await self._followed(_FIRST_WAIT if wait is None else wait)

    async def _sent(self) -> Said:
        """An agent that is not waited for is told where to send its news; unless it refuses just that."""
        if self._manner.blocking:
            return await self._line.send(self.message, self._manner, self._errand)
        manner = self._manner
        if self.pushes is not None:
            manner = msgspec.structs.replace(manner, push=self.pushes.place)
            self.pushes.is_asked = True
        try:
            said = await self._begun(self._line.send(self.message, manner, self._errand))
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            if self.pushes is None or not is_about_pushing(exc):
                raise
            self.pushes, self.refuses_pushes = None, True
            said = await self._begun(self._line.send(self.message, self._manner, self._errand))
        assert said is not None  # noqa: S101  # only streams end with nothing
        return said

    async def abandon(self) -> None:
        """Tell the agent that nobody waits any more. Raises FabricError; the caller keeps time."""
        try:
            if self._first is not None and (said := await self._first) is not None:
                self.gathering.take(said)
            task_id = self.gathering.task_id or await self._found()
            if task_id:
                await self._line.cancel(task_id, self._look)
        finally:
            await self._hung_up()

    async def _hung_up(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait([self._first])
        if self._stream is not None:
            await self._stream.aclose()

    async def _begun(self, first: Awaitable[Said | None]) -> Said | None:
        """What is said first names the task, so it is still heard if the caller has left meanwhile."""
        self._first = asyncio.ensure_future(first)
        said = await asyncio.shield(self._first)
        self._first = None
        return said

    async def _heard(self, said: AsyncGenerator[Said, None], first: Said | None) -> None:
        async with aclosing(said) as events:
            each = first
            while each is not None:
                await self._take(each)
                each = await anext(events, None) if not self.gathering.is_over else None

    async def _take(self, said: Said) -> None:
        events = self.gathering.take(said)
        if self._emit is not None:
            for event in events:
                await self._emit(event)

    async def _followed(self, wait: float) -> None:
        """Look at the task until it is over, listening to its stream in between if there is one."""
        failures, backing_off = 0, waits()
        while True:
            news = await self._paused(wait)
            try:
                await self._take(await self._line.get(self.gathering.task_id, self._look))
                if not self.gathering.is_over and self._can_subscribe:
                    await self._subscribed()
                wait, failures = await self._patience(news, backing_off), 0
            except (UpstreamInterrupted, AgentOffline, AgentBusy, CallTimeout) as exc:
                wait, failures = next(backing_off), failures + 1
                if failures >= _FAILURES:
                    raise UpstreamInterrupted(f"The agent was lost in the middle of its task: {exc.message}") from exc
            except (UpstreamRefused, BadInput) as exc:
                raise self._lost(exc) from exc
            if self.gathering.is_over:
                if self.pushes is not None and self.pushes.is_asked:
                    self.pushes.get_lost = news is None
                return

    async def _paused(self, seconds: float) -> News | None:
        """Until the agent says that there is something to see; None if it was silent for so long."""
        if self.pushes is None or not self.pushes.is_asked:
            await asyncio.sleep(seconds)
            return None
        async with aclosing(self.pushes.news(self.gathering.task_id, seconds)) as all_news:
            async for news in all_news:
                for words in news.words:
                    await self._take(words)
                if news.is_over:
                    return news
                if news.should_look:
                    await asyncio.sleep(_FIRST_WAIT)  # it may have more to say
                    return news
        return None

    async def _patience(self, news: News | None, backing_off: Iterator[float]) -> float:
        """How long to wait before the next look; one that would tell us is left alone for longer."""
        if self.gathering.is_over or self.pushes is None or self._can_subscribe:
            return next(backing_off)
        if not self.pushes.is_asked:
            return 0.0 if await self._asked_to_push() else next(backing_off)  # something may just have happened
        is_behind = news is not None and news.is_over  # it told us before it was so
        return next(backing_off) if is_behind else self.pushes.patience or next(backing_off)

    async def _asked_to_push(self) -> bool:
        assert self.pushes is not None  # noqa: S101  # seen by whoever asks
        try:
            await self._line.push_to(self.pushes.place, self.gathering.task_id, self._look)
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            self.refuses_pushes = is_about_pushing(exc) or reason_of(exc) in UNSUPPORTED
            self.pushes = None
            return False
        self.pushes.is_asked = True
        return True

    async def _subscribed(self) -> None:
        try:
            said = self._line.subscribe(self.gathering.task_id, self._errand)
            await self._heard(said, await anext(said, None))
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            # Over meanwhile, or never possible: looking will tell.
            self._can_subscribe = reason_of(exc) not in UNSUPPORTED

    def _lost(self, exc: FabricError) -> FabricError:
        if reason_of(exc) not in LOST_TASK:
            return exc
        return UpstreamInterrupted("The agent no longer knows the task that it had begun", **exc.details)

    async def _found(self) -> str:
        """The task that our message began, though nobody told us its id; nothing if there is none."""
        if self._line.dialect != "1.0":
            return await self.pushes.task_id() if self.pushes is not None and self.pushes.is_asked else ""
        backing_off = waits()
        for _ in range(_LOOKS):
            try:
                tasks = await self._line.tasks(self.message.context_id, self._look)
            except FabricError as exc:
                self.cannot_list = reason_of(exc) in UNSUPPORTED
                return ""
            ours = (task for task in tasks if self.message.message_id in task.message_ids)
            if (found := next(ours, None)) is not None:
                return found.task_id
            await asyncio.sleep(4 * next(backing_off))
        return ""
