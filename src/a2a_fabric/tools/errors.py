"""Errors of tools: each has a code of its own, mapped to one of the gateway's codes for routing.

`details["tool_error"]` carries the tool's code; the error's class says what the caller may do next:

    BAD_INPUT       the arguments are wrong: correct them
    AUTH_DENIED     the sandbox or the configuration refuses
    TIMEOUT         it took too long
    UPSTREAM_ERROR  something outside failed: a disk, a server, a program"""

from __future__ import annotations

from collections.abc import Mapping

from a2a_fabric.core.errors import FabricError, error_from_code

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
    """The error of the waist for a tool's own code; raise it."""
    return error_from_code(CODES[code], message[:500], {"tool_error": code})
