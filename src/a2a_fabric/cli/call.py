"""`a2a-fabric call`: call an agent and stream its answer, or submit the call as a job."""

from __future__ import annotations

import base64
import mimetypes
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from a2a_fabric.cli.connection import complete_agent_ids, complete_capabilities, complete_job_ids, connect, run_request
from a2a_fabric.cli.follow import LiveOutput, build_follow_command, follow
from a2a_fabric.cli.options import Json, Token, Url, parse_duration, parse_pairs, parse_time
from a2a_fabric.cli.output import print_json, print_line, remark, save_parts
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.wire import CallResult, StreamEvent
from a2a_fabric.core.call import Attachment
from a2a_fabric.core.errors import BadInput, UpstreamInterrupted, suggest_nearest

MAX_ATTACHED_BYTES = 16 * 1024 * 1024  # of all files together; a node may accept less
_STDIN_BYTES = 4 * 1024 * 1024
_TIMEOUT = 60.0
_PRIORITIES = ("low", "normal", "high", "urgent")


def _check_priority(priority: str | None) -> str | None:
    """Raises BadParameter."""
    if priority is not None and priority not in _PRIORITIES:
        hint = suggest_nearest(priority, _PRIORITIES)
        raise typer.BadParameter(f"'{priority}' is not one of {', '.join(_PRIORITIES)}{hint}")
    return priority


JobKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="With --async: a second call with the same key returns the same job.")
]
Priority = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help=f"With --async: {', '.join(_PRIORITIES)}.",
        autocompletion=lambda: list(_PRIORITIES),
        callback=_check_priority,
    ),
]
RunAt = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="With --async: start not before 2026-11-16T18:00, or 10m from now."),
]
Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="With --async: a job that has not started by then ends as timeout.")
]
Ttl = Annotated[
    str | None, typer.Option(metavar="DURATION", help="With --async: --expires counted from now, such as 90s or 2h.")
]
Webhook = Annotated[
    str | None, typer.Option(metavar="URL", help="With --async: is sent the result, signed with the node's secret.")
]


