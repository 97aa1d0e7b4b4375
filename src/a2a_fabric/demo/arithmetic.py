"""Sums found in a text and worked out one operation at a time, as one would on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Context, Decimal, DecimalException, DivisionByZero

_CONTEXT = Context(prec=30)
_LONGEST = 1000  # characters of one sum
_SPOKEN = [
    (re.compile(r"\b(?:divided by|over)\b", re.I), "/"),
    (re.compile(r"\b(?:multiplied by|times)\b|×|(?<=\d)\s+x\s+(?=\d)", re.I), "*"),
    (re.compile(r"\b(?:plus|added to)\b", re.I), "+"),
    (re.compile(r"\bminus\b|−", re.I), "-"),
    (re.compile(r"(?<!\d)(\d{1,30}(?:\.\d{1,30})?)\s{0,3}(?:%|percent)\s+of\b", re.I), r"\1 / 100 *"),
    (re.compile(r"÷"), "/"),
]
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[-+*/()]")
# Every repetition is bounded or has only one way to match: a hostile text costs no more than its length.
_SUM = re.compile(r"[-(\s]{0,8}\d[\d.\s()+*/-]*[\d)]")
_RANK = {"*": 2, "/": 2, "+": 1, "-": 1}

Token = Decimal | str


class NotASum(ValueError):
    """Looks like arithmetic, but cannot be worked out."""


def sums_in(text: str) -> list[str]:
    """Every piece of the text that is arithmetic, written with signs."""
    text = _THOUSANDS.sub("", text)
    for spoken, sign in _SPOKEN:
        text = spoken.sub(sign, text)
    found = (" ".join(_TOKEN.findall(match[0])) for match in _SUM.finditer(text))
    return [sum_ for sum_ in found if re.search(r"[\d)] [-+*/] [\d(-]", sum_)]


def work_out(sum_: str) -> Iterator[tuple[str, Decimal]]:
    """Each operation with its result, the last one being the answer. Raises NotASum."""
    if len(sum_) > _LONGEST:
        raise NotASum(f"a sum of more than {_LONGEST} characters")
    tokens = _read(sum_)
    while len(tokens) > 1:
        start, end = _innermost(tokens)
        at = _next_operation(tokens, start, end)
        left, sign, right = tokens[at - 1], tokens[at], tokens[at + 1]
        if not (isinstance(left, Decimal) and isinstance(sign, str) and isinstance(right, Decimal)):
            raise NotASum(f"'{sum_}' is not a whole sum")
        value = _operate(left, sign, right)
        yield f"{shown(left)} {sign} {shown(right)}", value
        tokens[at - 1 : at + 2] = [value]
        tokens = _without_needless_brackets(tokens)


def shown(value: Decimal) -> str:
    plain = f"{value:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _read(sum_: str) -> list[Token]:
    tokens: list[Token] = []
    for text in _TOKEN.findall(sum_):
        is_signed = len(tokens) > 0 and tokens[-1] == "-" and (len(tokens) == 1 or tokens[-2] in ("(", *_RANK))
        if text[0].isdigit():
            number = _CONTEXT.create_decimal(text)
            if is_signed:
                tokens[-1] = -number
            else:
                tokens.append(number)
        else:
            tokens.append(text)
    return _without_needless_brackets(tokens)


def _innermost(tokens: list[Token]) -> tuple[int, int]:
    """Where the first bracket without brackets inside begins and ends; the whole sum if there is none."""
    if ")" not in tokens:
        return 0, len(tokens)
    end = tokens.index(")")
    opening = [number for number in range(end) if tokens[number] == "("]
    if not opening:
        raise NotASum("a bracket is closed that was never opened")
    return opening[-1] + 1, end


def _next_operation(tokens: list[Token], start: int, end: int) -> int:
    signs = [number for number in range(start + 1, end - 1) if tokens[number] in _RANK]
    if not signs:
        raise NotASum("an operation is missing")
    return min(signs, key=lambda number: (-_RANK[str(tokens[number])], number))


def _operate(left: Decimal, sign: str, right: Decimal) -> Decimal:
    try:
        match sign:
            case "+":
                return _CONTEXT.add(left, right)
            case "-":
                return _CONTEXT.subtract(left, right)
            case "*":
                return _CONTEXT.multiply(left, right)
            case _:
                return _CONTEXT.divide(left, right)
    except DivisionByZero as exc:
        raise NotASum(f"{shown(left)} cannot be divided by zero") from exc
    except DecimalException as exc:
        raise NotASum("the numbers are too large") from exc


def _without_needless_brackets(tokens: list[Token]) -> list[Token]:
    number = 0
    while number + 2 < len(tokens):
        if tokens[number] == "(" and tokens[number + 2] == ")" and isinstance(tokens[number + 1], Decimal):
            tokens[number : number + 3] = [tokens[number + 1]]
            number = max(0, number - 1)
        else:
            number += 1
    return tokens
