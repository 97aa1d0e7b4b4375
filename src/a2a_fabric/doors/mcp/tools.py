"""The tool catalog of the MCP door: which tools a caller is shown, how described, and under which names.

The canonical names are dotted, and most model APIs refuse dots; one bad name hides a whole list. So a tool is
listed as lower-case letters, digits and underscores, at most 48 of them, starting with a letter. Names that
differ only in underscores count as equal: the later one gets a short hash as suffix, and an assigned name
never changes. Lists are cached until the catalog of agents changes. The catalog decides what a caller sees;
the gateway decides what it may call. A caller with logins of its own has a table of its own, because agents offer it
other tools than others."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from a2a_fabric.core.agent import LOGIN_CAPABILITY, Capability, Manifest
from a2a_fabric.core.call import ATTACHMENTS, Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound
from a2a_fabric.core.policy import (
    find_refusal,
    is_limited,
    list_callable_capabilities,
    make_access_key,
    narrow_manifest,
)
from a2a_fabric.core.result import ANY_JSON
from a2a_fabric.doors.mcp.tool_list import (
    CALL_TOOLS,
    JOB_TOOLS,
    MAX_RECENT_TOOLS,
    SEARCH_TOOLS,
    RecentTools,
    ToolKey,
    ToolListSettings,
    shorten_schema,
)
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations import CallableTool, Operation, Operations, PreparedOperation
from a2a_fabric.operations.calls import PREFIX, forbidden_tool
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.apps import find_ui_uri, may_app_call, to_public_tool_meta
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
        **({"title": capability.title} if capability.title else {}),
        "description": capability.description or manifest.description or f"{capability.name} of {manifest.agent_id}",
        "inputSchema": to_input_schema(capability.input_schema),
        "annotations": _make_annotations(capability),
        "_meta": {
            **to_public_tool_meta(capability.metadata, manifest.agent_id),
            NAME_KEY: canonical_name,
            AGENT_KEY: manifest.agent_id,
        },
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
_MAX_CACHED_BYTES = 64 * 1024 * 1024  # of all of these lists, as they are encoded
_ENTRY_BYTES = 64  # of a tool in a list that is not encoded: the description itself is shared
_MAX_PERSONAL_TABLES = 64  # of callers with logins of their own
_MAX_CANDIDATES = 10  # that an error names
_TOOL_CALL = "fabric.tool.call"


class _ToolCallArguments(msgspec.Struct):
    tool_id: str = ""


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

    @property
    def key(self) -> ToolKey:
        return self.manifest.agent_id, self.capability.name

    def is_visible_to(self, principal: Principal) -> bool:
        return find_refusal(principal, self.manifest, self.capability.name) is None


class ListingClient(msgspec.Struct, frozen=True):
    """What a client says of itself that matters for a list of tools."""

    name: str = ""
    wants_all: bool = False  # it searches in a list of any length by itself


DEFAULT_CLIENT = ListingClient()


class McpServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an MCP server is called."""

    name: str
    title: str
    version: str


class ToolList(list[dict[str, Any]]):
    """A list of tools with its encoded form, which lives as long as the list."""

    encoded: bytes | None = None


class ToolCatalog(Protocol):
    """The tools that one MCP server offers."""

    has_job_tools: bool  # whether its tools can follow a job

    @property
    def server_info(self) -> McpServerInfo: ...

    def list_source_agents(self) -> Sequence[Manifest]:
        """The agents whose prompts and resources are listed beside the tools."""
        ...

    def make_instructions(self, principal: Principal) -> str:
        """How the server introduces itself to this caller."""
        ...

    def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        """The tools that this caller sees, as `tools/list` renders them."""
        ...

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Raises UnknownOperation or CapabilityNotFound if there is no such tool, BadInput for bad arguments.

        A caller with limits gets Forbidden for what it may not call, whether there is such a tool or not.
        """
        ...

    def get_input_schema(self, name: str, principal: Principal) -> dict[str, Any] | None:
        """The input schema of a tool; None if there is no such tool."""
        ...

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        """The agents that this caller may see."""
        ...

    def has_no_header_params(self, name: str) -> bool:
        """Whether no argument of this tool has to be repeated in a header, for any caller."""
        ...

    def find_target(self, name: str, principal: Principal) -> tuple[str, str] | None:
        """The agent and the capability behind a tool; None for the gateway's own tools."""
        ...


