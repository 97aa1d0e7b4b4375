"""Looks at a JSON text before anything decodes it: how deep it is nested, and how long its numbers would take.

Decoders, validators and encoders recurse once per level, in this program and in agents, and each fails at a depth of
its own, some of them in the middle of a call. One limit at the doors is clearer.

A decoder needs a hundred times as long for some numbers as for others, and the event loop waits for it: 4 MB of them
would stop every caller for seconds. They are those near the ends of what a float can hold (`1e300`, `4e-320`), and
those whose first 19 digits do not decide between two floats. Integers of thousands of digits are slow, too."""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from itertools import accumulate
from typing import Any

import msgspec

MAX_JSON_DEPTH = 128  # far more than people write, far less than any decoder or agent fails at
MAX_SLOW_NUMBERS = 1000  # each takes some 15 µs; people hardly ever send one
MIN_BYTES_PER_SLOW_NUMBER = 2048  # in a large text, as in any list of numbers of more than 19 digits

SHORT = 2 * MAX_JSON_DEPTH  # bytes; a text of that length has no problem and needs no look
LONG = MAX_SLOW_NUMBERS * len(b"1e300,")  # bytes; the numbers of a shorter one are no problem

_TOO_DEEP = f"The JSON is nested more than {MAX_JSON_DEPTH} levels deep"
_TOO_MANY_SLOW = (
    f"The JSON has more than {MAX_SLOW_NUMBERS} numbers that are slow to read: beyond 1e288, below 1e-288, or with many"
    " digits"
)

_OPEN = b"[" * (MAX_JSON_DEPTH + 1)
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_PASSES = 4
_DEPTH_CHANGES = {ord("["): 1, ord("]"): -1, ord('"'): 0}  # a quote remains in a text that is not JSON
_STRING = re.compile(rb'"[^"]*"')

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_EXACT_DIGITS = 19  # a decoder keeps so many in 64 bits
_FAST_EXPONENTS = range(-307, 289)  # of ten, in the tables of the decoder
_FAST_MAGNITUDES = range(-20, 21)
_SUSPICIOUS = re.compile(rb"(?<![0-9.])(?:[0-9.]{20,}(?:[eE][+-]?[0-9]+)?|[0-9.]+[eE][+-]?0*[2-9][0-9][0-9](?![0-9]))")
_WINDOWS = 512  # of a large text, at random
_WINDOW = 512  # bytes
_EXAMINED = 2000  # numbers of a sample


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
    if _has_no_slow_numbers(text):
        return None
    return _find_slow_numbers(_drop_strings(text), len(text))


def find_problem_of_texts(texts: Collection[str]) -> str | None:
    """As `find_number_problem`, for JSON in many strings of one message: the limit holds for all of them together."""
    size = sum(map(len, texts))
    if size <= LONG:
        return None
    return _find_slow_numbers(b",".join([_drop_strings(text.encode(errors="replace")) for text in texts]), size)


def _find_slow_numbers(outside_strings: bytes, size: int) -> str | None:
    if _has_no_slow_numbers(outside_strings):
        return None
    limit = max(MAX_SLOW_NUMBERS, size // MIN_BYTES_PER_SLOW_NUMBER)
    return _TOO_MANY_SLOW if _estimate_slow_numbers(outside_strings) > limit else None


def _drop_strings(text: bytes) -> bytes:
    return b'"'.join(_remove_escapes(text).split(b'"')[::2])


def _has_no_slow_numbers(text: bytes) -> bool:
    """Or hardly any, which is quickly seen: no exponents of three digits, and no numbers of more than 19."""
    digits = text.translate(_DIGITS_TO_ZERO, b"+-.")
    return digits.count(b"e000") + digits.count(b"0" * (_EXACT_DIGITS + 1)) <= MAX_SLOW_NUMBERS


def _estimate_slow_numbers(text: bytes) -> float:
    """Of a large text only a sample is examined, so that an attacker gains nothing by numbers that are nearly slow."""
    sample, size = text, _WINDOWS * _WINDOW
    if len(text) > 2 * size:
        starts = [random.randrange(len(text) - _WINDOW) for _ in range(_WINDOWS)]
        sample = b",".join([text[start : start + _WINDOW] for start in starts])
    long_integers = text.translate(_DIGITS_TO_ZERO).count(b"0" * 1000)
    suspicious = _SUSPICIOUS.findall(sample)
    examined = random.sample(suspicious, min(len(suspicious), _EXAMINED))
    slow = sum(map(_is_slow, examined)) / max(len(examined), 1) * len(suspicious)
    return long_integers + slow * len(text) / len(sample)


def _is_slow(number: bytes) -> bool:
    """Not exact for what is no number.

    A decoder takes the first 19 digits and a table of powers of ten. Of a longer number it also takes these digits plus
    one: if that is another float, all digits count, which takes as long as the number is large or small.
    """
    mantissa, _, exponent_text = number.lower().partition(b"e")
    whole, point, fraction = mantissa.partition(b".")
    digits = (whole + fraction).lstrip(b"0")
    if not digits or b"." in digits or not (point or exponent_text) or len(exponent_text) > _EXACT_DIGITS:
        return False
    exponent = int(exponent_text or b"0") - len(fraction) + max(len(digits) - _EXACT_DIGITS, 0)
    if exponent not in _FAST_EXPONENTS:
        return True
    if len(digits) <= _EXACT_DIGITS or exponent + _EXACT_DIGITS in _FAST_MAGNITUDES:
        return False
    kept = int(digits[:_EXACT_DIGITS])
    return float(f"{kept}e{exponent}") != float(f"{kept + 1}e{exponent}")


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
