"""A mark in every writing transaction, so that one whose commit was not answered can be asked for.

Each transaction writes its number into a place that it has for itself. Reading
that place waits for whoever still holds it, so the answer is final.
"""

from __future__ import annotations

from itertools import count

import msgspec

from a2a_fabric.core.trace import new_id

# The server's clock comes back with it: nearly every transaction needs that first of all.
SET = """
INSERT INTO a2a_fabric.marks AS known (place, mark, at) VALUES ($1, $2, extract(epoch FROM clock_timestamp())::float8)
ON CONFLICT (place) DO UPDATE SET mark = excluded.mark, at = excluded.at RETURNING at
"""
ASK = "SELECT mark FROM a2a_fabric.marks WHERE place = $1 FOR UPDATE"
FORGET = "DELETE FROM a2a_fabric.marks WHERE at < extract(epoch FROM clock_timestamp())::float8 - 86400"


class Mark(msgspec.Struct, frozen=True):
    place: str
    number: int


class Marks:
    """The places of one node; as many as it has had transactions at the same time."""

    def __init__(self) -> None:
        self._node = new_id()
        self._free: list[str] = []
        self._numbers = count(1)
        self._places = count(1)

    def take(self) -> Mark:
        place = self._free.pop() if self._free else f"{self._node}:{next(self._places)}"
        return Mark(place, next(self._numbers))

    def give_back(self, mark: Mark) -> None:
        """Only when nothing about it is in doubt any more."""
        self._free.append(mark.place)
