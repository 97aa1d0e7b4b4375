"""One artifact as it grows: pieces are added, or it is shown again as a whole, and each bit is told once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.events import Event, artifact, token
from a2a_fabric.core.part import Part
from a2a_fabric.runtimes.a2a.said import Artifact, Parts


class Growing:
    """Text that comes in pieces is told as words; anything else is told as an artifact."""

    def __init__(self, begun: Artifact, *, is_told: bool) -> None:
        self.size = 0
        self._is_told = is_told  # whether anybody listens
        self._id = begun.id
        self._name = ""
        self._description = ""
        self._parts: list[Part] = []
        self._pieces: list[str] = []  # how the last part goes on, if it is text
        self._told = 0  # characters of its text

    @property
    def parts(self) -> Parts:
        self._settle()
        return tuple(self._parts)

    def add(self, piece: Artifact) -> list[Event]:
        """The next piece."""
        self._name, self._description = piece.name or self._name, piece.description or self._description
        for part in piece.parts:
            self._append(part)
        if not self._is_told:
            return []
        self._told += _length(piece.parts)
        if not is_text(piece.parts):
            return [self._shown(piece.parts, append=True)]
        text = _text(piece.parts)
        return [token(text)] if text else []

    def replace(self, whole: Artifact, *, is_complete: bool) -> list[Event]:
        """All of it, perhaps once more. What is complete from the start is told as an artifact."""
        is_new, before = not self.size, self.parts if self._is_told else ()
        self._name, self._description = whole.name or self._name, whole.description or self._description
        self._parts, self._pieces, self.size = [], [], 0
        for part in whole.parts:
            self._append(part)
        if not self._is_told:
            return []
        if is_complete and is_new:
            self._told = _length(whole.parts)
            return [self._shown(self.parts)]
        if self.parts == before:
            return []
        if not is_text(whole.parts) or not _text(self.parts).startswith(_text(before)):
            self._told = _length(whole.parts)
            return [self._shown(self.parts)]
        rest = _text(whole.parts)[self._told :]
        self._told += len(rest)
        return [token(rest)] if rest else []

    def _append(self, part: Part) -> None:
        """A piece of text goes on where the last one ended; everything else is a part of its own."""
        self.size += len(part.text or part.blob or part.url or "") or 64
        last = self._parts[-1] if self._parts else None
        if last is not None and _goes_on(last, part):
            self._pieces.append(part.text or "")
        else:
            self._settle()
            self._parts.append(part)

    def _settle(self) -> None:
        if self._pieces:
            last = self._parts[-1]
            self._parts[-1] = msgspec.structs.replace(last, text=(last.text or "") + "".join(self._pieces))
            self._pieces = []

    def _shown(self, parts: Iterable[Part], **more: Any) -> Event:
        told = {"artifact_id": self._id, "name": self._name, "description": self._description}
        return artifact({**{key: value for key, value in told.items() if value}, "parts": shown(parts), **more})


def _goes_on(last: Part, part: Part) -> bool:
    if last.kind != "text" or part.kind != "text":
        return False
    return part.mime_type in (None, last.mime_type) and part.meta in ({}, last.meta)


def is_text(parts: Iterable[Part]) -> bool:
    return all(part.kind == "text" for part in parts)


def shown(parts: Iterable[Part]) -> Any:
    return msgspec.to_builtins(list(parts))


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text or "" for part in parts if part.kind == "text")


def _length(parts: Iterable[Part]) -> int:
    return sum(len(part.text or "") for part in parts if part.kind == "text")
