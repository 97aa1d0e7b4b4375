"""Tools: programs, the clock, and as much of the environment as the configuration shows."""

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

from a2a_fabric.tools.process import run
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread

_MAX_OUTPUT = 100_000
_SHELL = frozenset("|&;<>()$`\n")
_DIRECTIVES = re.compile(r"(?:[^%]|%[aAwdbBmyYHIMSpfzZjUWcxXGuV%])*", re.DOTALL)

Word = Annotated[str, Meta(max_length=100_000)]


class ExecuteArguments(Arguments, frozen=True, kw_only=True):
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


async def _execute(given: ExecuteArguments, toolbox: Toolbox) -> ExecuteResult:
    words = _words(given.command)
    env = _environment(given.env, toolbox)
    place = await in_thread(_place, toolbox, given.working_dir or ".")
    try:
        outcome = await run(words, cwd=place, env=env, timeout=given.timeout / 1000, limit=_MAX_OUTPUT)
    except TimeoutError as exc:
        raise tool_error("TIMEOUT", f"The command was stopped after {given.timeout} ms") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise tool_error("EXEC_ERROR", f"{words[0][:200]!r} cannot be run: {reason}") from exc
    return {
        "stdout": _shown(outcome.stdout),
        "stderr": _shown(outcome.stderr),
        "exit_code": outcome.exit_code,
        "duration_ms": round(outcome.duration * 1000),
        "command": given.command if isinstance(given.command, str) else shlex.join(given.command),
    }


def _place(_: Patience, toolbox: Toolbox, path: str) -> Path:
    try:
        return toolbox.files.place_of(path)
    except OSError as exc:
        raise tool_error("EXEC_ERROR", f"{path[:200]!r}: {exc.strerror}") from exc


def _words(command: str | Sequence[str]) -> list[str]:
    words = _split(command) if isinstance(command, str) else list(command)
    if not words or not words[0]:
        raise tool_error("PARSE_ERROR", "The command is empty")
    if any("\0" in word for word in words):
        raise tool_error("PARSE_ERROR", "The command holds a NUL character")
    return words


def _split(line: str) -> list[str]:
    if _needs_shell(line):
        raise tool_error(
            "DANGEROUS_COMMAND", "There is no shell for | & ; < > $ ` ( ) here; quote them, or send a list"
        )
    try:
        return shlex.split(line)
    except ValueError as exc:
        raise tool_error("PARSE_ERROR", f"The command cannot be split into words: {exc}") from exc


def _needs_shell(line: str) -> bool:
    """Whether a shell would do more with this line than split it; better refused than passed on as words."""
    quote = ""
    characters = iter(line)
    for here in characters:
        if here == "\\" and quote != "'":
            next(characters, "")
        elif quote:
            quote = "" if here == quote else quote
        elif here in _SHELL:
            return True
        elif here in "'\"":
            quote = here
    return False


def _environment(wanted: dict[str, str], toolbox: Toolbox) -> dict[str, str]:
    listed = toolbox.settings.execute_env
    for name in wanted:
        if name not in listed:
            raise tool_error("ACCESS_DENIED", f"The variable {name[:100]!r} is not listed in tools.execute_env")
    return {name: toolbox.environ[name] for name in listed if name in toolbox.environ} | wanted


def _shown(output: bytes) -> str:
    text = output.decode("utf-8", "replace")
    return text if len(output) < _MAX_OUTPUT else f"{text}\n[cut after {_MAX_OUTPUT} bytes]"


class EnvArguments(Arguments, frozen=True, kw_only=True):
    name: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="One variable; all that may be shown if unset.")
    ] = None


class EnvResult(TypedDict, total=False):
    """The first three for one variable, the others for all of them."""

    name: str
    value: str | None
    exists: bool
    variables: dict[str, str]
    count: int


async def _env(given: EnvArguments, toolbox: Toolbox) -> EnvResult:
    shown = toolbox.settings.env
    if given.name is None:
        variables = {name: toolbox.environ[name] for name in shown if name in toolbox.environ}
        return {"variables": variables, "count": len(variables)}
    if given.name not in shown:
        raise tool_error("ACCESS_DENIED", f"The variable {given.name!r} is not listed in tools.env of fabric.yaml")
    value = toolbox.environ.get(given.name)
    return {"name": given.name, "value": value, "exists": value is not None}


class DatetimeArguments(Arguments, frozen=True, kw_only=True):
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


async def _datetime(given: DatetimeArguments, _: Toolbox) -> DatetimeResult:
    now = datetime.now(_zone(given.timezone))
    return {
        "iso": now.isoformat(),
        "timestamp": now.timestamp(),
        "timezone": given.timezone,
        "formatted": _formatted(now, given),
    }


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise tool_error("DATETIME_ERROR", f"There is no timezone {name!r}; names are like 'Europe/Paris'") from exc


def _formatted(now: datetime, given: DatetimeArguments) -> str:
    match given.format:
        case "iso":
            return now.isoformat()
        case "timestamp":
            return str(now.timestamp())
        case "rfc2822":
            return format_datetime(now)
        case "custom":
            return _custom(now, given.custom_format)


def _custom(now: datetime, pattern: str | None) -> str:
    if not pattern:
        raise tool_error("DATETIME_ERROR", "Format custom needs custom_format, a pattern like '%d.%m.%Y'")
    if not _DIRECTIVES.fullmatch(pattern):
        raise tool_error("DATETIME_ERROR", f"{pattern!r} holds a directive that is not known")
    try:
        return now.strftime(pattern)
    except ValueError as exc:
        raise tool_error("DATETIME_ERROR", f"{pattern!r} is not a pattern: {exc}") from exc


TOOLS = (
    Tool(
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
    Tool(
        tool_id="system.env",
        capability="get",
        category="system",
        display_name="Environment",
        description="Environment variables of the node, of those that its configuration shows.",
        arguments=EnvArguments,
        result=EnvResult,
        handler=_env,
        deterministic=False,
        side_effects="reads",
    ),
    Tool(
        tool_id="system.datetime",
        capability="now",
        category="system",
        display_name="Date and time",
        description="The time now, in any timezone.",
        arguments=DatetimeArguments,
        result=DatetimeResult,
        handler=_datetime,
        deterministic=False,
        side_effects="reads",
    ),
)
