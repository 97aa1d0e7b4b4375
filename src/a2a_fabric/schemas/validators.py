"""Compiles schemas whose cost is known, and decides for each call where its arguments are checked.

The validator holds the interpreter lock while it works, so a thread would not keep it off the event loop. The
step `validate` hands checks that may take longer than `INLINE_WORK` to a process."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.schemas.cost import (
    MAX_ARGUMENT_DEPTH,
    MAX_BACKTRACKS,
    MAX_COMPILED_BYTES,
    SchemaCost,
    UnusableSchema,
    assess_schema,
    count_values,
    measure,
)

UNCHECKED_KEY = "unchecked_schemas"  # in a manifest's metadata: why only the agent checks arguments, by capability
CHEAP_WORK = 24  # for each byte of arguments; up to this, the size of the arguments does not matter
INLINE_WORK = 1_000_000  # for one call; takes some tens of milliseconds
_ERROR_WORK = 400  # for each value and choice: errors of `anyOf` and `oneOf` contain those of all branches
_NO_BYTE_LIMIT = 1 << 30
_MASK = "the value"  # instead of argument values: messages are logged, payloads are not

_encode = msgspec.json.Encoder().encode


class ArgumentCheck:
    """A compiled schema, and how much its work depends on the arguments."""

    __slots__ = ("cost", "is_cheap", "schema", "validator")

    def __init__(self, schema: dict[str, Any], cost: SchemaCost) -> None:
        self.schema = schema
        self.cost = cost
        self.validator = jsonschema_rs.validator_for(
            schema,
            offline=True,
            mask=_MASK,
            pattern_options=jsonschema_rs.FancyRegexOptions(
                backtrack_limit=MAX_BACKTRACKS, size_limit=MAX_COMPILED_BYTES
            ),
        )
        self.is_cheap = cost.most_work <= CHEAP_WORK

    def fits_inline(self, arguments: Any) -> bool:
        """Whether the event loop may check them. Raises ValueError or RecursionError if they are not JSON."""
        size = len(_encode(arguments))
        cost = self.cost
        if cost.most_work * size <= INLINE_WORK:
            return True
        if not cost.grows:
            return False
        _, depth = measure(arguments, _NO_BYTE_LIMIT, MAX_ARGUMENT_DEPTH)
        return cost.work_at(depth) * size <= INLINE_WORK

    def find_error(self, arguments: Any) -> jsonschema_rs.ValidationError | None:
        """The first error of invalid arguments; None if finding it would take too long. May raise ValueError."""
        if self.cost.has_choices and not self._can_explain(arguments):
            return None
        try:
            self.validator.validate(arguments)  # stops at the first error; `iter_errors` finds all of them first
        except jsonschema_rs.ValidationError as error:
            return error
        return None

    def _can_explain(self, arguments: Any) -> bool:
        most_values = 10 * INLINE_WORK // _ERROR_WORK
        count = count_values(arguments, most_values)
        if count > most_values:
            return False  # before its depth is measured: there may be a million of them
        _, depth = measure(arguments, _NO_BYTE_LIMIT, MAX_ARGUMENT_DEPTH)
        return self.cost.work_at(depth) * count <= most_values


def compile_schema(schema: dict[str, Any]) -> ArgumentCheck:
    """Raises UnusableSchema if it is not a JSON Schema, refers to other documents, or causes unbounded work."""
    cost = assess_schema(schema)
    if cost.problem is not None:
        raise UnusableSchema(cost.problem)
    try:
        return ArgumentCheck(schema, cost)
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise UnusableSchema(f"is not valid: {str(exc).partition(chr(10))[0]}"[:300]) from exc


def compile_input_schema(manifest: Manifest, capability: Capability) -> ArgumentCheck | None:
    """None if only the agent checks the arguments. Raises UpstreamRefused if the schema cannot be used."""
    unchecked = manifest.metadata.get(UNCHECKED_KEY)
    if isinstance(unchecked, dict) and capability.name in unchecked:
        return None
    try:
        return compile_schema(capability.input_schema or {})
    except UnusableSchema as exc:
        raise UpstreamRefused(f"The input schema of capability '{capability.name}' {exc}"[:600]) from exc
