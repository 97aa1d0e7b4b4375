"""Prompts, resources and completions: lists from memory, everything else asked of the agent that has it.

The manifests of agents are resources of the gateway's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import mcp_types as types
import msgspec
from mcp.server.context import HandlerResult
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.delegation import META_KEY, MaybeChain
from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound, FabricError
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import answer
from a2a_fabric.doors.mcp.addresses import AGENTS
from a2a_fabric.doors.mcp.asker import (
    RESOURCE_NOT_FOUND,
    Context,
    abilities_of,
    not_found_code,
    trace_of,
    visit_of,
)
from a2a_fabric.doors.mcp.audience import emitter
from a2a_fabric.doors.mcp.dialogue import Dialogue
from a2a_fabric.doors.mcp.library import Found, Library
from a2a_fabric.doors.mcp.shelf import Shelf
from a2a_fabric.doors.mcp.tool import AGENT_KEY
from a2a_fabric.doors.mcp.visit import Left
from a2a_fabric.operations import Request
from a2a_fabric.outbound.library import Query

# Lists depend on who asks and may change at any time.
FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

_PAGE = 500
_COMPLETIONS = 100
_WAIT_SHARE = 0.8  # of the time for an answer, for an agent that is still starting
_AWAY_PATIENCE = 1.0  # seconds, for one that is known to be away
_AGENT_TEMPLATE = AGENTS + "{agent_id}"

# An agent's own codes that mean something to its client; all others would be taken for the gateway's.
_CLIENTS_CODES = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)

Method = Literal["prompts/get", "resources/read", "completion/complete"]


class Reading:
    def __init__(self, context: DoorContext, shelf: Shelf, library: Library) -> None:
        self._context = context
        self._shelf = shelf
        self._library = library

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        return _page("prompts", self._library.prompts(visit_of(ctx).principal), "name", params.cursor)

    async def list_resources(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        held = self._library.resources(visit_of(ctx).principal)
        everything = [*(_resource(manifest) for manifest in self._agents(ctx)), *held]
        return _page("resources", everything, "uri", params.cursor)

    async def list_templates(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        own = {
            "uriTemplate": _AGENT_TEMPLATE,
            "name": "agent",
            "title": "Manifest of an agent",
            "description": "Capabilities with their schemas, health and trust of one agent.",
            "mimeType": "application/json",
        }
        everything = [own, *self._library.templates(visit_of(ctx).principal)]
        return _page("resourceTemplates", everything, "uriTemplate", params.cursor)

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> HandlerResult:
        found = self._library.prompt(params.name, visit_of(ctx).principal)
        if found is None:
            words = f"Unknown prompt: {answer.speakable(params.name[:128])}"
            raise told_as(ctx, BadInput(words, prompt=params.name[:128]), types.INVALID_PARAMS)
        return await self._asked(ctx, found, "prompts/get", {"name": found.original})

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> HandlerResult:
        uri = params.uri
        if uri in {AGENTS + manifest.agent_id for manifest in self._agents(ctx)}:
            return await self._manifest(ctx, uri)
        found = self._library.resource(uri, visit_of(ctx).principal)
        if found is None:
            words = f"Unknown resource: {answer.speakable(uri[:256])}"
            raise told_as(ctx, BadInput(words, uri=uri[:256]), not_found_code(ctx))
        result = await self._asked(ctx, found, "resources/read", {"uri": found.original})
        if "contents" in result:
            result["contents"] = [self._as_asked(found, uri, each) for each in result["contents"]]
            result = {"ttlMs": 0, **result, "cacheScope": "private"}
        return result

    async def complete(self, ctx: Context, params: types.CompleteRequestParams) -> HandlerResult:
        ref, principal = params.ref, visit_of(ctx).principal
        if isinstance(ref, types.PromptReference):
            found, name = self._library.prompt(ref.name, principal), "name"
        elif ref.uri == _AGENT_TEMPLATE:
            return self._agents_like(ctx, params.argument)
        else:
            template = self._library.template(ref.uri, principal)
            found, name = template or self._library.resource(ref.uri, principal), "uri"
        if found is None:
            asked = ref.name if isinstance(ref, types.PromptReference) else ref.uri
            error = BadInput(f"Nothing to complete: {answer.speakable(asked[:256])}", ref=asked[:256])
            raise told_as(ctx, error, types.INVALID_PARAMS)
        return await self._asked(ctx, found, "completion/complete", {"ref": {"type": ref.type, name: found.original}})

    def _agents(self, ctx: Context) -> Sequence[Manifest]:
        """An agent that has left has no manifest."""
        try:
            return self._shelf.agents(visit_of(ctx).principal)
        except AgentNotFound:
            return []

    def _agents_like(self, ctx: Context, argument: types.CompletionArgument) -> HandlerResult:
        ids = [m.agent_id for m in self._agents(ctx) if m.agent_id.startswith(argument.value)]
        found = sorted(ids) if argument.name == "agent_id" else []
        more = len(found) > _COMPLETIONS
        told = {"values": found[:_COMPLETIONS], "total": len(found), "hasMore": more}
        return {"completion": told, "resultType": "complete"}

    async def _manifest(self, ctx: Context, uri: str) -> dict[str, Any]:
        raw = msgspec.Raw(msgspec.json.encode({"agent_id": uri.removeprefix(AGENTS)}))
        principal = visit_of(ctx).principal
        prepared = self._context.operations.prepare("fabric.agent.describe", raw, principal)
        result = await prepared.run(Request(trace=trace_of(ctx), principal=principal), ignore)
        text = msgspec.json.encode(result.data["agent"]).decode()
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": text}], **FRESH}

    async def _asked(self, ctx: Context, found: Found, method: Method, named: dict[str, Any]) -> dict[str, Any]:
        """What the agent answers to the same request under its own names. Raises MCPError."""
        given: Mapping[str, Any] = ctx.params or {}
        timeout, principal = self._context.gateway.time_for(None) / 1000, visit_of(ctx).principal
        query = Query(
            method=method,
            params={**{name: value for name, value in given.items() if name != "_meta"}, **named},
            trace=trace_of(ctx),
            timeout=timeout,
            patience=_AWAY_PATIENCE if self._is_away(found.manifest) else _WAIT_SHARE * timeout,
            client=abilities_of(ctx),
            owner=(principal.mode, principal.principal_id),
        )
        emit, trace = emitter(ctx, lambda: query.trace), trace_of(ctx)
        ask = partial(self._through, found.manifest, emit=emit)
        try:
            query = msgspec.structs.replace(query, delegation_chain=self._chain(ctx, found.manifest))
            return _ours(trace, found, await Dialogue(ctx, found.manifest.agent_id, ask).run(query))
        except FabricError as error:
            raise told_as(ctx, error, code_of(ctx, error, method)) from error
        except Left as exc:
            raise MCPError(REQUEST_CANCELLED, "The caller has gone") from exc

    def _chain(self, ctx: Context, manifest: Manifest) -> MaybeChain:
        """The delegation chain that goes to the agent. Raises BadInput, DelegationRefused."""
        given, passage = visit_of(ctx).chain((ctx.meta or {}).get(META_KEY)), self._context.passage
        return given if passage is None else passage.delegated(given, manifest)

    def _is_away(self, manifest: Manifest) -> bool:
        return self._context.gateway.registry.health.of(manifest.agent_id).status == "offline"

    async def _through(self, manifest: Manifest, query: Query, emit: Emit | None) -> dict[str, Any]:
        """Through the agent's gate, like everything that reaches it."""
        raw: dict[str, Any] = {}

        async def work() -> None:
            library = self._context.libraries.of(manifest.agent_id)
            if library is None:
                raise AgentNotFound(manifest.agent_id)
            raw.update(await library.ask(query, emit))

        passage = self._context.passage
        await (work() if passage is None else passage.request(manifest, work, query.owner[1]))
        return raw

    def _as_asked(self, found: Found, uri: str, content: dict[str, Any]) -> dict[str, Any]:
        """Under the URI that was asked for; parts of it under the same kind of URI."""
        own = str(content.get("uri", ""))
        if own == found.original:
            return {**content, "uri": uri}
        return content if uri == found.original else {**content, "uri": self._library.address_of(found, own)}


