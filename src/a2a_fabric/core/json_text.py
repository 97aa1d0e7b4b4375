"""Looks at a JSON text before anything decodes it: how deep it is nested, and how long its numbers would take.

Decoders, validators and encoders recurse once per level, in this program and in agents, and each fails at a depth of
its own, some of them in the middle of a call. One limit at the doors is clearer.

A decoder needs a hundred times as long for a number near the ends of what a float can hold (`1e300`, `4e-320`) as for
any other, and the event loop waits for it: 4 MB of such numbers would stop every caller for seconds."""

from __future__ import annotations

import re
from itertools import accumulate, islice
from typing import Any

import msgspec

MAX_JSON_DEPTH = 128  # far more than people write, far less than any decoder or agent fails at
MAX_EXTREME_NUMBERS = 1000  # some milliseconds; people hardly ever send one

SHORT = 2 * MAX_JSON_DEPTH  # bytes; a text of that length has no problem and needs no look
LONG = MAX_EXTREME_NUMBERS * len(b"1e300,")  # bytes; the numbers of a shorter one are no problem

_TOO_DEEP = f"The JSON is nested more than {MAX_JSON_DEPTH} levels deep"
_TOO_MANY_EXTREMES = (
    f"The JSON has more than {MAX_EXTREME_NUMBERS} numbers beyond 1e200 or below 1e-200, which are slow to read"
)

_OPEN = b"[" * (MAX_JSON_DEPTH + 1)
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_PASSES = 4
_DEPTH_CHANGES = {ord("["): 1, ord("]"): -1, ord('"'): 0}  # a quote remains in a text that is not JSON
_STRING = re.compile(rb'"[^"]*"')

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = re.compile(rb"[eE][+-]?0*[2-9][0-9][0-9]")


def find_json_problem(text: bytes) -> str | None:
    """A sentence about why the text should not be decoded; None for nearly all. A guess for a text that is not JSON."""
    if len(text) <= SHORT:
        return None
    if _is_too_deep(text):
        return _TOO_DEEP
    return find_number_problem(text)


def find_number_problem(text: bytes) -> str | None:
    """As `find_json_problem`, whatever the depth. None for what does not begin as an object or a list."""
    if len(text) <= LONG or text.lstrip()[:1] not in (b"{", b"["):
        return None
    if not _may_have_extremes(text):
        return None
    outside_strings = b'"'.join(_remove_escapes(text).split(b'"')[::2])
    if not _may_have_extremes(outside_strings):
        return None
    exponents = _LARGE_EXPONENT.finditer(outside_strings)
    return None if next(islice(exponents, MAX_EXTREME_NUMBERS, None), None) is None else _TOO_MANY_EXTREMES


def _may_have_extremes(text: bytes) -> bool:
    """Quickly seen. Three digits after an `e` may also be part of a word, or an exponent with zeros in front."""
    return text.translate(_DIGITS_TO_ZERO, b"+-").count(b"e000") > MAX_EXTREME_NUMBERS


def decode_json_text(text: str) -> Any:
    """The value of JSON that came inside of a string. Raises msgspec.DecodeError."""
    if len(text) > SHORT and (problem := find_json_problem(text.encode(errors="replace"))):
        raise msgspec.DecodeError(problem)
    return msgspec.json.decode(text)


def _is_too_deep(text: bytes) -> bool:
    """Whether objects and lists are nested deeper than `MAX_JSON_DEPTH`.

    Nearly all texts have too few brackets, which is quickly seen. From the others, strings are removed, then pairs of
    brackets with nothing between them, which are most of a large text; each such pass makes the rest one level less
    deep.
    """
    if text.count(b"{") + text.count(b"[") <= MAX_JSON_DEPTH:
        return False
    structure = _remove_escapes(text).translate(_BRACES_TO_BRACKETS, _NON_STRUCTURE)
    brackets = _STRING.sub(b"", structure.replace(b'""', b""))
    for _ in range(_PASSES):
        if _OPEN in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH - _PASSES


def _remove_escapes(text: bytes) -> bytes:
    """After this, a quote always begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
