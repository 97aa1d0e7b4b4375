"""The tool catalog of the MCP door: which tools a caller is shown, how described, and under which names.

The canonical names are dotted, and most model APIs refuse dots; one bad name hides a whole list. So a tool is
listed as lower-case letters, digits and underscores, at most 48 of them, starting with a letter. Names that
differ only in underscores count as equal: the later one gets a short hash as suffix, and an assigned name
never changes. Lists are cached until the catalog of agents changes. The catalog decides what a caller sees;
the gateway decides what it may call."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.content import ATTACHMENTS
from a2a_fabric.core.errors import AgentNotFound, CapabilityNotFound
from a2a_fabric.core.part import ANY_JSON
from a2a_fabric.core.policy import (
    find_refusal,
    is_limited,
    list_callable_capabilities,
    make_access_key,
    narrow_manifest,
)
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations import CallableTool, Operation, Operations, PreparedOperation
from a2a_fabric.operations.tools import PREFIX, forbidden_tool
from a2a_fabric.version import __version__

MAX_NAME_LENGTH = 48

_SUFFIX_DIGITS = 6  # hexadecimal digits
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9]+")

Key = TypeVar("Key", bound=Hashable)


def to_safe_name(words: str) -> str:
    """`percy.parse-Recipe` as `percy_parse_recipe`, of any length."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", words) if not unicodedata.combining(c))
    name = _UNSAFE_CHARACTERS.sub("_", _CAMEL_BOUNDARY.sub("_", plain).lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}".rstrip("_")


def fold_name(name: str) -> str:
    """Two names with the same fold count as equal."""
    return name.replace("_", "")


def assign_names(words_by_key: Mapping[Key, str], previous: Mapping[Key, str]) -> dict[Key, str]:
    """A name for each key, made from its words; names in `previous` stay.

    New keys are sorted first, so that two nodes with the same agents assign the same names.
    """
    names = {key: previous[key] for key in words_by_key if key in previous}
    used_folds = {fold_name(name) for name in previous.values()}
    new_keys = [(words, str(key), key) for key, words in words_by_key.items() if key not in previous]
    for words, text, key in sorted(new_keys, key=lambda each: (_loses_detail(each[0]), *each[:2])):
        names[key] = name = _find_free_name(to_safe_name(words), text, used_folds)
        used_folds.add(fold_name(name))
    return {key: names[key] for key in words_by_key}


def assign_names_in_order(
    first: Mapping[Key, str], later: Mapping[Key, str], previous: Mapping[Key, str]
) -> dict[Key, str]:
    """Names for both. Keys in `first` choose first: they get a name even if another key has it already.

    So the tools of agents that the operator declared keep their names, whichever agents register themselves.
    """
    first_names = assign_names(first, {key: name for key, name in previous.items() if key in first})
    used_folds = {fold_name(name) for name in first_names.values()}
    still_free = {
        key: name for key, name in previous.items() if key not in first_names and fold_name(name) not in used_folds
    }
    return {**first_names, **assign_names(later, {**still_free, **first_names})}


def remember_names(names: Mapping[Key, str], previous: Mapping[Key, str], spare: int = 10_000) -> dict[Key, str]:
    """`names`, and up to `spare` names of agents that left and may come back."""
    missing = [key for key in previous if key not in names]
    remembered_names = {key: previous[key] for key in missing[max(0, len(missing) - spare) :]}
    return {**remembered_names, **names}


def _loses_detail(words: str) -> bool:
    """Whether the safe name is not the exact form of the words; an exact one is assigned first."""
    return to_safe_name(words) != words.replace(".", "_")


def _find_free_name(name: str, key: str, used_folds: set[str]) -> str:
    if len(name) <= MAX_NAME_LENGTH and fold_name(name) not in used_folds:
        return name
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(_SUFFIX_DIGITS, MAX_NAME_LENGTH - 1):
        suffixed = f"{name[: MAX_NAME_LENGTH - digits - 1].rstrip('_')}_{digest[:digits]}"
        if fold_name(suffixed) not in used_folds:
            return suffixed
    raise AssertionError("two tools have the same hash")


NAME_KEY = "a2a-fabric/name"
AGENT_KEY = "a2a-fabric/agent"

