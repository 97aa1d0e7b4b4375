"""Operations on tools: list, describe, call; and the direct names of every tool and every agent's capability.

`fabric.tool.math.calculate` is a built-in, `fabric.tool.agent.percy.reason` an agent
as a tool, `fabric.tool.calculate` short for the only tool of that name.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Capability, Manifest, fold
from a2a_fabric.core.arguments import ATTACHMENTS
from a2a_fabric.core.call import Attachment, Input, Principal
from a2a_fabric.core.errors import BadInput, CapabilityNotFound, Forbidden, UnknownOperation
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.policy import is_limited, refusal
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.calls import Asked, Calls
from a2a_fabric.operations.operation import Operation, Prepared, Request, Traced, decode_arguments
from a2a_fabric.operations.views import agent_tool_item, capability_details, tool_item

PREFIX = "fabric.tool."
_OBJECT: dict[str, Any] = {"type": "object"}
_CATEGORY_ALIASES = {"encoding": "encode"}
_SHOWN = 128
_LONGEST_ID = 512  # of any tool: an agent's id and a capability's name are bounded too


class ToolListArguments(Traced, frozen=True, kw_only=True):
    category: Annotated[str | None, Meta(description="Only tools of this category: io, web, math…")] = None
    provider: Annotated[str | None, Meta(description="`builtin` or `agent`.")] = None
    query: Annotated[str | None, Meta(description="Only tools whose name or description has all these words.")] = None


class ToolDescribeArguments(Traced, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]


class ToolCallArguments(Traced, frozen=True, kw_only=True):
    tool_id: Annotated[str, Meta(description="Which tool, for example math.calculate.")]
    capability: Annotated[str | None, Meta(description="Which of its capabilities; unset: the only one.")] = None
    parameters: Annotated[dict[str, Any], Meta(description="The tool's arguments.")] = field(default_factory=dict)
    stream: Annotated[bool, Meta(description="Send events while it works.")] = False
    timeout_ms: Annotated[int | None, Meta(description="How long to wait.")] = None


class DirectOptions(Traced, frozen=True, kw_only=True):
    """What may stand beside a tool's own arguments in a direct call."""

    stream: bool = False
    timeout_ms: int | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A capability that can be called as a tool."""

    manifest: Manifest
    capability: Capability


class ToolOperations:
    def __init__(self, gateway: Gateway, calls: Calls) -> None:
        self._gateway = gateway
        self._calls = calls
        self._direct = msgspec.json.Decoder(dict[str, Any])

    def all(self) -> list[Operation[Any]]:
        listed = {"type": "object", "properties": {"tools": {"type": "array"}, "count": {"type": "integer"}}}
        return [
            Operation("fabric.tool.list", "List the built-in tools and every agent's capability as a tool.",
                      ToolListArguments, self.list, output=listed, scopes=()),
            Operation("fabric.tool.describe", "Describe one tool: arguments, result, side effects.",
                      ToolDescribeArguments, self.describe, output=_OBJECT, scopes=()),
            Operation("fabric.tool.call", "Run a tool.", ToolCallArguments, self.call, output=_OBJECT, is_call=True,
                      scopes=(), read_only=False),
        ]  # fmt: skip

    async def list(self, arguments: ToolListArguments, request: Request, emit: Emit) -> Result:
        catalog = self._gateway.registry.seen_by(request.principal)
        items = [tool_item(manifest) for manifest in catalog.tools]
        items += [agent_tool_item(m, capability) for m in catalog.agents for capability in m.capabilities]
        if arguments.category is not None:
            wanted = arguments.category
            items = [i for i in items if wanted in (i["category"], i["tool_id"].partition(".")[0])]
        if arguments.provider is not None:
            items = [i for i in items if i["provider"] == arguments.provider]
        if arguments.query is not None:
            words = arguments.query.lower().split()
            items = [i for i in items if _mentions(i, words)]
        return Result(data={"tools": items, "count": len(items)})

    async def describe(self, arguments: ToolDescribeArguments, request: Request, emit: Emit) -> Result:
        tool = self.find(arguments.tool_id.removeprefix(PREFIX), request.principal)
        item = tool_item(tool.manifest) if tool.manifest.is_tool else agent_tool_item(tool.manifest, tool.capability)
        return Result(data={"tool": {**item, "capabilities": [capability_details(tool.capability)]}})

    async def call(self, arguments: ToolCallArguments, request: Request, emit: Emit) -> Result:
        tool = self.find(arguments.tool_id.removeprefix(PREFIX), request.principal)
        if arguments.capability is not None and not _offers(tool, arguments.capability):
            raise CapabilityNotFound(arguments.tool_id, arguments.capability, [tool.capability.name])
        given = _as_input(tool.capability, arguments.parameters)
        return await self._run(tool, given, arguments.timeout_ms, request, emit)

    def prepare_direct(self, name: str, raw: msgspec.Raw, principal: Principal) -> Prepared:
        """`fabric.tool.<anything>`: the arguments are the tool's own. Raises what `find` does, and BadInput."""
        return self.prepare_tool(self.find(name.removeprefix(PREFIX), principal), name, raw)

    def prepare_tool(self, tool: Tool, name: str, raw: msgspec.Raw) -> Prepared:
        """A tool that is found already; `name` is what the caller calls it. Raises BadInput."""
        given = decode_arguments(self._direct, raw, name)
        # Nearly all calls hold none of our own words: then there is nothing to sort out.
        if tool.capability.input_schema is not None and _OUR_WORDS.isdisjoint(given):
            options, asked = _NO_OPTIONS, Input(context=given)
        else:
            options = _take_options(given, tool.capability, name)
            asked = _as_input(tool.capability, given)
        run = partial(self._run, tool, asked, options.timeout_ms)
        return Prepared(run=run, stream=options.stream, trace=options.trace, is_call=True)

    def find(self, tool_id: str, principal: Principal) -> Tool:
        """A tool by id, alias or unambiguous short name; an agent's capability as `agent.ID.CAPABILITY`.

        Raises UnknownOperation or CapabilityNotFound; to a caller with limits, Forbidden, whether there is one or not.
        """
        registry = self._gateway.registry
        if len(tool_id) > _LONGEST_ID:
            raise UnknownOperation(PREFIX + tool_id)
        manifest = registry.get_for(principal, tool_id)
        if manifest is None or not manifest.is_tool:
            manifest = None
            agent_tool = self._agent_tool(tool_id, principal) if tool_id.startswith("agent.") else None
            if agent_tool is not None:
                return agent_tool
            category, _, name = tool_id.partition(".")
            if category in _CATEGORY_ALIASES:
                manifest = registry.get_for(principal, f"{_CATEGORY_ALIASES[category]}.{name}")
            elif not name:
                alike = [m for m in registry.seen_by(principal).tools if m.agent_id.rpartition(".")[2] == tool_id]
                manifest = alike[0] if len(alike) == 1 else None
        if manifest is None or not manifest.is_tool:
            if is_limited(principal):
                raise no_such_tool(PREFIX + tool_id)
            known = [PREFIX + m.agent_id for m in registry.catalog.tools]
            raise UnknownOperation(PREFIX + tool_id, known)
        return Tool(manifest=manifest, capability=manifest.capabilities[0])

    def _agent_tool(self, tool_id: str, principal: Principal) -> Tool | None:
        """Agent ids may hold dots, so the longest id that offers it wins, and one that the operator declared first.

        So no agent that registers as `prod.files` takes the tools of a declared agent `prod`.
        """
        steps = tool_id.split(".")[1:]
        registry = self._gateway.registry
        found: list[tuple[Manifest, str]] = []
        for cut in range(len(steps) - 1, 0, -1):
            manifest = registry.get_for(principal, ".".join(steps[:cut]))
            if manifest is not None and not manifest.is_tool:
                found.append((manifest, ".".join(steps[cut:])))
        if len(found) > 1:
            found.sort(key=lambda each: registry.is_registered(each[0].agent_id))
        for manifest, name in found:
            capability = manifest.capability(name)
            if capability is not None:
                return Tool(manifest=manifest, capability=capability)
        if any(refusal(principal, manifest, name) is not None for manifest, name in found):
            raise no_such_tool(PREFIX + tool_id)
        for manifest, name in found:
            if not manifest.capabilities:
                return Tool(manifest=manifest, capability=Capability(name=name))
        if found:
            manifest, name = found[0]
            raise CapabilityNotFound(manifest.agent_id, name, [c.name for c in manifest.capabilities])
        return None

    def _run(self, tool: Tool, given: Input, timeout_ms: int | None, request: Request, emit: Emit) -> Awaitable[Result]:
        asked = Asked(
            agent_id=tool.manifest.agent_id,
            capability=tool.capability.name,
            input=given,
            timeout_ms=timeout_ms,
            format="json",
            answers=request.answers,
            job=request.job,
            known=tool.capability,
        )
        return self._calls.make(asked, request, emit)


