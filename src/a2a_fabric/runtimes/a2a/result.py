"""What an A2A agent made, as a result: data parts are the answer's object, and text is its `answer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.a2a.said import Parts

ANSWER = "answer"
RESULT = "result"


def result_of(parts: Parts) -> Result:
    """The parts themselves stay where the object alone would lose something: files, names, two values of one name."""
    data, is_whole = _merged(parts)
    text = text_of(parts)
    if text and ANSWER in data:
        is_whole = is_whole and data[ANSWER] == text
    elif text:
        data[ANSWER] = text
    return Result(data=data, parts=() if is_whole and all(map(_is_plain, parts)) else parts)


def _merged(parts: Parts) -> tuple[dict[str, Any], bool]:
    """All objects in one, and whether they still are all there. Bare values are the `result`."""
    data: dict[str, Any] = {}
    bare: list[Any] = []
    is_whole = True
    for part in parts:
        if part.kind != "json":
            continue
        if not isinstance(part.data, dict):
            bare.append(part.data)
            continue
        is_whole = is_whole and all(key not in data or data[key] == value for key, value in part.data.items())
        data.update(part.data)
    if bare:
        is_whole = is_whole and RESULT not in data
        data.setdefault(RESULT, bare[0] if len(bare) == 1 else bare)
    return data, is_whole


def _is_plain(part: Part) -> bool:
    return part.kind in ("text", "json") and not part.name and not part.meta


def text_of(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)
