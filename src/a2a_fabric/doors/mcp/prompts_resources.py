"""Prompts, resources and completions of all agents: public names and URIs, visibility, and handlers.

Lists come from memory, so a slow or dead agent does not affect the others; they are cached until the catalog
or an agent's listing changes. All other requests go to the agent that owns the item. Only a caller who may
use all of an agent sees its prompts and resources. The manifests of agents are resources of the gateway
itself."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeVar

import mcp_types as types
import msgspec
from mcp.server.context import HandlerResult
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal, ignore_event
from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound, FabricError
from a2a_fabric.core.policy import AccessKey, find_refusal, make_access_key
from a2a_fabric.core.propagation import DELEGATION_META_KEY, MaybeChain, Trace, current_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import to_encodable_text
from a2a_fabric.doors.mcp import results
from a2a_fabric.doors.mcp.request import McpCallerDisconnected
from a2a_fabric.doors.mcp.results import to_error_body
from a2a_fabric.doors.mcp.sdk_request import (
    QueryElicitation,
    SdkContext,
    get_askable_capabilities,
    get_request_context,
    make_emitter,
    resource_not_found_code,
)
from a2a_fabric.doors.mcp.tool_names import assign_names, remember_names
from a2a_fabric.doors.mcp.tools import AGENT_KEY, NAME_KEY, ToolCatalog
from a2a_fabric.operations import OperationRequest
from a2a_fabric.protocols.mcp.apps import drop_own_keys, find_ui_uri
from a2a_fabric.protocols.mcp.content import ORIGINAL_KEY, to_public_block
from a2a_fabric.protocols.mcp.resource_uris import (
    AGENT_URI_PREFIX,
    UI_SCHEME,
    ItemKey,
    is_public_uri,
    make_resource_uri,
    make_template_uri,
    parse_resource_uri,
)
from a2a_fabric.protocols.mcp.runtime_ports import (
    Entries,
    PromptResourceListing,
    PromptResourceProvider,
    PromptResourceProviders,
    PromptResourceQuery,
)
from a2a_fabric.protocols.mcp.wire import RESOURCE_NOT_FOUND

T = TypeVar("T")


def make_prompt_name(key: ItemKey) -> str:
    """The canonical name of a prompt."""
    return ".".join(key)


ItemKind = Literal["prompts", "resources"]  # as clients are told of changes
ListKind = Literal["prompts", "resources", "templates"]

_MAX_CACHED_LISTS = 256  # one for each kind of caller
_MAX_PERSONAL_TABLES = 64  # of callers with logins of their own
_STRANGER = Principal(trust="public")  # it has no logins


class ItemSource(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that owns an item, and the item's original name or URI."""

    manifest: Manifest
    original: str


class SharedItem(ItemSource, frozen=True, kw_only=True):
    """An item in the lists. `address` is its name or URI at this door."""

    address: str
    entry: dict[str, Any]


_get_id = attrgetter("agent_id")


class _ItemTable:
    """The items of one state of the catalog and the agents' listings, by all of their names."""

    def __init__(
        self,
        listings: Sequence[tuple[Manifest, PromptResourceListing]] = (),
        prompt_names: Mapping[ItemKey, str] | None = None,
    ) -> None:
        """`prompt_names` are those assigned before; they stay, whichever agents come or go."""
        self.manifests = {manifest.agent_id: manifest for manifest, _ in listings}
        keys = [(m.agent_id, each["name"]) for m, listing in listings for each in listing.prompts]
        assigned = assign_names({key: make_prompt_name(key) for key in keys}, prompt_names or {})
        self.prompt_names = remember_names(assigned, prompt_names or {})
        self.items: dict[ListKind, list[SharedItem]] = {
            "prompts": list(_make_items(listings, "prompts", "name", assigned.__getitem__)),
            "resources": list(_make_items(listings, "resources", "uri", lambda key: make_resource_uri(*key))),
            "templates": list(_make_items(listings, "templates", "uriTemplate", lambda key: make_template_uri(*key))),
        }
        self.prompt_by_name: dict[str, SharedItem] = {}
        # Agent ids may hold dots. Of two prompts with the same dotted name the longer agent id wins, as for tools.
        for item in sorted(self.items["prompts"], key=lambda each: len(each.manifest.agent_id)):
            self.prompt_by_name[make_prompt_name((item.manifest.agent_id, item.original))] = item
        self.prompt_by_name.update((item.address, item) for item in self.items["prompts"])
        self.owners = _group_owners(self.items["resources"], self.manifests.values())
        self.templates_by_original: dict[str, list[SharedItem]] = {}
        for item in self.items["templates"]:
            self.templates_by_original.setdefault(item.original, []).append(item)
        self.template_by_address = {item.address: item for item in self.items["templates"]}
        self.lists: dict[tuple[ListKind, AccessKey], list[dict[str, Any]]] = {}


