"""The operation `fabric.agent.search`: agents for a question in words, the best first, each with its score and why.

The index follows the catalog when somebody searches, and costs nothing before.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Health, Manifest, TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.policy import Reach, reach_of, visible_tiers
from a2a_fabric.core.postings import Field
from a2a_fabric.core.result import Result
from a2a_fabric.core.search import Found, Hit, How, Reason, SearchIndex, Wanted
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.operation import Operation, Request, Traced

MOST = 100
_INDEXES_KEPT = 16  # for callers with scopes, one for each kind of them
_STEPS = 20  # of the index, before others have their turn
_NAMED = 10  # capabilities, of an agent that was not found by one
_FIELDS: dict[Field, str] = {
    "agent_id": "id", "display_name": "name", "capability": "capability", "trigger": "trigger", "tag": "tag",
    "description": "description",
}  # fmt: skip
_WORDS: dict[How, str] = {
    "whole name": "its {field} is '{value}'",
    "word": "'{word}' is in its {field} '{value}'",
    "beginning": "its {field} '{value}' has a word that begins with '{word}'",
    "filter": "it has the {field} '{value}'",
}


class SearchArguments(Traced, frozen=True, kw_only=True):
    query: Annotated[
        str, Meta(max_length=1000, description="What is looked for, in words. None: all that fit the filters.")
    ] = ""
    capability: Annotated[
        str | tuple[str, ...] | None, Meta(description="Only agents with this capability, or one of these.")
    ] = None
    tag: Annotated[str | tuple[str, ...] | None, Meta(description="Only agents with this tag, or one of these.")] = None
    trust_tier: Annotated[TrustTier | None, Meta(description="Only agents of this trust tier.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST, description="How many at a time.")] = 10
    cursor: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, Meta(description="From the page before: what comes after it.")
    ] = None


class SearchOperations:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._index = _Following()
        self._by_reach: OrderedDict[Reach, _Following] = OrderedDict()
        self._following = asyncio.Lock()
        self._away: set[str] = set()
        gateway.registry.health.listen(self._note)

    def all(self) -> list[Operation[Any]]:
        found = {"type": "object", "properties": {"results": {"type": "array"}, "count": {"type": "integer"}}}
        return [
            Operation(
                "fabric.agent.search",
                "Find agents for a question in words: the best first, each with its score and why.",
                SearchArguments,
                self.search,
                output=found,
                scopes=(),
            )
        ]

    async def search(self, arguments: SearchArguments, request: Request, emit: Emit) -> Result:
        tiers = tuple(tier for tier in visible_tiers(request.principal) if arguments.trust_tier in (None, tier))
        wanted = Wanted(
            text=arguments.query,
            capabilities=_several(arguments.capability),
            tags=_several(arguments.tag),
            tiers=tiers,
            limit=arguments.limit,
            after=None if arguments.cursor is None else _place(arguments.cursor),
        )
        index = await self._caught_up(request.principal)
        return Result(data=self._view(index.find(wanted, self._offline())))

    async def _caught_up(self, principal: Principal) -> SearchIndex:
        """The index of what this caller may know of. Others are served while it is brought up to date."""
        registry = self._gateway.registry
        async with self._following:
            if principal.scp is None and principal.cap is None:  # tiers are apart in every index
                await self._index.follow(registry.catalog.agents)
                return self._index.index
            reach = reach_of(principal)
            found = self._by_reach.setdefault(reach, _Following())
            self._by_reach.move_to_end(reach)
            if len(self._by_reach) > _INDEXES_KEPT:
                self._by_reach.popitem(last=False)
            await found.follow(registry.seen_by(principal).agents)
            return found.index

    def _note(self, agent_id: str, health: Health) -> None:
        (self._away.add if health.status == "offline" else self._away.discard)(agent_id)

    def _offline(self) -> set[str]:
        """An agent that came again under the id of one that left has no past."""
        health = self._gateway.registry.health
        self._away = {agent_id for agent_id in self._away if health.of(agent_id).status == "offline"}
        return self._away

    def _view(self, found: Found) -> dict[str, Any]:
        hits = found.hits
        return {
            "results": [self._hit(hit) for hit in hits],
            "count": len(hits),
            "total": found.total,
            "cursor": _cursor(hits[-1]) if found.has_more else None,
        }

    def _hit(self, hit: Hit) -> dict[str, Any]:
        manifest = hit.manifest
        named = [capability.name for capability in manifest.capabilities[:_NAMED]]
        return {
            "agent_id": manifest.agent_id,
            "score": hit.score,
            "why": [*map(sentence, hit.reasons), *(["it is offline, so it comes later"] if hit.is_away else [])],
            "capabilities": hit.capabilities or named,
            "display_name": manifest.display_name or manifest.agent_id,
            "description": manifest.description,
            "version": manifest.version,
            "status": self._gateway.registry.health.of(manifest.agent_id).status,
            "trust_tier": manifest.trust_tier,
            "tags": list(manifest.tags),
            "reasons": msgspec.to_builtins(hit.reasons),
        }


class _Following:
    """An index, and the agents that are in it."""

    def __init__(self) -> None:
        self.index = SearchIndex()
        self._followed: tuple[Manifest, ...] | None = None

    async def follow(self, agents: tuple[Manifest, ...]) -> None:
        if agents is self._followed:
            return
        for step, _ in enumerate(self.index.follow(agents)):
            if step % _STEPS == 0:
                await asyncio.sleep(0)
        self._followed = agents


def _several(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given or ()


def sentence(reason: Reason) -> str:
    return _WORDS[reason.how].format(field=_FIELDS[reason.field], value=reason.value, word=reason.word)


def _cursor(hit: Hit) -> str:
    place = msgspec.json.encode((hit.rank, hit.manifest.agent_id))
    return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _place(cursor: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=tuple[float, str])
    except (msgspec.DecodeError, binascii.Error, ValueError) as exc:
        raise BadInput("This cursor is not one of ours", field="cursor") from exc
