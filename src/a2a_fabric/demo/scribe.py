"""scribe, an agent behind HTTP in a process of its own: summarizes texts and finds their keywords."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.authoring.http import HTTPApp
from a2a_fabric.core.result import Event, progress
from a2a_fabric.demo import text as english

_TEXT_LIMIT = 1_000_000
_PACE = 0.01  # seconds between two words, so that the stream can be seen

scribe = Agent(
    "scribe",
    description="Summarizes texts by selecting their most important sentences, and finds key words.",
    version="1.0.0",
    tags=["demo", "text"],
)


@scribe.capability(idempotent=True)
async def summarize(text: str, sentences: int = 2) -> AsyncIterator[str | Event | dict[str, Any]]:
    """Select the most important sentences of a text."""
    chosen = await asyncio.to_thread(english.pick_sentences, _check_length(text), max(1, min(sentences, 20)))
    for number, sentence in enumerate(chosen, start=1):
        yield progress(100 * number / len(chosen), f"sentence {number} of {len(chosen)}")
        for word in sentence.split():
            yield word + " "
            await asyncio.sleep(_PACE)
    yield {"answer": " ".join(chosen), "sentences": len(chosen)}


@scribe.capability(idempotent=True)
def keywords(text: str, count: int = 8) -> dict[str, Any]:
    """The most frequent words that carry meaning, with their counts."""
    counts = english.find_keywords(_check_length(text), max(1, min(count, 100)))
    return {"answer": ", ".join(word for word, _ in counts), "counts": dict(counts)}


def _check_length(text: str) -> str:
    if len(text) > _TEXT_LIMIT:
        raise ValueError(f"The text is longer than {_TEXT_LIMIT} characters")
    return text


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    yield HTTPApp(scribe)
