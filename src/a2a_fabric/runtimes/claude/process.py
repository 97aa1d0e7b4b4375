"""One Claude Code process per call: feeds it, parses its output, ends its process group; and the version check.

The output is lines: events, then a result or an error. With partial messages the text of the answer arrives in
pieces and again as a whole; the whole is used only where there are no pieces. The text of a sub-agent is not
part of the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    FabricError,
    OperatorText,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.json_text import find_number_problem
from a2a_fabric.core.result import Event, Result, status, token
from a2a_fabric.runtimes.mcp_servers import ServerProblem, ServerStatus, describe_server_problem
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, read_lines

_log = logging.getLogger(__name__)

MAX_INVALID_LOGGED = 10
_MAX_TOOLS = 1000  # tools of one run whose names are remembered
_STRUCTURED_OUTPUT_TOOL = (
    "StructuredOutput"  # the tool by which the model answers with an object; not a tool of the agent
)


class ClaudeAPIRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The model's API did not answer, and the program is going to retry."""

    kind: str
    delay: float  # seconds
    attempt: int


class ClaudeOutput:
    def __init__(self, agent_id: str, *, has_partial_messages: bool, required_servers: Collection[str] = ()) -> None:
        self.result: dict[str, Any] | None = None
        self.has_started = False  # the program has read its options and found its session
        self.has_worked = False  # output or a tool call has happened, so the run cannot be repeated
        self.api_error = ""  # the program's name for the error of the model's API
        self.retry: ClaudeAPIRetry | None = None
        self.notes: list[str] = []
        self._agent_id = agent_id
        self._has_partial_messages = has_partial_messages
        self._required_servers = required_servers
        self._tools: dict[str, str] = {}
        self._invalid_lines = 0

    def parse_line(self, line: bytes) -> Iterator[Event]:
        if find_number_problem(line):
            self._log_invalid(line)
            return
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._log_invalid(line)
            return
        if not isinstance(record, dict):
            self._log_invalid(line)
            return
        self.retry = None
        match record.get("type"):
            case "system":
                yield from self._handle_system(record)
            case "stream_event":
                yield from self._handle_stream_event(record)
            case "assistant":
                yield from self._handle_assistant(record)
            case "user":
                yield from self._handle_tool_results(record)
            case "result":
                self.result = record

    def _handle_system(self, record: dict[str, Any]) -> Iterator[Event]:
        match record:
            case {"subtype": "init"}:
                self.has_started = True
                self._check_servers(record.get("mcp_servers"))
                self.notes += _missing_server_notes(record.get("mcp_servers"))
            case {"subtype": "api_retry"}:
                delay, kind = (
                    _number_or_zero(record.get("retry_delay_ms")) / 1000,
                    str(record.get("error") or "unknown"),
                )
                self.retry = ClaudeAPIRetry(kind=kind, delay=delay, attempt=int(_number_or_zero(record.get("attempt"))))
                yield status("running", f"the model's API: {kind}; next try in {delay:.1f} s")

    def _check_servers(self, servers: Any) -> None:
        """Raises AgentOffline before the model is asked, if a server is missing without which the agent cannot work."""
        for server in servers if isinstance(servers, list) else ():
            match server:
                case {"name": str(name), "status": "failed" | "needs-auth" as state} if name in self._required_servers:
                    kind: ServerStatus = "auth_failed" if state == "needs-auth" else "not_connected"
                    details = describe_server_problem(ServerProblem(text=state, status=kind))
                    message = f"The agent needs the MCP server '{name}': {state}"
                    raise AgentOffline(message, agent_id=self._agent_id, **details)

    def _handle_stream_event(self, record: dict[str, Any]) -> Iterator[Event]:
        match record.get("event"):
            case {"delta": {"type": "text_delta", "text": str(text)}} if not record.get("parent_tool_use_id"):
                self.has_worked = True
                yield token(text)

    def _handle_assistant(self, record: dict[str, Any]) -> Iterator[Event]:
        if isinstance(record.get("error"), str):
            self.api_error = record["error"]
            return
        for block in _content_blocks(record):
            match block:
                case {"type": "text", "text": str(text)} if text and not record.get("parent_tool_use_id"):
                    self.has_worked = True
                    if not self._has_partial_messages:
                        yield token(text)
                case {"type": "tool_use", "id": str(id_), "name": str(name)} if name != _STRUCTURED_OUTPUT_TOOL:
                    self.has_worked = True
                    if len(self._tools) < _MAX_TOOLS:
                        self._tools[id_] = name
                    tool_input = block.get("input")
                    yield _tool_event(record, name, id_, arguments=tool_input if isinstance(tool_input, dict) else {})

    def _handle_tool_results(self, record: dict[str, Any]) -> Iterator[Event]:
        for block in _content_blocks(record):
            match block:
                case {"type": "tool_result", "tool_use_id": str(id_)} if id_ in self._tools:
                    tool_status = "failed" if block.get("is_error") else "completed"
                    output = block.get("content")
                    yield _tool_event(record, self._tools[id_], id_, arguments={}, status=tool_status, output=output)

    def _log_invalid(self, line: bytes) -> None:
        if line.strip():
            self._invalid_lines += 1
            if self._invalid_lines <= MAX_INVALID_LOGGED:
                _log.warning("%s: not a message on stdout: %r", self._agent_id, line[:200])


