"""`a2a-fabric jobs follow`, which is also `call --follow` and what `call` does when it has become a job."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import JobId, come_back, explain_questions, questions_of
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import failure, print_json_line, print_line, print_result, remark
from a2a_fabric.cli.parts import show_parts
from a2a_fabric.cli.screen import Screen
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.job import JobHandle
from a2a_fabric.client.values import CallResult, StreamEvent
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted


def run(
    job: JobId,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Begin after this event; 0: with the first.")] = 0,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Watch a job until it ends; Ctrl-C leaves it alone.

    What has happened already is shown first. With --json each event is a line, and the last one is the result.

    Example: a2a-fabric jobs follow "$JOB"
    """
    follow(connect(url, token), job, after, as_json=as_json, url=url)


def follow(node: FabricClient, job_id: str, after: int = 0, *, as_json: bool = False, url: str | None = None) -> None:
    """The command, for whoever has a node and a job; `url` is what the person called the node, if they did."""
    watching = Watching(after, url)
    try:
        if as_json:
            ask(node, lambda there: _as_lines(there.job(job_id), watching), as_json=False)
        else:
            watching.conclude(ask(node, lambda there: watching.watch(there.job(job_id)), as_json=False))
    except KeyboardInterrupt:
        watching.detached(job_id)
        raise
    finally:
        watching.screen.end()


class Watching:
    """A call or a job on the screen; `after` is the last number that was seen, `url` what the person calls the node."""

    def __init__(self, after: int = 0, url: str | None = None) -> None:
        self.after = after
        self.screen = Screen()
        self._url = url
        self._is_return = after > 0

    def detached(self, job_id: str) -> None:
        self.screen.end()
        remark(f"Detached; the job goes on. Come back with: {come_back(job_id, self.after, self._url)}")

    def conclude(self, result: CallResult) -> None:
        """What it came to, for a person: its answer, its question, or the job as which it goes on."""
        if result.job_id is None:
            print_result(result.data, self.screen.words, is_rest=self._is_return)
            show_parts(result.parts)
        elif questions_of(result.data):
            explain_questions(result.data, self._url)
        else:
            print_line(result.job_id)
            remark(f"This takes longer and goes on as a job. Follow it with: {come_back(result.job_id, url=self._url)}")

    async def watch(self, job: JobHandle) -> CallResult:
        async with aclosing(self.events(job)) as events:
            async for event in events:
                if event.kind == "final":
                    self.screen.end()
                    return event.result
                self.screen.show(event)
        raise UpstreamInterrupted("The log ended before the job did")

    async def events(self, job: JobHandle) -> AsyncGenerator[StreamEvent]:
        await job.status()  # whether there is such a job, and a node: later a node that is gone is waited for
        async with aclosing(job.events(self.after)) as events:
            async for event in events:
                self.after = event.number or self.after
                yield event


async def _as_lines(job: JobHandle, watching: Watching) -> None:
    try:
        async with aclosing(watching.events(job)) as events:
            async for event in events:
                print_json_line(_line(event))
    except FabricError as error:
        print_json_line({"event": "final", **failure(error)})
        raise typer.Exit(1) from error


def _line(event: StreamEvent) -> dict[str, Any]:
    if event.kind != "final":
        return {"number": event.number, "at": event.at, "event": event.kind, "data": event.data}
    more = {name: value for name, value in (("parts", event.parts), ("notes", event.notes)) if value}
    return {"event": "final", "ok": True, "trace": event.trace, "result": event.data, "error": None,
            "fallback": event.fallback, "job_id": event.job_id, **more}  # fmt: skip
