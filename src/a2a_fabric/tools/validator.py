"""Validates data against a JSON Schema, in this process or as a program of its own.

A schema with references can double its work at every level, or never end. So this
file also runs as a program, which `validator_process.py` starts, and kills when it
takes too long. It therefore imports nothing of this package. References to other
documents are never loaded."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import jsonschema_rs

MAX_ERRORS = 100
_MAX_MESSAGE = 500
_MAX_MEMORY = 1 << 30
_MAX_CPU = 30  # seconds; the parent process kills the program earlier


class InvalidSchema(ValueError):
    """The schema itself is wrong, or refers to something that is not in it."""


def list_errors(schema: Any, data: Any, most: int = MAX_ERRORS, mask: str | None = None) -> list[dict[str, Any]]:
    """The first errors: message, path and schema_path. `mask` replaces values in messages. Raises InvalidSchema."""
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            retriever=_refuse_reference,
            mask=mask,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000),
        )
        if most == 1 and validator.is_valid(data):  # a thousand times faster than collecting errors
            return []
        return [
            {
                "message": error.message[:_MAX_MESSAGE],
                "path": list(error.instance_path),
                "schema_path": list(error.schema_path),
            }
            for error in islice(_iterate_errors(validator, data, most), most)
        ]
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as exc:
        raise InvalidSchema(exc.message[:_MAX_MESSAGE]) from exc
    except ValueError as exc:
        raise InvalidSchema(str(exc)[:_MAX_MESSAGE]) from exc


def _iterate_errors(validator: Any, data: Any, most: int) -> Iterator[Any]:
    """The library finds all errors before it returns the first, unless only the first is asked for."""
    if most > 1:
        yield from validator.iter_errors(data)
        return
    try:
        validator.validate(data)
    except jsonschema_rs.ValidationError as error:
        yield error


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri[:200]}")


def main() -> None:
    """{"schema", "data", "most", "mask"} on stdin; {"errors"} or {"bad_schema"} on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU, _MAX_CPU))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    try:
        response: dict[str, Any] = {"errors": list_errors(**request)}
    except InvalidSchema as exc:
        response = {"bad_schema": str(exc)}
    json.dump(response, sys.stdout)


if __name__ == "__main__":
    main()
