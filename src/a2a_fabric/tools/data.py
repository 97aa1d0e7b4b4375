"""Tools: JSON, CSV and JSON Schema."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from a2a_fabric.schemas.limits import judge
from a2a_fabric.tools import validator
from a2a_fabric.tools.jsonpath import query
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.validation import BadSchema, find_errors
from a2a_fabric.tools.work import Patience, in_thread

MAX_TEXT = 2_000_000
_MAX_NESTS = 100_000  # objects and arrays in one text
_MAX_CELLS = 1_000_000
_MAX_COLUMNS = 10_000
_MAX_ROWS_SIZE = 20_000_000
_CHEAP = 20_000  # work of the schema x bytes of data that is checked in this process: all errors are collected
_SHORT_SCHEMA = 16_384  # bytes that are judged in this process
_VALIDATION_TIMEOUT = 5.0

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Kind = Literal["object", "array", "string", "integer", "number", "boolean", "null"]


class JSONArguments(Arguments, frozen=True, kw_only=True):
    json: Annotated[Text | None, Meta(description="The JSON text.")] = None
    json_str: Annotated[Text | None, Meta(description="Another name for json.")] = None
    query: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, Meta(description="A JSONPath, like $.items[0].name or $..id.")
    ] = None


class JSONResult(TypedDict):
    data: Any
    valid: bool
    type: Kind


async def _json(given: JSONArguments, _: Toolbox) -> JSONResult:
    text = given.json if given.json is not None else given.json_str
    if text is None:
        raise tool_error("PARSE_ERROR", "The argument 'json' is missing")
    return await in_thread(_parsed, text, given.query)


def _parsed(_: Patience, text: str, path: str | None) -> JSONResult:
    if text.count("[") + text.count("{") > _MAX_NESTS:
        raise tool_error("PARSE_ERROR", f"The text has more than {_MAX_NESTS} objects and arrays; parse parts of it")
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        raise tool_error("PARSE_ERROR", f"The text is not JSON: {exc}") from exc
    found = data if path is None else query(data, path)
    return {"data": found, "valid": True, "type": _kind(found)}


def _kind(value: Any) -> Kind:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


class CSVArguments(Arguments, frozen=True, kw_only=True):
    csv: Annotated[Text, Meta(description="The CSV text.")]
    delimiter: Annotated[str, Meta(min_length=1, max_length=1, description="Between fields.")] = ","
    headers: Annotated[bool, Meta(description="Whether the first row names the columns; else col_0, col_1…")] = True


class CSVResult(TypedDict):
    rows: list[dict[str, str | None]]
    headers: list[str]
    row_count: int


async def _csv(given: CSVArguments, _: Toolbox) -> CSVResult:
    try:
        return await in_thread(_table, given)
    except (csv.Error, TypeError, ValueError) as exc:
        raise tool_error("CSV_ERROR", f"The text is not CSV: {exc}") from exc


def _table(patience: Patience, given: CSVArguments) -> CSVResult:
    if given.delimiter in '\r\n"':
        raise ValueError("a newline or a quote cannot be the delimiter")
    reader = csv.reader(io.StringIO(given.csv, newline=""), delimiter=given.delimiter, strict=True)
    lines = (line for line in reader if line)
    headers = next(lines, []) if given.headers else []
    _headers(headers, headers)
    if len(set(headers)) < len(headers):
        raise ValueError("two columns have the same name")
    rows: list[dict[str, str | None]] = []
    cells = size = 0
    for line in lines:
        patience.check()
        row = _row(line, _headers(line, headers if given.headers else None), reader.line_num)
        cells += len(row)
        size += sum(map(len, row))
        if cells > _MAX_CELLS or size > _MAX_ROWS_SIZE:
            raise ValueError(f"the table is too large, at most {_MAX_CELLS} cells")
        rows.append(row)
    return {"rows": rows, "headers": headers, "row_count": len(rows)}


def _headers(line: list[str], headers: list[str] | None) -> list[str]:
    if len(line) > _MAX_COLUMNS:
        raise ValueError(f"a line has more than {_MAX_COLUMNS} fields")
    return [f"col_{n}" for n in range(len(line))] if headers is None else headers


def _row(line: list[str], headers: list[str], number: int) -> dict[str, str | None]:
    if len(line) > len(headers):
        raise ValueError(f"line {number} has {len(line)} fields, the header has {len(headers)}")
    missing: list[str | None] = [None] * (len(headers) - len(line))
    return dict(zip(headers, [*line, *missing], strict=True))


class ValidateArguments(Arguments, frozen=True, kw_only=True):
    data: Annotated[Any, Meta(description="Any JSON value.")]
    schema: Annotated[dict[str, Any] | bool, Meta(description="A JSON Schema; it cannot refer to other documents.")]


class Problem(TypedDict):
    message: str
    path: list[str | int]
    schema_path: list[str | int]


class ValidateResult(TypedDict):
    valid: bool
    errors: list[Problem]


async def _validate(given: ValidateArguments, _: Toolbox) -> ValidateResult:
    try:
        schema, data = msgspec.json.encode(given.schema), msgspec.json.encode(given.data)
    except (RecursionError, UnicodeError, TypeError) as exc:
        raise tool_error("VALIDATION_ERROR", f"The arguments are not JSON: {exc}") from exc
    if len(schema) + len(data) > MAX_TEXT:
        raise tool_error("VALIDATION_ERROR", f"Schema and data are longer than {MAX_TEXT} bytes")
    if len(schema) > _SHORT_SCHEMA or _may_take_long(given, len(data)):
        errors = await _checked_apart(schema, data)
    else:
        errors = await in_thread(_checked, given)
    return {"valid": not errors, "errors": errors}


def _may_take_long(given: ValidateArguments, size: int) -> bool:
    """A schema that is refused for agents may still be tried here, in a process of its own."""
    if isinstance(given.schema, bool):
        return size > _CHEAP
    judgement = judge(given.schema)
    return judgement.problem is not None or judgement.most_work * size > _CHEAP


def _checked(_: Patience, given: ValidateArguments) -> Any:
    try:
        return validator.errors_of(given.schema, given.data)
    except validator.BadSchema as exc:
        raise tool_error("VALIDATION_ERROR", f"The schema cannot be used: {exc}") from exc


async def _checked_apart(schema: bytes, data: bytes) -> Any:
    try:
        return await find_errors(schema, data, _VALIDATION_TIMEOUT)
    except TimeoutError as exc:
        raise tool_error(
            "TIMEOUT", f"The schema was not through with the data after {_VALIDATION_TIMEOUT:g} s"
        ) from exc
    except BadSchema as exc:
        raise tool_error("VALIDATION_ERROR", f"The schema cannot be used: {exc}") from exc


TOOLS = (
    Tool(
        tool_id="data.json",
        capability="parse",
        category="data",
        display_name="Parse JSON",
        description="Parses a JSON text and, with a JSONPath, picks from it. A path to nothing gives null.",
        arguments=JSONArguments,
        result=JSONResult,
        handler=_json,
    ),
    Tool(
        tool_id="data.csv",
        capability="csv_parse",
        aliases=("parse",),
        category="data",
        display_name="Parse CSV",
        description="The rows of a CSV text as objects.",
        arguments=CSVArguments,
        result=CSVResult,
        handler=_csv,
    ),
    Tool(
        tool_id="data.validate",
        capability="validate",
        category="data",
        display_name="Validate data",
        description="Checks data against a JSON Schema and lists what is wrong, at most 100 problems.",
        arguments=ValidateArguments,
        result=ValidateResult,
        handler=_validate,
    ),
)
