"""The data tools: JSON, CSV and JSON Schema."""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from a2a_fabric.schemas.cost import assess_schema
from a2a_fabric.tools import validator
from a2a_fabric.tools.jsonpath import query
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, run_in_thread, tool_error
from a2a_fabric.tools.validator_process import find_errors

MAX_TEXT = 2_000_000
_MAX_CONTAINERS = 100_000  # objects and arrays in one text
_MAX_CELLS = 1_000_000
_MAX_COLUMNS = 10_000
_MAX_ROWS_SIZE = 20_000_000
_MAX_INLINE_WORK = 20_000  # work of the schema x bytes of data; more is validated in a process of its own
_MAX_INLINE_SCHEMA = 16_384  # bytes; the cost of a larger schema is not even estimated here
_VALIDATION_TIMEOUT = 5.0

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
JSONType = Literal["object", "array", "string", "integer", "number", "boolean", "null"]


class JSONArguments(ToolArguments, frozen=True, kw_only=True):
    json: Annotated[Text | None, Meta(description="The JSON text.")] = None
    json_str: Annotated[Text | None, Meta(description="Another name for json.")] = None
    query: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, Meta(description="A JSONPath, like $.items[0].name or $..id.")
    ] = None


class JSONResult(TypedDict):
    data: Any
    valid: bool
    type: JSONType


async def _parse_json(arguments: JSONArguments, _: Toolbox) -> JSONResult:
    text = arguments.json if arguments.json is not None else arguments.json_str
    if text is None:
        raise tool_error("PARSE_ERROR", "The argument 'json' is missing")
    return await run_in_thread(_decode_json, text, arguments.query)


def _decode_json(_: TimeLimit, text: str, path: str | None) -> JSONResult:
    if text.count("[") + text.count("{") > _MAX_CONTAINERS:
        raise tool_error(
            "PARSE_ERROR", f"The text has more than {_MAX_CONTAINERS} objects and arrays; parse parts of it"
        )
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        raise tool_error("PARSE_ERROR", f"The text is not JSON: {exc}") from exc
    value = data if path is None else query(data, path)
    return {"data": value, "valid": True, "type": _name_type(value)}


def _name_type(value: Any) -> JSONType:
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


class CSVArguments(ToolArguments, frozen=True, kw_only=True):
    csv: Annotated[Text, Meta(description="The CSV text.")]
    delimiter: Annotated[str, Meta(min_length=1, max_length=1, description="Between fields.")] = ","
    headers: Annotated[bool, Meta(description="Whether the first row names the columns; else col_0, col_1…")] = True


class CSVResult(TypedDict):
    rows: list[dict[str, str | None]]
    headers: list[str]
    row_count: int


async def _parse_csv(arguments: CSVArguments, _: Toolbox) -> CSVResult:
    try:
        return await run_in_thread(_read_table, arguments)
    except (csv.Error, TypeError, ValueError) as exc:
        raise tool_error("CSV_ERROR", f"The text is not CSV: {exc}") from exc


def _read_table(time_limit: TimeLimit, arguments: CSVArguments) -> CSVResult:
    if arguments.delimiter in '\r\n"':
        raise ValueError("a newline or a quote cannot be the delimiter")
    reader = csv.reader(io.StringIO(arguments.csv, newline=""), delimiter=arguments.delimiter, strict=True)
    records = (record for record in reader if record)
    headers = next(records, []) if arguments.headers else []
    _build_headers(headers, headers)
    if len(set(headers)) < len(headers):
        raise ValueError("two columns have the same name")
    rows: list[dict[str, str | None]] = []
    cells = size = 0
    for record in records:
        time_limit.check()
        row = _build_row(record, _build_headers(record, headers if arguments.headers else None), reader.line_num)
        cells += len(row)
        size += sum(map(len, row))
        if cells > _MAX_CELLS or size > _MAX_ROWS_SIZE:
            raise ValueError(f"the table is too large, at most {_MAX_CELLS} cells")
        rows.append(row)
    return {"rows": rows, "headers": headers, "row_count": len(rows)}


