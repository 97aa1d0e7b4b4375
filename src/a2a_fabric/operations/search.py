"""The operation `fabric.agent.search`: agents for a query in words, best first, each with a score and reasons.

The index is updated only when a caller searches."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Health, TrustTier
from a2a_fabric.core.call import Emit, Principal, has_rules
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.policy import list_visible_tiers
from a2a_fabric.core.result import Result
from a2a_fabric.core.search import (
    AgentSearchResult,
    MatchKind,
    SearchField,
    SearchHit,
    SearchIndex,
    SearchQuery,
)
from a2a_fabric.core.tasks import run_in_turns
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.catalog_indexes import CatalogIndexes
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments
from a2a_fabric.operations.views import render_profile

MAX_RESULTS = 100
_STEPS_PER_TURN = 4  # of a search, before other requests may run
_MAX_ABSENT = 1000  # offline agents that may have left the catalog
_MAX_CAPABILITIES = 10  # shown for an agent that did not match by capability
_FIELD_NAMES: dict[SearchField, str] = {
    "agent_id": "id", "display_name": "name", "capability": "capability", "trigger": "trigger", "signal": "signal",
    "role": "role", "tag": "tag", "description": "description",
}  # fmt: skip
_REASON_TEXTS: dict[MatchKind, str] = {
    "whole name": "its {field} is '{value}'",
    "word": "'{word}' is in its {field} '{value}'",
    "beginning": "its {field} '{value}' has a word that begins with '{word}'",
    "filter": "it has the {field} '{value}'",
}


class AgentSearchArguments(TracedArguments, frozen=True, kw_only=True):
    query: Annotated[
        str, Meta(max_length=1000, description="What is looked for, in words. None: all that fit the filters.")
    ] = ""
    capability: Annotated[
        str | tuple[str, ...] | None, Meta(description="Only agents with this capability, or one of these.")
    ] = None
    tag: Annotated[str | tuple[str, ...] | None, Meta(description="Only agents with this tag, or one of these.")] = None
    trust_tier: Annotated[TrustTier | None, Meta(description="Only agents of this trust tier.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="How many at a time.")] = 10
    cursor: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, Meta(description="From the page before: what comes after it.")
    ] = None


class SearchOperations:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._indexes = CatalogIndexes(gateway.registry, SearchIndex, _sees_all_tiers)
        self._offline_agents: set[str] = set()
        gateway.registry.health.add_listener(self._on_health_change)

    def all(self) -> list[Operation[Any]]:
        result_schema = {"type": "object", "properties": {"results": {"type": "array"}, "count": {"type": "integer"}}}
        return [
            Operation("fabric.agent.search",
                      "Find agents for a question in words: the best first, each with its score and why.",
                      AgentSearchArguments, self.search, output=result_schema, scopes=()),
        ]  # fmt: skip

    async def search(self, arguments: AgentSearchArguments, request: OperationRequest, emit: Emit) -> Result:
        tiers = tuple(tier for tier in list_visible_tiers(request.principal) if arguments.trust_tier in (None, tier))
        query = SearchQuery(
            text=arguments.query,
            capabilities=_to_tuple(arguments.capability),
            tags=_to_tuple(arguments.tag),
            tiers=tiers,
            limit=arguments.limit,
            after=None if arguments.cursor is None else _decode_cursor(arguments.cursor),
        )
        return Result(data=self._render_results(await self.find(query, request.principal)))

    async def find(self, query: SearchQuery, principal: Principal) -> AgentSearchResult:
        """The best agents that this caller may see; `query.tiers` must not have others than the caller's."""
        await self._gateway.registry.statuses.refresh()
        index = await self._indexes.find(principal)
        return await run_in_turns(index.find_in_steps(query, frozenset(self._find_offline())), _STEPS_PER_TURN)

    def _on_health_change(self, agent_id: str, health: Health) -> None:
        (self._offline_agents.add if health.status == "offline" else self._offline_agents.discard)(agent_id)
        if len(self._offline_agents) > len(self._gateway.registry.catalog) + _MAX_ABSENT:
            self._find_offline()

    def _find_offline(self) -> set[str]:
        """The offline agents; an agent that was removed and registered again is no longer offline."""
        health = self._gateway.registry.health
        self._offline_agents = {
            agent_id for agent_id in self._offline_agents if health.get(agent_id).status == "offline"
        }
        return self._offline_agents

    def _render_results(self, results: AgentSearchResult) -> dict[str, Any]:
        hits = results.hits
        return {
            "results": [self._render_hit(hit) for hit in hits],
            "count": len(hits),
            "total": results.total,
            "cursor": _encode_cursor(hits[-1]) if results.has_more else None,
        }

    def _render_hit(self, hit: SearchHit) -> dict[str, Any]:
        manifest = hit.manifest
        names = [capability.name for capability in manifest.capabilities[:_MAX_CAPABILITIES]]
        return {
            "agent_id": manifest.agent_id,
            "score": hit.score,
            "why": [
                *(
                    _REASON_TEXTS[each.how].format(field=_FIELD_NAMES[each.field], value=each.value, word=each.word)
                    for each in hit.reasons
                ),
                *(["it is offline, so it comes later"] if hit.is_offline else []),
            ],
            "capabilities": hit.capabilities or names,
            "display_name": manifest.display_name or manifest.agent_id,
            "description": manifest.description,
            "version": manifest.version,
            "status": self._gateway.registry.statuses.get(manifest.agent_id).status,
            "trust_tier": manifest.trust_tier,
            "tags": list(manifest.tags),
            **render_profile(manifest),
            "reasons": msgspec.to_builtins(hit.reasons),
        }


def _sees_all_tiers(principal: Principal) -> bool:
    """Whether nothing but the trust tier limits what the caller sees: every index separates the tiers."""
    return principal.scp is None and principal.cap is None and not principal.views and not has_rules(principal)


def _to_tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value or ()


def _encode_cursor(hit: SearchHit) -> str:
    position = msgspec.json.encode((hit.rank, hit.manifest.agent_id))
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _decode_cursor(cursor: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=tuple[float, str])
    except (msgspec.DecodeError, binascii.Error, ValueError) as exc:
        raise BadInput("Invalid cursor. Start again without one.", field="cursor") from exc