def _content_blocks(record: dict[str, Any]) -> list[Any]:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _tool_event(record: dict[str, Any], name: str, id_: str, **more: Any) -> Event:
    fields = {"tool": name, **more, "id": id_, "parent": record.get("parent_tool_use_id")}
    return Event("tool_call", {key: value for key, value in fields.items() if value is not None})


def _missing_server_notes(servers: Any) -> Iterator[str]:
    for server in servers if isinstance(servers, list) else ():
        match server:
            case {"name": str(name), "status": "failed" | "needs-auth" as state}:
                yield f"the MCP server '{name[:100]}' was not available: {state}"


def _number_or_zero(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


_MAX_ERROR_TEXT = 2000
_NO_ACCESS = ("authentication_failed", "oauth_org_not_allowed", "billing_error")
_BUSY = ("rate_limit", "overloaded")
_NO_ACCESS_STATUS = (401, 402, 403)
_BUSY_STATUS = (429, 529)
_UNKNOWN_SESSION = "No conversation found"
_USED_SESSION = "already in use"
_REASONS = {
    "error_max_turns": "it has reached its limit of model requests",
    "error_max_budget_usd": "it has reached its budget",
    "error_max_structured_output_retries": "it could not answer with an object of the requested schema",
    "error_during_execution": "it failed in the middle of its work",
}


def result_from_output(output: ClaudeOutput, record: dict[str, Any]) -> Result:
    """The result of a successful run: the requested object, else the text, with the cost."""
    notes = (*output.notes, *_denial_notes(record.get("permission_denials")))
    structured = record.get("structured_output")
    if isinstance(structured, dict):
        return Result(data=structured, notes=notes)
    details = {
        "usage": record.get("usage"),
        "cost_usd": record.get("total_cost_usd"),
        "turns": record.get("num_turns"),
        "session_id": record.get("session_id"),
    }
    answer = {"answer": str(record.get("result") or "")}
    return Result(data={**answer, **{name: value for name, value in details.items() if value is not None}}, notes=notes)


def is_unknown_session(record: dict[str, Any]) -> bool:
    return any(_UNKNOWN_SESSION in text for text in _error_texts(record))


def is_used_session(exit_reason: str) -> bool:
    return _USED_SESSION in exit_reason


def error_from_output(output: ClaudeOutput, record: dict[str, Any]) -> FabricError:
    """The error of a run whose result is an error."""
    text = str(record.get("result") or "; ".join(_error_texts(record)))[:_MAX_ERROR_TEXT]
    http_status = record.get("api_error_status")
    if output.api_error or record.get("terminal_reason") == "api_error":
        return _error_from_api(text, output, output.api_error, http_status)
    subtype = str(record.get("subtype") or "")
    reason = _REASONS.get(subtype, "")
    why = ": ".join(filter(None, (reason, text))) or "it failed without saying why"
    failure = UpstreamFailed if subtype == "error_during_execution" else UpstreamRefused
    return failure(f"Claude Code stopped: {why}", reason=subtype or None)


def error_from_retry(output: ClaudeOutput, retry: ClaudeAPIRetry, remaining: float) -> FabricError | None:
    """The error that ends the call now if the retry cannot succeed; else None."""
    if retry.kind in _NO_ACCESS and retry.attempt > 1:
        return _error_from_api("the model's API rejects its credentials", output, retry.kind)
    if retry.delay > remaining:
        text = f"the model's API does not answer ({retry.kind}), and there is no time to wait {retry.delay:.0f} s"
        return _error_from_api(text, output, retry.kind, retry_after=retry.delay)
    return None


def _error_from_api(
    text: str, output: ClaudeOutput, kind: str, http_status: Any = None, retry_after: float | None = None
) -> FabricError:
    """A failure of the model's API: if no work was done yet, a fallback may run."""
    details = {"upstream_code": kind or None, "status": http_status, "retry_after": retry_after}
    message = f"Claude Code cannot reach its model: {text}"
    if output.has_worked:
        return UpstreamFailed(message, **details)
    if kind in _BUSY or http_status in _BUSY_STATUS:
        return AgentBusy(message, **details)
    if kind in _NO_ACCESS or http_status in _NO_ACCESS_STATUS or retry_after is not None:
        return AgentOffline(message, **details)
    return UpstreamFailed(message, **details)


def _error_texts(record: dict[str, Any]) -> list[str]:
    errors = record.get("errors")
    return [str(each) for each in errors] if isinstance(errors, list) else []


def _denial_notes(denials: Any) -> Iterator[str]:
    for denial in denials if isinstance(denials, list) else ():
        if isinstance(denial, dict):
            yield f"permission was denied: {str(denial.get('tool_name', 'a tool'))[:100]}"


EXIT_TIMEOUT = 5.0  # for the program to exit on its own after its result


class ClaudeProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    line_bytes: int
    grace: float


class ClaudeProcess:
    """A started program. The runtime that starts it also ends it."""

    def __init__(self, child: ChildProcess, limits: ClaudeProcessLimits) -> None:
        self._child = child
        self._limits = limits
        self._exit_timeout = 0.0
        self._stdin_task: asyncio.Future[None] | None = None

    async def run(self, stdin: bytes, output: ClaudeOutput, emit: Emit, ends_at: float) -> str:
        """Run until the result, which `output` then has; without a result, return how the program ended."""
        self._stdin_task = asyncio.ensure_future(_write_stdin(self._child, stdin))
        await self._read_output(output, emit, ends_at)
        if output.result is None:
            return await self._wait_exit_reason()
        self._exit_timeout = EXIT_TIMEOUT
        return ""

    async def finish(self) -> None:
        """Wait for a program that has answered to exit, and stop any other. No process of its group stays."""
        try:
            async with asyncio.timeout(self._exit_timeout):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        finally:
            await self.stop()

    async def stop(self) -> None:
        await self._child.stop(self._limits.grace)
        if self._stdin_task is not None:
            self._stdin_task.cancel()
            await asyncio.wait([self._stdin_task])

    async def _read_output(self, output: ClaudeOutput, emit: Emit, ends_at: float) -> None:
        try:
            async for line in read_lines(self._child.stdout, self._limits.line_bytes):
                for event in output.parse_line(line):
                    await emit(event)
                if output.result is not None:
                    return
                if output.retry is not None:
                    error = error_from_retry(output, output.retry, ends_at - asyncio.get_running_loop().time())
                    if error is not None:
                        raise error
        except LineTooLong as exc:
            limit = self._limits.line_bytes
            raise UpstreamRefused(self._child.program.describe(f"printed a line longer than {limit} bytes")) from exc

    async def _wait_exit_reason(self) -> str:
        """A program usually exits when its output ends."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        return self._child.exit_summary


def error_from_exit(output: ClaudeOutput, exit_reason: str) -> FabricError:
    """The error for a program that exited without a result. It depends on whether the work had begun."""
    if not output.has_started:
        return AgentOffline(exit_reason)
    return UpstreamInterrupted(exit_reason)


async def _write_stdin(child: ChildProcess, data: bytes) -> None:
    try:
        child.stdin.write(data)
        await child.stdin.drain()
        child.stdin.close()
    except ConnectionError:
        pass  # the program does not read its input


VERSION_CACHE_SECONDS = 60.0  # for which a version check is valid
VERSION_TIMEOUT = 20.0
_VERSION_BYTES = 10_000


class ClaudeVersionCheck:
    def __init__(self, program: ProgramSpec) -> None:
        self._program = replace(program, argv=(*program.argv, "--version"))
        self._checked_at: float | None = None
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Raises AgentOffline with the reason."""
        self._program.find_executable()
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._checked_at is None or now - self._checked_at > VERSION_CACHE_SECONDS:
                await self._run_version_command()
                self._checked_at = now

    async def _run_version_command(self) -> None:
        child = await ChildProcess.start(self._program)
        try:
            child.stdin.close()
            async with asyncio.timeout(VERSION_TIMEOUT):
                output = await child.stdout.read(_VERSION_BYTES)
                await child.ended.wait()
        except TimeoutError as exc:
            raise AgentOffline(
                self._program.describe(f"did not print its version within {VERSION_TIMEOUT:g} s")
            ) from exc
        finally:
            await child.destroy()
        if child.returncode != 0 or not output.strip():
            message, reason = self._program.describe("does not print its version: "), child.exit_summary
            raise AgentOffline(OperatorText(message + reason, message.public + reason.public))
