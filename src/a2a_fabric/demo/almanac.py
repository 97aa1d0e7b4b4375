"""almanac, an A2A agent made with the A2A SDK: describes the dates in a text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette

_DATE = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_MAX_DATES = 50  # dates of one text


def describe_dates(text: str) -> Iterator[str]:
    """A line for each date in the text, and for the days between two consecutive dates."""
    previous: date | None = None
    for match in list(_DATE.finditer(text))[:_MAX_DATES]:
        try:
            day = date(*map(int, match.groups()))
        except ValueError:
            yield f"{match[0]} is not a date."
            continue
        yield f"{day} is a {day:%A}, day {day.timetuple().tm_yday} of its year, in week {day.isocalendar().week}."
        if previous is not None:
            yield f"From {previous} to {day} it is {(day - previous).days} days."
        previous = day


class Almanac(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        if context.current_task is None and context.message is not None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        sentences = list(describe_dates(context.get_user_input()))
        if not sentences:
            refusal = "There is no date in this text. Write dates as 2026-11-16."
            await updater.reject(updater.new_agent_message([new_text_part(refusal)]))
            return
        await updater.start_work()
        for number, sentence in enumerate(sentences, start=1):
            part = new_text_part(sentence if number == len(sentences) else f"{sentence}\n")
            last = number == len(sentences)
            await updater.add_artifact([part], artifact_id="dates", append=number > 1, last_chunk=last)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def build_card(url: str) -> AgentCard:
    skill = AgentSkill(
        id="dates",
        name="Dates",
        description="The day of the week of each date in a text, and how far apart they are.",
        tags=["demo", "dates"],
        examples=["What about 2026-11-16?", "From 2026-11-16 to 2026-12-24"],
    )
    return AgentCard(
        name="almanac",
        description="Knows the calendar.",
        version="1.0.0",
        supported_interfaces=[AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    card = build_card(url)
    handler = DefaultRequestHandler(Almanac(), InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, rpc_url="/rpc")]
    try:
        yield Starlette(routes=routes)
    finally:
        await handler.aclose()
