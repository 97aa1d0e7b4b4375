"""Compiles schemas that were judged, and decides for each call where its arguments are checked.

The validator holds the interpreter while it works, so a thread would not keep it off the event loop. The
step `validate` leaves what may take longer than `INLINE_WORK` to a process.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.schemas.graph import BadSchema
from a2a_fabric.schemas.limits import DEPTHS, Judgement, count_values, judge, measure
from a2a_fabric.schemas.patterns import BACKTRACKS, LARGEST

UNCHECKED = "unchecked_schemas"  # in a manifest's metadata: why the node leaves a schema to the agent, by capability
CHEAP_WORK = 24  # for each byte of arguments; what takes no more is checked without looking at their size
INLINE_WORK = 1_000_000  # for one call, some tens of milliseconds
_ERROR_WORK = 400  # for each value and choice: errors of `anyOf` and `oneOf` hold those of all their branches
_ALL_BYTES = 1 << 30
_MOST_COMPILED = 100_000
_MASK = "the value"  # what was given never stands in a message: messages are logged, payloads are not

_encode = msgspec.json.Encoder().encode


class ArgumentCheck:
    """A compiled schema, and how much its work depends on the arguments."""

    __slots__ = ("is_cheap", "judgement", "schema", "validator")

    def __init__(self, schema: dict[str, Any], judgement: Judgement) -> None:
        self.schema = schema
        self.judgement = judgement
        self.validator = jsonschema_rs.validator_for(
            schema,
            offline=True,
            mask=_MASK,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=LARGEST),
        )
        self.is_cheap = judgement.most_work <= CHEAP_WORK

    def fits_inline(self, arguments: Any) -> bool:
        """Whether they may be checked on the event loop. Raises ValueError or RecursionError if they are not JSON."""
        size = len(_encode(arguments))
        judgement = self.judgement
        if judgement.most_work * size <= INLINE_WORK:
            return True
        if not judgement.grows:
            return False
        _, depth = measure(arguments, _ALL_BYTES, DEPTHS)
        return judgement.work_at(depth) * size <= INLINE_WORK

    def find_error(self, arguments: Any) -> jsonschema_rs.ValidationError | None:
        """What is wrong with arguments that do not fit; None if saying so would take long. May raise ValueError."""
        if self.judgement.has_choices and not self._can_explain(arguments):
            return None
        try:
            self.validator.validate(arguments)  # stops at the first error; `iter_errors` finds all of them first
        except jsonschema_rs.ValidationError as error:
            return error
        return None

    def _can_explain(self, arguments: Any) -> bool:
        _, depth = measure(arguments, _ALL_BYTES, DEPTHS)
        return self.judgement.work_at(depth) * _ERROR_WORK * count_values(arguments) <= 10 * INLINE_WORK


def compile_schema(schema: dict[str, Any]) -> ArgumentCheck:
    """Raises BadSchema for what is no JSON Schema, wants to load something, or causes unbounded work."""
    judgement = judge(schema)
    if judgement.problem is not None:
        raise BadSchema(judgement.problem)
    try:
        return ArgumentCheck(schema, judgement)
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise BadSchema(f"is not valid: {str(exc).partition(chr(10))[0]}"[:300]) from exc


class ArgumentChecks:
    """One compiled schema per capability; the catalog keeps the capability alive, the entry pins it."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Capability, ArgumentCheck | None]] = {}

    def of(self, manifest: Manifest, capability: Capability) -> ArgumentCheck | None:
        """None if the schema is left to the agent. Raises UpstreamRefused if it cannot be used."""
        known = self._compiled.get(id(capability))
        if known is not None and known[0] is capability:
            return known[1]
        if len(self._compiled) >= _MOST_COMPILED:
            self._compiled.clear()
        check = compile_for(manifest, capability)
        self._compiled[id(capability)] = (capability, check)
        return check


def compile_for(manifest: Manifest, capability: Capability) -> ArgumentCheck | None:
    """None if the schema is left to the agent. Raises UpstreamRefused if it cannot be used."""
    unchecked = manifest.metadata.get(UNCHECKED)
    if isinstance(unchecked, dict) and capability.name in unchecked:
        return None
    try:
        return compile_schema(capability.input_schema or {})
    except BadSchema as exc:
        raise UpstreamRefused(f"The input schema of capability '{capability.name}' {exc}"[:600]) from exc
