"""What has been told of an answer while it grows, kept small however long it is.

As many follow a task as like to, some of them slowly, so nobody keeps all its words: of what
was told there are fingerprints, to tell whether the answer goes on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from a2a_fabric.core.part import Part

LONG = 256 * 1024  # bytes, about; what is longer is told in pieces


class Saying:
    """Words that follow one another are one part."""

    def __init__(self) -> None:
        self._prints: list[hashlib.blake2b] = []
        self._pieces: list[Part] | None = []  # None: it is long
        self._weight = 0
        self._in_words = False

    @property
    def is_nothing(self) -> bool:
        return not self._prints

    def add(self, part: Part) -> None:
        is_words = _is_words(part)
        if not (is_words and self._in_words):
            self._prints.append(hashlib.blake2b())
        self._in_words = is_words
        self._prints[-1].update(_written(part))
        self._weight += weight_of([part])
        if self._weight > LONG:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(part)

    def parts(self) -> tuple[Part, ...] | None:
        """All of it; None if it is long."""
        return None if self._pieces is None else _joined(self._pieces)

    def rest_of(self, answer: Sequence[Part]) -> tuple[Part, ...] | None:
        """What is still to be told; None if the answer is another one."""
        begun = answer[: len(self._prints)]
        if [hashlib.blake2b(_written(part)).digest() for part in begun] != [each.digest() for each in self._prints]:
            return None
        return tuple(answer[len(self._prints) :])


def weight_of(parts: Iterable[Part]) -> int:
    """Bytes, about."""
    return sum(len(part.text or part.blob or "") + (len(_written(part)) if part.data else 0) for part in parts)


def _is_words(part: Part) -> bool:
    return part.kind == "text" and part.text is not None and not (part.meta or part.name or part.mime_type)


def _written(part: Part) -> bytes:
    if part.text is not None and _is_words(part):
        return part.text.encode("utf-8", "surrogatepass")
    return b"\0" + msgspec.json.encode(part, order="deterministic")


def _joined(pieces: Sequence[Part]) -> tuple[Part, ...]:
    parts: list[Part] = []
    words: list[str] = []
    for piece in pieces:
        if _is_words(piece):
            words.append(piece.text or "")
            continue
        if words:
            parts.append(Part(kind="text", text="".join(words)))
            words = []
        parts.append(piece)
    return (*parts, Part(kind="text", text="".join(words))) if words else tuple(parts)
