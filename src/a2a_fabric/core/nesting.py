"""How deep JSON is nested, found out before anything walks through it.

Much that handles JSON calls itself for each level: decoders, validators, encoders, in this program and in agents.
Each ends at a depth of its own, some of them halfway through a call. One limit at the entrance is clearer.
"""

from __future__ import annotations

import re
from itertools import accumulate

MAX_DEPTH = 128  # many times what people write; a fraction of what the weakest of those who walk through it bear

SHALLOW = 2 * MAX_DEPTH  # bytes; what is no longer cannot be too deep, so that nobody needs to ask

_TOO_DEEP = b"[" * (MAX_DEPTH + 1)
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_ELSE = bytes(set(range(256)) - set(b'[]{}"'))
_PASSES = 4
_STEPS = {ord("["): 1, ord("]"): -1, ord('"'): 0}  # a quote is left over in what is no JSON
_STRING = re.compile(rb'"[^"]*"')


def is_too_deep(body: bytes) -> bool:
    """Whether objects and lists are nested deeper than `MAX_DEPTH`; of what is no JSON, whether it looks like that.

    Nearly all bodies are too short for it or have too few brackets, which takes no time to see. In others the
    strings are taken out, then pairs of brackets with nothing between, which is most of what large bodies hold;
    each time that is done, what is left is one level less deep.
    """
    if len(body) <= SHALLOW or body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", body.translate(_AS_BRACKETS, _ALL_ELSE).replace(b'""', b""))
    for _ in range(_PASSES):
        if _TOO_DEEP in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH - _PASSES
