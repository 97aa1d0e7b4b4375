"""Which tools there are: the gateway's operations and every agent's capabilities, or one agent's alone.

A shelf reads the catalog as it is now; what it has worked out is kept until the
catalog changes. Who may see a tool is asked of each caller, who may call it is the
gateway's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, CapabilityNotFound
from a2a_fabric.core.policy import callable_of, is_limited, narrowed, reach_of, refusal
from a2a_fabric.doors.mcp import names
from a2a_fabric.doors.mcp.tool import describe_capability, describe_operation, input_schema_of
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations import Operations, Prepared, Tool
from a2a_fabric.operations.tools import PREFIX, no_such_tool
from a2a_fabric.version import __version__

_LISTS_KEPT = 256  # one for each kind of caller
_INSTRUCTIONS = (
    "A gateway to agents. Each capability of each agent is a tool of its own; fabric_agent_list tells who is there, "
    "fabric_tool_list with a query finds a tool that is not listed, fabric_tool_call and fabric_call run it."
)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A capability of an agent (or a built-in tool) under the names it has here."""

    name: str
    dotted: str
    tool: Tool
    is_registered: bool = False  # by its owner, not declared by the operator

    @property
    def manifest(self) -> Manifest:
        return self.tool.manifest

    @property
    def capability(self) -> Capability:
        return self.tool.capability

    def is_shown_to(self, principal: Principal) -> bool:
        return refusal(principal, self.manifest, self.capability.name) is None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What an MCP server says of itself."""

    name: str
    title: str
    version: str
    instructions: str


class Shelf(Protocol):
    """What one MCP server offers."""

    has_job_tools: bool  # whether its tools can follow a job

    @property
    def about(self) -> About: ...

    def holders(self) -> Sequence[Manifest]:
        """The agents whose prompts and resources are shown beside the tools."""
        ...

    def tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        """The tools this caller is shown, as `tools/list` shows them."""
        ...

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> Prepared:
        """Raises UnknownOperation or CapabilityNotFound if there is no such tool, BadInput for bad arguments.

        A caller with limits gets Forbidden for what it may not call, whether there is such a tool or not.
        """
        ...

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """The input schema of a tool; None if there is no such tool."""
        ...

    def agents(self, principal: Principal) -> Sequence[Manifest]:
        """The agents this caller may know of."""
        ...

    def is_plain(self, name: str) -> bool:
        """Whether a call of this tool needs no look at headers beside its body."""
        ...

    def behind(self, name: str) -> tuple[str, str] | None:
        """The agent and the capability that a tool stands for; None for the gateway's own."""
        ...


