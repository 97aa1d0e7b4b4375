"""The data tools: JSON, CSV and JSON Schema.

JSON is queried by a small JSONPath with `$`, `.key`, `['key']`, `[0]`, `[-1]`, `[*]`, `.*` and `..`, bounded in
what it visits. Not jmespath: it has no `..` and writes paths without `$`, so the queries that callers of
data.json send would break."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Awaitable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from a2a_fabric.schemas.cost import assess_schema
from a2a_fabric.tools import validator
from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, run_in_thread, tool_error
from a2a_fabric.tools.validator_process import find_errors

_MAX_NODES = 100_000
_STEP_PATTERN = re.compile(
    r"""(?P<deep>\.\.)?(?:(?:(?(deep)|\.))(?P<name>\*|[\w-]+)"""
    r"""|\[\s*(?:(?P<index>-?\d{1,9})|(?P<all>\*)|'(?P<single>[^']*)'|"(?P<double>[^"]*)")\s*\])"""
)


class _PathStep(NamedTuple):
    deep: bool
    key: str | int | None  # None: every child


def query(data: Any, path: str) -> Any:
    """A list for a path with `*` or `..`, else one value, or None if nothing is there. Raises PARSE_ERROR."""
    steps = _parse_path(path)
    nodes = [data]
    for step in steps:
        nodes = _collect_bounded(child for node in nodes for child in _select_nodes(node, step))
    if any(step.deep or step.key is None for step in steps):
        return nodes
    return nodes[0] if nodes else None


def _parse_path(path: str) -> list[_PathStep]:
    text = path.strip()
    position, steps = 1, []
    while text.startswith("$") and position < len(text):
        match = _STEP_PATTERN.match(text, position)
        if match is None:
            break
        steps.append(_step_from_match(match))
        position = match.end()
    if not text.startswith("$") or position < len(text):
        raise tool_error("PARSE_ERROR", f"{path[:100]!r} is not a path like $.items[0].name, $..id or $['a key'][*]")
    return steps


def _step_from_match(match: re.Match[str]) -> _PathStep:
    deep = match["deep"] is not None
    if match["all"] or match["name"] == "*":
        return _PathStep(deep, None)
    if match["index"] is not None:
        return _PathStep(deep, int(match["index"]))
    return _PathStep(deep, next(key for key in (match["name"], match["single"], match["double"]) if key is not None))


def _select_nodes(node: Any, step: _PathStep) -> Iterator[Any]:
    for each in _walk_descendants(node) if step.deep else (node,):
        yield from _select_children(each, step.key)


def _select_children(node: Any, key: str | int | None) -> Iterator[Any]:
    if isinstance(node, dict):
        if key is None:
            yield from node.values()
        elif key in node:
            yield node[key]
    elif isinstance(node, list):
        if key is None:
            yield from node
        elif (index := _parse_index(key)) is not None and -len(node) <= index < len(node):
            yield node[index]


def _parse_index(key: str | int) -> int | None:
    if isinstance(key, int):
        return key
    return int(key) if key.isdecimal() and len(key) < 10 else None


def _walk_descendants(node: Any) -> Iterator[Any]:
    """The node and all its descendants, parents first, in the order of the document."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, dict):
            stack.extend(reversed(current.values()))
        elif isinstance(current, list):
            stack.extend(reversed(current))


def _collect_bounded(nodes: Iterator[Any]) -> list[Any]:
    collected: list[Any] = []
    for node in nodes:
        if len(collected) == _MAX_NODES:
            raise tool_error("PARSE_ERROR", f"The path leads to more than {_MAX_NODES} places")
        collected.append(node)
    return collected


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


async def _parse_json(arguments: JSONArguments, toolbox: Toolbox) -> JSONResult:
    text = arguments.json if arguments.json is not None else arguments.json_str
    if text is None:
        raise tool_error("PARSE_ERROR", "The argument 'json' is missing")
    return await compute(toolbox.computations, len(text), _decode_json, text, arguments.query)


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


async def _parse_csv(arguments: CSVArguments, toolbox: Toolbox) -> CSVResult:
    try:
        return await compute(toolbox.computations, len(arguments.csv), _read_table, arguments)
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
