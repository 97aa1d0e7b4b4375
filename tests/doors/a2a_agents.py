"""The agents that the A2A door is tried with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Part, Question, Result, make_input_required
from tests.fixtures.node import WAIT_TIMEOUT

_SIZE = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}


def percy() -> Agent:
    agent = Agent("percy", display_name="Percy", description="Tries everything.", version="1.2.3", tags=("tests",))

    @agent.capability
    async def shout(text: str, times: int = 1) -> dict[str, Any]:
        """Say it louder."""
        return {"text": text.upper(), "times": times}

    @agent.capability
    async def say(words: str) -> str:
        return words

    @agent.capability
    async def talk(words: str) -> AsyncIterator[str]:
        for word in words.split():
            yield f"{word} "

    @agent.capability
    async def wait(go_on: str) -> AsyncIterator[str]:
        """Say half, wait for the file, say the rest."""
        yield "half "
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not Path(go_on).exists():  # noqa: ASYNC110, ASYNC240  # files send no events
                await asyncio.sleep(0.01)
        yield "and half"

    @agent.capability(idempotent=False)
    async def sleep(note: str) -> dict[str, Any]:
        """Sleep until cancelled."""
        file = Path(note)
        file.write_text("asleep")  # noqa: ASYNC240  # quick
        try:
            await asyncio.sleep(600)
        finally:
            file.write_text("cancelled")  # noqa: ASYNC240  # quick
        return {}

    @agent.capability
    async def paint(thing: str, call: Call) -> Result:
        """Ask for a colour, then for a size by a form."""
        if not call.answers:
            return make_input_required({"colour": Question(kind="form", message="Which colour?")}, "colour")
        if call.answers.continuation == "colour":
            colour = call.answers.answers["colour"].content
            return make_input_required(
                {"size": Question(kind="form", message="Which size?", schema=_SIZE)}, f"size {colour}"
            )
        size = call.answers.answers["size"].content["size"]
        return Result(data={"painted": f"{thing} {call.answers.continuation.removeprefix('size ')}", "size": size})

    @agent.capability
    async def refuse(reason: str) -> str:
        raise BadInput(reason, wanted="something else")

    @agent.capability
    async def fail(reason: str) -> str:
        raise RuntimeError(reason)

    @agent.capability
    async def show(attachments: list[Part]) -> list[Part]:
        """Give back what was sent."""
        return attachments

    @agent.capability
    async def envelope(text: str, call: Call, a2a: dict[str, Any]) -> dict[str, Any]:
        """Show what the message says of itself."""
        return {"a2a": a2a, "conversation": call.conversation_id}

    return agent


def adder() -> Agent:
    """Has one skill only."""
    agent = Agent("adder", tags=("sums",))

    @agent.capability
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    return agent
