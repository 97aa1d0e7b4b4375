"""How deep a JSON text is nested, measured before anything parses it.

Decoders, validators and encoders recurse once per level, in this program and in agents, and each
fails at a depth of its own, some of them in the middle of a call. One limit at the doors is clearer."""

from __future__ import annotations

import re
from itertools import accumulate

MAX_JSON_DEPTH = 128  # far more than people write, far less than any decoder or agent fails at

JSON_TOO_DEEP = f"The JSON is nested more than {MAX_JSON_DEPTH} levels deep"

SHALLOW = 2 * MAX_JSON_DEPTH  # bytes; a shorter body cannot be too deep and needs no check

_TOO_DEEP = b"[" * (MAX_JSON_DEPTH + 1)
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_PASSES = 4
_DEPTH_CHANGES = {ord("["): 1, ord("]"): -1, ord('"'): 0}  # a quote remains in a body that is not JSON
_STRING = re.compile(rb'"[^"]*"')


def is_too_deep(body: bytes) -> bool:
    """Whether objects and lists are nested deeper than `MAX_JSON_DEPTH`; a guess for a body that is not JSON.

    Nearly all bodies are too short or have too few brackets, which is quickly seen. From the others, strings are
    removed, then pairs of brackets with nothing between them, which are most of a large body; each such pass
    makes the rest one level less deep.
    """
    if len(body) <= SHALLOW or body.count(b"{") + body.count(b"[") <= MAX_JSON_DEPTH:
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", body.translate(_BRACES_TO_BRACKETS, _NON_STRUCTURE).replace(b'""', b""))
    for _ in range(_PASSES):
        if _TOO_DEEP in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH - _PASSES
