"""What a built-in tool is: an id, one capability, what it takes and gives, what it declares, and who does it.

Argument structs and result dictionaries are the one place where the fields are
written; both JSON Schemas are derived from them, with every reference inlined,
because many clients of such schemas do not follow `$ref`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from a2a_fabric.core.agent import SideEffects, TrustTier
from a2a_fabric.tools.errors import tool_error as tool_error
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.toolbox import Toolbox

Handler = Callable[[Any, Toolbox], Awaitable[Mapping[str, Any]]]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call to a tool brings; an unknown field is refused."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    tool_id: str
    capability: str
    category: str
    display_name: str
    description: str
    arguments: type[Arguments]
    result: Any  # a TypedDict
    handler: Handler
    deterministic: bool = True
    side_effects: SideEffects = "none"
    trust_tier: TrustTier = "org"
    aliases: tuple[str, ...] = ()  # other names of the capability
    setting: str | None = None  # the setting that has to be given before the tool works

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return schema_of(self.arguments)

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        return schema_of(self.result)

    def answers_to(self, capability: str) -> bool:
        return capability == self.capability or capability in self.aliases

    def why_disabled(self, settings: ToolSettings) -> str | None:
        """What to change in fabric.yaml before this tool may be called; None if it may."""
        for name in (self.tool_id, self.category, self.tool_id.partition(".")[0]):
            if name in settings.disabled:
                return f"remove '{name}' from tools.disabled in fabric.yaml"
        if self.setting and not getattr(settings, self.setting):
            value = "true" if getattr(settings, self.setting) is False else "env:NAME"
            return f"set tools.{self.setting}: {value} in fabric.yaml"
        return None


def schema_of(kind: Any) -> dict[str, Any]:
    """A self-contained object schema of a struct or a TypedDict."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, definitions)
    return {"type": "object", **inlined}


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str):
        rest = {key: value for key, value in part.items() if key != "$ref"}
        part = {**definitions[reference.rpartition("/")[2]], **rest}
    plain = {key: _inlined(value, definitions) for key, value in part.items()}
    if isinstance(plain.get("title"), str) and "type" in plain:
        del plain["title"]
    return plain
