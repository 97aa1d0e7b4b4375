"""The agent whose calls are jobs: an answer with two events before it, many events at once, or events at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from a2a_fabric import Agent

AGENT_ID = "worker"
MANIFEST = f"- {{agent_id: {AGENT_ID}, runtime: python, endpoint: {{uri: 'python:bench.job_agent:agent'}}}}\n"

agent = Agent(AGENT_ID)


@agent.capability(idempotent=True)
async def reason(task: str) -> AsyncIterator[Any]:
    yield "forty-"
    yield "two"
    yield {"answer": "forty-two"}


@agent.capability
async def tell(task: str, events: int = 100, pause: float = 0.0) -> AsyncIterator[Any]:
    for number in range(events):
        yield f"word {number} "
        if pause:
            await asyncio.sleep(pause)
    yield {"answer": "done"}
