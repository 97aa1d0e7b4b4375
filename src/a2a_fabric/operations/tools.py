"""The operations `fabric.tool.*`: built-in tools, and every agent's capability as a tool.

Each tool can also be called by a name of its own: `fabric.tool.math.calculate` is a built-in tool,
`fabric.tool.agent.percy.reason` an agent's capability, `fabric.tool.calculate` short for the only tool of that name."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import ATTACHMENTS, Attachment, Call, Emit, Input, Principal, ResponseForm, Target
from a2a_fabric.core.disclosure import administers
from a2a_fabric.core.errors import BadInput, CapabilityNotFound, Forbidden, OutOfScope, UnknownOperation
from a2a_fabric.core.policy import allows_by_scope, find_refusal, is_limited, is_scoped
from a2a_fabric.core.propagation import MaybeChain, Trace
from a2a_fabric.core.result import Answer, OriginalMessage, Result
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.calls import CallOperations, Continuation, QuestionAnswers, choose_answers
from a2a_fabric.operations.operation import (
    Operation,
    OperationRequest,
    PreparedOperation,
    TracedArguments,
    decode_arguments,
)
from a2a_fabric.operations.pages import MAX_ITEMS, Page, PageCursor
from a2a_fabric.operations.views import CHANGED_KEY, render_agent_tool_item, render_capability, render_tool_item

PREFIX = "fabric.tool."
_CATEGORY_ALIASES = {"encoding": "encode"}
_MAX_NAME_SHOWN = 128
_TOOL_SEPARATORS = "_."
_MAX_ID = 512  # characters of a tool id, which may contain an agent id and a capability name


class ToolListArguments(TracedArguments, frozen=True, kw_only=True):
    category: Annotated[str | None, Meta(description="Only tools of this category: io, web, math…")] = None
    provider: Annotated[str | None, Meta(description="`builtin` or `agent`.")] = None
    query: Annotated[str | None, Meta(description="Only tools whose name or description has all these words.")] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description=f"How many at a time; at most and if unset {MAX_ITEMS}. `total` counts all."),
    ] = None
    cursor: PageCursor = None


class ToolDescribeArguments(TracedArguments, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]


class ToolCallArguments(TracedArguments, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]
    capability: Annotated[str | None, Meta(description="Which of its capabilities; unset: the only one.")] = None
    parameters: Annotated[dict[str, Any], Meta(description="The tool's arguments.")] = field(default_factory=dict)
    stream: Annotated[bool, Meta(description="Send events while it works.")] = False
    timeout_ms: Annotated[int | None, Meta(description="How long to wait.")] = None
    continuation: Continuation = None
    answers: QuestionAnswers = field(default_factory=dict)


class DirectCallOptions(TracedArguments, frozen=True, kw_only=True):
    """The arguments that a direct call accepts in addition to those of the tool."""

    stream: bool = False
    timeout_ms: int | None = None
    continuation: str | None = None
    answers: dict[str, Answer] = field(default_factory=dict)


class CallableTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A capability that can be called as a tool."""

    manifest: Manifest
    capability: Capability


class PlainToolCalls:
    """The plain calls of one tool by one caller: those with arguments of the tool alone, and no wish for events.

    What such calls have in common is found out once. A door keeps it for as long as the catalog and the caller's
    principal are the same objects. It grants nothing: each call passes all steps, which decide anew.
    """

    __slots__ = ("_decoder", "_gateway", "_reserved", "_target", "principal")

    def __init__(
        self, gateway: Gateway, tool: CallableTool, principal: Principal, decoder: msgspec.json.Decoder[dict[str, Any]]
    ) -> None:
        self.principal = principal
        self._gateway = gateway
        self._decoder = decoder
        # Arguments that are options of the call, or become the task or attachments, unless the tool has them itself.
        properties = (tool.capability.input_schema or {}).get("properties")
        self._reserved = _RESERVED_ARGUMENTS.difference(properties if isinstance(properties, dict) else ())
        self._target = Target(
            agent_id=tool.manifest.agent_id, capability=tool.capability.name, timeout_ms=gateway.default_timeout_ms
        )

    def build(
        self, raw: msgspec.Raw, trace: Trace, chain: MaybeChain, original: OriginalMessage | msgspec.UnsetType
    ) -> Call | None:
        """None if the arguments are no object, or hold more than those of the tool: `prepare_tool` looks closer."""
        try:
            arguments = self._decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None
        if not self._reserved.isdisjoint(arguments):
            return None
        target, timeout_ms = self._target, self._gateway.default_timeout_ms
        if target.timeout_ms != timeout_ms:  # the operator has changed it
            target = self._target = msgspec.structs.replace(target, timeout_ms=timeout_ms)
        return Call(
            trace=trace,
            auth=self.principal,
            target=target,
            input=Input(context=arguments),
            response=_PLAIN_RESPONSE,
            delegation_chain=chain,
            original=original,
        )


