"""The system tools: programs, the clock, and the environment variables that the configuration allows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from email.utils import format_datetime
from pathlib import Path
from typing import Annotated, Literal, TypedDict
from zoneinfo import ZoneInfo

from msgspec import Meta

from a2a_fabric.tools.process import run_program
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, run_in_thread, tool_error

_MAX_OUTPUT = 100_000
_SHELL_CHARACTERS = frozenset("|&;<>()$`\n")
_DIRECTIVES = re.compile(r"(?:[^%]|%[aAwdbBmyYHIMSpfzZjUWcxXGuV%])*", re.DOTALL)

Word = Annotated[str, Meta(max_length=100_000)]


class ExecuteArguments(ToolArguments, frozen=True, kw_only=True):
    command: Annotated[
        Annotated[str, Meta(max_length=100_000)] | Annotated[tuple[Word, ...], Meta(max_length=1000)],
        Meta(description="Words of the command as a list, or one line; there is no shell."),
    ]
    working_dir: Annotated[str | None, Meta(description="Relative to the folder of the tools.")] = None
    timeout: Annotated[int, Meta(ge=1, le=300_000, description="Milliseconds.")] = 30_000
    env: Annotated[dict[str, str], Meta(description="Variables to set, of those that tools.execute_env lists.")] = {}  # noqa: RUF012  # msgspec copies it


class ExecuteResult(TypedDict):
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    command: str


async def _execute(arguments: ExecuteArguments, toolbox: Toolbox) -> ExecuteResult:
    argv = _split_command(arguments.command)
    env = _build_environment(arguments.env, toolbox)
    folder = await run_in_thread(_resolve_folder, toolbox, arguments.working_dir or ".")
    try:
        outcome = await run_program(argv, cwd=folder, env=env, timeout=arguments.timeout / 1000, limit=_MAX_OUTPUT)
    except TimeoutError as exc:
        raise tool_error("TIMEOUT", f"The command was stopped after {arguments.timeout} ms") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise tool_error("EXEC_ERROR", f"{argv[0][:200]!r} cannot be run: {reason}") from exc
    return {
        "stdout": _decode_output(outcome.stdout),
        "stderr": _decode_output(outcome.stderr),
        "exit_code": outcome.exit_code,
        "duration_ms": round(outcome.duration * 1000),
        "command": arguments.command if isinstance(arguments.command, str) else shlex.join(arguments.command),
    }


def _resolve_folder(_: TimeLimit, toolbox: Toolbox, path: str) -> Path:
    try:
        return toolbox.files.resolve_folder(path)
    except OSError as exc:
        raise tool_error("EXEC_ERROR", f"{path[:200]!r}: {exc.strerror}") from exc


def _split_command(command: str | Sequence[str]) -> list[str]:
    argv = _split_line(command) if isinstance(command, str) else list(command)
    if not argv or not argv[0]:
        raise tool_error("PARSE_ERROR", "The command is empty")
    if any("\0" in word for word in argv):
        raise tool_error("PARSE_ERROR", "The command holds a NUL character")
    return argv


def _split_line(line: str) -> list[str]:
    if _needs_shell(line):
        raise tool_error(
            "DANGEROUS_COMMAND", "There is no shell for | & ; < > $ ` ( ) here; quote them, or send a list"
        )
    try:
        return shlex.split(line)
    except ValueError as exc:
        raise tool_error("PARSE_ERROR", f"The command cannot be split into words: {exc}") from exc


def _needs_shell(line: str) -> bool:
    """Whether a shell would do more with this line than split it into words."""
    quote = ""
    characters = iter(line)
    for character in characters:
        if character == "\\" and quote != "'":
            next(characters, "")
        elif quote:
            quote = "" if character == quote else quote
        elif character in _SHELL_CHARACTERS:
            return True
        elif character in "'\"":
            quote = character
    return False


def _build_environment(requested: dict[str, str], toolbox: Toolbox) -> dict[str, str]:
    allowed = toolbox.settings.execute_env
    for name in requested:
        if name not in allowed:
            raise tool_error("ACCESS_DENIED", f"The variable {name[:100]!r} is not listed in tools.execute_env")
    return {name: toolbox.environ[name] for name in allowed if name in toolbox.environ} | requested


def _decode_output(output: bytes) -> str:
    text = output.decode("utf-8", "replace")
    return text if len(output) < _MAX_OUTPUT else f"{text}\n[cut after {_MAX_OUTPUT} bytes]"


class EnvArguments(ToolArguments, frozen=True, kw_only=True):
    name: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="One variable; if unset, all that are allowed.")
    ] = None


class EnvResult(TypedDict, total=False):
    """The first three for one variable, the others for all of them."""

    name: str
    value: str | None
    exists: bool
    variables: dict[str, str]
    count: int


async def _read_environment(arguments: EnvArguments, toolbox: Toolbox) -> EnvResult:
    visible = toolbox.settings.env
    if arguments.name is None:
        variables = {name: toolbox.environ[name] for name in visible if name in toolbox.environ}
        return {"variables": variables, "count": len(variables)}
    if arguments.name not in visible:
        raise tool_error("ACCESS_DENIED", f"The variable {arguments.name!r} is not listed in tools.env of fabric.yaml")
    value = toolbox.environ.get(arguments.name)
    return {"name": arguments.name, "value": value, "exists": value is not None}


class DatetimeArguments(ToolArguments, frozen=True, kw_only=True):
    timezone: Annotated[str, Meta(max_length=100, description="Name of the IANA database, like `Europe/Paris`.")] = (
        "UTC"
    )
    format: Annotated[
        Literal["iso", "timestamp", "rfc2822", "custom"], Meta(description="What `formatted` looks like.")
    ] = "iso"
    custom_format: Annotated[
        Annotated[str, Meta(max_length=200)] | None,
        Meta(description="For format custom: a strftime pattern, like `%d.%m.%Y`."),
    ] = None


class DatetimeResult(TypedDict):
    iso: str
    timestamp: float
    timezone: str
    formatted: str


async def _read_clock(arguments: DatetimeArguments, _: Toolbox) -> DatetimeResult:
    now = datetime.now(_find_timezone(arguments.timezone))
    return {
        "iso": now.isoformat(),
        "timestamp": now.timestamp(),
        "timezone": arguments.timezone,
        "formatted": _format_time(now, arguments),
    }


def _find_timezone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise tool_error("DATETIME_ERROR", f"There is no timezone {name!r}; names are like 'Europe/Paris'") from exc


def _format_time(now: datetime, arguments: DatetimeArguments) -> str:
    match arguments.format:
        case "iso":
            return now.isoformat()
        case "timestamp":
            return str(now.timestamp())
        case "rfc2822":
            return format_datetime(now)
        case "custom":
            return _format_custom(now, arguments.custom_format)


def _format_custom(now: datetime, pattern: str | None) -> str:
    if not pattern:
        raise tool_error("DATETIME_ERROR", "Format custom needs custom_format, a pattern like '%d.%m.%Y'")
    if not _DIRECTIVES.fullmatch(pattern):
        raise tool_error("DATETIME_ERROR", f"{pattern!r} holds an unknown directive; use those of strftime, like %Y")
    try:
        return now.strftime(pattern)
    except ValueError as exc:
        raise tool_error("DATETIME_ERROR", f"{pattern!r} is not a pattern: {exc}") from exc


TOOLS = (
    BuiltinTool(
        tool_id="system.execute",
        capability="exec",
        category="system",
        display_name="Run a program",
        description="Runs a program in the folder of the tools and returns its output; without a shell.",
        arguments=ExecuteArguments,
        result=ExecuteResult,
        handler=_execute,
        deterministic=False,
        side_effects="writes",
        trust_tier="local",
        setting="execute",
    ),
    BuiltinTool(
        tool_id="system.env",
        capability="get",
        category="system",
        display_name="Environment",
        description="Environment variables of the node, as far as its configuration allows.",
        arguments=EnvArguments,
        result=EnvResult,
        handler=_read_environment,
        deterministic=False,
        side_effects="reads",
    ),
    BuiltinTool(
        tool_id="system.datetime",
        capability="now",
        category="system",
        display_name="Date and time",
        description="The time now, in any timezone.",
        arguments=DatetimeArguments,
        result=DatetimeResult,
        handler=_read_clock,
        deterministic=False,
        side_effects="reads",
    ),
)