class _ToolTable:
    """The tools of one state of the catalog, by each of their names."""

    def __init__(
        self,
        items: Sequence[CatalogTool],
        settings: ToolListSettings,
        find_own_name: Callable[[Manifest, Capability], str | None] = lambda _, capability: capability.name,
    ) -> None:
        self.agent_tools = [item for item in items if not item.manifest.is_tool]
        self.builtin_tools = [i for i in items if i.manifest.is_tool and i.manifest.metadata.get("enabled", True)]
        self.by_name: dict[str, CatalogTool] = {}
        # Agent ids may hold dots. Of two tools with the same dotted name the one with the longer agent id wins, as in
        # `operations`; but an agent that registered itself never wins over one that the operator declared.
        for item in sorted(items, key=lambda each: (not each.is_registered, len(each.manifest.agent_id))):
            self.by_name[item.canonical_name] = item
        self.by_name.update((item.name, item) for item in items)
        # A user interface calls the tools of its own server, and knows them by the server's names only.
        with_ui = {item.manifest.agent_id for item in items if find_ui_uri(item.capability.metadata) is not None}
        self.by_own_name: dict[str, list[CatalogTool]] = {}
        for item in items:
            if item.manifest.agent_id in with_ui and may_app_call(item.capability.metadata):
                own_name = find_own_name(item.manifest, item.capability)
                if own_name is not None:
                    self.by_own_name.setdefault(own_name, []).append(item)
        self.lists: dict[tuple[Any, ...], ToolList] = {}
        self.described: dict[int, dict[str, Any]] = {}  # by the id of an item, which the lists share
        self.without_header_params: dict[str, bool] = {}
        listable = [*self.agent_tools, *self.builtin_tools] if settings.builtin_tools else self.agent_tools
        self.listable = listable
        # Uses are noted only of tools that might not be listed, and only if there are any.
        self.always_listed: set[int] | None = None
        if len(listable) > settings.max_listed:
            pinned = settings.pinned_view
            self.pinned = [each for each in listable if pinned.includes(each.manifest, each.capability.name)]
            by_rank = dict.fromkeys(map(id, (*self.pinned, *listable)))
            self.always_listed = set(list(by_rank)[: max(0, settings.max_listed - MAX_RECENT_TOOLS)])
        else:
            self.pinned = []


