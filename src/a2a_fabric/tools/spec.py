"""The definition of a built-in tool (id, capability, arguments, result, handler), and the toolbox of its handler.

The fields are declared once, in argument structs and result dictionaries. Both JSON
Schemas are derived from them, with every reference inlined, because many clients do
not follow `$ref`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import SideEffects, TrustTier
from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.tools.computation import Computations
from a2a_fabric.tools.listing import ToolListing
from a2a_fabric.tools.sandbox import Sandbox
from a2a_fabric.tools.settings import ToolSettings


class Toolbox:
    """What handlers work with. The web client, threads and processes belong to the caller, who closes them."""

    def __init__(
        self,
        settings: ToolSettings,
        base: Path,
        web: HTTPClient,
        environ: Mapping[str, str],
        threads: WorkerThreads | None = None,
        computations: Computations | None = None,
    ) -> None:
        self.settings = settings
        self.files = Sandbox((base / settings.io_root).resolve())
        self.web = web
        self.environ = environ
        self.threads = threads
        self.computations = computations


ToolHandler = Callable[[Any, Toolbox], Awaitable[Mapping[str, Any]]]


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call; an unknown field is refused."""


class BuiltinTool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    tool_id: str
    capability: str
    category: str
    display_name: str
    description: str
    arguments: type[ToolArguments]
    result: Any  # a TypedDict
    handler: ToolHandler
    deterministic: bool = True
    side_effects: SideEffects = "none"
    trust_tier: TrustTier = "org"
    aliases: tuple[str, ...] = ()  # other names of the capability
    setting: str | None = None  # the tool is off until this setting is set

    @cached_property
    def listing(self) -> ToolListing:
        return ToolListing(
            tool_id=self.tool_id,
            capability=self.capability,
            category=self.category,
            display_name=self.display_name,
            description=self.description,
            input_schema=build_schema(self.arguments),
            output_schema=build_schema(self.result),
            deterministic=self.deterministic,
            side_effects=self.side_effects,
            trust_tier=self.trust_tier,
            aliases=self.aliases,
            setting=self.setting,
        )

    def has_capability(self, capability: str) -> bool:
        return capability == self.capability or capability in self.aliases


def build_schema(kind: Any) -> dict[str, Any]:
    """A self-contained object schema of a struct or a TypedDict."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline_references(schema, definitions)
    return {"type": "object", **inlined}


def _inline_references(part: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline_references(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str):
        rest = {key: value for key, value in part.items() if key != "$ref"}
        part = {**definitions[reference.rpartition("/")[2]], **rest}
    inlined = {key: _inline_references(value, definitions) for key, value in part.items()}
    if isinstance(inlined.get("title"), str) and "type" in inlined:
        del inlined["title"]
    return inlined