class PromptsAndResources:
    """The items of the agents in `list_agents()`, listed anew when `catalog_for(principal)` is another object.

    A caller with logins of its own has a table of its own: only it has the items that agents offer to it.
    """

    def __init__(
        self,
        providers: PromptResourceProviders,
        catalog_for: Callable[[Principal], object],
        list_agents: Callable[[], Sequence[Manifest]],
    ) -> None:
        self._providers = providers
        self._catalog_for = catalog_for
        self._list_agents = list_agents
        self._state: tuple[object, int] | None = None
        self._table = _ItemTable()
        self._personal_tables: OrderedDict[object, tuple[int, _ItemTable]] = OrderedDict()  # by the caller's catalog
        self._changed_kinds: set[ItemKind] = set()
        self.pop_changes()

    def pop_changes(self) -> set[ItemKind]:
        """The shared lists that changed since the last call, even if they have changed back."""
        self._get_shared_table()
        changes, self._changed_kinds = self._changed_kinds, set()
        return changes

    def list_entries(self, kind: ListKind, principal: Principal) -> Sequence[dict[str, Any]]:
        """The entries that this caller sees."""
        table = self._get_table(principal)
        key = (kind, make_access_key(principal))
        entries = table.lists.get(key)
        if entries is None:
            if len(table.lists) >= _MAX_CACHED_LISTS:
                table.lists.clear()
            visible = [item.entry for item in table.items[kind] if _may_read(principal, item.manifest, item.original)]
            entries = table.lists[key] = visible
        return entries

    def find_prompt(self, name: str, principal: Principal) -> ItemSource | None:
        item = self._get_table(principal).prompt_by_name.get(name)
        return item if item is not None and _may_use_all(principal, item.manifest) else None

    def find_resource(self, uri: str, principal: Principal) -> ItemSource | None:
        """By the public URI, listed or not; or by the agent's own URI, if only one agent has it."""
        if is_public_uri(uri):
            agent_id, original = parse_resource_uri(uri) or ("", "")
            manifest = self._get_table(principal).manifests.get(agent_id)
            if manifest is None or not _may_read(principal, manifest, original):
                return None
            return ItemSource(manifest=manifest, original=original)
        owners = self._find_owners(uri, principal)
        return ItemSource(manifest=owners[0], original=uri) if len(owners) == 1 else None

    def list_candidates(self, uri: str, principal: Principal) -> list[str]:
        """The public URIs of the resources, of several agents, that this URI could mean."""
        return [make_resource_uri(manifest.agent_id, uri) for manifest in self._find_owners(uri, principal)]

    def _find_owners(self, uri: str, principal: Principal) -> list[Manifest]:
        """The agents that have a resource of this URI, or else a template for it, and that this caller may read."""
        table = self._get_table(principal)
        having = [each for each in table.owners.get(uri, {}).values() if _may_read(principal, each, uri)]
        if having:
            return _prefer_declared(having)
        matching = (item.manifest for item in table.items["templates"] if _matches_template(item.original, uri))
        owners = {each.agent_id: each for each in matching if _may_read(principal, each, uri)}
        return _prefer_declared(list(owners.values()))

    def find_template(self, template: str, principal: Principal) -> ItemSource | None:
        table = self._get_table(principal)
        item = table.template_by_address.get(template)
        if item is not None:
            return item if _may_use_all(principal, item.manifest) else None
        owned = [
            item for item in table.templates_by_original.get(template, ()) if _may_use_all(principal, item.manifest)
        ]
        return owned[0] if len(owned) == 1 else None

    def _get_table(self, principal: Principal) -> _ItemTable:
        shared, catalog = self._get_shared_table(), self._catalog_for(principal)
        if self._state is not None and catalog is self._state[0]:
            return shared
        version, table = self._personal_tables.get(catalog, (-1, shared))
        if version != self._providers.version:
            table = _ItemTable(self._read_listings(principal), shared.prompt_names)
            self._personal_tables[catalog] = self._providers.version, table
            if len(self._personal_tables) > _MAX_PERSONAL_TABLES:
                self._personal_tables.popitem(last=False)
        self._personal_tables.move_to_end(catalog)
        return table

    def _get_shared_table(self) -> _ItemTable:
        catalog, version = self._catalog_for(_STRANGER), self._providers.version
        if self._state is None or self._state[0] is not catalog or self._state[1] != version:
            previous, self._table = self._table, _ItemTable(self._read_listings(None), self._table.prompt_names)
            self._changed_kinds.update(_find_changes(previous, self._table))
            self._state = (catalog, version)
        return self._table

    def _read_listings(self, principal: Principal | None) -> list[tuple[Manifest, PromptResourceListing]]:
        ids, agents = self._providers.list_ids(), self._list_agents()
        manifests = compress(agents, map(ids.__contains__, map(_get_id, agents)))  # not one by one: they may be many
        pairs = ((manifest, self._providers.find(manifest.agent_id, principal)) for manifest in manifests)
        return [(manifest, provider.listing) for manifest, provider in pairs if provider is not None]


