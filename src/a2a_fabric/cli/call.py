"""`a2a-fabric call`"""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.completion import agent_ids, capabilities, job_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.follow import Watching, follow
from a2a_fabric.cli.jobs.wishes import Expires, Key, Priority, RunAt, Ttl, Webhook, wishes
from a2a_fabric.cli.jobs.words import come_back
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.pairs import pairs_of
from a2a_fabric.cli.parts import attached, save_parts
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.values import CallResult
from a2a_fabric.core.errors import UpstreamInterrupted

_STDIN_BYTES = 4 * 1024 * 1024
_TIMEOUT = 60.0


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=agent_ids)] = "",
    capability: Annotated[
        str, typer.Argument(metavar="CAPABILITY", help="What it shall do.", autocompletion=capabilities)
    ] = "",
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task in words; - reads them from stdin.")] = "",
    context: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="One argument: JSON if it is, else text. Repeatable."),
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file that goes along with the task. Repeatable.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write images, files and other content of the answer here.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Any name; calls with the same one share the agent's memory.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="How long it may take. Default: 60; a job: the node's limit."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer while it is made.")] = True,
    as_job: Annotated[bool, typer.Option("--async", help="Do not wait: print the id of a job.")] = False,
    key: Key = None,
    priority: Priority = None,
    run_at: RunAt = None,
    expires: Expires = None,
    ttl: Ttl = None,
    webhook: Webhook = None,
    following: Annotated[
        str | None,
        typer.Option("--follow", metavar="JOB", help="Ask nothing new: watch this job.", autocompletion=job_ids),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print the trace id on stderr.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Ask an agent, and watch it work.

    Ctrl-C cancels the call; a call that has become a job is left alone, and a remark says how to come back.

    Example: a2a-fabric call percy reason "What is 12 * 7 + 16?"
    """
    if save is not None and (as_job or following is not None):
        raise typer.BadParameter("only for a call that is waited for", param_hint="--save")
    if following is not None:
        if agent or as_job:
            raise typer.BadParameter("a job has its agent and its task already", param_hint="--follow")
        follow(connect(url, token), following, as_json=as_json, url=url)
        return
    if not agent or not capability:
        raise typer.BadParameter("missing; see: a2a-fabric agents", param_hint="CAPABILITY" if agent else "AGENT")
    wished = wishes(as_job=as_job, key=key, priority=priority, run_at=run_at, expires=expires, ttl=ttl, webhook=webhook)
    asked: dict[str, Any] = {
        "agent_id": agent,
        "capability": capability,
        "task": _stdin() if task == "-" else task,
        "context": _context(context, arg or []),
        "timeout": timeout,
        "attachments": attached(attach or []),
        "conversation_id": conversation,
    }
    node = connect(url, token, timeout or _TIMEOUT)
    if as_job:
        _submit(node, {**asked, **wished}, as_json=as_json, url=url)
    else:
        call = _Call(asked, Watching(url=url))
        result = _call(node, call, stream=stream, trace=trace, as_json=as_json)
        if save is not None:
            save_parts(result.parts, save)


def _submit(node: FabricClient, asked: dict[str, Any], *, as_json: bool, url: str | None) -> None:
    async def question(there: FabricClient) -> dict[str, Any]:
        return await (await there.submit(**asked)).status()

    job = ask(node, question, as_json=as_json)
    if as_json:
        print_json(job)
        return
    print_line(job["job_id"])
    remark(f"Follow it with: {come_back(job['job_id'], url=url)}")


def _call(node: FabricClient, call: _Call, *, stream: bool, trace: bool, as_json: bool) -> CallResult:
    async def question(there: FabricClient) -> CallResult:
        return await (call.streamed(there) if stream and not as_json else there.call(**call.asked))

    try:
        result = ask(node, question, as_json=as_json)
    except KeyboardInterrupt:
        call.interrupted()
        raise
    finally:
        call.watching.screen.end()
    if as_json:
        print_json(_envelope(result))
        return result
    call.watching.conclude(result)
    _remarks(result, trace)
    return result


class _Call:
    """A streamed call; if the node makes a job of it, that is watched on."""

    def __init__(self, asked: dict[str, Any], watching: Watching) -> None:
        self.asked = asked
        self.watching = watching
        self._job_id: str | None = None

    async def streamed(self, node: FabricClient) -> CallResult:
        result = await self._answer(node)
        if result.job_id is None or "input_required" in result.data:
            return result
        self._job_id = result.job_id
        self.watching.after = int(result.data["events"])
        self.watching.screen.remark(f"This takes longer and goes on as {result.job_id}; Ctrl-C leaves it alone.")
        return await self.watching.watch(node.job(result.job_id))

    async def _answer(self, node: FabricClient) -> CallResult:
        async with aclosing(node.stream(**self.asked)) as events:
            async for event in events:
                if event.kind == "final":
                    return event.result
                self.watching.screen.show(event)
        raise UpstreamInterrupted("The stream ended before the answer was there")

    def interrupted(self) -> None:
        if self._job_id is not None:
            self.watching.detached(self._job_id)
            return
        self.watching.screen.end()
        remark("Cancelled.")


def _envelope(result: CallResult) -> dict[str, Any]:
    more = {"job_id": result.job_id, "parts": result.parts, "notes": result.notes}
    said = {name: value for name, value in more.items() if value}
    return {
        "ok": True,
        "trace": result.trace,
        "result": result.data,
        "error": None,
        "fallback": result.fallback,
        **said,
    }


def _remarks(result: CallResult, trace: bool) -> None:
    if result.fallback is not None:
        used = result.fallback
        how = f" ({used.degraded})" if used.degraded else ""
        remark(f"Answered by {used.used} instead of {used.requested}{how}: {used.reason}.")
    for note in result.notes:
        remark(f"Note: {note}.")
    if trace:
        remark(f"trace {result.trace.trace_id}")


def _context(given: str | None, pairs: list[str]) -> dict[str, Any] | None:
    context: Any = {}
    if given is not None:
        try:
            context = msgspec.json.decode(given.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise typer.BadParameter(f"not JSON: {exc}", param_hint="--context") from exc
        if not isinstance(context, dict):
            raise typer.BadParameter("not a JSON object", param_hint="--context")
    return {**context, **pairs_of(pairs, "--arg")} or None


def _stdin() -> str:
    words = sys.stdin.buffer.read(_STDIN_BYTES + 1)
    if len(words) > _STDIN_BYTES:
        raise typer.BadParameter(f"stdin holds more than {_STDIN_BYTES} bytes", param_hint="TASK")
    try:
        return words.decode()
    except UnicodeDecodeError as exc:
        raise typer.BadParameter("stdin is not UTF-8 text", param_hint="TASK") from exc
