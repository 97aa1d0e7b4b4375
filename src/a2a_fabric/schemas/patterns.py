"""What a regular expression in a schema can cost, found out with RE2 before the validator compiles it.

The validator's engine matches what RE2 understands in time linear in the text. Look-around and
back-references are tried step by step instead, so the validator counts the steps (`BACKTRACKS`), and
such a pattern counts as costly here: long arguments are then checked beside the event loop.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no stubs

from a2a_fabric.schemas.graph import BadSchema

LONGEST = 2000  # characters of one pattern
LONGEST_BACKTRACKING = 500  # of one that RE2 does not understand
LARGEST = 1 << 18  # bytes of one compiled pattern
BACKTRACKS = 1000  # steps back for one text; the validator gives up after them
_BACKTRACKING = 200  # work for each byte of text, measured with patterns that use up BACKTRACKS
_STEPS_PER_WORK = 8  # instructions of a compiled pattern
_UNKNOWN_TO_RE2 = ("invalid perl operator", "invalid escape sequence", "invalid named capture group")


@lru_cache(maxsize=4096)
def work_of(pattern: str) -> int:
    """Work for each byte of the text that it is matched against. Raises BadSchema."""
    if len(pattern) > LONGEST:
        raise BadSchema(f"has a pattern that is longer than {LONGEST} characters")
    try:
        compiled: Any = re2.compile(pattern.encode("utf-8", "surrogatepass"), _options())
    except re2.error as exc:
        reason = _reason(exc)
        if not reason.startswith(_UNKNOWN_TO_RE2):
            raise BadSchema(f"has a pattern that cannot be compiled: {reason}") from exc
        if len(pattern) > LONGEST_BACKTRACKING:
            needs = f"look-around or back-references and is longer than {LONGEST_BACKTRACKING} characters"
            raise BadSchema(f"has a pattern that needs {needs}") from exc
        return _BACKTRACKING
    return 1 + int(compiled.programsize) // _STEPS_PER_WORK


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = LARGEST
    return options


def _reason(exc: Exception) -> str:
    reason = exc.args[0] if exc.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
