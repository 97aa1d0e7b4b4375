"""percy, an agent in the node's own process: works out sums, draws conclusions, plans steps, and summarizes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from itertools import chain, islice
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.core.result import Event, progress
from a2a_fabric.demo import text as english

_TEXT_LIMIT = 50_000
_MAX_THOUGHTS = 500
_PACE = 0.01  # seconds between two words, so that the stream can be seen
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
    thoughts = await asyncio.to_thread(_think, _check_length(task))
    for number, thought in enumerate(thoughts, start=1):
        yield progress(100 * number / len(thoughts), f"step {number} of {len(thoughts)}")
        for word in re.findall(r"\S+\s*", thought + "\n"):
            yield word
            await asyncio.sleep(_PACE)
    yield {"answer": "\n".join(thoughts), "steps": len(thoughts)}


@percy.capability(idempotent=True)
def plan(task: str) -> dict[str, Any]:
    """Split a task into its steps, in the order in which it names them."""
    lines = "\n".join(" ".join(line.split()) for line in _check_length(task).splitlines())
    steps = [step[0].upper() + step[1:] for part in _STEP.split(lines) if (step := part.strip(" .,!?"))]
    return {"answer": "\n".join(f"{n}. {step}" for n, step in enumerate(steps, start=1)), "steps": steps}


@percy.capability(idempotent=True)
def summarize(text: str, sentences: int = 2) -> dict[str, Any]:
    """Select the most important sentences of a text."""
    chosen = english.pick_sentences(_check_length(text), max(1, min(sentences, 20)))
    return {"answer": " ".join(chosen), "sentences": chosen}


def _think(task: str) -> list[str]:
    thoughts = islice(chain(_work_out_sums(task), _draw_inferences(task)), _MAX_THOUGHTS)
    return list(thoughts) or [_describe_topic(task)]


def _work_out_sums(task: str) -> Iterator[str]:
    for sum_ in english.find_sums(task):
        steps = 0
        try:
            for operation, value in english.work_out(sum_):
                steps += 1
                yield f"{operation} = {english.format_number(value)}"
        except english.NotASum as exc:
            yield f"{sum_}: {exc}"
            continue
        if steps > 1:
            yield f"So {sum_} = {english.format_number(value)}"


def _draw_inferences(task: str) -> Iterator[str]:
    statements = [sentence for line in task.splitlines() for sentence in english.split_sentences(line)]
    for first, second, new in english.draw_conclusions(english.parse_facts(statements)):
        yield f"{first} and {second}, so {new}"


def _describe_topic(task: str) -> str:
    keywords = [word for word, _ in english.find_keywords(task, 5)]
    about = f"it is about {', '.join(keywords)}" if keywords else "it has no words that carry meaning"
    return f"There is no sum and no statement like 'all X are Y' in these {len(task.split())} words; {about}."


def _check_length(text: str) -> str:
    if len(text) > _TEXT_LIMIT:
        raise ValueError(f"The text is longer than {_TEXT_LIMIT} characters")
    return text