def _build_headers(record: list[str], headers: list[str] | None) -> list[str]:
    if len(record) > _MAX_COLUMNS:
        raise ValueError(f"a line has more than {_MAX_COLUMNS} fields")
    return [f"col_{n}" for n in range(len(record))] if headers is None else headers


def _build_row(record: list[str], headers: list[str], number: int) -> dict[str, str | None]:
    if len(record) > len(headers):
        raise ValueError(f"line {number} has {len(record)} fields, the header has {len(headers)}")
    missing: list[str | None] = [None] * (len(headers) - len(record))
    return dict(zip(headers, [*record, *missing], strict=True))


class ValidateArguments(ToolArguments, frozen=True, kw_only=True):
    data: Annotated[Any, Meta(description="Any JSON value.")]
    schema: Annotated[dict[str, Any] | bool, Meta(description="A JSON Schema; it cannot refer to other documents.")]


class SchemaProblem(TypedDict):
    message: str
    path: list[str | int]
    schema_path: list[str | int]


class ValidateResult(TypedDict):
    valid: bool
    errors: list[SchemaProblem]


async def _validate_data(arguments: ValidateArguments, _: Toolbox) -> ValidateResult:
    try:
        schema, data = msgspec.json.encode(arguments.schema), msgspec.json.encode(arguments.data)
    except (RecursionError, UnicodeError, TypeError) as exc:
        raise tool_error("VALIDATION_ERROR", f"The arguments are not JSON: {exc}") from exc
    if len(schema) + len(data) > MAX_TEXT:
        raise tool_error("VALIDATION_ERROR", f"Schema and data are longer than {MAX_TEXT} bytes")
    if len(schema) > _MAX_INLINE_SCHEMA or _may_take_long(arguments, len(data)):
        work: Awaitable[Any] = find_errors(schema, data, _VALIDATION_TIMEOUT)
    else:
        work = run_in_thread(_check_in_thread, arguments)
    try:
        errors = await work
    except TimeoutError as exc:
        raise tool_error("TIMEOUT", f"The validation took longer than {_VALIDATION_TIMEOUT:g} s; send less") from exc
    except validator.InvalidSchema as exc:
        raise tool_error("VALIDATION_ERROR", f"The schema cannot be used: {exc}") from exc
    return {"valid": not errors, "errors": errors}


def _may_take_long(arguments: ValidateArguments, size: int) -> bool:
    """A schema that is too costly for an agent's manifest may still be tried, in a process of its own."""
    if isinstance(arguments.schema, bool):
        return size > _MAX_INLINE_WORK
    cost = assess_schema(arguments.schema)
    return cost.problem is not None or cost.most_work * size > _MAX_INLINE_WORK


def _check_in_thread(_: TimeLimit, arguments: ValidateArguments) -> Any:
    return validator.list_errors(arguments.schema, arguments.data)


TOOLS = (
    BuiltinTool(
        tool_id="data.json",
        capability="parse",
        category="data",
        display_name="Parse JSON",
        description="Parses a JSON text and, with a JSONPath, selects a part of it. A path to nothing gives null.",
        arguments=JSONArguments,
        result=JSONResult,
        handler=_parse_json,
    ),
    BuiltinTool(
        tool_id="data.csv",
        capability="csv_parse",
        aliases=("parse",),
        category="data",
        display_name="Parse CSV",
        description="The rows of a CSV text as objects.",
        arguments=CSVArguments,
        result=CSVResult,
        handler=_parse_csv,
    ),
    BuiltinTool(
        tool_id="data.validate",
        capability="validate",
        category="data",
        display_name="Validate data",
        description="Validates data against a JSON Schema and lists up to 100 problems.",
        arguments=ValidateArguments,
        result=ValidateResult,
        handler=_validate_data,
    ),
)
