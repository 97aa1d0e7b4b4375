"""Calls as plain text for Agent Zero, and JSON objects out of its answers."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import add_notes
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.prompt import build_format_instruction, build_prompt, find_json_object


def prompt_from_call(manifest: Manifest, call: Call) -> str:
    """The call without its attachments."""
    format_text = build_format_instruction(manifest.find_capability(call.target.capability))
    return "\n\n".join(filter(None, (build_prompt(manifest, call), format_text)))


def text_from_part(part: Part) -> str | None:
    """None for a part that holds bytes, which text cannot carry."""
    if part.blob is not None:
        return None
    if part.text is None and part.url is None:
        return json_block(part.data if part.kind == "json" else {part.kind: part.data})
    content, separator = (part.text, "\n") if part.text is not None else (part.url or "", " ")
    return f"{part.name}:{separator}{content}" if part.name else content


def json_block(value: Any) -> str:
    return f"```json\n{msgspec.json.encode(value).decode()}\n```"


def extract_object(result: Result, manifest: Manifest, call: Call) -> Result:
    """If the capability declares an object and the answer is text, the object in that text."""
    answer = result.data.get("answer")
    if not isinstance(answer, str) or len(result.data) > 1:
        return result
    value, notes = find_json_object(answer, manifest.find_capability(call.target.capability))
    return add_notes(result if value is None else Result(data=value, parts=result.parts), notes)