def _page(kind: str, entries: Sequence[dict[str, Any]], key: str, cursor: str | None) -> dict[str, Any]:
    """In the order of addresses, from behind the cursor: the last of the page before, so others may come and go."""
    ordered = sorted(entries, key=itemgetter(key))
    start = bisect_right(ordered, cursor, key=itemgetter(key)) if cursor is not None else 0
    page = ordered[start : start + _PAGE]
    listed: dict[str, Any] = {kind: page, **FRESH}
    if start + _PAGE < len(ordered):
        listed["nextCursor"] = page[-1][key]
    return listed


def _ours(trace: Trace, found: Found, raw: dict[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in (raw.get("_meta") or {}).items() if name != types.SERVER_INFO_META_KEY}
    meta |= {AGENT_KEY: found.manifest.agent_id, answer.TRACE_KEY: msgspec.to_builtins(trace)}
    return {"resultType": "complete", **raw, "_meta": meta}


def code_of(ctx: Context, error: FabricError, method: Method) -> int:
    upstream = error.details.get("upstream_code")
    if upstream in _CLIENTS_CODES:
        return int(upstream)
    if upstream == RESOURCE_NOT_FOUND or (upstream == types.INVALID_PARAMS and method == "resources/read"):
        return not_found_code(ctx)  # the eras have different codes for it
    return types.INVALID_PARAMS if isinstance(error, BadInput | CapabilityNotFound) else types.INTERNAL_ERROR


def told_as(ctx: Context, error: FabricError, code: int) -> MCPError:
    """The canonical error object is the data of every error, beside what the protocol wants there."""
    body, theirs = answer.error_body(error, trace_of(ctx)), error.details.get("data")
    more = theirs if code in _CLIENTS_CODES and isinstance(theirs, dict) else {}
    return MCPError(code, body["error"]["message"], {**more, **body})


def _resource(manifest: Manifest) -> dict[str, Any]:
    return {
        "uri": AGENTS + manifest.agent_id,
        "name": manifest.agent_id,
        "title": manifest.display_name or manifest.agent_id,
        "description": manifest.description or f"Manifest of the agent {manifest.agent_id}",
        "mimeType": "application/json",
    }
