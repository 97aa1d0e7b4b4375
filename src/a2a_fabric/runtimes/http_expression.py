"""Where something stands in somebody else's JSON: a JSON pointer (`/choices/0/text`) or JMESPath (`choices[0].text`).

They cannot be mistaken for one another: a pointer is empty or begins with a slash, and JMESPath never does.
"""

from __future__ import annotations

from typing import Any, Protocol

import jmespath  # type: ignore[import-untyped]  # it has no types
from jmespath.exceptions import JMESPathError  # type: ignore[import-untyped]

from a2a_fabric.core.errors import BadInput, UpstreamFailed

_LENGTH = 2000


class Expression(Protocol):
    def find(self, value: Any) -> Any:
        """Raises UpstreamFailed if nothing stands there."""
        ...

    def look(self, value: Any) -> Any:
        """None if nothing stands there."""
        ...


class Pointer:
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
                raise _nothing(self._text)
        return value

    def look(self, value: Any) -> Any:
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
            what, _, _ = str(exc).partition("\n")
            raise BadInput(f"'{text[:100]}' is neither a JSON pointer nor JMESPath: {what}"[:300]) from exc

    def find(self, value: Any) -> Any:
        found = self.look(value)
        if found is None:
            raise _nothing(self._text)
        return found

    def look(self, value: Any) -> Any:
        try:
            return self._compiled.search(value)
        except (JMESPathError, RecursionError) as exc:
            raise UpstreamFailed(f"The agent's answer does not suit '{self._text}': {exc}"[:300]) from exc


def _nothing(text: str) -> UpstreamFailed:
    return UpstreamFailed(f"The agent's answer has nothing at '{text}'")


class Expressions:
    """Reads them from a manifest.

    JMESPath can be made to blow a small answer up beyond all bounds, so it is for
    manifests of the operator's own; agents that register themselves use pointers.
    """

    def __init__(self, *, pointers_only: bool = False) -> None:
        self._pointers_only = pointers_only

    def read(self, text: str | None) -> Expression | None:
        """Raises BadInput."""
        if text is None:
            return None
        if len(text) > _LENGTH:
            raise BadInput(f"An expression is at most {_LENGTH} characters long")
        if not text or text.startswith("/"):
            return Pointer(text)
        if self._pointers_only:
            raise BadInput(f"'{text[:100]}' is not a JSON pointer: agents that register themselves may use no other")
        return JMESPath(text)
