"""`fabric.route` and `fabric.ask`: which agent a request in words is for, and its answer.

`RequestRouting` decides for all doors. After the phrases of the agents (`core.word_routing`) the search index is asked,
which knows names and descriptions, too; a clear hit answers. Then a model compares meanings, if the operator has set
one up (`semantic`), and then the registry's default agent answers. If there is none, the reply says that no agent
fits, and names the nearest. An agent that the caller may not call is neither chosen nor named. Words never choose a
capability that changes something, unless its whole name or trigger is among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Attachment, Call, Emit, Input, Principal, ResponseForm, Target, owner_from_principal
from a2a_fabric.core.capability_choice import AgentChoice, choose_unnamed_capability, may_change_something
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.message import Message
from a2a_fabric.core.policy import is_limited, list_visible_tiers
from a2a_fabric.core.ports import MeaningHit, MeaningMatcher
from a2a_fabric.core.propagation import WireChain, pick_longer_chain
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.core.search import SearchHit, SearchQuery
from a2a_fabric.core.word_index import WordIndex, may_answer_signals
from a2a_fabric.core.word_routing import (
    MAX_CANDIDATES,
    NoAgentFits,
    RequestPart,
    RouteCandidate,
    SwitchCommand,
    WordRoute,
    WordRouter,
    WordRules,
    make_no_fit_reason,
)
from a2a_fabric.core.words import MAX_TEXT
from a2a_fabric.gateway import Gateway
from a2a_fabric.messages.requests import TALKS_TO, ConversationState, RequestConversations
from a2a_fabric.operations.calls import CallOperations
from a2a_fabric.operations.catalog_indexes import CatalogIndexes
from a2a_fabric.operations.graphs import GraphOperations, graph_from_parts
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments
from a2a_fabric.operations.search import SearchOperations

ROUTE_KEY = "_fabric"  # in the result of `fabric.ask`: which agent answered, and why
_MIN_RANK = 0.5  # of a search hit that answers; weaker ones are only named
_SEARCHED = 50  # hits, of which some may be agents of other owners

# The agent that answered last in a conversation since this time, at a door that records no answers itself.
FindLastAgent = Callable[[float], Awaitable[str | None]]

ConversationId = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    Meta(description="Requests with the same id are one conversation: a switch to an agent holds in it."),
]
RequestText = Annotated[str, Meta(min_length=1, max_length=1_000_000, description="The request, in plain words.")]


class RouteArguments(TracedArguments, frozen=True, kw_only=True):
    text: RequestText
    conversation_id: ConversationId = None


class AskArguments(TracedArguments, frozen=True, kw_only=True):
    text: RequestText
    conversation_id: ConversationId = None
    context: Annotated[dict[str, Any], Meta(description="Arguments and background, as JSON.")] = msgspec.field(
        default_factory=dict
    )
    attachments: Annotated[tuple[Attachment, ...], Meta(description="Files, links and data.")] = ()
    stream: Annotated[bool, Meta(description="Send events while the agent works.")] = False
    timeout_ms: Annotated[int | None, Meta(description="How long to wait; 60000 if unset.")] = None
    delegation_chain: WireChain | msgspec.UnsetType = msgspec.UNSET


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes. `text` is the request without a switch command; empty if there is nothing besides."""

    route: WordRoute
    text: str
    switch: SwitchCommand | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """For the message that records the request: see `messages.requests`."""
        return {} if self.switch is None else {TALKS_TO: self.switch.agent_id}


class MessageChoice(AgentChoice, frozen=True, kw_only=True):
    """The agent of a message, and the parts of one that is for several agents."""

    parts: tuple[RequestPart, ...] = ()