class _Table:
    """The items of one catalog, by each of their names."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.agents = [item for item in items if not item.manifest.is_tool]
        self.builtin = [i for i in items if i.manifest.is_tool and i.manifest.metadata.get("enabled", True)]
        self.by_name: dict[str, Item] = {}
        # Agent ids may hold dots: of two with the same dotted name the longer id wins, as operations have it, but none
        # that registered itself wins over one that the operator declared.
        for item in sorted(items, key=lambda each: (not each.is_registered, len(each.manifest.agent_id))):
            self.by_name[item.dotted] = item
        self.by_name.update((item.name, item) for item in items)
        self.lists: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self.plain: dict[str, bool] = {}


class GatewayShelf:
    """Operations and agents of the node."""

    has_job_tools = True

    about = About(name="a2a-fabric", title="A2A Fabric", version=__version__, instructions=_INSTRUCTIONS)

    def __init__(
        self,
        gateway: Gateway,
        operations: Operations,
        *,
        style: Literal["safe", "dotted"],
        max_listed: int,
        builtin_tools: bool,
    ) -> None:
        self._gateway = gateway
        self._operations = operations
        self._style = style
        self._max_listed = max_listed
        self._builtin_tools = builtin_tools
        own = names.assign({op.name: op.name for op in operations}, {})
        self._known: dict[Any, str] = dict(own)
        self._operation_of = {name: dotted for dotted, name in own.items()}
        self._schemas = {op.name: input_schema_of(op.input_schema) for op in operations}
        listed = [(op.name if style == "dotted" else own[op.name], op) for op in operations]
        self._own_tools = [(op, describe_operation(name, op)) for name, op in listed]
        self._catalog: object = None
        self._table = _Table(())

    def tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        table = self._current()
        reach = reach_of(principal)
        found = table.lists.get(reach)
        if found is None:
            if len(table.lists) >= _LISTS_KEPT:
                table.lists.clear()
            own = [described for operation, described in self._own_tools if operation.is_open_to(principal)]
            found = table.lists[reach] = [*own, *map(self._described, self._shown(table, principal))]
        return found

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> Prepared:
        item = self._current().by_name.get(name)
        if item is not None and (not is_limited(principal) or item.is_shown_to(principal)):
            return self._operations.prepare_tool(item.tool, item.dotted, raw)
        operation = self._operation_of.get(name, name)
        if operation not in self._schemas and is_limited(principal) and not operation.startswith(PREFIX):
            raise no_such_tool(name)
        return self._operations.prepare(operation, raw, principal)

    def schema_of(self, name: str) -> dict[str, Any] | None:
        item = self._current().by_name.get(name)
        if item is not None:
            return input_schema_of(item.capability.input_schema)
        return self._schemas.get(self._operation_of.get(name, name))

    def behind(self, name: str) -> tuple[str, str] | None:
        item = self._current().by_name.get(name)
        return None if item is None else (item.manifest.agent_id, item.capability.name)

    def is_plain(self, name: str) -> bool:
        table = self._current()
        plain = table.plain.get(name)
        if plain is None:
            item = table.by_name.get(name)
            if item is None:
                return True
            plain = table.plain[name] = _needs_no_header(item.capability)
        return plain

    def holders(self) -> Sequence[Manifest]:
        return self._gateway.registry.catalog.agents

    def agents(self, principal: Principal) -> Sequence[Manifest]:
        return self._gateway.registry.seen_by(principal).agents

    def _shown(self, table: _Table, principal: Principal) -> list[Item]:
        """Nothing rather than a part: a model that sees some agents would not look for the others."""
        most = self._max_listed - len(self._own_tools)
        shown = [item for item in table.agents if item.is_shown_to(principal)]
        if len(shown) > most:
            return []
        if self._builtin_tools:
            builtin = [item for item in table.builtin if item.is_shown_to(principal)]
            shown += builtin if len(shown) + len(builtin) <= most else []
        return shown

    def _described(self, item: Item) -> dict[str, Any]:
        is_dotted = self._style == "dotted" and self._table.by_name[item.dotted] is item
        return describe_capability(item.dotted if is_dotted else item.name, item.dotted, item.manifest, item.capability)

    def _current(self) -> _Table:
        catalog = self._gateway.registry.catalog
        if catalog is not self._catalog:
            offers = {(m.agent_id, c.name): (m, c) for m in catalog for c in m.capabilities}
            wanted: dict[Any, str] = {key: _words(m, c) for key, (m, c) in offers.items()}
            own: dict[Any, str] = {dotted: name for name, dotted in self._operation_of.items()}
            registered = {m.agent_id for m in catalog if self._gateway.registry.is_registered(m.agent_id)}
            others = {key: words for key, words in wanted.items() if key[0] in registered}
            first = {key: words for key, words in wanted.items() if key not in others}
            given = names.assign_in_order({**{op: op for op in own}, **first}, others, {**self._known, **own})
            given = {key: given[key] for key in wanted}
            self._known = {**names.remembered(given, self._known), **own}
            items = [_item(given[key], *offer, is_registered=key in others) for key, offer in offers.items()]
            self._table = _Table(items)
            self._catalog = catalog
        return self._table


def _needs_no_header(capability: Capability) -> bool:
    """A schema may want arguments repeated in headers; it says so in a keyword."""
    return b"x-mcp-header" not in msgspec.json.encode(capability.input_schema)


def _item(name: str, manifest: Manifest, capability: Capability, *, is_registered: bool) -> Item:
    tool = Tool(manifest=manifest, capability=capability)
    return Item(name=name, dotted=dotted_name(manifest, capability), tool=tool, is_registered=is_registered)


def dotted_name(manifest: Manifest, capability: Capability) -> str:
    """The canonical name, as `/mcp/call` takes it."""
    if manifest.is_tool:
        return f"fabric.tool.{manifest.agent_id}"
    return f"fabric.tool.agent.{manifest.agent_id}.{capability.name}"


def _words(manifest: Manifest, capability: Capability) -> str:
    return dotted_name(manifest, capability) if manifest.is_tool else f"{manifest.agent_id}.{capability.name}"


class AgentShelf:
    """One agent's capabilities under their own names."""

    has_job_tools = False

    def __init__(self, gateway: Gateway, operations: Operations, manifest: Manifest) -> None:
        self._gateway = gateway
        self._operations = operations
        self._agent_id = manifest.agent_id
        self.about = About(
            name=manifest.agent_id,
            title=manifest.display_name or manifest.agent_id,
            version=manifest.version,
            instructions=manifest.description,
        )

    def tools(self, principal: Principal) -> Sequence[dict[str, Any]]:
        manifest = self._manifest()
        return [
            describe_capability(capability.name, dotted_name(manifest, capability), manifest, capability)
            for capability in manifest.capabilities
            if refusal(principal, manifest, capability.name) is None
        ]

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> Prepared:
        manifest = self._manifest()
        capability = manifest.capability(name)
        if refusal(principal, manifest, name if capability is None else capability.name) is not None:
            raise no_such_tool(name)
        if capability is None:
            if manifest.capabilities:
                offered = [each.name for each in callable_of(principal, manifest)]
                raise CapabilityNotFound(manifest.agent_id, name, offered)
            capability = Capability(name=name)  # the agent has not said what it offers, so it is asked
        return self._operations.prepare_tool(Tool(manifest=manifest, capability=capability), name, raw)

    def schema_of(self, name: str) -> dict[str, Any] | None:
        capability = self._manifest().capability(name)
        return None if capability is None else input_schema_of(capability.input_schema)

    def behind(self, name: str) -> tuple[str, str] | None:
        capability = self._manifest().capability(name)
        return self._agent_id, name if capability is None else capability.name

    def is_plain(self, name: str) -> bool:
        capability = self._manifest().capability(name)
        return capability is None or _needs_no_header(capability)

    def holders(self) -> Sequence[Manifest]:
        """None: whoever may see what an agent holds is handed through to the agent itself."""
        return ()

    def agents(self, principal: Principal) -> Sequence[Manifest]:
        seen = narrowed(principal, self._manifest())
        return [] if seen is None else [seen]

    def _manifest(self) -> Manifest:
        manifest = self._gateway.registry.catalog.get(self._agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(self._agent_id)
        return manifest