# The input schema of a capability that declares none.
_FREE_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What is to be done, in words."},
        "context": {"type": "object", "description": "Arguments and background, as JSON."},
        ATTACHMENTS: {
            "type": "array",
            "description": "Files (base64), links and data.",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["file", "url", "data"]},
                    "content": ANY_JSON,
                    "mime_type": {"type": "string"},
                    "name": {"type": "string"},
                },
                "required": ["type", "content"],
            },
        },
    },
}


def describe_operation(name: str, operation: Operation[Any]) -> dict[str, Any]:
    read_only = operation.read_only
    return {
        "name": name,
        "title": operation.name,
        "description": operation.description,
        "inputSchema": to_input_schema(operation.input_schema),
        "outputSchema": operation.output_schema,
        "annotations": {
            "readOnlyHint": read_only,
            "destructiveHint": not read_only,
            "idempotentHint": read_only,
            "openWorldHint": not read_only,
        },
        "_meta": {NAME_KEY: operation.name},
    }


def describe_capability(name: str, canonical_name: str, manifest: Manifest, capability: Capability) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "name": name,
        "title": canonical_name,
        "description": capability.description or manifest.description or f"{capability.name} of {manifest.agent_id}",
        "inputSchema": to_input_schema(capability.input_schema),
        "annotations": _make_annotations(capability),
        "_meta": {NAME_KEY: canonical_name, AGENT_KEY: manifest.agent_id},
    }
    output = capability.output_schema
    if output is not None and output.get("type") == "object":  # the handshake era allows nothing else
        tool["outputSchema"] = output
    return tool


def to_input_schema(declared: dict[str, Any] | None) -> dict[str, Any]:
    """MCP requires an object at the top."""
    if declared is None:
        return _FREE_FORM
    return declared if declared.get("type") == "object" else {**declared, "type": "object"}


def _make_annotations(capability: Capability) -> dict[str, bool]:
    """Hints for what was declared only; clients assume the worst for the rest."""
    hints: dict[str, bool] = {}
    if capability.side_effects is not None:
        hints["readOnlyHint"] = capability.side_effects != "writes"
        hints["destructiveHint"] = capability.side_effects == "writes"
        hints["openWorldHint"] = capability.side_effects != "none"
    if capability.idempotent is not None:
        hints["idempotentHint"] = capability.idempotent
    return hints


_MAX_CACHED_LISTS = 256  # one for each kind of caller
_INSTRUCTIONS = (
    "A gateway to agents. Each capability of each agent is a tool of its own; fabric_agent_list tells who is there, "
    "fabric_tool_list with a query finds a tool that is not listed, fabric_tool_call and fabric_call run it."
)


class CatalogTool(msgspec.Struct, frozen=True, kw_only=True):
    """A capability of an agent, or a built-in tool, with its names at this door."""

    name: str
    canonical_name: str
    tool: CallableTool
    is_registered: bool = False  # its agent registered itself; the operator did not declare it

    @property
    def manifest(self) -> Manifest:
        return self.tool.manifest

    @property
    def capability(self) -> Capability:
        return self.tool.capability

    def is_visible_to(self, principal: Principal) -> bool:
        return find_refusal(principal, self.manifest, self.capability.name) is None


class McpServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How an MCP server describes itself."""

    name: str
    title: str
    version: str
    instructions: str


class ToolCatalog(Protocol):
    """The tools that one MCP server offers."""

    has_job_tools: bool  # whether its tools can follow a job

    @property
    def server_info(self) -> McpServerInfo: ...

    def list_source_agents(self) -> Sequence[Manifest]:
        """The agents whose prompts and resources are listed beside the tools."""
        ...

    def list_tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        """The tools that this caller sees, as `tools/list` renders them."""
        ...

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Raises UnknownOperation or CapabilityNotFound if there is no such tool, BadInput for bad arguments.

        A caller with limits gets Forbidden for what it may not call, whether there is such a tool or not.
        """
        ...

    def get_input_schema(self, name: str) -> dict[str, Any] | None:
        """The input schema of a tool; None if there is no such tool."""
        ...

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        """The agents that this caller may see."""
        ...

    def has_no_header_params(self, name: str) -> bool:
        """Whether no argument of this tool must be repeated in a header."""
        ...

    def find_target(self, name: str) -> tuple[str, str] | None:
        """The agent and the capability behind a tool; None for the gateway's own tools."""
        ...


