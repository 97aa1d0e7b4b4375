"""Marks of prompt injection in what an agent says of its tools: text that addresses the model that reads the list.

The marks are few and plain, so that ordinary descriptions have none: orders to ignore or hide something, tags that
models take for instructions, invisible characters, and orders to send along what the caller never meant for this tool.
A clever author gets around them; pinning tools (`pin_tools`) and reading them helps against that."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from a2a_fabric.core.agent import Capability

_MAX_TEXT = 64 * 1024
_MARKS = {
    "an order to ignore instructions": (
        r"\b(?:ignore|disregard|forget|override)\s+(?:all\s+|any\s+|the\s+|your\s+|these\s+){0,3}"
        r"(?:previous|prior|earlier|above|other|system)\s+(?:instructions?|prompts?|rules?|messages?|directions?)"
    ),
    "an order to hide something from the user": (
        r"\b(?:do\s+not|don't|never|without)\s+(?:tell(?:ing)?|inform(?:ing)?|mention(?:ing)?|show(?:ing)?|reveal(?:ing)?|"
        r"notify(?:ing)?|alert(?:ing)?)\b[^.\n]{0,60}\buser"
    ),
    "a tag for instructions": (
        r"<\s*/?\s*(?:important|system|secret|hidden|instructions?|admin)\s*>|\[/?INST\]|<\|im_(?:start|end)\|>"
    ),
    "an order to call this tool first": (
        r"\b(?:always|you\s+must|must\s+always)\s+(?:call|use|run|invoke)\s+this\s+tool\s+(?:first|before)"
    ),
    "an order to read credentials": (
        r"\b(?:read|send|include|pass|attach|copy)\b[^.\n]{0,80}(?:~/\.ssh|id_rsa|\.env\b|\.aws/credentials|"
        r"mcp\.json|(?:conversation|chat)\s+history|system\s+prompt)"
    ),
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _MARKS.items()}
_EMOJI_JOINERS = frozenset("\u200d\ufe0f")  # within emoji; visible as part of them


def find_marks(capability: Capability, *, is_described: bool = False) -> tuple[str, ...]:
    """What is suspicious in a tool. `is_described`: the operator wrote the description, so only the schemas count."""
    own = () if is_described else (capability.title, capability.description)
    text = "\n".join((*own, *_list_texts(capability.input_schema), *_list_texts(capability.output_schema)))[:_MAX_TEXT]
    marks = [name for name, pattern in _PATTERNS.items() if pattern.search(text)]
    if any(unicodedata.category(each) in ("Cf", "Co") and each not in _EMOJI_JOINERS for each in text):
        marks.append("invisible characters")
    return tuple(marks)


def _list_texts(schema: Any, depth: int = 0) -> Iterator[str]:
    """Everything in a schema that a model reads."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, dict) and depth < 32:
        for key, value in schema.items():
            yield str(key)
            yield from _list_texts(value, depth + 1)
    elif isinstance(schema, list | tuple) and depth < 32:
        for value in schema:
            yield from _list_texts(value, depth + 1)
