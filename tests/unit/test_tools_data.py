"""data.json, data.csv and data.validate."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.errors import BadInput
from a2a_fabric.tools.data import query
from tests.unit.tool_bench import bench

DOCUMENT = {"a": {"b": [1, {"c": 2}, {"c": 3}], "a key": None}, "c": True, "0": "zero"}


@pytest.mark.parametrize("name", ["json", "json_str"])
async def test_json_is_parsed_under_both_names_of_its_argument(tmp_path: Path, name: str) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("data.json", **{name: '{"a": [1, 2.5, null]}'})
    assert answer == {"data": {"a": [1, 2.5, None]}, "valid": True, "type": "object"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("{}", "object"), ("[]", "array"), ('"a"', "string"), ("1", "integer"), ("1.5", "number"), ("true", "boolean"),
     ("null", "null")],
)  # fmt: skip
async def test_the_type_is_said_in_the_words_of_json(tmp_path: Path, text: str, kind: str) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("data.json", json=text))["type"] == kind


@pytest.mark.parametrize("arguments", [{"json": "{"}, {"json": ""}, {"json": "{'a': 1}"}, {}, {"json": "[" * 100_000}])
async def test_what_is_not_json_is_a_parse_error(tmp_path: Path, arguments: dict[str, str]) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("data.json", "BAD_INPUT", "PARSE_ERROR", **arguments)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", DOCUMENT),
        ("$.c", True),
        ("$.a.b[0]", 1),
        ("$.a.b[-1].c", 3),
        ("$.a.b.1.c", 2),
        ("$['a']['a key']", None),
        ('$["a"].b[1]["c"]', 2),
        ("$.0", "zero"),
        ("$.a.b[*].c", [2, 3]),
        ("$.a.*", [[1, {"c": 2}, {"c": 3}], None]),
        ("$..c", [True, 2, 3]),
        ("$..b[1].c", [2]),
        ("$..[0]", [1]),
        ("$.nothing.here", None),
        ("$.a.b[99]", None),
        ("$..nothing", []),
    ],
)
def test_paths(path: str, found: Any) -> None:
    assert query(DOCUMENT, path) == found


@pytest.mark.parametrize("path", ["", "a", "$.", "$a", "$[", "$['a", "$[1:2]", "$[?(@.a)]", "$...a", "$.a b"])
async def test_a_path_that_is_none_is_a_parse_error(tmp_path: Path, path: str) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("data.json", "BAD_INPUT", "PARSE_ERROR", json="{}", query=path)


async def test_a_path_that_leads_to_too_many_places_is_refused_soon(tmp_path: Path) -> None:
    started = time.process_time()
    nested = "[" * 200 + "]" * 200
    async with bench(tmp_path) as tools:
        await tools.fails("data.json", "BAD_INPUT", "PARSE_ERROR", json=f"[{nested},{nested}]", query="$..*..*..*..*")
    assert time.process_time() - started < 5


@given(st.text("$.[]*'\"ab0-", max_size=12))
def test_any_path_gives_a_value_or_a_typed_error(path: str) -> None:
    with suppress(BadInput):
        query(DOCUMENT, path)


async def test_csv_rows_are_objects(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("data.csv", csv='name,note\r\nAda,"a, ""b""\nc"\r\n\r\nBob\r\n')
    assert answer == {
        "rows": [{"name": "Ada", "note": 'a, "b"\nc'}, {"name": "Bob", "note": None}],
        "headers": ["name", "note"],
        "row_count": 2,
    }


async def test_csv_without_headers_numbers_its_columns(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("data.csv", csv="1;2\n3;4", delimiter=";", headers=False)
        empty = await tools("data.csv", csv="")
    assert answer == {
        "rows": [{"col_0": "1", "col_1": "2"}, {"col_0": "3", "col_1": "4"}],
        "headers": [],
        "row_count": 2,
    }
    assert empty == {"rows": [], "headers": [], "row_count": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"csv": "a,b\n1,2,3"},
        {"csv": "a,a\n1,2"},
        {"csv": 'a\n"open'},
        {"csv": "a\n" + "x" * 200_000},
        {"csv": "a,b", "delimiter": "\n"},
        {"csv": ",".join(f"c{n}" for n in range(2000)) + "\nx" * 2000},
        {"csv": "h" * 100_000 + "\n1" * 1000},
    ],
)
async def test_what_is_not_a_sound_table_is_a_csv_error(tmp_path: Path, arguments: dict[str, str]) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("data.csv", "BAD_INPUT", "CSV_ERROR", **arguments)


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["name"]}


@pytest.mark.parametrize("extra", [{}, {"$defs": {"x": {"$ref": "#"}}}])
async def test_data_is_checked_here_or_apart_with_the_same_answer(tmp_path: Path, extra: dict[str, Any]) -> None:
    async with bench(tmp_path) as tools:
        good = await tools("data.validate", data={"name": "x", "age": 1}, schema=SCHEMA | extra)
        bad = await tools("data.validate", data={"age": -1}, schema=SCHEMA | extra)
    assert good == {"valid": True, "errors": []}
    assert bad["valid"] is False
    assert sorted((error["path"], error["schema_path"]) for error in bad["errors"]) == [
        ([], ["required"]),
        (["age"], ["properties", "age", "minimum"]),
    ]
    assert all(error["message"] for error in bad["errors"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"$schema": "http://127.0.0.1:9/meta.json"},
        {"pattern": "("},
    ],
)
async def test_a_schema_that_is_wrong_or_wants_to_load_something_is_a_validation_error(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("data.validate", "BAD_INPUT", "VALIDATION_ERROR", data={}, schema=schema)


def _doubling(levels: int) -> dict[str, Any]:
    twice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n - 1}"}] * 2} for n in range(1, levels + 1)}
    return {"$defs": {"a0": {"type": "object"}, **twice}, "$ref": f"#/$defs/a{levels}"}


async def test_a_schema_that_never_ends_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    async with bench(tmp_path) as tools:
        await tools.fails("data.validate", "TIMEOUT", "TIMEOUT", data={}, schema=_doubling(60))
        assert (await tools("data.validate", data={}, schema=_doubling(5)))["valid"]
    assert time.monotonic() - started < 60


async def test_any_value_and_the_boolean_schemas_are_fine(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("data.validate", data=None, schema=True))["valid"] is True
        assert (await tools("data.validate", data=[1], schema=False))["valid"] is False
        many = await tools("data.validate", data=["x"] * 500, schema={"items": {"type": "integer"}})
    assert len(many["errors"]) == 100