class _ToolTable:
    """The tools of one state of the catalog, by each of their names."""

    def __init__(self, items: Sequence[CatalogTool]) -> None:
        self.agent_tools = [item for item in items if not item.manifest.is_tool]
        self.builtin_tools = [i for i in items if i.manifest.is_tool and i.manifest.metadata.get("enabled", True)]
        self.by_name: dict[str, CatalogTool] = {}
        # Agent ids may hold dots. Of two tools with the same dotted name the one with the longer agent id wins, as in
        # `operations`; but an agent that registered itself never wins over one that the operator declared.
        for item in sorted(items, key=lambda each: (not each.is_registered, len(each.manifest.agent_id))):
            self.by_name[item.canonical_name] = item
        self.by_name.update((item.name, item) for item in items)
        self.lists: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self.without_header_params: dict[str, bool] = {}


class GatewayToolCatalog:
    """The operations of the node and the tools of all its agents."""

    has_job_tools = True

    server_info = McpServerInfo(name="a2a-fabric", title="A2A Fabric", version=__version__, instructions=_INSTRUCTIONS)

    def __init__(
        self,
        gateway: Gateway,
        operations: Operations,
        *,
        name_style: Literal["safe", "dotted"],
        max_listed: int,
        builtin_tools: bool,
    ) -> None:
        self._gateway = gateway
        self._operations = operations
        self._name_style = name_style
        self._max_listed = max_listed
        self._builtin_tools = builtin_tools
        operation_names = assign_names({op.name: op.name for op in operations}, {})
        self._assigned_names: dict[Any, str] = dict(operation_names)
        self._operation_by_name = {name: canonical_name for canonical_name, name in operation_names.items()}
        self._schemas = {op.name: to_input_schema(op.input_schema) for op in operations}
        listed = [(op.name if name_style == "dotted" else operation_names[op.name], op) for op in operations]
        self._operation_tools = [(op, describe_operation(name, op)) for name, op in listed]
        self._agent_catalog: object = None
        self._table = _ToolTable(())

    def list_tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        table = self._get_table()
        reach = make_access_key(principal)
        listed = table.lists.get(reach)
        if listed is None:
            if len(table.lists) >= _MAX_CACHED_LISTS:
                table.lists.clear()
            operation_tools = [
                described for operation, described in self._operation_tools if operation.is_open_to(principal)
            ]
            listed = table.lists[reach] = [*operation_tools, *map(self._describe, self._list_visible(table, principal))]
        return listed

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        item = self._get_table().by_name.get(name)
        if item is not None and (not is_limited(principal) or item.is_visible_to(principal)):
            return self._operations.prepare_tool(item.tool, item.canonical_name, raw)
        operation = self._operation_by_name.get(name, name)
        if operation not in self._schemas and is_limited(principal) and not operation.startswith(PREFIX):
            raise forbidden_tool(name)
        return self._operations.prepare(operation, raw, principal)

    def get_input_schema(self, name: str) -> dict[str, Any] | None:
        item = self._get_table().by_name.get(name)
        if item is not None:
            return to_input_schema(item.capability.input_schema)
        return self._schemas.get(self._operation_by_name.get(name, name))

    def find_target(self, name: str) -> tuple[str, str] | None:
        item = self._get_table().by_name.get(name)
        return None if item is None else (item.manifest.agent_id, item.capability.name)

    def has_no_header_params(self, name: str) -> bool:
        table = self._get_table()
        is_without = table.without_header_params.get(name)
        if is_without is None:
            item = table.by_name.get(name)
            if item is None:
                return True
            is_without = table.without_header_params[name] = _declares_no_header(item.capability)
        return is_without

    def list_source_agents(self) -> Sequence[Manifest]:
        return self._gateway.registry.catalog.agents

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        return self._gateway.registry.visible_to(principal).agents

    def _list_visible(self, table: _ToolTable, principal: Principal) -> list[CatalogTool]:
        """All visible tools or none: a model that sees some agents would not search for the others."""
        limit = self._max_listed - len(self._operation_tools)
        visible = [item for item in table.agent_tools if item.is_visible_to(principal)]
        if len(visible) > limit:
            return []
        if self._builtin_tools:
            builtin = [item for item in table.builtin_tools if item.is_visible_to(principal)]
            visible += builtin if len(visible) + len(builtin) <= limit else []
        return visible

    def _describe(self, item: CatalogTool) -> dict[str, Any]:
        is_dotted = self._name_style == "dotted" and self._table.by_name[item.canonical_name] is item
        return describe_capability(
            item.canonical_name if is_dotted else item.name, item.canonical_name, item.manifest, item.capability
        )

    def _get_table(self) -> _ToolTable:
        catalog = self._gateway.registry.catalog
        if catalog is not self._agent_catalog:
            offers = {(m.agent_id, c.name): (m, c) for m in catalog for c in m.capabilities}
            words_by_key: dict[Any, str] = {key: _name_words(m, c) for key, (m, c) in offers.items()}
            operation_names: dict[Any, str] = {
                canonical_name: name for name, canonical_name in self._operation_by_name.items()
            }
            registered = {m.agent_id for m in catalog if self._gateway.registry.is_registered(m.agent_id)}
            registered_words = {key: words for key, words in words_by_key.items() if key[0] in registered}
            declared_words = {key: words for key, words in words_by_key.items() if key not in registered_words}
            assigned = assign_names_in_order(
                {**{op: op for op in operation_names}, **declared_words},
                registered_words,
                {**self._assigned_names, **operation_names},
            )
            assigned = {key: assigned[key] for key in words_by_key}
            self._assigned_names = {**remember_names(assigned, self._assigned_names), **operation_names}
            items = [
                _make_item(assigned[key], *offer, is_registered=key in registered_words)
                for key, offer in offers.items()
            ]
            self._table = _ToolTable(items)
            self._agent_catalog = catalog
        return self._table


