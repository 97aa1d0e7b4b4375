"""What the built-in tools share: their errors, a time limit for blocking work, and text encodings.

Each tool error has a code of its own in `details["tool_error"]`. The class of the error says what the caller can do
next:

    BAD_INPUT       correct the arguments
    AUTH_DENIED     nothing: the sandbox or the configuration refuses
    TIMEOUT         ask for less
    UPSTREAM_ERROR  try again later: a disk, a server or a program failed"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from a2a_fabric.core.errors import FabricError, error_from_code
from a2a_fabric.core.threads import run_in_worker_thread

P = ParamSpec("P")
T = TypeVar("T")

_REFUSED = ("ACCESS_DENIED", "DANGEROUS_COMMAND")
_UPSTREAM = (
    "READ_ERROR", "WRITE_ERROR", "LIST_ERROR", "SEARCH_ERROR", "REQUEST_ERROR", "FETCH_ERROR", "EXEC_ERROR",
    "EXECUTION_ERROR",
)  # fmt: skip
_BAD_INPUT = (
    "FILE_NOT_FOUND", "DIR_NOT_FOUND", "DECODE_ERROR", "PARSE_ERROR", "INVALID_EXPRESSION", "EVAL_ERROR", "EMPTY_DATA",
    "STATS_ERROR", "INVALID_REGEX", "MATCH_ERROR", "TRANSFORM_ERROR", "DIFF_ERROR", "ENV_ERROR", "DATETIME_ERROR",
    "CSV_ERROR", "VALIDATION_ERROR", "INVALID_ALGORITHM", "HASH_ERROR", "BASE64_ERROR", "URL_ENCODE_ERROR",
    "MARKDOWN_ERROR", "TOOL_NOT_FOUND",
)  # fmt: skip

CODES: Mapping[str, str] = {
    **dict.fromkeys(_BAD_INPUT, "BAD_INPUT"),
    **dict.fromkeys(_REFUSED, "AUTH_DENIED"),
    **dict.fromkeys(_UPSTREAM, "UPSTREAM_ERROR"),
    "TIMEOUT": "TIMEOUT",
}


def tool_error(code: str, message: str) -> FabricError:
    """The FabricError for a tool's own code; raise it."""
    return error_from_code(CODES[code], message[:500], {"tool_error": code})


TIME_LIMIT = 10.0  # seconds of blocking work


class TimeLimit:
    """Passed to work that runs in a thread. A thread cannot be stopped from outside, so its loops call `check`."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout

    def check(self) -> None:
        """Raises TIMEOUT if the time is up or the caller no longer waits."""
        if time.monotonic() > self._deadline:
            raise tool_error("TIMEOUT", f"The tool gave up after {self.timeout:g} s; ask for less")

    def end(self) -> None:
        self._deadline = 0.0


async def run_in_thread(function: Callable[Concatenate[TimeLimit, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    time_limit = TimeLimit(TIME_LIMIT)
    try:
        return await run_in_worker_thread(function, time_limit, *args, **kwargs)
    finally:
        time_limit.end()


# Encodings of real texts; none that compresses, escapes or takes quadratic time.
_TEXT_ENCODINGS = re.compile(
    r"utf-?(8|8-sig|16|16-?le|16-?be|32|32-?le|32-?be)|(us-)?ascii|latin-?1|iso-?8859-\d{1,2}|cp\d{3,4}"
    r"|windows-\d{3,4}|shift-?jis|euc-(jp|kr)|gbk|gb2312|gb18030|big5|koi8-[ru]|mac-?roman"
)


def find_encoding(name: str) -> str | None:
    """The codec's own name, or None if the encoding is unknown or not meant for texts."""
    if not _TEXT_ENCODINGS.fullmatch(name.strip().lower().replace("_", "-")):
        return None
    try:
        return codecs.lookup(name.strip()).name
    except LookupError:
        return None


def encode_utf8(text: str, code: str) -> bytes:
    """Raises the tool error `code` for half of a surrogate pair, which UTF-8 cannot express."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise tool_error(code, f"The text holds half of a surrogate pair at position {exc.start}") from exc