def _find_changes(previous: _ItemTable, current: _ItemTable) -> Iterator[ItemKind]:
    for kind, items in current.items.items():
        if [item.entry for item in previous.items[kind]] != [item.entry for item in items]:
            yield "prompts" if kind == "prompts" else "resources"


def _make_items(
    listings: Iterable[tuple[Manifest, PromptResourceListing]],
    kind: ListKind,
    field: str,
    address_of: Callable[[ItemKey], str],
) -> Iterator[SharedItem]:
    for manifest, listing in listings:
        entries: Entries = getattr(listing, kind)
        for original, entry in {str(entry[field]): entry for entry in entries}.items():  # a listing may have duplicates
            key = (manifest.agent_id, original)
            address = address_of(key)
            meta = {**drop_own_keys(entry.get("_meta")), AGENT_KEY: manifest.agent_id, ORIGINAL_KEY: original}
            public_entry = {**entry, field: address, "_meta": meta}
            if kind == "prompts":
                public_entry["title"] = entry.get("title") or original
                meta[NAME_KEY] = make_prompt_name(key)
            yield SharedItem(address=address, original=original, manifest=manifest, entry=public_entry)


def _group_owners(resources: Iterable[SharedItem], manifests: Iterable[Manifest]) -> dict[str, dict[str, Manifest]]:
    """By the own URI of a resource: the agents that have it. Servers need not list their user interfaces."""
    owners: dict[str, dict[str, Manifest]] = {}
    for item in resources:
        owners.setdefault(item.original, {})[item.manifest.agent_id] = item.manifest
    for manifest in manifests:
        for capability in manifest.capabilities:
            if capability.metadata and (uri := find_ui_uri(capability.metadata)) is not None:
                owners.setdefault(uri, {})[manifest.agent_id] = manifest
    return owners


def _may_use_all(principal: Principal, manifest: Manifest) -> bool:
    """Scopes name capabilities, so only a caller who may use all of an agent sees its prompts and resources."""
    return find_refusal(principal, manifest, "*") is None


def _may_read(principal: Principal, manifest: Manifest, original: str) -> bool:
    """The user interface of a tool comes with the tool, also for a caller who may use only some of an agent."""
    if _may_use_all(principal, manifest):
        return True
    return original.startswith(UI_SCHEME) and any(
        find_ui_uri(each.metadata) == original and find_refusal(principal, manifest, each.name) is None
        for each in manifest.capabilities
        if each.metadata
    )


def _prefer_declared(owners: Sequence[Manifest]) -> list[Manifest]:
    """An agent that registered itself cannot take, or make ambiguous, what an agent of the operator has."""
    return [manifest for manifest in owners if manifest.registered_by is None] or list(owners)


def _matches_template(template: str, uri: str) -> bool:
    if not uri.startswith(template.partition("{")[0]):
        return False
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        return False


# Lists depend on the caller and may change at any time.
UNCACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