def run(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=complete_agent_ids)
    ] = "",
    capability: Annotated[
        str,
        typer.Argument(metavar="CAPABILITY", help="The capability to call.", autocompletion=complete_capabilities),
    ] = "",
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task in words; - reads it from stdin.")] = "",
    context: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="One argument; VALUE is JSON or text. Repeatable."),
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file to send with the task. Repeatable.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save images, files and other content of the answer here.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Any name; the agent remembers earlier calls with the same name.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="Time limit. Default: 60; for a job, the node's limit."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer as it is written.")] = True,
    as_job: Annotated[bool, typer.Option("--async", help="Do not wait: start a job and print its id.")] = False,
    key: JobKey = None,
    priority: Priority = None,
    run_at: RunAt = None,
    expires: Expires = None,
    ttl: Ttl = None,
    webhook: Webhook = None,
    job_to_follow: Annotated[
        str | None,
        typer.Option(
            "--follow", metavar="JOB", help="Make no new call; follow this job.", autocompletion=complete_job_ids
        ),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print the trace id on stderr.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Call an agent and show its answer as it is written.

    Ctrl-C cancels the call. If the node has made the call a job, Ctrl-C only stops following it.

    Example: a2a-fabric call morse morse "hello world"
    """
    if save is not None and (as_job or job_to_follow is not None):
        raise typer.BadParameter("not with --async or --follow", param_hint="--save")
    if job_to_follow is not None:
        if agent or as_job:
            raise typer.BadParameter("not with AGENT or --async: the job names its agent", param_hint="--follow")
        follow(connect(url, token), job_to_follow, as_json=as_json, url=url)
        return
    if not agent or not capability:
        next_step = f"a2a-fabric describe {agent}" if agent else "a2a-fabric agents"
        raise typer.BadParameter(f"missing; see: {next_step}", param_hint="CAPABILITY" if agent else "AGENT")
    job_options = _read_job_options(
        as_job=as_job, key=key, priority=priority, run_at=run_at, expires=expires, ttl=ttl, webhook=webhook
    )
    arguments: dict[str, Any] = {
        "agent_id": agent,
        "capability": capability,
        "task": read_stdin() if task == "-" else task,
        "context": parse_context(context, arg or []),
        "timeout": timeout,
        "attachments": read_attachments(attach or []),
        "conversation_id": conversation,
    }
    node = connect(url, token, timeout or _TIMEOUT)
    if as_job:
        _submit(node, {**arguments, **job_options}, as_json=as_json, url=url)
    else:
        call = StreamedCall(arguments, LiveOutput(url=url))
        result = run_call(node, call, stream=stream, trace=trace, as_json=as_json)
        if save is not None:
            save_parts(result.parts, save)


def _read_job_options(
    *,
    as_job: bool,
    key: str | None,
    priority: str | None,
    run_at: str | None,
    expires: str | None,
    ttl: str | None,
    webhook: str | None,
) -> dict[str, Any]:
    """The options that were set, as arguments of `FabricClient.submit`. Raises BadParameter."""
    values = {"--key": key, "--priority": priority, "--run-at": run_at, "--expires": expires, "--ttl": ttl,
             "--webhook": webhook}  # fmt: skip
    for option, value in values.items():
        if value is not None and not as_job:
            raise typer.BadParameter("only with --async", param_hint=option)
    if expires is not None and ttl is not None:
        raise typer.BadParameter("use either --expires or --ttl", param_hint="--expires")
    options: dict[str, Any] = {
        "idempotency_key": key,
        "priority": priority,
        "run_at": None if run_at is None else parse_time(run_at, "--run-at"),
        "expires_at": None if expires is None else parse_time(expires, "--expires"),
        "ttl_ms": None if ttl is None else max(1, round(parse_duration(ttl, "--ttl") * 1000)),
        "webhook": None if webhook is None else {"url": webhook},
    }
    return {name: value for name, value in options.items() if value is not None}


def _submit(node: FabricClient, arguments: dict[str, Any], *, as_json: bool, url: str | None) -> None:
    async def request(client: FabricClient) -> dict[str, Any]:
        return await (await client.submit(**arguments)).status()

    job = run_request(node, request, as_json=as_json)
    if as_json:
        print_json(job)
        return
    print_line(job["job_id"])
    remark(f"Follow it with: {build_follow_command(job['job_id'], url=url)}")


def run_call(node: FabricClient, call: StreamedCall, *, stream: bool, trace: bool, as_json: bool) -> CallResult:
    async def request(client: FabricClient) -> CallResult:
        return await (call.stream(client) if stream and not as_json else call.request(client))

    try:
        result = run_request(node, request, as_json=as_json)
    except KeyboardInterrupt:
        call.report_interrupt()
        raise
    except BadInput as error:
        if hint := _explain_text_argument(error, call.arguments.get("context")):
            raise BadInput(f"{error.message}. {hint}") from error
        raise
    finally:
        call.output.screen.end()
    if as_json:
        print_json(_build_envelope(result))
        return result
    call.output.print_outcome(result)
    _print_remarks(result, trace)
    return result


class CallKind(NamedTuple):
    """The methods of the client that make a call."""

    call: Callable[..., Awaitable[CallResult]]
    stream: Callable[..., AsyncGenerator[StreamEvent]]


AGENT_CALL = CallKind(FabricClient.call, FabricClient.stream)


class StreamedCall:
    """A streamed call. If the node makes it a job, the job is followed."""

    def __init__(self, arguments: dict[str, Any], output: LiveOutput, kind: CallKind = AGENT_CALL) -> None:
        self.arguments = arguments
        self.output = output
        self._kind = kind
        self._job_id: str | None = None

    async def request(self, node: FabricClient) -> CallResult:
        """The answer alone, without events."""
        return await self._kind.call(node, **self.arguments)

    async def stream(self, node: FabricClient) -> CallResult:
        result = await self._read_answer(node)
        if result.job_id is None or "input_required" in result.data:
            return result
        self._job_id = result.job_id
        self.output.after = int(result.data["events"])
        self.output.screen.remark(f"The call goes on as job {result.job_id}; Ctrl-C stops following, not the job.")
        return await self.output.follow(node.job(result.job_id))

    async def _read_answer(self, node: FabricClient) -> CallResult:
        async with aclosing(self._kind.stream(node, **self.arguments)) as events:
            async for event in events:
                if event.kind == "final":
                    return event.result
                self.output.screen.show(event)
        raise UpstreamInterrupted("The stream ended before the answer was complete")

    def report_interrupt(self) -> None:
        if self._job_id is not None:
            self.output.detach(self._job_id)
            return
        self.output.screen.end()
        remark("Cancelled.")


def _build_envelope(result: CallResult) -> dict[str, Any]:
    optional = {"job_id": result.job_id, "parts": result.parts, "notes": result.notes}
    extras = {name: value for name, value in optional.items() if value}
    return {
        "ok": True,
        "trace": result.trace,
        "result": result.data,
        "error": None,
        "fallback": result.fallback,
        **extras,
    }


def _explain_text_argument(error: BadInput, context: dict[str, Any] | None) -> str | None:
    """How to send a text that looks like a number, if the agent refused the number."""
    if 'not of type "string"' not in error.message:
        return None
    number = next((name for name, value in (context or {}).items() if f"{name}:" in error.message), None)
    return None if number is None else f"--arg {number}=... was read as JSON; a text is --arg '{number}=\"...\"'"


def _print_remarks(result: CallResult, trace: bool) -> None:
    if result.fallback is not None:
        fallback = result.fallback
        how = f" ({fallback.degraded})" if fallback.degraded else ""
        remark(f"Answered by {fallback.used} instead of {fallback.requested}{how}: {fallback.reason}.")
    for note in result.notes:
        remark(f"Note: {note}.")
    if trace:
        remark(f"trace {result.trace.trace_id}")


def parse_context(text: str | None, pairs: list[str]) -> dict[str, Any] | None:
    context: Any = {}
    if text is not None:
        try:
            context = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise typer.BadParameter(f"not JSON: {exc}", param_hint="--context") from exc
        if not isinstance(context, dict):
            raise typer.BadParameter("not a JSON object", param_hint="--context")
    return {**context, **parse_pairs(pairs, "--arg")} or None


def read_stdin() -> str:
    content = sys.stdin.buffer.read(_STDIN_BYTES + 1)
    if len(content) > _STDIN_BYTES:
        raise typer.BadParameter(f"stdin holds more than {_STDIN_BYTES} bytes", param_hint="TASK")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise typer.BadParameter("stdin is not UTF-8 text", param_hint="TASK") from exc


def read_attachments(files: Sequence[Path]) -> list[Attachment]:
    """Read the files, and guess the media type of each from its name. Raises typer.BadParameter."""
    remaining = MAX_ATTACHED_BYTES
    attachments = []
    for file in files:
        content = _read_file(file, remaining)
        remaining -= len(content)
        media, _ = mimetypes.guess_type(file.name)
        encoded = base64.b64encode(content).decode()
        attachments.append(Attachment(type="file", content=encoded, mime_type=media, name=file.name))
    return attachments


def _read_file(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as exc:
        raise typer.BadParameter(f"{file}: {exc.strerror}", param_hint="--attach") from exc
    if len(content) > limit:
        raise typer.BadParameter(f"the files have more than {MAX_ATTACHED_BYTES} bytes together", param_hint="--attach")
    return content
