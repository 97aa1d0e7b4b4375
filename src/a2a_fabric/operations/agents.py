"""Operations on agents: list, describe, preview a route, call."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Audience, Manifest, Status, TrustTier
from a2a_fabric.core.call import Attachment, Format, Input, Principal
from a2a_fabric.core.delegation import GivenChain
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.question import Answer, Answers
from a2a_fabric.core.result import Result
from a2a_fabric.core.routing import share_load
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.calls import Asked, Calls, JobArguments
from a2a_fabric.operations.operation import Operation, Request, Traced, TraceRef
from a2a_fabric.operations.views import agent_details, agent_item, plan_view, registration_view
from a2a_fabric.registry.registrar import Registrar
from a2a_fabric.registry.registry import AgentFilter

_OBJECT: dict[str, Any] = {"type": "object"}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Its names are those of `registry.AgentFilter`, and `owner`."""

    capability: Annotated[str | None, Meta(description="Only agents with this capability.")] = None
    tag: Annotated[str | None, Meta(description="Only agents with this tag.")] = None
    status: Annotated[Status | None, Meta(description="Only agents in this state.")] = None
    trust_tier: Annotated[TrustTier | None, Meta(description="Only agents of this trust tier.")] = None
    audience: Annotated[Audience | None, Meta(description="Only agents for this audience.")] = None
    runtime: Annotated[str | None, Meta(description="Only agents reached by this runtime.")] = None
    transport: Annotated[str | None, Meta(description="Only agents with this transport.")] = None
    node_id: Annotated[str | None, Meta(description="Only agents of this machine or site.")] = None
    version: Annotated[str | None, Meta(description="Only agents of this version.")] = None
    realm: Annotated[str | None, Meta(description="Only agents of this realm.")] = None
    cog_id: Annotated[str | None, Meta(description="Only agents of this cog.")] = None
    delegate_id: Annotated[str | None, Meta(description="Only agents of this delegate.")] = None
    owner: Annotated[str | None, Meta(description="Only agents registered by this caller, as `psk:NAME`.")] = None
    query: Annotated[str | None, Meta(description="Only agents whose name or description has all these words.")] = None


class ListArguments(Filter, frozen=True, kw_only=True):
    filter: Annotated[Filter | None, Meta(description="The same filters, nested.")] = None
    details: Annotated[bool, Meta(description="Show each agent as fabric.agent.describe does.")] = False
    known: Annotated[
        str | None, Meta(description="A `revision` from before: if it still holds, nothing is listed.")
    ] = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="While that holds, wait so long for a change.")] = 0
    trace: Annotated[TraceRef | None, Meta(description="Continue this trace.")] = None


class DescribeArguments(Traced, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent.")]


class PreviewArguments(Traced, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent would be asked.")]
    capability: Annotated[str, Meta(description="For what.")]
    stream: Annotated[bool, Meta(description="Whether events would be wanted.")] = False


class CallArguments(JobArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent to ask.")]
    capability: Annotated[str, Meta(description="Which of its capabilities.")]
    task: Annotated[str, Meta(description="What is to be done, in words.")]
    context: Annotated[dict[str, Any], Meta(description="Arguments and background, as JSON.")] = field(
        default_factory=dict
    )
    attachments: Annotated[tuple[Attachment, ...], Meta(description="Files, links and data.")] = ()
    stream: Annotated[bool, Meta(description="Send events while the agent works.")] = False
    format: Annotated[Format, Meta(description="Preferred form of the answer.")] = "text"
    timeout_ms: Annotated[int | None, Meta(description="How long to wait; 60000 if unset.")] = None
    conversation_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | msgspec.UnsetType,
        Meta(description="Calls with the same id share the agent's memory, if it keeps one."),
    ] = msgspec.UNSET
    delegation_chain: Annotated[
        GivenChain | msgspec.UnsetType,
        Meta(description="What the call has passed, as it came with it; a node that finds itself there refuses."),
    ] = msgspec.UNSET
    on_behalf_of: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="The `auth` of whoever asked the caller; the agent gets it, and nothing is allowed by it."),
    ] = msgspec.UNSET
    continuation: Annotated[
        str | None, Meta(description="From a result with `input_required`: repeat the call with it and the answers.")
    ] = None
    answers: Annotated[dict[str, Answer], Meta(description="Under each question's key.")] = field(default_factory=dict)