_PAGE_SIZE = 500
_MAX_CANDIDATES = 10  # that an error names
_MAX_COMPLETIONS = 100
_START_TIMEOUT_SHARE = 0.8  # of the time for an answer, if the agent is still starting
_OFFLINE_START_TIMEOUT = 1.0  # seconds, for an agent that is known to be offline
_AGENT_TEMPLATE = AGENT_URI_PREFIX + "{agent_id}"

# Codes of an agent that are passed on to the client; others would be taken for codes of the gateway.
_FORWARDED_CODES = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)

AgentMethod = Literal["prompts/get", "resources/read", "completion/complete"]


class PromptResourceHandlers:
    def __init__(self, context: DoorContext, catalog: ToolCatalog, prompts_resources: PromptsAndResources) -> None:
        self._context = context
        self._catalog = catalog
        self._prompts_resources = prompts_resources

    async def list_prompts(self, ctx: SdkContext, params: types.PaginatedRequestParams) -> HandlerResult:
        await self._wait_for_lists(ctx)
        return _make_page("prompts", self._list_entries(ctx, "prompts"), "name", params.cursor)

    async def list_resources(self, ctx: SdkContext, params: types.PaginatedRequestParams) -> HandlerResult:
        await self._wait_for_lists(ctx)
        manifests = _select_page(self._list_agents(ctx), params.cursor)
        entries = [*map(_manifest_resource, manifests), *self._list_entries(ctx, "resources")]
        return _make_page("resources", entries, "uri", params.cursor)

    async def list_templates(self, ctx: SdkContext, params: types.PaginatedRequestParams) -> HandlerResult:
        await self._wait_for_lists(ctx)
        manifest_template = {
            "uriTemplate": _AGENT_TEMPLATE,
            "name": "agent",
            "title": "Manifest of an agent",
            "description": "Capabilities with their schemas, health and trust of one agent.",
            "mimeType": "application/json",
        }
        entries = [manifest_template, *self._list_entries(ctx, "templates")]
        return _make_page("resourceTemplates", entries, "uriTemplate", params.cursor)

    async def get_prompt(self, ctx: SdkContext, params: types.GetPromptRequestParams) -> HandlerResult:
        source = self._prompts_resources.find_prompt(params.name, get_request_context(ctx).principal)
        if source is None:
            message = f"Unknown prompt: {to_encodable_text(params.name[:128])}"
            raise to_mcp_error(ctx, BadInput(message, prompt=params.name[:128]), types.INVALID_PARAMS)
        result = await self._query_agent(ctx, source, "prompts/get", {"name": source.original})
        if isinstance(messages := result.get("messages"), list):
            result["messages"] = [_rewrite_message(source, message) for message in messages]
        return result

    async def read_resource(self, ctx: SdkContext, params: types.ReadResourceRequestParams) -> HandlerResult:
        uri = params.uri
        if uri in {AGENT_URI_PREFIX + manifest.agent_id for manifest in self._list_agents(ctx)}:
            return await self._read_manifest(ctx, uri)
        source = self._prompts_resources.find_resource(uri, get_request_context(ctx).principal)
        if source is None:
            message = f"Unknown resource: {to_encodable_text(uri[:256])}"
            candidates = self._prompts_resources.list_candidates(uri, get_request_context(ctx).principal)
            if len(candidates) > 1:
                named = ", ".join(candidates[:_MAX_CANDIDATES])
                message = f"Several agents have the resource {to_encodable_text(uri[:256])}. Read one of: {named}"
            raise to_mcp_error(ctx, BadInput(message, uri=uri[:256]), resource_not_found_code(ctx))
        result = await self._query_agent(ctx, source, "resources/read", {"uri": source.original})
        if "contents" in result:
            result["contents"] = [_rewrite_uri(source, uri, each) for each in result["contents"]]
            result = {"ttlMs": 0, **result, "cacheScope": "private"}
        return result

    async def complete(self, ctx: SdkContext, params: types.CompleteRequestParams) -> HandlerResult:
        ref, principal = params.ref, get_request_context(ctx).principal
        if isinstance(ref, types.PromptReference):
            source, key = self._prompts_resources.find_prompt(ref.name, principal), "name"
        elif ref.uri == _AGENT_TEMPLATE:
            return self._complete_agent_id(ctx, params.argument)
        else:
            template = self._prompts_resources.find_template(ref.uri, principal)
            source, key = template or self._prompts_resources.find_resource(ref.uri, principal), "uri"
        if source is None:
            reference = ref.name if isinstance(ref, types.PromptReference) else ref.uri
            error = BadInput(f"Nothing to complete: {to_encodable_text(reference[:256])}", ref=reference[:256])
            raise to_mcp_error(ctx, error, types.INVALID_PARAMS)
        return await self._query_agent(
            ctx, source, "completion/complete", {"ref": {"type": ref.type, key: source.original}}
        )

    async def _wait_for_lists(self, ctx: SdkContext) -> None:
        registry = self._context.gateway.registry
        if registry.has_logins:  # what an agent offers this caller may be in the store only
            await registry.wait_for_lists(get_request_context(ctx).principal)

    def _list_entries(self, ctx: SdkContext, kind: ListKind) -> Sequence[dict[str, Any]]:
        return self._prompts_resources.list_entries(kind, get_request_context(ctx).principal)

    def _list_agents(self, ctx: SdkContext) -> Sequence[Manifest]:
        """An agent that has left the catalog has no manifest."""
        try:
            return self._catalog.list_visible_agents(get_request_context(ctx).principal)
        except AgentNotFound:
            return []

    def _complete_agent_id(self, ctx: SdkContext, argument: types.CompletionArgument) -> HandlerResult:
        ids = [m.agent_id for m in self._list_agents(ctx) if m.agent_id.startswith(argument.value)]
        matches = sorted(ids) if argument.name == "agent_id" else []
        has_more = len(matches) > _MAX_COMPLETIONS
        completion = {"values": matches[:_MAX_COMPLETIONS], "total": len(matches), "hasMore": has_more}
        return {"completion": completion, "resultType": "complete"}

    async def _read_manifest(self, ctx: SdkContext, uri: str) -> dict[str, Any]:
        raw = msgspec.Raw(msgspec.json.encode({"agent_id": uri.removeprefix(AGENT_URI_PREFIX)}))
        principal = get_request_context(ctx).principal
        prepared = self._context.operations.prepare("fabric.agent.describe", raw, principal)
        result = await prepared.run(OperationRequest(trace=current_trace.get(), principal=principal), ignore_event)
        text = msgspec.json.encode(result.data["agent"]).decode()
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": text}], **UNCACHED}

    async def _query_agent(
        self, ctx: SdkContext, source: ItemSource, method: AgentMethod, own_params: dict[str, Any]
    ) -> dict[str, Any]:
        """Send the request to the agent, with the agent's own names. Raises MCPError."""
        params: Mapping[str, Any] = ctx.params or {}
        timeout, principal = self._context.gateway.clamp_timeout(None) / 1000, get_request_context(ctx).principal
        query = PromptResourceQuery(
            method=method,
            params={**{name: value for name, value in params.items() if name != "_meta"}, **own_params},
            trace=current_trace.get(),
            timeout=timeout,
            start_timeout=choose_start_timeout(self._context, source.manifest, _START_TIMEOUT_SHARE * timeout),
            client_capabilities=get_askable_capabilities(ctx),
            principal=principal,
        )
        emit, trace = make_emitter(ctx, lambda: query.trace), current_trace.get()

        async def send_query(query: PromptResourceQuery) -> dict[str, Any]:
            return await run_at_agent(self._context, source.manifest, principal, lambda agent: agent.ask(query, emit))

        try:
            query = msgspec.structs.replace(query, delegation_chain=self._extend_chain(ctx, source.manifest))
            return _add_meta(
                trace, source, await QueryElicitation(ctx, source.manifest.agent_id, send_query).run(query)
            )
        except FabricError as error:
            raise to_mcp_error(ctx, error, error_code_for(ctx, error, method)) from error
        except McpCallerDisconnected as exc:
            raise MCPError(REQUEST_CANCELLED, "The caller has disconnected") from exc

    def _extend_chain(self, ctx: SdkContext, manifest: Manifest) -> MaybeChain:
        """The delegation chain that goes to the agent. Raises BadInput, DelegationRefused."""
        chain, steps = (
            get_request_context(ctx).chain_from_meta((ctx.meta or {}).get(DELEGATION_META_KEY)),
            self._context.proxy_steps,
        )
        return chain if steps is None else steps.extend_chain(chain, manifest)


