"""A whole call in words, and an answer out of words: Agent Zero reads and says little else."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import noted
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.prompt import in_which_form, object_in, words_of


def said_in(manifest: Manifest, call: Call) -> str:
    """All but what is attached."""
    form = in_which_form(manifest.capability(call.target.capability))
    return "\n\n".join(filter(None, (words_of(manifest, call), form)))


def part_in_words(part: Part) -> str | None:
    """None for bytes, which words cannot carry."""
    if part.blob is not None:
        return None
    if part.text is None and part.url is None:
        return json_in_words(part.data if part.kind == "json" else {part.kind: part.data})
    content, between = (part.text, "\n") if part.text is not None else (part.url or "", " ")
    return f"{part.name}:{between}{content}" if part.name else content


def json_in_words(value: Any) -> str:
    return f"```json\n{msgspec.json.encode(value).decode()}\n```"


def with_object(result: Result, manifest: Manifest, call: Call) -> Result:
    """If an object was wanted and the answer is words, the object in them."""
    said = result.data.get("answer")
    if not isinstance(said, str) or len(result.data) > 1:
        return result
    found, notes = object_in(said, manifest.capability(call.target.capability))
    return noted(result if found is None else Result(data=found, parts=result.parts), notes)