class ToolOperations:
    def __init__(self, gateway: Gateway, calls: CallOperations) -> None:
        self._gateway = gateway
        self._calls = calls
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    def all(self) -> list[Operation[Any]]:
        list_schema = {"type": "object", "properties": {"tools": {"type": "array"}, "count": {"type": "integer"}}}
        return [
            Operation("fabric.tool.list", "List the built-in tools and every agent's capability as a tool.",
                      ToolListArguments, self.list, output=list_schema, scopes=()),
            Operation("fabric.tool.describe", "Describe one tool: arguments, result, side effects.",
                      ToolDescribeArguments, self.describe, scopes=()),
            Operation("fabric.tool.call", "Run a tool.", ToolCallArguments, self.call, is_call=True, scopes=(),
                      read_only=False),
        ]  # fmt: skip

    async def list(self, arguments: ToolListArguments, request: OperationRequest, emit: Emit) -> Result:
        """Built-in tools first. In slices, with other requests in between."""
        page = Page(arguments.limit, arguments.cursor)
        catalog = await self._gateway.registry.prepare_view(request.principal)
        agents: Sequence[Manifest] = catalog.agents
        if arguments.cursor is not None or catalog.capability_count > (arguments.limit or MAX_ITEMS):
            agents = catalog.sort_by_id(agents)
        words = (arguments.query or "").lower().split()
        for manifest in catalog.tools:
            item = render_tool_item(manifest)
            if _includes_tool(arguments, item, words):
                page.total += 1
                if page.wants(position := ("", page.total)):
                    page.add(position, item)
        async for manifests in iterate_in_slices(agents):
            for manifest in manifests:
                self._add_agent_tools(page, manifest, arguments, words, request.principal)
        return Result(data=page.render("tools"))

    def _add_agent_tools(
        self, page: Page, manifest: Manifest, arguments: ToolListArguments, words: Sequence[str], principal: Principal
    ) -> None:
        report = self._gateway.registry.describe_tools(manifest.agent_id) if administers(principal) else None
        for number, capability in enumerate(manifest.capabilities):
            if not capability.is_for_models:
                continue
            item = render_agent_tool_item(manifest, capability)
            if not _includes_tool(arguments, item, words):
                continue
            page.total += 1
            if page.wants(position := (manifest.agent_id, number)):
                if report is not None and normalize_name(capability.name) in report.changed_names:
                    item[CHANGED_KEY] = True
                page.add(position, item)

    async def describe(self, arguments: ToolDescribeArguments, request: OperationRequest, emit: Emit) -> Result:
        tool = self.find_tool(arguments.tool_id.removeprefix(PREFIX), request.principal)
        item = (
            render_tool_item(tool.manifest)
            if tool.manifest.is_tool
            else render_agent_tool_item(tool.manifest, tool.capability)
        )
        return Result(data={"tool": {**item, "capabilities": [render_capability(tool.capability)]}})

    async def call(self, arguments: ToolCallArguments, request: OperationRequest, emit: Emit) -> Result:
        tool = self.find_tool(arguments.tool_id.removeprefix(PREFIX), request.principal)
        if arguments.capability is not None and not _has_capability(tool, arguments.capability):
            raise CapabilityNotFound(arguments.tool_id, arguments.capability, [tool.capability.name])
        call_input = _input_from_arguments(tool.capability, arguments.parameters)
        return await self._run(tool, call_input, arguments, request, emit)

    def prepare_direct(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """`fabric.tool.<anything>`: the arguments are those of the tool. Raises the errors of `find`, and BadInput."""
        return self.prepare_tool(self.find_tool(name.removeprefix(PREFIX), principal), name, raw)

    def prepare_tool(self, tool: CallableTool, name: str, raw: msgspec.Raw) -> PreparedOperation:
        """Prepare a call of a tool; `name` is the name that the caller used. Raises BadInput."""
        arguments = decode_arguments(self._decoder, raw, name)
        # Nearly all calls have no additional arguments, so there is nothing to separate.
        if tool.capability.input_schema is not None and _RESERVED_ARGUMENTS.isdisjoint(arguments):
            options, call_input = _NO_OPTIONS, Input(context=arguments)
        else:
            options = _take_options(arguments, tool.capability, name)
            call_input = _input_from_arguments(tool.capability, arguments)
        run = partial(self._run, tool, call_input, options)
        return PreparedOperation(run=run, stream=options.stream, trace=options.trace, is_call=True)

    def plan_plain_calls(self, tool: CallableTool, principal: Principal) -> PlainToolCalls | None:
        """None if calls of this tool may become jobs, or if it says nothing of its arguments."""
        capability = tool.capability
        if capability.input_schema is None or self._calls.choose_options(None, capability, msgspec.UNSET) is not None:
            return None
        return PlainToolCalls(self._gateway, tool, principal, self._decoder)

    def find_tool(self, tool_id: str, principal: Principal) -> CallableTool:
        """A tool by id, alias or unambiguous short name; an agent's capability as `agent.ID.CAPABILITY`.

        Raises UnknownOperation or CapabilityNotFound; for a limited caller Forbidden, whether the tool exists or not.
        """
        registry = self._gateway.registry
        if len(tool_id) > _MAX_ID:
            raise UnknownOperation(PREFIX + tool_id)
        manifest = registry.get_for(principal, tool_id)
        if manifest is None or not manifest.is_tool:
            manifest = None
            agent_tool = self._find_agent_tool(tool_id, principal) if tool_id.startswith("agent.") else None
            if agent_tool is not None:
                return agent_tool
            category, _, name = tool_id.partition(".")
            if category in _CATEGORY_ALIASES:
                manifest = registry.get_for(principal, f"{_CATEGORY_ALIASES[category]}.{name}")
            elif not name:
                ids = [m.agent_id for m in registry.catalog.tools if m.agent_id.rpartition(".")[2] == tool_id]
                matches = [found for each in ids if (found := registry.get_for(principal, each)) is not None]
                manifest = matches[0] if len(matches) == 1 else None
        if manifest is None or not manifest.is_tool:
            if is_limited(principal):
                raise forbidden_tool(PREFIX + tool_id, principal)
            tool_names = [PREFIX + m.agent_id for m in registry.catalog.tools]
            raise UnknownOperation(PREFIX + tool_id, tool_names)
        return CallableTool(manifest=manifest, capability=manifest.capabilities[0])

    def _find_agent_tool(self, tool_id: str, principal: Principal) -> CallableTool | None:
        """Agent ids may contain dots, so declared agents come first, and among them the longest matching id.

        So no agent that registers as `prod.files` takes the tools of a declared agent `prod`.
        """
        segments = tool_id.split(".")[1:]
        registry = self._gateway.registry
        candidates: list[tuple[Manifest, str]] = []
        for cut in range(len(segments) - 1, 0, -1):
            manifest = registry.get_for(principal, ".".join(segments[:cut]))
            if manifest is not None and not manifest.is_tool:
                candidates.append((manifest, ".".join(segments[cut:])))
        if len(candidates) > 1:
            candidates.sort(key=lambda each: registry.is_registered(each[0].agent_id))
        for manifest, name in candidates:
            capability = manifest.find_capability(name)
            if capability is not None:
                return CallableTool(manifest=manifest, capability=capability)
        if any(find_refusal(principal, manifest, name) is not None for manifest, name in candidates):
            raise forbidden_tool(PREFIX + tool_id, principal)
        for manifest, name in candidates:
            if manifest.is_open_ended:
                return CallableTool(manifest=manifest, capability=Capability(name=name))
        if candidates:
            manifest, name = candidates[0]
            raise CapabilityNotFound(manifest.agent_id, name, [c.name for c in manifest.capabilities])
        return None

    def _run(
        self,
        tool: CallableTool,
        call_input: Input,
        arguments: ToolCallArguments | DirectCallOptions,
        request: OperationRequest,
        emit: Emit,
    ) -> Awaitable[Result]:
        answers = choose_answers(request, arguments.continuation, arguments.answers)
        options = self._calls.choose_options(request.job_options, tool.capability, answers)
        call = Call(
            trace=request.trace,
            auth=request.principal,
            target=Target(
                agent_id=tool.manifest.agent_id,
                capability=tool.capability.name,
                timeout_ms=self._calls.clamp_timeout(arguments.timeout_ms, options),
            ),
            input=call_input,
            response=ResponseForm(stream=request.stream, format="json"),
            answers=answers,
            delegation_chain=request.delegation_chain,
            original=request.original,
        )
        return self._calls.start(call, options, emit)


def forbidden_tool(name: str, principal: Principal) -> Forbidden:
    """The refusal for every tool that a limited caller may not call, whether it exists or not.

    Only a name that itself says what kind of tool it is leads to the scope that would allow it.
    """
    shown = name[:_MAX_NAME_SHOWN]
    message = f"Refused by policy: there is no tool '{shown}' for these credentials"
    tool_id = name.removeprefix(PREFIX)
    rule = _find_denying_rule(principal, tool_id[:_MAX_NAME_SHOWN])
    if rule is not None or not is_scoped(principal):
        return Forbidden(message if rule is None else f"{message} (rule '{rule}')", tool=shown, rule=rule)
    scope = None
    if tool_id.startswith("agent."):
        scope = f"agent:{tool_id.removeprefix('agent.').rpartition('.')[0]}"
    elif tool_id != name:
        scope = f"tool:{tool_id}"
    return OutOfScope(message, scope, tool=shown)


def _find_denying_rule(principal: Principal, tool_id: str) -> str | None:
    """The rule that denies a tool of this name, whether there is one or not: `agent.ID.NAME`, `ID_NAME`, or its id."""
    rules = principal.entry.rules if principal.entry else None
    if rules is None:
        return None
    if tool_id.startswith("agent."):
        agent_id, _, capability = tool_id.removeprefix("agent.").rpartition(".")
        targets = [(agent_id, capability)]
    else:
        splits = [at for at, letter in enumerate(tool_id) if letter in _TOOL_SEPARATORS]
        targets = [(tool_id, ""), *((tool_id[:at], tool_id[at + 1 :]) for at in splits)]
    within_scopes = (each for each in targets if allows_by_scope(principal, "agent", *each))
    found = (rules.find_denial_by_name(agent_id, capability or None) for agent_id, capability in within_scopes)
    return next((rule for rule in found if rule is not None), None)


def _includes_tool(arguments: ToolListArguments, item: dict[str, Any], words: Sequence[str]) -> bool:
    category, provider = arguments.category, arguments.provider
    if category is not None and category not in (item["category"], item["tool_id"].partition(".")[0]):
        return False
    if provider is not None and item["provider"] != provider:
        return False
    if not words:
        return True
    text = f"{item['tool_id']} {item['display_name']} {item['description']}".lower()
    return all(word in text for word in words)


def _has_capability(tool: CallableTool, name: str) -> bool:
    aliases = tool.manifest.metadata.get("aliases", ())
    return normalize_name(name) in {normalize_name(offered) for offered in (tool.capability.name, *aliases)}


_OPTION_NAMES = ("stream", "timeout_ms", "trace", "continuation", "answers")
_RESERVED_ARGUMENTS = frozenset({*_OPTION_NAMES, "task", ATTACHMENTS})
_NO_OPTIONS = DirectCallOptions()
_PLAIN_RESPONSE = ResponseForm(format="json")


def _take_options(arguments: dict[str, Any], capability: Capability, name: str) -> DirectCallOptions:
    """The arguments with the names of options, unless the tool has arguments of these names."""
    properties = (capability.input_schema or {}).get("properties", {})
    has_answers = "continuation" in arguments  # otherwise `answers` are the tool's own, whatever its schema says
    names = _OPTION_NAMES if has_answers else _OPTION_NAMES[:-1]
    options = {key: arguments.pop(key) for key in names if key in arguments and key not in properties}
    if not options:
        return _NO_OPTIONS
    try:
        return msgspec.convert(options, DirectCallOptions)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad arguments for {name}: {exc}", tool=name) from exc


def _input_from_arguments(capability: Capability, arguments: dict[str, Any]) -> Input:
    """Arguments become the context; a `task` that the schema does not declare becomes the task."""
    properties = (capability.input_schema or {}).get("properties", {})
    remaining = dict(arguments)
    task = ""
    if "task" not in properties and isinstance(remaining.get("task"), str):
        task = remaining.pop("task")
    attachments: tuple[Attachment, ...] = ()
    if ATTACHMENTS in remaining and ATTACHMENTS not in properties:
        attachments = _parse_attachments(remaining.pop(ATTACHMENTS))
    if capability.input_schema is not None:
        return Input(task=task, context=remaining, attachments=attachments)
    context = remaining.pop("context", {})
    if not isinstance(context, dict):
        raise BadInput("Bad context: expected an object", field="context")
    return Input(task=task, context={**remaining, **context}, attachments=attachments)


def _parse_attachments(value: Any) -> tuple[Attachment, ...]:
    try:
        return msgspec.convert(value, tuple[Attachment, ...])
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad attachments: {exc}", field=ATTACHMENTS) from exc
