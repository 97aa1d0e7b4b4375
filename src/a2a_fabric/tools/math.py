"""The math tools: arithmetic and descriptive statistics.

Arithmetic has a tokenizer and a precedence parser that computes while it parses, within bounds. Python's
`eval` is never used. Every integer stays below a fixed number of bits, and powers and factorials that would
exceed it are refused before they are computed, so no expression takes long. Semantics are Python's, except
that `^` is a power too."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from msgspec import Meta

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, tool_error

Number = int | float

MAX_LENGTH = 2000
_MAX_DEPTH = 50
_MAX_BITS = 4096
_MAX_DIGITS = 1200  # of a literal: fewer than _MAX_BITS
_MAX_ARGUMENT = 1000  # the n of factorial(n), comb(n, k), perm(n, k)

_TOKEN = re.compile(
    r"\s*(?:(?P<hex>0[xX][0-9a-fA-F]+)|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>\*\*|//|[-+*/%^(),]))",
    re.ASCII,
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def calculate(expression: str) -> Number:
    """A finite int or float. Raises INVALID_EXPRESSION for what it cannot parse, EVAL_ERROR for the rest."""
    parser = _Parser(_tokenize(expression))
    try:
        value = parser.parse()
    except ZeroDivisionError as exc:
        raise tool_error("EVAL_ERROR", "Division by zero") from exc
    except OverflowError as exc:
        raise _build_too_large() from exc
    except (ValueError, TypeError) as exc:
        raise tool_error("EVAL_ERROR", f"The expression has no value: {exc}") from exc
    if isinstance(value, float) and not math.isfinite(value):
        raise tool_error("EVAL_ERROR", f"The value is not a finite number: {value}")
    return value


def _tokenize(expression: str) -> list[_Token]:
    if len(expression) > MAX_LENGTH:
        raise tool_error("INVALID_EXPRESSION", f"The expression is longer than {MAX_LENGTH} characters")
    tokens, position, end = [], 0, len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position, end)
        if match is None:
            bad = expression[position:].lstrip()[:1]
            raise tool_error("INVALID_EXPRESSION", f"Unexpected {bad!r} in the expression")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    if not tokens:
        raise tool_error("INVALID_EXPRESSION", "The expression is empty")
    return [*tokens, _Token("end", "", end)]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def parse(self) -> Number:
        value = self._parse_sum()
        if self._next_token.kind != "end":
            raise self._build_error()
        return value

    def _parse_sum(self, precedence: int = 1) -> Number:
        left = self._parse_signed()
        while self._next_token.kind == "sign" and _PRECEDENCE.get(self._next_token.text, 0) >= precedence:
            sign = self._take_token().text
            left = _check_bits(_combine(sign, left, self._parse_sum(_PRECEDENCE[sign] + 1)))
        return left

    def _parse_signed(self) -> Number:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise tool_error("INVALID_EXPRESSION", f"The expression is nested deeper than {_MAX_DEPTH} levels")
        if self._skip_sign("-"):
            value = -self._parse_signed()
        elif self._skip_sign("+"):
            value = self._parse_signed()
        else:
            value = self._parse_power()
        self._depth -= 1
        return value

    def _parse_power(self) -> Number:
        base = self._parse_atom()
        if self._skip_sign("**") or self._skip_sign("^"):
            return compute_power(base, self._parse_signed())
        return base

    def _parse_atom(self) -> Number:
        token = self._next_token
        if token.kind in _LITERALS:
            return _LITERALS[token.kind](self._take_token().text)
        if token.kind == "name":
            return self._parse_name(self._take_token().text)
        if self._skip_sign("("):
            value = self._parse_sum()
            self._expect_sign(")")
            return value
        raise self._build_error()

    def _parse_name(self, name: str) -> Number:
        if self._skip_sign("("):
            return _call_function(name, self._parse_arguments())
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        constants = ", ".join(_CONSTANTS)
        raise tool_error("INVALID_EXPRESSION", f"Unknown name {name[:40]!r}; the constants are {constants}")

    def _parse_arguments(self) -> list[Number]:
        values: list[Number] = []
        if self._skip_sign(")"):
            return values
        values.append(self._parse_sum())
        while self._skip_sign(","):
            values.append(self._parse_sum())
        self._expect_sign(")")
        return values

    @property
    def _next_token(self) -> _Token:
        return self._tokens[self._position]

    def _take_token(self) -> _Token:
        self._position += 1
        return self._tokens[self._position - 1]

    def _skip_sign(self, sign: str) -> bool:
        if self._next_token.kind == "sign" and self._next_token.text == sign:
            self._position += 1
            return True
        return False

    def _expect_sign(self, sign: str) -> None:
        if not self._skip_sign(sign):
            raise self._build_error()

    def _build_error(self) -> FabricError:
        token = self._next_token
        if token.kind == "end":
            return tool_error("INVALID_EXPRESSION", "The expression ends too early")
        return tool_error("INVALID_EXPRESSION", f"Unexpected {token.text[:40]!r} at position {token.at}")


def compute_power(base: Number, exponent: Number) -> Number:
    are_integers = isinstance(base, int) and isinstance(exponent, int)
    if are_integers and abs(base) > 1 and exponent > 0 and int(base).bit_length() * exponent > 2 * _MAX_BITS:
        raise _build_too_large()
    value: Any = base**exponent
    if isinstance(value, complex):
        raise tool_error("EVAL_ERROR", "The value is not a real number: a negative base with a fractional exponent")
    return _check_bits(value)


def _combine(sign: str, left: Number, right: Number) -> Number:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
    return left % right


def _check_bits(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise _build_too_large()
    return value


def _build_too_large() -> FabricError:
    return tool_error("EVAL_ERROR", f"A number in the expression is too large (integers end at {_MAX_BITS} bits)")


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _build_too_large()
    return int(text)


def _parse_hexadecimal(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _build_too_large()
    return int(text, 16)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _build_too_large()
    return value


_LITERALS: Mapping[str, Callable[[str], Number]] = {
    "int": _parse_integer,
    "hex": _parse_hexadecimal,
    "float": _parse_float,
}


def _limit_arguments(function: Callable[..., int]) -> Callable[..., int]:
    """Refuse arguments of factorial, comb and perm that would take long."""

    def call_limited(*values: int) -> int:
        if any(value > _MAX_ARGUMENT for value in values):
            raise _build_too_large()
        return function(*values)

    return call_limited


def _round_number(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 400:
        raise ValueError("round takes a whole number of digits, at most 400")
    return round(value, digits) if digits else round(value)


class _Function(NamedTuple):
    call: Callable[..., Number]
    min_arguments: int
    max_arguments: int


_FUNCTIONS: Mapping[str, _Function] = {
    **{name: _Function(getattr(math, name), 1, 1) for name in (
        "sqrt", "cbrt", "exp", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "degrees", "radians", "floor", "ceil", "trunc", "gamma",
    )},
    **{name: _Function(getattr(math, name), 2, 2) for name in ("atan2", "fmod", "copysign")},
    **{name: _Function(getattr(math, name), 1, 100) for name in ("gcd", "lcm", "hypot")},
    "log": _Function(math.log, 1, 2),
    "ln": _Function(math.log, 1, 1),
    "abs": _Function(abs, 1, 1),
    "round": _Function(_round_number, 1, 2),
    "pow": _Function(compute_power, 2, 2),
    "min": _Function(lambda *values: min(values), 1, 100),
    "max": _Function(lambda *values: max(values), 1, 100),
    "sum": _Function(lambda *values: sum(values), 1, 100),
    "factorial": _Function(_limit_arguments(math.factorial), 1, 1),
    "comb": _Function(_limit_arguments(math.comb), 2, 2),
    "perm": _Function(_limit_arguments(math.perm), 2, 2),
}  # fmt: skip

FUNCTIONS = tuple(sorted(_FUNCTIONS))


def _call_function(name: str, values: list[Number]) -> Number:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise tool_error("INVALID_EXPRESSION", f"Unknown function {name[:40]!r}; there are {', '.join(FUNCTIONS)}")
    if not function.min_arguments <= len(values) <= function.max_arguments:
        expected = (
            function.min_arguments
            if function.min_arguments == function.max_arguments
            else f"{function.min_arguments} to {function.max_arguments}"
        )
        raise tool_error("INVALID_EXPRESSION", f"{name} takes {expected} arguments, not {len(values)}")
    return _check_bits(function.call(*values))


_PIECE = 2000  # numbers that are processed between two checks of the time limit

Measure = Literal["count", "sum", "mean", "median", "stddev", "min", "max"]


class CalculateArguments(ToolArguments, frozen=True, kw_only=True):
    expression: Annotated[str, Meta(description="For example `sqrt(144) * 2`; `^` and `**` are powers.")]
    precision: Annotated[int, Meta(ge=0, le=30, description="Decimal places of a float result.")] = 10


class CalculateResult(TypedDict):
    result: int | float
    expression: str
    type: Literal["int", "float"]


async def _calculate(arguments: CalculateArguments, _: Toolbox) -> CalculateResult:
    value = calculate(arguments.expression)
    if isinstance(value, int):
        return {"result": value, "expression": arguments.expression, "type": "int"}
    return {"result": round(value, arguments.precision), "expression": arguments.expression, "type": "float"}


class StatisticsArguments(ToolArguments, frozen=True, kw_only=True):
    data: Annotated[tuple[int | float, ...], Meta(max_length=100_000, description="The numbers.")]
    measures: Annotated[tuple[Measure, ...], Meta(max_length=20, description="Only these; all of them if empty.")] = ()


class StatisticsResult(TypedDict, total=False):
    count: int
    sum: int | float
    mean: float
    median: int | float
    stddev: float
    min: int | float
    max: int | float


async def _compute_statistics(arguments: StatisticsArguments, toolbox: Toolbox) -> StatisticsResult:
    if not arguments.data:
        raise tool_error("EMPTY_DATA", "There are no numbers to analyse")
    try:
        measures = await compute(toolbox.computations, len(arguments.data) * 4, _compute_measures, arguments.data)
    except (OverflowError, ValueError) as exc:
        raise tool_error("STATS_ERROR", f"The numbers are too large to analyse: {exc}") from exc
    names = arguments.measures or tuple(measures)
    return {name: measures[name] for name in names}  # type: ignore[return-value]  # a subset of the same keys


def _compute_measures(time_limit: TimeLimit, data: tuple[Number, ...]) -> dict[Measure, Number]:
    count = len(data)
    are_integers = all(isinstance(value, int) for value in data)
    total: Number = sum(map(sum, _split_pieces(data, time_limit))) if are_integers else math.fsum(data)
    mean = total / count
    ordered = _sort_in_pieces(data, time_limit)
    median = ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    stddev = math.sqrt(math.fsum((value - mean) ** 2 for value in data) / (count - 1)) if count > 1 else 0.0
    measures: dict[Measure, Number] = {
        "count": count, "sum": total, "mean": mean, "median": median, "stddev": stddev,
        "min": ordered[0], "max": ordered[-1],
    }  # fmt: skip
    if not all(math.isfinite(value) for value in measures.values()):
        raise ValueError("a measure is not finite")
    return measures


def _sort_in_pieces(data: tuple[Number, ...], time_limit: TimeLimit) -> list[Number]:
    """Sort piece by piece: one sort of large, mixed integers and floats would hold the interpreter for long."""
    ordered = []
    for number, value in enumerate(heapq.merge(*map(sorted, _split_pieces(data, time_limit)))):
        if number % _PIECE == 0:
            time_limit.check()
        ordered.append(value)
    return ordered


def _split_pieces(data: tuple[Number, ...], time_limit: TimeLimit) -> Iterator[tuple[Number, ...]]:
    for start in range(0, len(data), _PIECE):
        time_limit.check()
        yield data[start : start + _PIECE]


TOOLS = (
    BuiltinTool(
        tool_id="math.calculate",
        capability="eval",
        category="math",
        display_name="Calculate",
        description=f"Evaluates an arithmetic expression, exactly for integers. Functions: {', '.join(FUNCTIONS)}.",
        arguments=CalculateArguments,
        result=CalculateResult,
        handler=_calculate,
    ),
    BuiltinTool(
        tool_id="math.statistics",
        capability="analyze",
        category="math",
        display_name="Statistics",
        description="Count, sum, mean, median, sample standard deviation, least and greatest of a list of numbers.",
        arguments=StatisticsArguments,
        result=StatisticsResult,
        handler=_compute_statistics,
    ),
)
