"""What a model does next, and what it was told before: the same in every API."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

# The strictest rule among the model APIs: a client that passed on another name would be refused.
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    name: str
    schema: dict[str, Any]

    @property
    def complaint(self) -> str | None:
        """Why an API would refuse it."""
        if not TOOL_NAME.fullmatch(self.name):
            return f"{self.name}: not a name for a tool"
        if self.schema.get("type") != "object" or {"anyOf", "oneOf", "allOf"} & self.schema.keys():
            return f"{self.name}: its schema is not plainly an object"
        return None


@dataclass(frozen=True)
class Asked:
    tools: tuple[Tool, ...]
    results: tuple[str, ...]  # what tools said, in order


@dataclass(frozen=True)
class Move:
    """Words, or else a tool to call."""

    text: str = ""
    tool: str = ""
    arguments: str = "{}"  # JSON


class ModelAPI(Protocol):
    path: str

    def read(self, body: dict[str, Any]) -> Asked: ...

    def events(self, body: dict[str, Any], move: Move) -> list[dict[str, Any]]:
        """A whole answer as it streams."""
        ...