def _declares_no_header(capability: Capability) -> bool:
    """A schema marks arguments that must be repeated in headers by a keyword."""
    return b"x-mcp-header" not in msgspec.json.encode(capability.input_schema)


def _make_item(name: str, manifest: Manifest, capability: Capability, *, is_registered: bool) -> CatalogTool:
    tool = CallableTool(manifest=manifest, capability=capability)
    return CatalogTool(
        name=name, canonical_name=make_canonical_name(manifest, capability), tool=tool, is_registered=is_registered
    )


def make_canonical_name(manifest: Manifest, capability: Capability) -> str:
    """The canonical name, as `/mcp/call` accepts it."""
    if manifest.is_tool:
        return f"fabric.tool.{manifest.agent_id}"
    return f"fabric.tool.agent.{manifest.agent_id}.{capability.name}"


def _name_words(manifest: Manifest, capability: Capability) -> str:
    return make_canonical_name(manifest, capability) if manifest.is_tool else f"{manifest.agent_id}.{capability.name}"


class AgentToolCatalog:
    """The capabilities of one agent, under their own names."""

    has_job_tools = False

    def __init__(self, gateway: Gateway, operations: Operations, manifest: Manifest) -> None:
        self._gateway = gateway
        self._operations = operations
        self._agent_id = manifest.agent_id
        self.server_info = McpServerInfo(
            name=manifest.agent_id,
            title=manifest.display_name or manifest.agent_id,
            version=manifest.version,
            instructions=manifest.description,
        )

    def list_tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        manifest = self._get_manifest()
        return [
            describe_capability(capability.name, make_canonical_name(manifest, capability), manifest, capability)
            for capability in manifest.capabilities
            if find_refusal(principal, manifest, capability.name) is None
        ]

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        manifest = self._get_manifest()
        capability = manifest.find_capability(name)
        if find_refusal(principal, manifest, name if capability is None else capability.name) is not None:
            raise forbidden_tool(name)
        if capability is None:
            if manifest.capabilities:
                offered = [each.name for each in list_callable_capabilities(principal, manifest)]
                raise CapabilityNotFound(manifest.agent_id, name, offered)
            capability = Capability(name=name)  # the agent has not declared its capabilities, so the call decides
        return self._operations.prepare_tool(CallableTool(manifest=manifest, capability=capability), name, raw)

    def get_input_schema(self, name: str) -> dict[str, Any] | None:
        capability = self._get_manifest().find_capability(name)
        return None if capability is None else to_input_schema(capability.input_schema)

    def find_target(self, name: str) -> tuple[str, str] | None:
        capability = self._get_manifest().find_capability(name)
        return self._agent_id, name if capability is None else capability.name

    def has_no_header_params(self, name: str) -> bool:
        capability = self._get_manifest().find_capability(name)
        return capability is None or _declares_no_header(capability)

    def list_source_agents(self) -> Sequence[Manifest]:
        """None: a caller who may use prompts and resources is proxied to the agent itself."""
        return ()

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        visible = narrow_manifest(principal, self._get_manifest())
        return [] if visible is None else [visible]

    def _get_manifest(self) -> Manifest:
        manifest = self._gateway.registry.catalog.get(self._agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(self._agent_id)
        return manifest
