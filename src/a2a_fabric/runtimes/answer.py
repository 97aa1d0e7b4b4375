"""An answer that came as messages made of parts, where the protocol has no word for which of them is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core.content import result_of_parts
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result


def answer_in(*messages: Sequence[Part]) -> Result:
    """An object without words in the last message is the answer; else all words are. What it does not hold stays.

    Text with a name is a thing of its own, not words.
    """
    parts = tuple(part for message in messages for part in message)
    last = messages[-1] if messages else ()
    objects = [part.data for part in last if _is_object(part)]
    if len(objects) == 1 and not any(map(_is_words, last)):
        return Result(data=objects[0], parts=() if len(parts) == 1 else parts)
    spoken = result_of_parts([part for part in parts if _is_words(part)])
    return spoken if all(map(_is_words, parts)) else Result(data=spoken.data, parts=parts)


def _is_object(part: Part) -> bool:
    return part.kind == "json" and isinstance(part.data, dict) and part.name is None


def _is_words(part: Part) -> bool:
    return part.kind == "text" and part.name is None
