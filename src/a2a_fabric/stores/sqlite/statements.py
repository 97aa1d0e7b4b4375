"""Statements that write one row, with parameters only for the columns that have a value.

Python's sqlite3 binds int, float, str and bytearray as they are. For each None, bool and bytes it looks for an adapter
first, which raises and discards two exceptions and takes about ten times as long. Most columns of a new job are
empty, so that was a quarter of the writer's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

_MAX_SHAPES = 256
_CONVERSIONS: dict[type, Callable[[Any], Any]] = {bytes: bytearray, bool: int}


class _Shape(NamedTuple):
    """What rows have in common whose values have the same types."""

    sql: str
    has_value: tuple[bool, ...]
    conversions: tuple[tuple[int, Callable[[Any], Any]], ...]  # positions of values that would need an adapter


class RowStatement:
    """`template` holds one `{}` for each value of a row, in their order: a parameter, or NULL."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.shapes: dict[tuple[type, ...], _Shape] = {}

    def bind(self, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
        """The text for this row, and its parameters."""
        types = tuple(map(type, values))
        shape = self.shapes.get(types) or self._add_shape(types)
        if shape.conversions:
            values = list(values)
            for position, convert in shape.conversions:
                values[position] = convert(values[position])
        return shape.sql, tuple(compress(values, shape.has_value))

    def bind_all(self, rows: Iterable[Sequence[Any]]) -> dict[str, list[tuple[Any, ...]]]:
        """The parameters of the rows by text, for `executemany`."""
        by_sql: dict[str, list[tuple[Any, ...]]] = {}
        for values in rows:
            sql, parameters = self.bind(values)
            by_sql.setdefault(sql, []).append(parameters)
        return by_sql

    def _add_shape(self, types: tuple[type, ...]) -> _Shape:
        if len(self.shapes) >= _MAX_SHAPES:
            self.shapes.clear()
        has_value = tuple(each is not type(None) for each in types)
        sql = self.template.format(*("?" if each else "NULL" for each in has_value))
        conversions = tuple(
            (position, _CONVERSIONS[each]) for position, each in enumerate(types) if each in _CONVERSIONS
        )
        shape = self.shapes[types] = _Shape(sql, has_value, conversions)
        return shape