class RequestRouting:
    """Decides for all doors which agent answers a request in words."""

    def __init__(
        self,
        gateway: Gateway,
        search: SearchOperations,
        conversations: RequestConversations,
        matcher: MeaningMatcher | None = None,
    ) -> None:
        self._matcher = matcher
        self._registry = gateway.registry
        self._search = search
        self._conversations = conversations
        self._indexes = CatalogIndexes(
            gateway.registry, lambda: WordIndex(self._is_learnt), lambda principal: not is_limited(principal)
        )
        self._rules = WordRules(WordRouting())

    async def resolve(
        self, principal: Principal, text: str, conversation_id: str | None, find_last: FindLastAgent | None = None
    ) -> Destination:
        """Where a request goes: a switch command and an earlier switch decide before its words do.

        `find_last` is asked if the conversation has no answer that the node recorded itself.
        """
        router = await self.find_router(principal)
        switch = router.find_switch(text)
        state = ConversationState()
        if switch is None:
            state = await self._conversations.read_state(principal, conversation_id)
            held_id, why = state.held_id, "you are talking to it in this conversation"
        else:
            text, held_id, why = switch.rest, switch.agent_id, "you switched to it"

        async def find_last_id() -> str | None:
            if state.last_id is None and switch is None and find_last is not None:
                return await find_last(state.switched_at)
            return state.last_id

        held = None if held_id is None else self._registry.get_for(principal, held_id)
        if held is None:
            route = await self.route(principal, text, find_last_id)
        else:
            route = router.apply_rules(self.route_to(held, text, why), text, is_by_words=False)
        return Destination(route=route, text=text, switch=switch)

    async def take_switch(self, principal: Principal, text: str, conversation_id: str | None) -> str | None:
        """What the node answers to a switch command with nothing besides; None for any other text.

        Raises BadInput for a switch outside of a conversation.
        """
        switch = (await self.find_router(principal)).find_switch(text)
        if switch is None or switch.rest:
            return None
        if conversation_id is None:
            raise _make_unheld_switch()
        metadata = {TALKS_TO: switch.agent_id}
        await self._conversations.record_request(principal, conversation_id, text, None, **metadata)
        return describe_switch(switch)

    async def choose_agent(
        self, principal: Principal, text: str, conversation_id: str | None, find_last: FindLastAgent | None = None
    ) -> MessageChoice:
        """The agent for a message that names none, at doors where the agent gets the message as it is.

        Raises BadInput if there is no agent that this caller may ask, and NoAgentFits.
        """
        caller = owner_from_principal(principal)
        agents = (await self._registry.prepare_view(principal)).agents
        first_two = list(islice((each for each in agents if may_answer_unnamed(each, caller)), 2))
        if not first_two:
            raise BadInput("There is no agent that you may ask", field="agent")
        if len(first_two) == 1 and self._may_answer_signals(first_two[0]):
            return MessageChoice(manifest=first_two[0])
        destination = await self.resolve(principal, text, conversation_id, find_last)
        if destination.switch is not None and conversation_id is not None:
            agent_id = destination.route.agent_id
            await self._conversations.record_request(principal, conversation_id, text, agent_id, **destination.metadata)
        agent_id = destination.route.agent_id
        manifest = None if agent_id is None else self._registry.get_for(principal, agent_id)
        if manifest is None:
            raise NoAgentFits(destination.route.reason, destination.route.candidates)
        parts = destination.route.parts
        return MessageChoice(
            manifest=manifest, reason=f"The message names no agent. {destination.route.reason}", parts=parts
        )

    async def find_router(self, principal: Principal) -> WordRouter:
        """The router for this caller, with all agents and rules as they are now."""
        if self._rules.routing is not self._registry.word_routing:
            self._rules = WordRules(self._registry.word_routing)
        index = await self._indexes.find(principal)
        health = self._registry.health
        return WordRouter(
            index, self._rules, owner_from_principal(principal), lambda agent_id: health.get(agent_id).status
        )

    async def route(
        self, principal: Principal, text: str, find_last_id: Callable[[], Awaitable[str | None]]
    ) -> WordRoute:
        """`agent_id` of the route is None if no agent fits. A request for several agents has parts, too.

        `find_last_id` finds the agent that answered last in the conversation. It goes on if the words fit no other.
        """
        router = await self.find_router(principal)
        route = router.route(text)
        if route is not None:
            parts = router.split(text)
            return msgspec.structs.replace(route, parts=parts) if parts else route
        hits = await self._find_nearest(principal, text)
        if hits and hits[0].rank >= _MIN_RANK and self._may_answer_signals(hits[0].manifest):
            return self._route_to_hit(hits, text)
        nearest = await self._route_by_meaning(principal, text)
        if nearest is not None:
            return router.apply_rules(nearest, text, is_by_words=False)
        for agent_id, why in (
            (await find_last_id(), "no other agent fits, and it answered last in this conversation"),
            (self._rules.routing.default_agent, "no other agent fits, and it is the default agent"),
        ):
            manifest = None if agent_id is None else self._registry.get_for(principal, agent_id)
            if manifest is not None:
                return router.apply_rules(self.route_to(manifest, text, why, hits), text, is_by_words=False)
        candidates = tuple(_candidate_from_hit(hit) for hit in hits[:MAX_CANDIDATES])
        reason = make_no_fit_reason(each.agent_id for each in candidates)
        return WordRoute(agent_id=None, capability=None, reason=reason, candidates=candidates)

    def route_to(self, manifest: Manifest, text: str, why: str, hits: Sequence[SearchHit] = ()) -> WordRoute:
        """The route to an agent that is chosen for another reason than its words. Raises BadInput."""
        is_learnt = self._is_learnt(manifest.agent_id)
        choice = choose_unnamed_capability(manifest.capabilities, Input(task=text[:MAX_TEXT]), is_learnt=is_learnt)
        capability = choice.capability.name
        chosen = RouteCandidate(agent_id=manifest.agent_id, capability=capability, score=0, why=(why,))
        others = (_candidate_from_hit(hit) for hit in hits if hit.manifest.agent_id != manifest.agent_id)
        return WordRoute(
            agent_id=manifest.agent_id,
            capability=capability,
            reason=f"'{manifest.agent_id}' answers, because {why}.",
            candidates=(chosen, *others)[:MAX_CANDIDATES],
        )

    def _is_learnt(self, agent_id: str) -> bool:
        return self._registry.catalog.is_discovered(agent_id)

    def _may_answer_signals(self, manifest: Manifest) -> bool:
        return may_answer_signals(manifest, is_learnt=self._is_learnt(manifest.agent_id))

    async def _route_by_meaning(self, principal: Principal, text: str) -> WordRoute | None:
        if self._matcher is None:
            return None
        agents, caller = (await self._registry.prepare_view(principal)).agents, owner_from_principal(principal)
        hit = await self._matcher.find_best(
            text, agents, lambda each: may_answer_unnamed(each, caller) and self._may_answer_signals(each)
        )
        if hit is None:
            return None
        manifest = self._narrow_to_hit(hit)
        route = self.route_to(manifest, text, "what its card says is the nearest to the request by meaning")
        best = msgspec.structs.replace(route.candidates[0], score=round(100 * hit.score))
        return msgspec.structs.replace(route, candidates=(best,))

    def _narrow_to_hit(self, hit: MeaningHit) -> Manifest:
        """The agent with the capability that is meant alone, unless that one may change something."""
        best = None if hit.capability is None else hit.manifest.find_capability(hit.capability)
        has_default = any(each.default for each in hit.manifest.capabilities)
        is_learnt = self._is_learnt(hit.manifest.agent_id)
        if best is None or has_default or may_change_something(best, is_learnt=is_learnt):
            return hit.manifest
        return msgspec.structs.replace(hit.manifest, capabilities=(best,))

    async def _find_nearest(self, principal: Principal, text: str) -> list[SearchHit]:
        tiers = tuple(list_visible_tiers(principal))
        found = await self._search.find(SearchQuery(text=text[:MAX_TEXT], tiers=tiers, limit=_SEARCHED), principal)
        caller = owner_from_principal(principal)
        return [hit for hit in found.hits if may_answer_unnamed(hit.manifest, caller)]

    def _route_to_hit(self, hits: Sequence[SearchHit], text: str) -> WordRoute:
        route = self.route_to(hits[0].manifest, text, "its name or description is the nearest to the request", hits[1:])
        best = msgspec.structs.replace(route.candidates[0], score=hits[0].score)
        return msgspec.structs.replace(route, candidates=(best, *route.candidates[1:]))