class AgentOperations:
    def __init__(self, gateway: Gateway, calls: Calls, registrar: Registrar) -> None:
        self._gateway = gateway
        self._calls = calls
        self._registrar = registrar

    def all(self) -> list[Operation[Any]]:
        listed = {"type": "object", "properties": {"agents": {"type": "array"}, "count": {"type": "integer"}}}
        one = {"type": "object", "properties": {"agent": _OBJECT}, "required": ["agent"]}
        return [
            Operation(
                "fabric.agent.list",
                "List the agents and what each can do.",
                ListArguments,
                self.list,
                output=listed,
                scopes=(),
            ),
            Operation(
                "fabric.agent.describe",
                "Describe one agent: capabilities with their schemas, health, trust.",
                DescribeArguments,
                self.describe,
                output=one,
                scopes=(),
            ),
            Operation(
                "fabric.route.preview",
                "Show who would answer a call, in which order, and why.",
                PreviewArguments,
                self.preview,
                output=_OBJECT,
                scopes=(),
            ),
            Operation(
                "fabric.call",
                "Ask an agent to do something with one of its capabilities.",
                CallArguments,
                self.call,
                output=_OBJECT,
                scopes=(),
                is_call=True,
                read_only=False,
            ),
        ]

    async def list(self, arguments: ListArguments, request: Request, emit: Emit) -> Result:
        news = self._gateway.registry.news
        if arguments.known is not None:
            with self._calls.waiting.held(request.principal.principal_id):
                await news.wait(arguments.known, arguments.wait_ms / 1000)
        revision = news.revision
        if arguments.known == revision:
            return Result(data={"agents": [], "count": 0, "revision": revision, "unchanged": True})
        agents = self._listed(arguments, request)
        node_id = self._gateway.node_id
        return Result(data={"agents": agents, "count": len(agents), "revision": revision, "node_id": node_id})

    def _listed(self, arguments: ListArguments, request: Request) -> Sequence[dict[str, Any]]:
        wanted = arguments.filter or arguments
        registry, view = self._gateway.registry, agent_details if arguments.details else agent_item
        seen = registry.seen_by(request.principal)
        found = registry.list_agents(
            AgentFilter(**{name: getattr(wanted, name) for name in AgentFilter.__struct_fields__}), seen
        )
        if wanted.owner is not None:
            found = [manifest for manifest in found if self._registrar.owner_of(manifest.agent_id) == wanted.owner]
        if seen is not registry.catalog:
            found = [_among(seen, manifest) for manifest in found]
        principal = request.principal
        return [view(m, registry.health.of(m.agent_id), principal, registry.runtime_of(m)) for m in found]

    async def describe(self, arguments: DescribeArguments, request: Request, emit: Emit) -> Result:
        registry = self._gateway.registry
        seen = registry.seen_by(request.principal)
        manifest = registry.agent_for(request.principal, arguments.agent_id)
        if seen is not registry.catalog:
            manifest = _among(seen, manifest)
        health = registry.health.of(manifest.agent_id)
        details = agent_details(manifest, health, request.principal, registry.runtime_of(manifest))
        registration = await self._registrar.registration_of(manifest.agent_id)
        if registration is not None:
            details["registration"] = registration_view(registration)
        return Result(data={"agent": details})

    async def preview(self, arguments: PreviewArguments, request: Request, emit: Emit) -> Result:
        try:
            plan = self._gateway.plan(arguments.agent_id, arguments.capability, request.principal, arguments.stream)
            if plan.replicas:
                plan = share_load(plan, self._gateway.calls_of)
            return Result(data=plan_view(plan, self._gateway.registry.runtime_of, request.principal))
        except Forbidden as error:
            refused: dict[str, Any] = {"selected_runtime": None, "fallbacks": [], "refused": []}
            return Result(data={**refused, "policy": {"allowed": False, "reason": error.message}})

    def call(self, arguments: CallArguments, request: Request, emit: Emit) -> Awaitable[Result]:
        asked = Asked(
            agent_id=arguments.agent_id,
            capability=arguments.capability,
            input=Input(task=arguments.task, context=arguments.context, attachments=arguments.attachments),
            timeout_ms=arguments.timeout_ms,
            format=arguments.format,
            answers=_answers(arguments, request),
            conversation_id=arguments.conversation_id,
            delegation_chain=arguments.delegation_chain,
            on_behalf_of=_principal(arguments.on_behalf_of),
            job=arguments.wish() or request.job,
        )
        return self._calls.make(asked, request, emit)


def _among(seen: AgentIndex, manifest: Manifest) -> Manifest:
    """Without those of its fallbacks that the caller may not know of."""
    named = tuple(each for each in manifest.fallbacks if seen.get(each) is not None)
    return manifest if named == manifest.fallbacks else msgspec.structs.replace(manifest, fallbacks=named)


def _principal(given: dict[str, Any] | msgspec.UnsetType) -> Principal | msgspec.UnsetType:
    if given is msgspec.UNSET:
        return msgspec.UNSET
    try:
        return msgspec.convert(given, Principal)
    except msgspec.ValidationError as exc:
        raise BadInput(f"on_behalf_of is not an `auth` block: {exc}"[:300], field="on_behalf_of") from exc


def _answers(arguments: CallArguments, request: Request) -> Answers | msgspec.UnsetType:
    """What came with the request is newer: it answers what was asked after the continuation in the arguments."""
    if arguments.continuation is None or request.answers:
        return request.answers
    return Answers(continuation=arguments.continuation, answers=arguments.answers)