class GatewayToolCatalog:
    """The operations of the node and the tools of all its agents."""

    server_info = McpServerInfo(name="a2a-fabric", title="A2A Fabric", version=__version__)

    def __init__(
        self,
        gateway: Gateway,
        operations: Operations,
        settings: ToolListSettings,
        can_become_job: Callable[[Capability], bool],
        *,
        name_style: Literal["safe", "dotted"],
    ) -> None:
        self._gateway = gateway
        self._operations = operations
        self._settings = settings
        self._can_become_job = can_become_job
        self._name_style = name_style
        self._recent_tools = RecentTools()
        self.has_job_tools = settings.gateway_tools != "none" and settings.disclosure != "search"
        self._operation_names = assign_names({op.name: op.name for op in operations}, {})
        self._assigned_names: dict[Any, str] = dict(self._operation_names)
        self._operation_by_name = {name: canonical_name for canonical_name, name in self._operation_names.items()}
        self._agent_catalog: object = None
        self._table = _ToolTable((), settings)
        self._personal_tables: OrderedDict[object, _ToolTable] = OrderedDict()  # by the caller's catalog

    @cached_property
    def _operation_tools(self) -> list[tuple[Operation[Any], dict[str, Any]]]:
        """Described on first use, as that takes a tenth of the time in which a node starts."""
        names = {op.name: op.name for op in self._operations} if self._name_style == "dotted" else self._operation_names
        return [(op, describe_operation(names[op.name], op)) for op in self._operations]

    @cached_property
    def _short_tools(self) -> dict[str, dict[str, Any]]:
        short_tools = {**SEARCH_TOOLS, **CALL_TOOLS, **JOB_TOOLS}
        return {
            op.name: _shorten(described, shorten_schema(op.input_schema, short_tools[op.name]))
            for op, described in self._operation_tools
            if op.name in short_tools
        }

    def make_instructions(self, principal: Principal) -> str:
        view_names = [f"'{view.name}'" for view in principal.views or ()]
        count = self._count_listable(principal)
        return self._settings.make_instructions(self._settings.describe_hidden(count), view_names, count)

    def describe_hidden(self, principal: Principal) -> str | None:
        """A sentence about the tools that are not listed to this caller; None if all are."""
        return self._settings.describe_hidden(self._count_listable(principal))

    def _count_listable(self, principal: Principal) -> int:
        catalog = self._gateway.registry.visible_to(principal)
        builtin = catalog.tools if self._settings.builtin_tools else ()
        enabled = sum(bool(manifest.metadata.get("enabled", True)) for manifest in builtin)
        return catalog.capability_count + enabled

    def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        table = self._get_table(principal)
        wants_all = client.wants_all or client.name in self._settings.searching_clients
        recent = () if table.always_listed is None or wants_all else self._recent_tools.get(principal.principal_id)
        key = make_access_key(principal), wants_all, frozenset(recent)
        listed = table.lists.get(key)
        if listed is None:
            if len(table.lists) >= _MAX_CACHED_LISTS or _measure_lists(table.lists.values()) > _MAX_CACHED_BYTES:
                table.lists.clear()
            chosen = self._choose_tools(table, principal, recent, wants_all=wants_all)
            described = (self._describe(table, item) for item in chosen)
            listed = ToolList((*described, *self._list_gateway_tools(principal, chosen)))
            table.lists[key] = listed
        return listed

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        table = self._get_table(principal)
        item = table.by_name.get(name)
        if item is None and name in table.by_own_name:
            candidates = self._list_own_named(table, name, principal)
            if len(candidates) > 1:
                raise _ambiguous_name(name, candidates)
            item = candidates[0] if candidates else None
        if item is not None and (not is_limited(principal) or item.is_visible_to(principal)):
            if table.always_listed is not None:
                self._note_use(table, item, principal)
            return self._operations.prepare_tool(item.tool, item.canonical_name, raw)
        operation = self._operation_by_name.get(name, name)
        if operation == _TOOL_CALL and table.always_listed is not None:
            called = wire.decode_or_none(raw, _ToolCallArguments)
            item = None if called is None else table.by_name.get(PREFIX + called.tool_id.removeprefix(PREFIX))
            if item is not None and item.is_visible_to(principal):
                self._note_use(table, item, principal)
        if operation not in self._operation_names and is_limited(principal) and not operation.startswith(PREFIX):
            raise forbidden_tool(name, principal)
        return self._operations.prepare(operation, raw, principal)

    def _list_own_named(self, table: _ToolTable, name: str, principal: Principal) -> list[CatalogTool]:
        """The tools that a user interface could mean by this name; those of declared agents, if there are any."""
        if self._operation_by_name.get(name, name) in self._operation_names or name.startswith(PREFIX):
            return []
        visible = [each for each in table.by_own_name.get(name, ()) if each.is_visible_to(principal)]
        return [each for each in visible if not each.is_registered] or visible

    def get_input_schema(self, name: str, principal: Principal) -> dict[str, Any] | None:
        item = self._get_table(principal).by_name.get(name)
        if item is not None:
            return to_input_schema(item.capability.input_schema)
        operation = self._operation_by_name.get(name, name)
        return next((each["inputSchema"] for op, each in self._operation_tools if op.name == operation), None)

    def find_target(self, name: str, principal: Principal) -> tuple[str, str] | None:
        table = self._get_table(principal)
        item = table.by_name.get(name)
        if item is None and len(candidates := self._list_own_named(table, name, principal)) == 1:
            item = candidates[0]
        return None if item is None else item.key

    def has_no_header_params(self, name: str) -> bool:
        table = self._get_shared_table()
        is_without = table.without_header_params.get(name)
        if is_without is None:
            item = table.by_name.get(name)
            if item is None:
                return not self._gateway.registry.has_logins  # it may be a tool that only some callers are offered
            is_without = _declares_no_header(item.capability) and not item.manifest.wants_login
            table.without_header_params[name] = is_without
        return is_without

    def list_source_agents(self) -> Sequence[Manifest]:
        return self._gateway.registry.catalog.agents

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        return self._gateway.registry.visible_to(principal).agents

    def _choose_tools(
        self, table: _ToolTable, principal: Principal, recent: Sequence[ToolKey], *, wants_all: bool
    ) -> list[CatalogTool]:
        """The tools of agents that are listed to this caller."""
        if self._settings.disclosure == "search" and not wants_all:
            return []
        visible = [item for item in table.listable if item.is_visible_to(principal)]
        if wants_all:
            return visible
        by_key = {item.key: item for item in visible} if recent else {}
        used = [by_key[key] for key in recent if key in by_key]
        pinned = [item for item in table.pinned if item.is_visible_to(principal)]
        return self._settings.choose_tools(visible, pinned, used)

    def _list_gateway_tools(self, principal: Principal, listed: Sequence[CatalogTool]) -> list[dict[str, Any]]:
        settings, open_tools = self._settings, [each for each in self._operation_tools if each[0].is_open_to(principal)]
        if settings.disclosure == "search":
            names = SEARCH_TOOLS
        elif settings.gateway_tools == "minimal":
            has_jobs = any(self._can_become_job(item.capability) for item in listed)
            names = {**SEARCH_TOOLS, **CALL_TOOLS, **(JOB_TOOLS if has_jobs else {})}
        else:
            return [described for _, described in open_tools] if settings.gateway_tools == "all" else []
        open_names = {operation.name for operation, _ in open_tools}
        return [self._short_tools[name] for name in names if name in open_names]

    def _note_use(self, table: _ToolTable, item: CatalogTool, principal: Principal) -> None:
        if table.always_listed is not None and id(item) not in table.always_listed:
            self._recent_tools.note(principal.principal_id, item.key)

    def _describe(self, table: _ToolTable, item: CatalogTool) -> dict[str, Any]:
        described = table.described.get(id(item))
        if described is None:
            is_dotted = self._name_style == "dotted" and table.by_name[item.canonical_name] is item
            name = item.canonical_name if is_dotted else item.name
            described = describe_capability(name, item.canonical_name, item.manifest, item.capability)
            table.described[id(item)] = described
        return described

    def _get_table(self, principal: Principal) -> _ToolTable:
        """The tools of all agents, as far as agents offer them to this caller."""
        shared, registry = self._get_shared_table(), self._gateway.registry
        catalog = registry.catalog_for(principal) if registry.has_logins else registry.catalog
        if catalog is registry.catalog:
            return shared
        table = self._personal_tables.get(catalog)
        if table is None:
            # The names of the shared table stay. Those of other callers' tools play no part, so they cannot be guessed.
            table, _ = self._build_table(catalog)
            # A client may call what it was shown before its user signed in.
            hints = {name: item for name, item in shared.by_name.items() if item.capability is LOGIN_CAPABILITY}
            table.by_name = hints | table.by_name
            self._personal_tables[catalog] = table
            if len(self._personal_tables) > _MAX_PERSONAL_TABLES:
                self._personal_tables.popitem(last=False)
        self._personal_tables.move_to_end(catalog)
        return table

    def _get_shared_table(self) -> _ToolTable:
        catalog = self._gateway.registry.catalog
        if catalog is not self._agent_catalog:
            self._table, self._assigned_names = self._build_table(catalog)
            self._personal_tables.clear()
            self._agent_catalog = catalog
        return self._table

    def _build_table(self, catalog: Iterable[Manifest]) -> tuple[_ToolTable, dict[Any, str]]:
        """The tools of a catalog, and all names that are assigned then."""
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
        items = [
            CatalogTool(
                name=assigned[key],
                canonical_name=make_canonical_name(m, c),
                tool=CallableTool(manifest=m, capability=c),
                is_registered=key in registered_words,
            )
            for key, (m, c) in offers.items()
        ]
        names = {**remember_names(assigned, self._assigned_names), **operation_names}
        return _ToolTable(items, self._settings, self._gateway.registry.find_own_name), names


