"""percy, an agent in the node's own process: works out sums, draws conclusions, makes plans, and can sum up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from itertools import chain, islice
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.core.events import Event, progress
from a2a_fabric.demo import words
from a2a_fabric.demo.arithmetic import NotASum, shown, sums_in, work_out
from a2a_fabric.demo.inference import conclusions, facts_in

_TEXT_LIMIT = 50_000
_MOST_THOUGHTS = 500
_PACE = 0.01  # seconds between two words, so that a person can follow
_STEP = re.compile(r"\s*(?:[.;\n]+|,?\s+(?:and\s+)?then\b|,?\s+after\s+that\b|,\s+(?:and\s+)?|\s+and\s+)\s*", re.I)

percy = Agent(
    "percy",
    description="Works out sums step by step, draws conclusions, and splits work into steps.",
    version="1.0.0",
    tags=["demo", "text"],
)


@percy.capability(idempotent=True)
async def reason(task: str) -> AsyncIterator[str | Event | dict[str, Any]]:
    """Work out the sums in the task, and what follows from its statements, one step at a time."""
    thoughts = await asyncio.to_thread(_thoughts, _bounded(task))
    for number, thought in enumerate(thoughts, start=1):
        yield progress(100 * number / len(thoughts), f"step {number} of {len(thoughts)}")
        for word in re.findall(r"\S+\s*", thought + "\n"):
            yield word
            await asyncio.sleep(_PACE)
    yield {"answer": "\n".join(thoughts), "steps": len(thoughts)}


@percy.capability(idempotent=True)
def plan(task: str) -> dict[str, Any]:
    """Split a task into its steps, in the order in which it names them."""
    lines = "\n".join(" ".join(line.split()) for line in _bounded(task).splitlines())
    steps = [step[0].upper() + step[1:] for part in _STEP.split(lines) if (step := part.strip(" .,!?"))]
    return {"answer": "\n".join(f"{n}. {step}" for n, step in enumerate(steps, start=1)), "steps": steps}


@percy.capability(idempotent=True)
def summarize(text: str, sentences: int = 2) -> dict[str, Any]:
    """Pick the sentences that say most."""
    chosen = words.summary(_bounded(text), max(1, min(sentences, 20)))
    return {"answer": " ".join(chosen), "sentences": chosen}


def _thoughts(task: str) -> list[str]:
    found = islice(chain(_calculations(task), _inferences(task)), _MOST_THOUGHTS)
    return list(found) or [_what_it_is_about(task)]


def _calculations(task: str) -> Iterator[str]:
    for sum_ in sums_in(task):
        steps = 0
        try:
            for operation, value in work_out(sum_):
                steps += 1
                yield f"{operation} = {shown(value)}"
        except NotASum as exc:
            yield f"{sum_}: {exc}"
            continue
        if steps > 1:
            yield f"So {sum_} = {shown(value)}"


def _inferences(task: str) -> Iterator[str]:
    statements = [sentence for line in task.splitlines() for sentence in words.sentences(line)]
    for first, second, new in conclusions(facts_in(statements)):
        yield f"{first} and {second}, so {new}"


def _what_it_is_about(task: str) -> str:
    found = [word for word, _ in words.keywords(task, 5)]
    about = f"it is about {', '.join(found)}" if found else "it has no words that carry meaning"
    return f"There is no sum and no statement like 'all X are Y' in these {len(task.split())} words; {about}."


def _bounded(text: str) -> str:
    if len(text) > _TEXT_LIMIT:
        raise ValueError(f"The text is longer than {_TEXT_LIMIT} characters")
    return text