class RouteOperations:
    def __init__(
        self,
        gateway: Gateway,
        calls: CallOperations,
        graphs: GraphOperations,
        routing: RequestRouting,
        conversations: RequestConversations,
    ) -> None:
        self._gateway = gateway
        self._calls = calls
        self._graphs = graphs
        self._routing = routing
        self._conversations = conversations

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.route", "Show which agent a request in words is for, and why; nothing is called.",
                      RouteArguments, self.route, scopes=()),
            Operation("fabric.ask", "Ask in words: the agent that fits answers.", AskArguments, self.ask, scopes=(),
                      is_call=True, read_only=False),
        ]  # fmt: skip

    async def route(self, arguments: RouteArguments, request: OperationRequest, emit: Emit) -> Result:
        destination = await self._routing.resolve(request.principal, arguments.text, arguments.conversation_id)
        if destination.switch is not None and not destination.text:
            return Result(data=_render_switch(destination.switch))
        return Result(data=_render_route(destination.route))

    async def ask(self, arguments: AskArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises NoAgentFits, and the errors of the call."""
        principal, conversation_id = request.principal, arguments.conversation_id
        destination = await self._routing.resolve(principal, arguments.text, conversation_id)
        route, switch = destination.route, destination.switch
        if switch is not None and conversation_id is None:
            raise _make_unheld_switch()
        if switch is not None and not destination.text:
            await self._record(arguments, request, destination, None)
            return Result(data=_render_switch(switch))
        if route.agent_id is None or route.capability is None:
            raise NoAgentFits(route.reason, route.candidates)
        parts = () if arguments.attachments else route.parts  # files cannot be divided
        shown = msgspec.structs.replace(route, reason=_describe_parts(parts)) if parts else route
        chosen = {"agent_id": route.agent_id, "capability": route.capability}
        await emit(Event("status", {"status": "running", "message": shown.reason, **chosen}))
        message = await self._record(arguments, request, destination, route.agent_id)
        if parts:
            result = await self._ask_all(arguments, request, parts, emit)
        else:
            call = self._build_call(arguments, request, destination)
            result = await self._calls.start(call, self._choose_options(call), emit)
        if message is not None:
            await self._conversations.record_answer(principal, message, route.agent_id, result, _summarize(shown))
        return _add_route(result, shown, conversation_id)

    async def _ask_all(
        self, arguments: AskArguments, request: OperationRequest, parts: Sequence[RequestPart], emit: Emit
    ) -> Result:
        """Run the parts of a request as a task graph."""
        graph = graph_from_parts(parts, arguments.context, arguments.conversation_id)
        chain = pick_longer_chain(arguments.delegation_chain, request.delegation_chain)
        graph_request = msgspec.structs.replace(request, delegation_chain=chain)
        timeout = self._gateway.clamp_timeout(arguments.timeout_ms) / 1000
        return await self._graphs.run_graph(graph, graph_request, emit, timeout)

    async def _record(
        self, arguments: AskArguments, request: OperationRequest, destination: Destination, agent_id: str | None
    ) -> Message | None:
        """None for a request outside of a conversation, which is not kept."""
        if arguments.conversation_id is None:
            return None
        return await self._conversations.record_request(
            request.principal, arguments.conversation_id, arguments.text, agent_id, **destination.metadata
        )

    def _choose_options(self, call: Call) -> Any:
        manifest = self._gateway.registry.catalog_for(call.auth).get(call.target.agent_id)
        capability = None if manifest is None else manifest.find_capability(call.target.capability)
        return self._calls.choose_options(None, capability, msgspec.UNSET)

    def _build_call(self, arguments: AskArguments, request: OperationRequest, destination: Destination) -> Call:
        return Call(
            trace=request.trace,
            auth=request.principal,
            target=Target(
                agent_id=str(destination.route.agent_id),
                capability=str(destination.route.capability),
                timeout_ms=self._calls.clamp_timeout(arguments.timeout_ms, None),
            ),
            input=Input(task=destination.text, context=arguments.context, attachments=arguments.attachments),
            response=ResponseForm(stream=request.stream),
            conversation_id=arguments.conversation_id or msgspec.UNSET,
            delegation_chain=pick_longer_chain(arguments.delegation_chain, request.delegation_chain),
        )


def _candidate_from_hit(hit: SearchHit) -> RouteCandidate:
    capabilities = hit.capabilities
    return RouteCandidate(
        agent_id=hit.manifest.agent_id,
        capability=capabilities[0] if capabilities else None,
        score=min(hit.score, 39),
        why=tuple(f"'{reason.word}' is in its {reason.field.replace('_', ' ')}" for reason in hit.reasons[:3]),
    )


def _render_route(route: WordRoute) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "agent_id": route.agent_id,
        "capability": route.capability,
        "reason": route.reason,
        "candidates": msgspec.to_builtins(route.candidates),
    }
    if not route.parts:
        return rendered
    return {**rendered, "reason": _describe_parts(route.parts), "parts": msgspec.to_builtins(route.parts)}


def _describe_parts(parts: Sequence[RequestPart]) -> str:
    names = ", ".join(f"'{agent_id}'" for agent_id in dict.fromkeys(part.agent_id for part in parts))
    return f"Several agents answer, each its part of the request: {names}."


def _summarize(route: WordRoute) -> dict[str, Any]:
    return {"agent_id": route.agent_id, "capability": route.capability, "reason": route.reason}


def _add_route(result: Result, route: WordRoute, conversation_id: str | None) -> Result:
    summary = _summarize(route)
    if conversation_id is not None:
        summary["conversation_id"] = conversation_id
    return msgspec.structs.replace(result, data={**result.data, ROUTE_KEY: summary})


def _make_unheld_switch() -> BadInput:
    hint = "A switch to an agent holds for a conversation. Send a `conversation_id`."
    return BadInput(hint, field="conversation_id")


def describe_switch(switch: SwitchCommand) -> str:
    if switch.agent_id is None:
        return "You talk to all agents again."
    return f"You talk to '{switch.agent_id}' from now on. Say \"switch back\" to end that."


def _render_switch(switch: SwitchCommand) -> dict[str, Any]:
    answer = describe_switch(switch)
    return {
        "agent_id": switch.agent_id,
        "capability": None,
        "answer": answer,
        "reason": answer,
        "candidates": [],
        "switched": True,
    }
