"""The NATS store repeats SQLite's writing statements on other nodes, so their text must mean the same everywhere."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

from a2a_fabric.stores import sqlite
from a2a_fabric.stores.migrate import load_migrations
from a2a_fabric.stores.nats.batches import is_write
from a2a_fabric.stores.sqlite.statements import RowStatement

_VARYING = re.compile(r"\b(random|randomblob|current_timestamp|current_time|current_date|strftime|julianday|unixepoch|"
                      r"datetime|changes|last_insert_rowid)\b", re.I)  # fmt: skip


def statements() -> Iterator[tuple[str, str]]:
    for module in pkgutil.iter_modules(sqlite.__path__, f"{sqlite.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            for each in value if isinstance(value, tuple) else (value,):
                text = each.template if isinstance(each, RowStatement) else each
                if isinstance(text, str) and re.match(r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", text):
                    yield f"{module.name}.{name}", text
    for migration in load_migrations("sqlite"):
        yield migration.name, re.sub(r"--.*", "", migration.sql)


def is_repeatable(sql: str) -> bool:
    limits, orders = len(re.findall(r"\bLIMIT\b", sql)), len(re.findall(r"\bORDER BY\b", sql))
    return not _VARYING.search(sql) and limits <= orders


def test_every_writing_statement_is_repeatable() -> None:
    found = list(statements())
    assert len(found) > 30
    assert all(is_write(sql) for _, sql in found)
    assert [name for name, sql in found if not is_repeatable(sql)] == []


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs LIMIT 5)",
        "INSERT INTO keys VALUES (random())",
        "UPDATE jobs SET at = datetime('now')",
    ],
)
def test_this_test_can_fail(sql: str) -> None:
    assert not is_repeatable(sql)