def _measure_lists(lists: Iterable[ToolList]) -> int:
    return sum(_ENTRY_BYTES * len(each) + len(each.encoded or b"") for each in lists)


def _shorten(described: dict[str, Any], input_schema: dict[str, Any]) -> dict[str, Any]:
    """A tool of the gateway without its output schema, which is optional and costs every client context."""
    return {key: value for key, value in described.items() if key != "outputSchema"} | {"inputSchema": input_schema}


def _ambiguous_name(name: str, candidates: Sequence[CatalogTool]) -> BadInput:
    names = ", ".join(each.name for each in candidates[:_MAX_CANDIDATES])
    return BadInput(f"Several agents have a tool '{name}'. Call one of: {names}", tool=name)


def _declares_no_header(capability: Capability) -> bool:
    """A schema marks arguments that must be repeated in headers by a keyword."""
    return b"x-mcp-header" not in msgspec.json.encode(capability.input_schema)


def make_canonical_name(manifest: Manifest, capability: Capability) -> str:
    """The canonical name, as `/mcp/call` accepts it."""
    if manifest.is_tool:
        return f"fabric.tool.{manifest.agent_id}"
    return f"fabric.tool.agent.{manifest.agent_id}.{capability.name}"


def _name_words(manifest: Manifest, capability: Capability) -> str:
    return make_canonical_name(manifest, capability) if manifest.is_tool else f"{manifest.agent_id}.{capability.name}"


