"""Reads, on the event loop itself: they take microseconds, and never wait for the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from a2a_fabric.stores.sqlite.errors import UNKEEPABLE, translate

Row = tuple[Any, ...]
Values = tuple[Any, ...] | dict[str, Any]


class Reader:
    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self._connection = connection
        self._place = place

    def all(self, sql: str, values: Values = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except UNKEEPABLE:
            return []
        except sqlite3.Error as exc:
            raise translate(exc, self._place) from exc

    def one(self, sql: str, values: Values = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    @contextmanager
    def rows(self, sql: str, values: Values = ()) -> Iterator[Iterator[Row]]:
        """One by one, for results of which only a part may fit into memory."""
        cursor = self._connection.cursor()
        try:
            yield self._begun(cursor, sql, values)
        except sqlite3.Error as exc:
            raise translate(exc, self._place) from exc
        finally:
            cursor.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of the same moment."""
        self.all("BEGIN")
        try:
            yield
        finally:
            self.all("COMMIT")

    @staticmethod
    def _begun(cursor: sqlite3.Cursor, sql: str, values: Values) -> Iterator[Row]:
        try:
            return cursor.execute(sql, values)
        except UNKEEPABLE:
            return iter(())

    def close(self) -> None:
        self._connection.close()
