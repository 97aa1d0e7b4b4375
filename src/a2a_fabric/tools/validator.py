"""Data against a JSON Schema, here or in a process of its own.

A schema with references can double its work at every level, or never end; so
`data.validate` runs this file as a program and kills it when it takes too long.
The file therefore imports nothing of ours. Nothing is ever loaded from elsewhere.
"""

from __future__ import annotations

import json
import resource
import sys
from itertools import islice
from typing import Any

import jsonschema_rs

MAX_ERRORS = 100
_MAX_MESSAGE = 500
_MAX_MEMORY = 1 << 30
_MAX_CPU = 30  # seconds; whoever started the program is less patient


class BadSchema(ValueError):
    """The schema itself is wrong, or refers to something that is not in it."""


def errors_of(schema: Any, data: Any) -> list[dict[str, Any]]:
    """The first errors: message, path and schema_path. Raises BadSchema."""
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            retriever=_refuse,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000),
        )
        return [
            {
                "message": error.message[:_MAX_MESSAGE],
                "path": list(error.instance_path),
                "schema_path": list(error.schema_path),
            }
            for error in islice(validator.iter_errors(data), MAX_ERRORS)
        ]
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as exc:
        raise BadSchema(exc.message[:_MAX_MESSAGE]) from exc
    except ValueError as exc:
        raise BadSchema(str(exc)[:_MAX_MESSAGE]) from exc


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri[:200]}")


def main() -> None:
    """{"schema", "data"} on stdin; {"errors"} or {"bad_schema"} on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU, _MAX_CPU))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"errors": errors_of(asked["schema"], asked["data"])}
    except BadSchema as exc:
        answer = {"bad_schema": str(exc)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