class AgentToolCatalog:
    """The capabilities of one agent, under the names in the catalog, and for user interfaces under the agent's own."""

    has_job_tools = False

    def __init__(self, gateway: Gateway, operations: Operations, manifest: Manifest) -> None:
        self._gateway = gateway
        self._operations = operations
        self._agent_id = manifest.agent_id
        self.server_info = McpServerInfo(
            name=manifest.agent_id,
            title=manifest.display_name or manifest.agent_id,
            version=manifest.version,
        )
        self._instructions = manifest.description

    def make_instructions(self, principal: Principal) -> str:
        return self._instructions

    def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        manifest = self._get_manifest(principal)
        return ToolList(
            describe_capability(capability.name, make_canonical_name(manifest, capability), manifest, capability)
            for capability in manifest.capabilities
            if find_refusal(principal, manifest, capability.name) is None
        )

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        manifest = self._get_manifest(principal)
        capability = self._find_capability(manifest, name)
        if find_refusal(principal, manifest, name if capability is None else capability.name) is not None:
            raise forbidden_tool(name, principal)
        if capability is None:
            if not manifest.is_open_ended:
                offered = [each.name for each in list_callable_capabilities(principal, manifest)]
                raise CapabilityNotFound(manifest.agent_id, name, offered)
            capability = Capability(name=name)  # the agent has not declared its capabilities, so the call decides
        return self._operations.prepare_tool(CallableTool(manifest=manifest, capability=capability), name, raw)

    def get_input_schema(self, name: str, principal: Principal) -> dict[str, Any] | None:
        capability = self._find_capability(self._get_manifest(principal), name)
        return None if capability is None else to_input_schema(capability.input_schema)

    def find_target(self, name: str, principal: Principal) -> tuple[str, str] | None:
        capability = self._find_capability(self._get_manifest(principal), name)
        return self._agent_id, name if capability is None else capability.name

    def has_no_header_params(self, name: str) -> bool:
        manifest = self._gateway.registry.get_agent(self._agent_id)
        capability = self._find_capability(manifest, name)
        return not manifest.wants_login and (capability is None or _declares_no_header(capability))

    def list_source_agents(self) -> Sequence[Manifest]:
        """For the user interfaces of its tools. A caller who may use all of the agent is proxied to it."""
        manifest = self._gateway.registry.catalog.get(self._agent_id)
        return () if manifest is None else [manifest]

    def list_visible_agents(self, principal: Principal) -> Sequence[Manifest]:
        visible = narrow_manifest(principal, self._get_manifest(principal))
        return [] if visible is None else [visible]

    def _find_capability(self, manifest: Manifest, name: str) -> Capability | None:
        """By the name in the catalog; a user interface of the agent finds a tool that was renamed by its own name."""
        capability = manifest.find_capability(name)
        if capability is not None or all(find_ui_uri(each.metadata) is None for each in manifest.capabilities):
            return capability
        find_own_name = self._gateway.registry.find_own_name
        renamed = (each for each in manifest.capabilities if may_app_call(each.metadata))
        return next((each for each in renamed if find_own_name(manifest, each) == name), None)

    def _get_manifest(self, principal: Principal) -> Manifest:
        """What the agent offers this caller, whether it may call that or not."""
        manifest = self._gateway.registry.catalog_for(principal).get(self._agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(self._agent_id)
        return manifest
