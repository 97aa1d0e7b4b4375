"""Arithmetic from text: a tokenizer and a precedence parser that computes as it reads, within bounds.

Python's own `eval` is never near. Every integer stays below a fixed number of
bits, and powers and factorials are refused before they are computed, so no
expression takes long. Semantics are Python's, except that `^` is a power too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.errors import tool_error

Number = int | float

MAX_LENGTH = 2000
_MAX_DEPTH = 50
_MAX_BITS = 4096
_MAX_DIGITS = 1200  # of a literal: fewer than _MAX_BITS
_MAX_COUNTED = 1000  # the n of factorial(n), comb(n, k), perm(n, k)

_TOKEN = re.compile(
    r"\s*(?:(?P<hex>0[xX][0-9a-fA-F]+)|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>\*\*|//|[-+*/%^(),]))",
    re.ASCII,
)
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def calculate(expression: str) -> Number:
    """The value, a finite int or float. Raises INVALID_EXPRESSION for what it cannot read, EVAL_ERROR for the rest."""
    parser = _Parser(_tokens(expression))
    try:
        value = parser.whole()
    except ZeroDivisionError as exc:
        raise tool_error("EVAL_ERROR", "Division by zero") from exc
    except OverflowError as exc:
        raise _too_large() from exc
    except (ValueError, TypeError) as exc:
        raise tool_error("EVAL_ERROR", f"The expression has no value: {exc}") from exc
    if isinstance(value, float) and not math.isfinite(value):
        raise tool_error("EVAL_ERROR", f"The value is not a finite number: {value}")
    return value


def _tokens(expression: str) -> list[_Token]:
    if len(expression) > MAX_LENGTH:
        raise tool_error("INVALID_EXPRESSION", f"The expression is longer than {MAX_LENGTH} characters")
    tokens, at, end = [], 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at, end)
        if match is None:
            bad = expression[at:].lstrip()[:1]
            raise tool_error("INVALID_EXPRESSION", f"Unexpected {bad!r} in the expression")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    if not tokens:
        raise tool_error("INVALID_EXPRESSION", "The expression is empty")
    return [*tokens, _Token("end", "", end)]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Number:
        value = self._sum()
        if self._next.kind != "end":
            raise self._unexpected()
        return value

    def _sum(self, binds: int = 1) -> Number:
        left = self._signed()
        while self._next.kind == "sign" and _BINDS.get(self._next.text, 0) >= binds:
            sign = self._take().text
            left = _bounded(_combine(sign, left, self._sum(_BINDS[sign] + 1)))
        return left

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise tool_error("INVALID_EXPRESSION", f"The expression is nested deeper than {_MAX_DEPTH} levels")
        if self._skip("-"):
            value = -self._signed()
        elif self._skip("+"):
            value = self._signed()
        else:
            value = self._power()
        self._depth -= 1
        return value

    def _power(self) -> Number:
        base = self._atom()
        if self._skip("**") or self._skip("^"):
            return power(base, self._signed())
        return base

    def _atom(self) -> Number:
        token = self._next
        if token.kind in _LITERALS:
            return _LITERALS[token.kind](self._take().text)
        if token.kind == "name":
            return self._named(self._take().text)
        if self._skip("("):
            value = self._sum()
            self._expect(")")
            return value
        raise self._unexpected()

    def _named(self, name: str) -> Number:
        if self._skip("("):
            return _apply(name, self._arguments())
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        known = ", ".join(_CONSTANTS)
        raise tool_error("INVALID_EXPRESSION", f"Unknown name {name[:40]!r}; the constants are {known}")

    def _arguments(self) -> list[Number]:
        values: list[Number] = []
        if self._skip(")"):
            return values
        values.append(self._sum())
        while self._skip(","):
            values.append(self._sum())
        self._expect(")")
        return values

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, sign: str) -> bool:
        if self._next.kind == "sign" and self._next.text == sign:
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._unexpected()

    def _unexpected(self) -> FabricError:
        token = self._next
        if token.kind == "end":
            return tool_error("INVALID_EXPRESSION", "The expression ends too early")
        return tool_error("INVALID_EXPRESSION", f"Unexpected {token.text[:40]!r} at position {token.at}")


def power(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and exponent > 0 and int(base).bit_length() * exponent > 2 * _MAX_BITS:
        raise _too_large()
    value: Any = base**exponent
    if isinstance(value, complex):
        raise tool_error("EVAL_ERROR", "The value is not a real number: a negative base with a broken exponent")
    return _bounded(value)


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


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> FabricError:
    return tool_error("EVAL_ERROR", f"A number in the expression is too large (integers end at {_MAX_BITS} bits)")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _too_large()
    return int(text)


def _hexadecimal(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _too_large()
    return int(text, 16)


def _floating(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _too_large()
    return value


_LITERALS: Mapping[str, Callable[[str], Number]] = {"int": _integer, "hex": _hexadecimal, "float": _floating}


def _counted(function: Callable[..., int]) -> Callable[..., int]:
    """factorial, comb and perm, refused before they would take long."""

    def bounded(*values: int) -> int:
        if any(value > _MAX_COUNTED for value in values):
            raise _too_large()
        return function(*values)

    return bounded


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 400:
        raise ValueError("round takes a whole number of digits, at most 400")
    return round(value, digits) if digits else round(value)


class _Function(NamedTuple):
    call: Callable[..., Number]
    least: int
    most: int


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
    "round": _Function(_round, 1, 2),
    "pow": _Function(power, 2, 2),
    "min": _Function(lambda *values: min(values), 1, 100),
    "max": _Function(lambda *values: max(values), 1, 100),
    "sum": _Function(lambda *values: sum(values), 1, 100),
    "factorial": _Function(_counted(math.factorial), 1, 1),
    "comb": _Function(_counted(math.comb), 2, 2),
    "perm": _Function(_counted(math.perm), 2, 2),
}  # fmt: skip

FUNCTIONS = tuple(sorted(_FUNCTIONS))


def _apply(name: str, values: list[Number]) -> Number:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise tool_error("INVALID_EXPRESSION", f"Unknown function {name[:40]!r}; there are {', '.join(FUNCTIONS)}")
    if not function.least <= len(values) <= function.most:
        wanted = function.least if function.least == function.most else f"{function.least} to {function.most}"
        raise tool_error("INVALID_EXPRESSION", f"{name} takes {wanted} arguments, not {len(values)}")
    return _bounded(function.call(*values))