def _rewrite_message(source: ItemSource, message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": to_public_block(message.get("content"), source.manifest.agent_id)}


def _rewrite_uri(source: ItemSource, uri: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content under the requested URI, or under a public URI of the same agent."""
    content_uri = str(content.get("uri", ""))
    if content_uri == source.original:
        return {**content, "uri": uri}
    public_uri = make_resource_uri(source.manifest.agent_id, content_uri)
    return content if uri == source.original else {**content, "uri": public_uri}


def choose_start_timeout(context: DoorContext, manifest: Manifest, timeout: float) -> float:
    """How long to wait for the agent to start: hardly, if it is known to be offline."""
    is_offline = context.gateway.registry.health.get(manifest.agent_id).status == "offline"
    return _OFFLINE_START_TIMEOUT if is_offline else timeout


async def run_at_agent(
    context: DoorContext,
    manifest: Manifest,
    principal: Principal,
    ask: Callable[[PromptResourceProvider], Awaitable[T]],
) -> T:
    """Ask the agent through its gate. Raises FabricError."""
    answers: list[T] = []

    async def work() -> None:
        provider = context.resource_providers.find(manifest.agent_id, principal)
        if provider is None:
            raise AgentNotFound(manifest.agent_id)
        answers.append(await ask(provider))

    steps = context.proxy_steps
    await (work() if steps is None else steps.run_request(manifest, work, principal.principal_id))
    return answers[0]


def _make_page(kind: str, entries: Sequence[dict[str, Any]], key: str, cursor: str | None) -> dict[str, Any]:
    """One page, sorted by address. The cursor is the last address of the page before, so items may come and go."""
    ordered = sorted(entries, key=itemgetter(key))
    start = bisect_right(ordered, cursor, key=itemgetter(key)) if cursor is not None else 0
    page = ordered[start : start + _PAGE_SIZE]
    listed: dict[str, Any] = {kind: page, **UNCACHED}
    if start + _PAGE_SIZE < len(ordered):
        listed["nextCursor"] = page[-1][key]
    return listed


def _select_page(agents: Sequence[Manifest], cursor: str | None) -> Sequence[Manifest]:
    """The agents whose manifests can be on this page, and one more if there are more: there may be very many."""
    ordered = sorted(agents, key=_get_id)
    start = 0 if cursor is None else bisect_right(ordered, cursor, key=lambda each: AGENT_URI_PREFIX + each.agent_id)
    return ordered[start : start + _PAGE_SIZE + 1]


def _add_meta(trace: Trace, source: ItemSource, result: dict[str, Any]) -> dict[str, Any]:
    meta = drop_own_keys(result.get("_meta"))
    meta.pop(types.SERVER_INFO_META_KEY, None)
    meta |= {AGENT_KEY: source.manifest.agent_id, results.TRACE_KEY: msgspec.to_builtins(trace)}
    return {"resultType": "complete", **result, "_meta": meta}


def error_code_for(ctx: SdkContext, error: FabricError, method: AgentMethod) -> int:
    upstream = error.details.get("upstream_code")
    if upstream in _FORWARDED_CODES:
        return int(upstream)
    if upstream == RESOURCE_NOT_FOUND or (upstream == types.INVALID_PARAMS and method == "resources/read"):
        return resource_not_found_code(ctx)  # its code differs between the eras
    return types.INVALID_PARAMS if isinstance(error, BadInput | CapabilityNotFound) else types.INTERNAL_ERROR


def to_mcp_error(ctx: SdkContext, error: FabricError, code: int) -> MCPError:
    """The data of every error is the canonical error object, with the data that the protocol requires."""
    body, agent_data = to_error_body(error, current_trace.get()), error.details.get("data")
    forwarded = agent_data if code in _FORWARDED_CODES and isinstance(agent_data, dict) else {}
    return MCPError(code, body["error"]["message"], {**forwarded, **body})


def _manifest_resource(manifest: Manifest) -> dict[str, Any]:
    return {
        "uri": AGENT_URI_PREFIX + manifest.agent_id,
        "name": manifest.agent_id,
        "title": manifest.display_name or manifest.agent_id,
        "description": manifest.description or f"Manifest of the agent {manifest.agent_id}",
        "mimeType": "application/json",
    }
