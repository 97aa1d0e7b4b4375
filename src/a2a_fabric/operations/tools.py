"""Operations on tools: list, describe, call; and the direct names of every tool and every agent's capability.

`fabric.tool.math.calculate` is a built-in tool, `fabric.tool.agent.percy.reason` an agent's
capability as a tool, `fabric.tool.calculate` short for the only tool of that name."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import Attachment, Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.content import ATTACHMENTS
from a2a_fabric.core.errors import BadInput, CapabilityNotFound, Forbidden, UnknownOperation
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.policy import find_refusal, is_limited
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.calls import CallOperations
from a2a_fabric.operations.operation import (
    Operation,
    OperationRequest,
    PreparedOperation,
    TracedArguments,
    decode_arguments,
)
from a2a_fabric.operations.views import render_agent_tool_item, render_capability, render_tool_item

PREFIX = "fabric.tool."
_OBJECT: dict[str, Any] = {"type": "object"}
_CATEGORY_ALIASES = {"encoding": "encode"}
_MAX_NAME_SHOWN = 128
_MAX_ID = 512  # characters of a tool id, which may contain an agent id and a capability name


class ToolListArguments(TracedArguments, frozen=True, kw_only=True):
    category: Annotated[str | None, Meta(description="Only tools of this category: io, web, math…")] = None
    provider: Annotated[str | None, Meta(description="`builtin` or `agent`.")] = None
    query: Annotated[str | None, Meta(description="Only tools whose name or description has all these words.")] = None


class ToolDescribeArguments(TracedArguments, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]


class ToolCallArguments(TracedArguments, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]
    capability: Annotated[str | None, Meta(description="Which of its capabilities; unset: the only one.")] = None
    parameters: Annotated[dict[str, Any], Meta(description="The tool's arguments.")] = field(default_factory=dict)
    stream: Annotated[bool, Meta(description="Send events while it works.")] = False
    timeout_ms: Annotated[int | None, Meta(description="How long to wait.")] = None


class DirectCallOptions(TracedArguments, frozen=True, kw_only=True):
    """The arguments that a direct call accepts in addition to those of the tool."""

    stream: bool = False
    timeout_ms: int | None = None


class CallableTool(msgspec.Struct, frozen=True, kw_only=True):
    """A capability that can be called as a tool."""

    manifest: Manifest
    capability: Capability


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
                      ToolDescribeArguments, self.describe, output=_OBJECT, scopes=()),
            Operation("fabric.tool.call", "Run a tool.", ToolCallArguments, self.call, output=_OBJECT, is_call=True,
                      scopes=(), read_only=False),
        ]  # fmt: skip

    async def list(self, arguments: ToolListArguments, request: OperationRequest, emit: Emit) -> Result:
        catalog = self._gateway.registry.visible_to(request.principal)
        items = [render_tool_item(manifest) for manifest in catalog.tools]
        items += [render_agent_tool_item(m, capability) for m in catalog.agents for capability in m.capabilities]
        if arguments.category is not None:
            category = arguments.category
            items = [i for i in items if category in (i["category"], i["tool_id"].partition(".")[0])]
        if arguments.provider is not None:
            items = [i for i in items if i["provider"] == arguments.provider]
        if arguments.query is not None:
            words = arguments.query.lower().split()
            items = [i for i in items if _matches_words(i, words)]
        return Result(data={"tools": items, "count": len(items)})

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
        return await self._run(tool, call_input, arguments.timeout_ms, request, emit)

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
        run = partial(self._run, tool, call_input, options.timeout_ms)
        return PreparedOperation(run=run, stream=options.stream, trace=options.trace, is_call=True)

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
                matches = [m for m in registry.visible_to(principal).tools if m.agent_id.rpartition(".")[2] == tool_id]
                manifest = matches[0] if len(matches) == 1 else None
        if manifest is None or not manifest.is_tool:
            if is_limited(principal):
                raise forbidden_tool(PREFIX + tool_id)
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
            raise forbidden_tool(PREFIX + tool_id)
        for manifest, name in candidates:
            if not manifest.capabilities:
                return CallableTool(manifest=manifest, capability=Capability(name=name))
        if candidates:
            manifest, name = candidates[0]
            raise CapabilityNotFound(manifest.agent_id, name, [c.name for c in manifest.capabilities])
        return None

    def _run(
        self, tool: CallableTool, call_input: Input, timeout_ms: int | None, request: OperationRequest, emit: Emit
    ) -> Awaitable[Result]:
        options = self._calls.choose_options(request.job_options, tool.capability, request.answers)
        call = Call(
            trace=request.trace,
            auth=request.principal,
            target=Target(
                agent_id=tool.manifest.agent_id,
                capability=tool.capability.name,
                timeout_ms=self._calls.clamp_timeout(timeout_ms, options),
            ),
            input=call_input,
            response=ResponseForm(stream=request.stream, format="json"),
            answers=request.answers,
            delegation_chain=request.delegation_chain,
        )
        return self._calls.start(call, options, emit)


def forbidden_tool(name: str) -> Forbidden:
    """The refusal for every tool that a limited caller may not call, whether it exists or not."""
    return Forbidden(
        f"Refused by policy: there is no tool '{name[:_MAX_NAME_SHOWN]}' for these credentials",
        tool=name[:_MAX_NAME_SHOWN],
    )


def _matches_words(item: dict[str, Any], words: list[str]) -> bool:
    text = f"{item['tool_id']} {item['display_name']} {item['description']}".lower()
    return all(word in text for word in words)


def _has_capability(tool: CallableTool, name: str) -> bool:
    aliases = tool.manifest.metadata.get("aliases", ())
    return normalize_name(name) in {normalize_name(offered) for offered in (tool.capability.name, *aliases)}


_OPTION_NAMES = ("stream", "timeout_ms", "trace")
_RESERVED_ARGUMENTS = frozenset({*_OPTION_NAMES, "task", ATTACHMENTS})
_NO_OPTIONS = DirectCallOptions()


def _take_options(arguments: dict[str, Any], capability: Capability, name: str) -> DirectCallOptions:
    """`stream`, `timeout_ms` and `trace`, unless the tool has arguments of these names."""
    properties = (capability.input_schema or {}).get("properties", {})
    options = {key: arguments.pop(key) for key in _OPTION_NAMES if key in arguments and key not in properties}
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
