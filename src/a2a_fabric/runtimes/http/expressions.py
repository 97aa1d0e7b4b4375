"""Expressions that select a value in an API's JSON: a JSON pointer (`/choices/0/text`) or JMESPath (`choices[0].text`).

A pointer is empty or begins with a slash, which JMESPath never does."""

from __future__ import annotations

from typing import Any, Protocol

import jmespath  # type: ignore[import-untyped]  # it has no types
from jmespath.exceptions import JMESPathError  # type: ignore[import-untyped]

from a2a_fabric.core.errors import BadInput, UpstreamFailed

_MAX_LENGTH = 2000


class Expression(Protocol):
    def find(self, value: Any) -> Any:
        """Raises UpstreamFailed if there is no such value."""
        ...

    def find_or_none(self, value: Any) -> Any:
        """None if there is no such value."""
        ...


class JSONPointer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._steps = [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]

    def find(self, value: Any) -> Any:
        for step in self._steps:
            if isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                raise _no_match(self._text)
        return value

    def find_or_none(self, value: Any) -> Any:
        try:
            return self.find(value)
        except UpstreamFailed:
            return None


class JMESPath:
    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._compiled = jmespath.compile(text)
        except (JMESPathError, RecursionError) as exc:
            first_line, _, _ = str(exc).partition("\n")
            raise BadInput(f"'{text[:100]}' is neither a JSON pointer nor JMESPath: {first_line}"[:300]) from exc

    def find(self, value: Any) -> Any:
        result = self.find_or_none(value)
        if result is None:
            raise _no_match(self._text)
        return result

    def find_or_none(self, value: Any) -> Any:
        try:
            return self._compiled.search(value)
        except (JMESPathError, RecursionError) as exc:
            raise UpstreamFailed(f"The agent's answer does not suit '{self._text}': {exc}"[:300]) from exc


def _no_match(text: str) -> UpstreamFailed:
    return UpstreamFailed(f"The agent's answer has nothing at '{text}'")


class ExpressionParser:
    """Parses the expressions in a manifest.

    A JMESPath expression can expand a small answer without bounds, so it is only allowed in
    the operator's own manifests; agents that register themselves use pointers.
    """

    def __init__(self, *, pointers_only: bool = False) -> None:
        self._pointers_only = pointers_only

    def parse(self, text: str | None) -> Expression | None:
        """Raises BadInput."""
        if text is None:
            return None
        if len(text) > _MAX_LENGTH:
            raise BadInput(f"An expression is at most {_MAX_LENGTH} characters long")
        if not text or text.startswith("/"):
            return JSONPointer(text)
        if self._pointers_only:
            raise BadInput(f"'{text[:100]}' is not a JSON pointer: agents that register themselves may use no other")
        return JMESPath(text)
