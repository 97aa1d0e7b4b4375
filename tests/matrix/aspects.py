"""What is expected of every pair of a door and a runtime, one function for each aspect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from a2a_fabric.core.result import Part
from tests.matrix.agents import RUNTIMES
from tests.matrix.agents.kind import CONTENT, REASON, STAND_IN, WORDS, Asked, Kind
from tests.matrix.bench import Bench, until
from tests.matrix.door_client import WAIT_TIMEOUT, DoorClient, Hear, Outcome, Question, ignore
from tests.matrix.table import Aspect, exception
from tests.matrix.timeouts import SleepingCalls


@dataclass(frozen=True)
class Pair:
    """One door, one runtime, and what the table says of them."""

    bench: Bench
    sleeping_calls: SleepingCalls
    door: str
    runtime: str

    @property
    def kind(self) -> Kind:
        return RUNTIMES[self.runtime]

    @property
    def client(self) -> DoorClient:
        return self.bench.clients[self.door]

    def instead(self, aspect: Aspect) -> str | None:
        row = exception(self.door, self.runtime, aspect)
        return row.instead if row else None

    async def ask(self, question: Question, hear: Hear = ignore) -> Outcome:
        async with asyncio.timeout(WAIT_TIMEOUT):
            return await self.client.ask(question, hear)

    async def answers(self, asked: Asked, hear: Hear = ignore) -> Outcome:
        outcome = await self.ask(asked.question, hear)
        assert outcome.code is None, outcome.message
        assert outcome.answer == asked.answer
        return outcome

    async def answers_itself(self, asked: Asked, hear: Hear = ignore) -> None:
        outcome = await self.answers(asked, hear)
        assert outcome.fallback is None


async def reply(pair: Pair) -> None:
    await pair.answers_itself(pair.kind.typed())


async def words(pair: Pair) -> None:
    await pair.answers_itself(pair.kind.in_words())


async def free_form(pair: Pair) -> None:
    await pair.answers_itself(pair.kind.free())


async def stream(pair: Pair) -> None:
    """The agent says no second word before the first one was heard here."""
    go_on = pair.bench.new_file()
    expected = [] if pair.instead("stream") else list(WORDS)
    heard: list[str] = []

    def hear(word: str) -> None:
        heard.append(word)
        go_on.touch()

    if not expected:
        go_on.touch()
    await pair.answers_itself(pair.kind.counting(go_on), hear)
    assert heard == expected


async def typed_error(pair: Pair) -> None:
    outcome = await pair.ask(pair.kind.refusing())
    assert outcome.answer is None
    assert outcome.code == (pair.instead("typed error") or pair.kind.refusal)
    assert REASON in outcome.message


async def cancel(pair: Pair) -> None:
    """Leaving ends the agent's work, and neither door nor agent are the worse for it."""
    note = pair.bench.new_file()
    asking = asyncio.ensure_future(pair.client.ask(pair.kind.sleeping(note), ignore))
    try:
        await until(lambda: note.exists() or asking.done())
    finally:
        asking.cancel()
        await asyncio.wait({asking})
    assert asking.cancelled()
    await until(lambda: pair.kind.has_stopped(note))
    await pair.answers_itself(pair.kind.typed())


async def timeout(pair: Pair) -> None:
    """The call ends when its time is up, and the agent's work with it, if it had come that far."""
    sleeper = pair.sleeping_calls(pair.door, pair.runtime)
    outcome = await sleeper.asking
    assert outcome.code == "TIMEOUT", outcome.message
    if sleeper.fell_asleep:
        await until(lambda: pair.kind.has_stopped(sleeper.note))


async def failing(pair: Pair) -> None:
    """A failure of the agent's moves on to the fallback that it declares, and the answer says so.

    What an agent says itself about its failure is its answer, and the fallback is not asked.
    """
    question = pair.kind.failing()
    if pair.instead("failing"):
        refused = await pair.ask(question)
        assert (refused.answer, refused.fallback, refused.code) == (None, None, "UPSTREAM_ERROR")
        assert REASON in refused.message
        return
    outcome = await pair.answers(Asked(question=question, answer={"done": REASON}))
    assert outcome.fallback is not None
    assert (outcome.fallback.requested, outcome.fallback.used) == (question.agent, STAND_IN)
    assert outcome.fallback.attempts == (f"{question.agent}@local: failed", f"{STAND_IN}@local: ok")


async def standing_in(pair: Pair) -> None:
    """The agent answers for its double, which cannot be reached."""
    asked = pair.kind.stood_in_for()
    outcome = await pair.answers(asked)
    assert outcome.fallback is not None
    assert outcome.fallback.requested == asked.question.agent
    assert outcome.fallback.used == pair.kind.typed().question.agent
    assert "offline" in outcome.fallback.reason


async def content(pair: Pair) -> None:
    """Of the kinds that the pair can carry, what comes back is what was sent; of the others nothing does."""
    outcome = await pair.ask(pair.kind.showing())
    assert outcome.code is None, outcome.message
    instead = pair.instead("content")
    carried = [part.kind for part in CONTENT] if instead is None else instead.split(", ")
    back = [_essence(part) for part in outcome.parts]
    assert [part.kind for part in CONTENT if _essence(part) in back] == carried


def _essence(part: Part) -> tuple[object, ...]:
    """Without its name and what is said about it, which not every protocol has a place for."""
    media = part.mime_type if part.blob is not None else None
    return part.kind, part.text, part.data, part.blob, part.url, media


EXPECTED: Mapping[Aspect, Callable[[Pair], Awaitable[None]]] = {
    "reply": reply,
    "words": words,
    "free form": free_form,
    "stream": stream,
    "typed error": typed_error,
    "timeout": timeout,
    "cancel": cancel,
    "failing": failing,
    "standing in": standing_in,
    "content": content,
}