def no_such_tool(name: str) -> Forbidden:
    """What a caller with limits is told of every tool that it may not call, also if there is none."""
    return Forbidden(f"Refused by policy: there is no tool '{name[:_SHOWN]}' for these credentials", tool=name[:_SHOWN])


def _mentions(item: dict[str, Any], words: list[str]) -> bool:
    text = f"{item['tool_id']} {item['display_name']} {item['description']}".lower()
    return all(word in text for word in words)


def _offers(tool: Tool, name: str) -> bool:
    aliases = tool.manifest.metadata.get("aliases", ())
    return fold(name) in {fold(known) for known in (tool.capability.name, *aliases)}


_OPTIONS = ("stream", "timeout_ms", "trace")
_OUR_WORDS = frozenset({*_OPTIONS, "task", ATTACHMENTS})
_NO_OPTIONS = DirectOptions()


def _take_options(given: dict[str, Any], capability: Capability, name: str) -> DirectOptions:
    """`stream`, `timeout_ms` and `trace`, unless the tool has arguments of that name."""
    own = (capability.input_schema or {}).get("properties", {})
    options = {key: given.pop(key) for key in _OPTIONS if key in given and key not in own}
    if not options:
        return _NO_OPTIONS
    try:
        return msgspec.convert(options, DirectOptions)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad arguments for {name}: {exc}", tool=name) from exc


def _as_input(capability: Capability, given: dict[str, Any]) -> Input:
    """Typed arguments are context; words that the schema does not name are the task."""
    own = (capability.input_schema or {}).get("properties", {})
    rest = dict(given)
    task = ""
    if "task" not in own and isinstance(rest.get("task"), str):
        task = rest.pop("task")
    attachments: tuple[Attachment, ...] = ()
    if ATTACHMENTS in rest and ATTACHMENTS not in own:
        attachments = _attachments(rest.pop(ATTACHMENTS))
    if capability.input_schema is not None:
        return Input(task=task, context=rest, attachments=attachments)
    context = rest.pop("context", {})
    if not isinstance(context, dict):
        raise BadInput("Bad context: expected an object", field="context")
    return Input(task=task, context={**rest, **context}, attachments=attachments)


def _attachments(given: Any) -> tuple[Attachment, ...]:
    try:
        return msgspec.convert(given, tuple[Attachment, ...])
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad attachments: {exc}", field=ATTACHMENTS) from exc
