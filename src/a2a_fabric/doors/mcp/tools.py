"""The tool catalog of the MCP door: which tools a caller is shown, and how described.

Lists are cached until the catalog of agents changes. The catalog decides what a caller sees; the gateway decides what
it may call. A caller with logins of its own has a table of its own, because agents offer it other tools than others."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from a2a_fabric.core.agent import LOGIN_CAPABILITY, Capability, Manifest
from a2a_fabric.core.call import ATTACHMENTS, Principal, has_rules
from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound
from a2a_fabric.core.policy import (
    LASTING_MODES,
    MAX_REMEMBERED,
    find_refusal,
    is_limited,
    list_callable_capabilities,
    make_access_key,
    narrow_manifest,
)
from a2a_fabric.core.ports import AgentCatalog
from a2a_fabric.core.result import ANY_JSON
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.mcp.tool_list import (
    CALL_TOOLS,
    JOB_TOOLS,
    SEARCH_TOOLS,
    RecentTools,
    ToolList,
    ToolListSettings,
    shorten_schema,
)
from a2a_fabric.doors.mcp.tool_names import ToolKey, ToolNames, assign_names
from a2a_fabric.doors.mcp.tool_table import CatalogTool, ToolTable, make_canonical_name
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations import CallableTool, Operation, Operations, PlainToolCalls, PreparedOperation
from a2a_fabric.operations.tools import PREFIX, forbidden_tool
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.apps import find_ui_uri, may_app_call, to_public_tool_meta
from a2a_fabric.version import __version__

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
_MAX_PERSONAL_TABLES = 64  # of callers with logins of their own
_MAX_CANDIDATES = 10  # that an error names
_MAX_TRIES = 5
_STEPS_PER_TURN = 64  # steps of an update of the table before other requests may run
_TOOL_CALL = "fabric.tool.call"
_encode = msgspec.json.Encoder().encode
_get_id = attrgetter("agent_id")


class _ToolCallArguments(msgspec.Struct):
    tool_id: str = ""


class _OperationTool(NamedTuple):
    """An operation as a tool: encoded whole, and as a short list shows it."""

    operation: Operation[Any]
    encoded: bytes
    encoded_short: bytes | None


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


class ToolCatalog(Protocol):
    """The tools that one MCP server offers."""

    has_job_tools: bool  # whether its tools can follow a job

    @property
    def is_current(self) -> bool:
        """Whether a lookup of a tool returns at once."""
        ...

    async def refresh(self, principal: Principal) -> None:
        """Take over what changed since the last request, for this caller; with other requests in between."""
        ...

    @property
    def server_info(self) -> McpServerInfo: ...

    def list_source_agents(self) -> Sequence[Manifest]:
        """The agents whose prompts and resources are listed beside the tools."""
        ...

    def make_instructions(self, principal: Principal) -> str:
        """How the server introduces itself to this caller."""
        ...

    async def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        """The tools that this caller sees, as `tools/list` renders them."""
        ...

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Raises UnknownOperation or CapabilityNotFound if there is no such tool, BadInput for bad arguments.

        A caller with limits gets Forbidden for what it may not call, whether there is such a tool or not.
        """
        ...

    def find_plain_calls(self, name: str, principal: Principal) -> PlainToolCalls | None:
        """A shorter way than `prepare` to plain calls of a tool, if there is one for this tool and this caller.

        Such a tool wants no argument repeated in a header.
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
        self._operation_by_name = {name: canonical_name for canonical_name, name in self._operation_names.items()}
        self._table = self._make_table()
        self._operation_tools: dict[str, _OperationTool] | None = None  # by canonical name
        self._update: Iterator[None] | None = None  # of the table; several requests may drive it
        self._personal_tables: OrderedDict[object, ToolTable] = OrderedDict()  # by the caller's catalog

    @property
    def is_current(self) -> bool:
        return self._table.catalog is self._gateway.registry.catalog

    async def refresh(self, principal: Principal) -> None:
        await self._prepare_view(principal)

    async def _prepare_view(self, principal: Principal) -> AgentCatalog:
        """The catalog as this caller sees it, of the same state as the table, which is up to date then."""
        registry = self._gateway.registry
        for _ in range(_MAX_TRIES):
            catalog = registry.catalog
            view = await registry.prepare_view(principal)
            while not self.is_current:
                if not self._update_table(_STEPS_PER_TURN):
                    await asyncio.sleep(0)
            if registry.catalog is catalog:
                return view
        return registry.visible_to(principal)  # agents change faster than that

    async def _describe_operations(self) -> dict[str, _OperationTool]:
        """On first use, as that takes a tenth of the time in which a node starts."""
        short_tools = {**SEARCH_TOOLS, **CALL_TOOLS, **JOB_TOOLS}
        described: dict[str, _OperationTool] = {}
        async for [operation] in iterate_in_slices(self._operations, 1):
            name = operation.name
            listed_name = name if self._name_style == "dotted" else self._operation_names[name]
            tool, short = describe_operation(listed_name, operation), None
            if name in short_tools:
                short = _encode(_shorten(tool, shorten_schema(operation.input_schema, short_tools[name])))
            described[name] = _OperationTool(operation, _encode(tool), short)
        return described

    def make_instructions(self, principal: Principal) -> str:
        view_names = [f"'{view.name}'" for view in principal.views or ()]
        count = self._count_listable(principal)
        return self._settings.make_instructions(self._settings.describe_hidden(count), view_names, count)

    def describe_hidden(self, principal: Principal) -> str | None:
        """A sentence about the tools that are not listed to this caller; None if all are."""
        return self._settings.describe_hidden(self._count_listable(principal))

    def _count_listable(self, principal: Principal) -> int:
        catalog = self._gateway.registry.visible_to(principal)
        builtin = _list_enabled(catalog.tools) if self._settings.builtin_tools else ()
        return catalog.capability_count + len(builtin)

    async def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        if self._operation_tools is None:
            self._operation_tools = await self._describe_operations()
        view = await self._prepare_view(principal)
        table = self._get_table(principal)
        wants_all = client.wants_all or client.name in self._settings.searching_clients
        recent = () if not table.may_hide_tools or wants_all else self._recent_tools.get(principal.principal_id)
        key = make_access_key(principal), wants_all, frozenset(recent)
        listed = table.lists.get(key)
        if listed is None:
            catalog, encoded, has_jobs = table.catalog, list[bytes](), False
            chosen = await self._choose_tools(table, view, recent, wants_all=wants_all)
            async for items in iterate_in_slices(chosen):
                encoded += [self._encode_tool(table, item) for item in items]
                has_jobs = has_jobs or any(self._can_become_job(item.capability) for item in items)
            listed = ToolList((*encoded, *self._list_gateway_tools(principal, has_jobs=has_jobs)))
            if table.catalog is catalog:  # else it is outdated already
                if len(table.lists) >= _MAX_CACHED_LISTS or _measure_lists(table.lists.values()) > _MAX_CACHED_BYTES:
                    table.lists.clear()
                table.lists[key] = listed
        return listed

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        table = self._get_table(principal)
        item = table.by_name.get(name)
        if item is None and table.find_by_own_name(name):
            candidates = self._list_own_named(table, name, principal)
            if len(candidates) > 1:
                raise _ambiguous_name(name, candidates)
            item = candidates[0] if candidates else None
        is_known = item is not None and table.allowed.get((id(principal), name)) is principal
        if item is not None and (is_known or self._may_call(table, item, name, principal)):
            if table.may_hide_tools:
                self._note_use(table, item, principal)
            return self._operations.prepare_tool(item.tool, item.canonical_name, raw)
        operation = self._operation_by_name.get(name, name)
        if operation == _TOOL_CALL and table.may_hide_tools:
            called = wire.decode_or_none(raw, _ToolCallArguments)
            item = None if called is None else table.by_name.get(PREFIX + called.tool_id.removeprefix(PREFIX))
            if item is not None and item.is_visible_to(principal):
                self._note_use(table, item, principal)
        if operation not in self._operation_names and is_limited(principal) and not operation.startswith(PREFIX):
            raise forbidden_tool(name, principal)
        return self._operations.prepare(operation, raw, principal)

    def find_plain_calls(self, name: str, principal: Principal) -> PlainToolCalls | None:
        """Kept in the table until the catalog changes. A principal is another object when its rights change."""
        table, registry = self._table, self._gateway.registry
        if table.catalog is not registry.catalog:
            return None  # `prepare` brings the table up to date
        kept = table.plain_calls.get((id(principal), name))
        if kept is None:
            return None if registry.has_logins else self._plan_plain_calls(table, name, principal)
        plain_calls, noted_key = kept
        if noted_key is not None:
            self._recent_tools.note(principal.principal_id, noted_key)
        return plain_calls

    def _plan_plain_calls(self, table: ToolTable, name: str, principal: Principal) -> PlainToolCalls | None:
        """None where `prepare` has something to find out each time. `has_logins` changes only with the catalog."""
        item = table.by_name.get(name)
        if item is None or not self.has_no_header_params(name) or not self._may_call(table, item, name, principal):
            return None
        plain_calls = self._operations.plan_plain_calls(item.tool, principal)
        if plain_calls is None:
            return None
        is_noted = table.may_hide_tools and not table.is_always_listed(item)
        if is_noted:
            self._recent_tools.note(principal.principal_id, item.key)
        if principal.mode in LASTING_MODES:
            if len(table.plain_calls) >= MAX_REMEMBERED:
                table.plain_calls.clear()
            table.plain_calls[id(principal), name] = plain_calls, item.key if is_noted else None
        return plain_calls

    def _may_call(self, table: ToolTable, item: CatalogTool, name: str, principal: Principal) -> bool:
        """Decided once for each caller and tool, until the catalog changes."""
        if is_limited(principal) and not item.is_visible_to(principal):
            return False
        if principal.mode in LASTING_MODES and not has_rules(principal):
            if len(table.allowed) >= MAX_REMEMBERED:
                table.allowed.clear()
            table.allowed[id(principal), name] = principal
        return True

    def _list_own_named(self, table: ToolTable, name: str, principal: Principal) -> list[CatalogTool]:
        """The tools that a user interface could mean by this name; those of declared agents, if there are any."""
        if self._operation_by_name.get(name, name) in self._operation_names or name.startswith(PREFIX):
            return []
        visible = [each for each in table.find_by_own_name(name) if each.is_visible_to(principal)]
        return [each for each in visible if not each.is_registered] or visible

    def get_input_schema(self, name: str, principal: Principal) -> dict[str, Any] | None:
        item = self._get_table(principal).by_name.get(name)
        if item is not None:
            return to_input_schema(item.capability.input_schema)
        canonical_name = self._operation_by_name.get(name, name)
        operation = next((each for each in self._operations if each.name == canonical_name), None)
        return None if operation is None else to_input_schema(operation.input_schema)

    def find_target(self, name: str, principal: Principal) -> tuple[str, str] | None:
        table = self._get_table(principal)
        item = table.by_name.get(name)
        if item is None and len(candidates := self._list_own_named(table, name, principal)) == 1:
            item = candidates[0]
        return None if item is None else item.key

    def has_no_header_params(self, name: str) -> bool:
        table = self._table
        if not self.is_current:
            return False  # a request that is looked at more closely waits for the update
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

    async def _choose_tools(
        self, table: ToolTable, view: AgentCatalog, recent: Sequence[ToolKey], *, wants_all: bool
    ) -> Sequence[CatalogTool]:
        """The tools of agents that are listed to the caller of this view."""
        settings = self._settings
        if settings.disclosure == "search" and not wants_all:
            return []
        builtin = _list_enabled(view.tools) if settings.builtin_tools else ()
        free = settings.max_listed
        preferred: dict[ToolKey, CatalogTool] = {}
        if wants_all or view.capability_count + len(builtin) <= free:
            free = sys.maxsize
        else:
            used = filter(None, map(table.find, recent))
            visible = (item for item in chain(table.pinned, used) if _is_in_view(item, view))
            preferred = {item.key: item for item in islice(visible, free)}
            free -= len(preferred)
        chosen: list[CatalogTool] = []
        async for manifests in iterate_in_slices((*view.agents, *builtin)):
            for item in table.iterate(manifests):
                is_preferred = preferred.pop(item.key, None) is not None
                if is_preferred or free > 0:
                    chosen.append(item)
                    free -= not is_preferred
            if free <= 0:
                break
        positions = dict(zip(map(_get_id, (*view.agents, *builtin)), count(), strict=False)) if preferred else {}
        return chosen + sorted(preferred.values(), key=lambda item: positions[item.manifest.agent_id])

    def _list_gateway_tools(self, principal: Principal, *, has_jobs: bool) -> list[bytes]:
        """`has_jobs`: whether a call of a listed tool can become a job."""
        settings, known = self._settings, self._operation_tools or {}
        open_tools = {name: each for name, each in known.items() if each.operation.is_open_to(principal)}
        if settings.disclosure == "search":
            names = SEARCH_TOOLS
        elif settings.gateway_tools == "minimal":
            names = {**SEARCH_TOOLS, **CALL_TOOLS, **(JOB_TOOLS if has_jobs else {})}
        else:
            return [each.encoded for each in open_tools.values()] if settings.gateway_tools == "all" else []
        listed = [open_tools[name] for name in names if name in open_tools]
        return [each.encoded_short or each.encoded for each in listed]

    def _note_use(self, table: ToolTable, item: CatalogTool, principal: Principal) -> None:
        if not table.is_always_listed(item):
            self._recent_tools.note(principal.principal_id, item.key)

    def _encode_tool(self, table: ToolTable, item: CatalogTool) -> bytes:
        encoded = table.encoded.get(item.key)
        if encoded is None:
            is_dotted = self._name_style == "dotted" and table.by_name[item.canonical_name] is item
            name = item.canonical_name if is_dotted else item.name
            encoded = _encode(describe_capability(name, item.canonical_name, item.manifest, item.capability))
            if table.by_name.get(item.name) is item:  # else it has just changed
                table.encoded[item.key] = encoded
        return encoded

    def _get_table(self, principal: Principal) -> ToolTable:
        """The tools of all agents, as far as agents offer them to this caller."""
        shared, registry = self._get_shared_table(), self._gateway.registry
        catalog = registry.catalog_for(principal) if registry.has_logins else registry.catalog
        if catalog is registry.catalog:
            return shared
        table = self._personal_tables.get(catalog)
        if table is None:
            # The names of the shared table stay. Those of other callers' tools play no part, so they cannot be guessed.
            table = shared.copy()
            deque(table.update(catalog), maxlen=0)
            # A client may call what it was shown before its user signed in.
            hints = {name: item for name, item in shared.by_name.items() if item.capability is LOGIN_CAPABILITY}
            table.by_name = hints | table.by_name
            self._personal_tables[catalog] = table
            if len(self._personal_tables) > _MAX_PERSONAL_TABLES:
                self._personal_tables.popitem(last=False)
        self._personal_tables.move_to_end(catalog)
        return table

    def _get_shared_table(self) -> ToolTable:
        while not self.is_current:  # the request did not wait for `refresh`
            self._update_table(sys.maxsize)
        return self._table

    def _update_table(self, max_steps: int) -> bool:
        """Do some steps of the update of the table; True if it is complete, for the catalog with which it began."""
        if self._update is None:
            self._personal_tables.clear()
            self._update = self._table.update(self._gateway.registry.catalog)
        try:
            is_complete = sum(1 for _ in islice(self._update, max_steps)) < max_steps
        except Exception:
            self._update, self._table = None, self._make_table()  # not one that is half updated
            raise
        if is_complete:
            self._update = None
        return is_complete

    def _make_table(self) -> ToolTable:
        return ToolTable(self._settings, ToolNames(self._operation_by_name), self._gateway.registry)


def _list_enabled(tools: Iterable[Manifest]) -> Sequence[Manifest]:
    return [manifest for manifest in tools if manifest.metadata.get("enabled", True)]


def _is_in_view(item: CatalogTool, view: AgentCatalog) -> bool:
    manifest = view.get(item.manifest.agent_id)
    return manifest is item.manifest or (manifest is not None and item.capability in manifest.capabilities)


def _measure_lists(lists: Iterable[ToolList]) -> int:
    return sum(each.size for each in lists)


def _shorten(described: dict[str, Any], input_schema: dict[str, Any]) -> dict[str, Any]:
    """A tool of the gateway without its output schema, which is optional and costs every client context."""
    return {key: value for key, value in described.items() if key != "outputSchema"} | {"inputSchema": input_schema}


def _ambiguous_name(name: str, candidates: Sequence[CatalogTool]) -> BadInput:
    names = ", ".join(each.name for each in candidates[:_MAX_CANDIDATES])
    return BadInput(f"Several agents have a tool '{name}'. Call one of: {names}", tool=name)


def _declares_no_header(capability: Capability) -> bool:
    """A schema marks arguments that must be repeated in headers by a keyword."""
    return b"x-mcp-header" not in msgspec.json.encode(capability.input_schema)


class AgentToolCatalog:
    """The capabilities of one agent, under the names in the catalog, and for user interfaces under the agent's own."""

    has_job_tools = False
    is_current = True

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

    async def refresh(self, principal: Principal) -> None:
        """It keeps nothing."""

    def make_instructions(self, principal: Principal) -> str:
        return self._instructions

    async def list_tools(self, principal: Principal, client: ListingClient = DEFAULT_CLIENT) -> ToolList:
        manifest = self._get_manifest(principal)
        return ToolList(
            _encode(describe_capability(each.name, make_canonical_name(manifest, each), manifest, each))
            for each in manifest.capabilities
            if find_refusal(principal, manifest, each.name) is None
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

    def find_plain_calls(self, name: str, principal: Principal) -> PlainToolCalls | None:
        """Most callers are proxied to the agent, so what is here is for few."""
        return None

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
