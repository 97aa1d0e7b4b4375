"""Shows the events of a call or a job as they happen, and the question that a job waits for: `jobs follow`, `call`.

Tokens go to stdout. On a terminal, one line of progress is drawn on stderr, but never
while stdout, on the same terminal, is in the middle of a line."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import IO, Annotated, Any

import typer

from a2a_fabric.cli.connection import complete_job_ids, connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import build_failure, print_json_line, print_line, print_parts, print_result, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.client.client import FabricClient, JobHandle
from a2a_fabric.client.wire import CallResult, StreamEvent
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete_job_ids)]

_BAR_WIDTH = 24
_CLEAR = "\r\x1b[2K"


class Screen:
    """Stdout and stderr of a command that streams."""

    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._can_draw = self._err.isatty()
        self._shares_terminal = self._can_draw and self._out.isatty()
        self._is_drawn = False
        self._is_at_line_start = True
        self._tokens: list[str] = []

    @property
    def text(self) -> str:
        """All tokens so far."""
        return "".join(self._tokens)

    def show(self, event: StreamEvent) -> None:
        if event.kind == "token":
            self._write_text(event.text)
        elif event.kind == "progress":
            self._draw(_render_bar(float(event.data.get("percent", 0)), str(event.data.get("message") or "")))
        elif event.kind == "tool_call":
            self._draw(f"calls {event.data.get('tool', 'a tool')}")
        elif event.kind == "status":
            if event.data.get("reset"):  # the agent starts its answer again
                self.end()
                self._tokens.clear()
            self._draw(str(event.data.get("message") or event.data.get("status") or ""))

    def remark(self, text: str) -> None:
        """Print a line on stderr that stays; on a shared terminal it never breaks a line of stdout."""
        self._clear()
        if self._shares_terminal:
            self.end()
        self._err.write(f"{text}\n")
        self._err.flush()

    def end(self) -> None:
        """Erase the progress line, and leave the cursor on a new line."""
        self._clear()
        if not self._is_at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._is_at_line_start = True

    def _write_text(self, text: str) -> None:
        if self._shares_terminal:
            self._clear()
        self._tokens.append(text)
        self._is_at_line_start = text.endswith("\n") if text else self._is_at_line_start
        self._out.write(text)
        self._out.flush()

    def _draw(self, text: str) -> None:
        if not self._can_draw or not text or (self._shares_terminal and not self._is_at_line_start):
            return
        width = shutil.get_terminal_size().columns - 1
        self._err.write(_CLEAR + " ".join(text.split())[:width])
        self._err.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            self._err.write(_CLEAR)
            self._err.flush()
            self._is_drawn = False


def _render_bar(percent: float, message: str) -> str:
    filled = round(_BAR_WIDTH * min(100.0, max(0.0, percent)) / 100)
    return f"{'━' * filled}{'╌' * (_BAR_WIDTH - filled)} {percent:3.0f} %  {message}"


def follow_job(
    job: JobId,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Show events after number N.")] = 0,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Follow a job until it ends.

    Earlier events are shown first. Ctrl-C stops following; the job goes on. With --json each event is a line, and the
    last line is the result.

    Example: a2a-fabric jobs follow "$JOB"
    """
    follow(connect(url, token), job, after, as_json=as_json, url=url)


def follow(node: FabricClient, job_id: str, after: int = 0, *, as_json: bool = False, url: str | None = None) -> None:
    """Follow a job of a node; `url` is the --url option, which suggested commands repeat."""
    output = LiveOutput(after, url)
    try:
        if as_json:
            run_request(node, lambda client: _print_events(client.job(job_id), output), as_json=False)
        else:
            output.print_outcome(run_request(node, lambda client: output.follow(client.job(job_id)), as_json=False))
    except KeyboardInterrupt:
        output.detach(job_id)
        raise
    finally:
        output.screen.end()


class LiveOutput:
    """A call or a job on the screen; `after` is the number of the last event shown, `url` the --url option."""

    def __init__(self, after: int = 0, url: str | None = None) -> None:
        self.after = after
        self.screen = Screen()
        self._url = url
        self._is_resumed = after > 0

    def detach(self, job_id: str) -> None:
        self.screen.end()
        remark(f"Detached; the job goes on. Follow it with: {build_follow_command(job_id, self.after, self._url)}")

    def print_outcome(self, result: CallResult) -> None:
        """The answer, the agent's questions, or the job as which the call goes on."""
        if result.job_id is None:
            print_result(result.data, self.screen.text, is_continuation=self._is_resumed)
            print_parts(result.parts)
        elif read_questions(result.data):
            print_questions(result.data, self._url)
        else:
            print_line(result.job_id)
            command = build_follow_command(result.job_id, url=self._url)
            remark(f"The call takes longer and goes on as a job. Follow it with: {command}")

    async def follow(self, job: JobHandle) -> CallResult:
        async with aclosing(self.events(job)) as events:
            async for event in events:
                if event.kind == "final":
                    self.screen.end()
                    return event.result
                self.screen.show(event)
        raise UpstreamInterrupted("The job's log ended before the job. Follow the job again")

    async def events(self, job: JobHandle) -> AsyncGenerator[StreamEvent]:
        await job.status()  # fails at once if there is no such job or no node; `events` waits for a node that is gone
        async with aclosing(job.events(self.after)) as events:
            async for event in events:
                self.after = event.number or self.after
                yield event


async def _print_events(job: JobHandle, live_output: LiveOutput) -> None:
    try:
        async with aclosing(live_output.events(job)) as events:
            async for event in events:
                print_json_line(_event_to_json(event))
    except FabricError as error:
        print_json_line({"event": "final", **build_failure(error)})
        raise typer.Exit(1) from error


def _event_to_json(event: StreamEvent) -> dict[str, Any]:
    if event.kind != "final":
        return {"number": event.number, "at": event.at, "event": event.kind, "data": event.data}
    optional = {name: value for name, value in (("parts", event.parts), ("notes", event.notes)) if value}
    return {"event": "final", "ok": True, "trace": event.trace, "result": event.data, "error": None,
            "fallback": event.fallback, "job_id": event.job_id, **optional}  # fmt: skip


def read_questions(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The questions of the agent that a job waits for, by key."""
    return dict((job.get("input_required") or {}).get("questions") or {})


def print_questions(job: dict[str, Any], url: str | None = None) -> None:
    """Print the questions, and the command that answers them."""
    questions = read_questions(job)
    for key, question in questions.items():
        remark(f"{job['agent_id']} asks ({key}): {question.get('message') or question.get('kind', '')}")
    placeholders = " ".join(f"{key}={_build_placeholder(question)}" for key, question in questions.items())
    remark(f"Answer with: {NAME} jobs answer {job['job_id']} {placeholders}{_build_url_option(url)}")


def _build_placeholder(question: dict[str, Any]) -> str:
    """Stands for an answer; the placeholder of a form shows its fields."""
    fields = (question.get("schema") or {}).get("properties") or {}
    return "'{" + ", ".join(f'"{name}": …' for name in fields) + "}'" if fields else "…"


def build_follow_command(job_id: str, after: int = 0, url: str | None = None) -> str:
    return f"{NAME} jobs follow {job_id}" + (f" --after {after}" if after else "") + _build_url_option(url)


def _build_url_option(url: str | None) -> str:
    return f" --url {shlex.quote(url)}" if url else ""
