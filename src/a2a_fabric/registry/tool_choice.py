"""Which tools of an agent join the catalog, and how a call of one leads back to the agent's own tool.

The operator writes the choice under `tools` of an agent. It is applied where the agent's capabilities join the
catalog, so every door lists the same. A call is translated where it enters the agent's runtime, so a tool that was
left out cannot be called by any door, even while the agent's tools are not known yet.

Names match as everywhere: case, dashes and underscores do not count. A pattern may hold `*` and `?`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, DerivedTool, ToolChoice, normalize_name
from a2a_fabric.core.call import Call, Emit, Handler, Target
from a2a_fabric.core.errors import CapabilityNotFound, UpstreamFailed, suggest_for_pattern
from a2a_fabric.core.json_text import decode_json_text
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.result import Result

_MAX_PROBLEMS = 20
_MAX_FOUND = 1024  # names; callers may write a name in many ways


class ToolOrigin(msgspec.Struct, frozen=True):
    """The agent's own tool behind a listed one, its fixed arguments, and which part of the result is returned."""

    name: str
    arguments: dict[str, Any] = {}
    result: str | None = None


class ToolSelection(msgspec.Struct, frozen=True):
    """The capabilities that are listed, how they are called, and what of the choice could not be done."""

    capabilities: tuple[Capability, ...]
    translation: ToolTranslation
    problems: tuple[str, ...] = ()


class ToolTranslation:
    """Leads from the names in the catalog to the agent's own tools. `origins` are by normalized name."""

    def __init__(
        self,
        agent_id: str,
        choice: ToolChoice,
        origins: dict[str, ToolOrigin],
        held: Collection[str],
        *,
        is_known: bool,
    ) -> None:
        self._agent_id = agent_id
        self._choice = choice
        self._origins = origins
        self._held = held
        self._is_known = is_known  # False: the agent has not said what it offers, so only the choice decides
        self._found: dict[str, ToolOrigin] = {}  # by the names that were called, however they are written

    def add(self, name: str) -> None:
        """Let calls of this name pass, unless it means another tool."""
        self._origins.setdefault(normalize_name(name), ToolOrigin(name))
        self._found.clear()

    def bind(self, inner: Handler) -> Handler:
        """A handler that asks the agent for its own tool. Raises CapabilityNotFound for a tool that was left out."""

        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # another name alone needs no coroutine of its own
            name = call.target.capability
            origin = self._found.get(name) or self._find_origin(name)
            asking = inner(_make_own_call(call, origin), emit)
            return asking if origin.result is None else _cut_awaited(asking, origin.result)

        return handle

    def find_own_name(self, name: str) -> str | None:
        """The agent's own name of a listed tool; None for a tool that the operator made from another one."""
        if any(normalize_name(derived) == normalize_name(name) for derived in self._choice.derive):
            return None
        try:
            return self._find_origin(name).name
        except CapabilityNotFound:
            return None

    def list_names(self, own_names: Collection[str]) -> list[str]:
        """The names in the catalog (normalized) that lead to these tools of the agent."""
        own_keys = set(map(normalize_name, own_names))
        return [key for key, origin in self._origins.items() if normalize_name(origin.name) in own_keys]

    def _find_origin(self, name: str) -> ToolOrigin:
        origin = self._origins.get(normalize_name(name))
        if origin is None and not self._is_known and not _find_rename(self._choice, name):
            own_name = _undo_rename(self._choice, name)
            if is_listed(self._choice, own_name) and normalize_name(own_name) not in self._held:
                origin = ToolOrigin(own_name)
        if origin is None:
            raise CapabilityNotFound(self._agent_id, name)
        if len(self._found) >= _MAX_FOUND:
            self._found.clear()
        self._found[name] = origin
        return origin


async def _cut_awaited(asking: Awaitable[Result], expression: str) -> Result:
    return cut_result(await asking, expression)


def select_tools(
    agent_id: str, capabilities: Sequence[Capability], choice: ToolChoice, held: Collection[str] = ()
) -> ToolSelection:
    """Apply the choice. `held` are the agent's tools (normalized names) that must not be listed or called now."""
    by_name = {normalize_name(each.name): each for each in capabilities}
    listed = [each for each in capabilities if is_listed(choice, each.name) and normalize_name(each.name) not in held]
    problems: list[str] = []
    selected: list[Capability] = []
    origins: dict[str, ToolOrigin] = {}
    own_names = {normalize_name(each.name): each.name for each in listed}
    for capability in listed:
        name = _find_rename(choice, capability.name) or capability.name
        key = normalize_name(name)
        other = own_names.get(key) if key != normalize_name(capability.name) else None
        other = other or (origins[key].name if key in origins else None)
        if other is not None:
            problems.append(_describe_conflict("rename", capability.name, name, other))
            name, key = capability.name, normalize_name(capability.name)
        description = _find_description(choice, name, capability.name)
        selected.append(
            msgspec.structs.replace(
                capability, name=name, description=capability.description if description is None else description
            )
        )
        origins[key] = ToolOrigin(capability.name)
    for name, derived in choice.derive.items():
        key, source = normalize_name(name), by_name.get(normalize_name(derived.source))
        if key in origins:
            problems.append(_describe_conflict("derive", name, name, origins[key].name))
            continue
        if capabilities and source is None:
            suggestion = suggest_for_pattern(derived.source, [each.name for each in capabilities])
            problems.append(
                f"tools.derive: '{name}' is made from '{derived.source}', which the agent does not offer{suggestion}"
            )
            continue
        if normalize_name(derived.source) in held:
            continue
        own_name = derived.source if source is None else source.name
        origins[key] = ToolOrigin(own_name, derived.arguments, derived.result)
        if source is not None:
            selected.append(_derive_capability(name, derived, source))
    problems += islice(_list_unmatched(choice, capabilities), _MAX_PROBLEMS)
    translation = ToolTranslation(agent_id, choice, origins, frozenset(held), is_known=bool(capabilities))
    return ToolSelection(tuple(selected), translation, tuple(problems[:_MAX_PROBLEMS]))


def find_mistakes(choice: ToolChoice) -> Iterator[tuple[str, str]]:
    """What is wrong with a choice whatever the agent offers: the key, and the reason."""
    for pattern, name in choice.rename.items():
        if _count_wildcards(pattern) != _count_wildcards(name) or _count_wildcards(pattern) > 1 or "?" in pattern:
            yield "rename", f"'{pattern}: {name}' needs the same one `*` on both sides, or none"
    targets: dict[str, str] = {}
    for pattern, name in choice.rename.items():
        other = targets.setdefault(normalize_name(name), pattern)
        if other != pattern:
            yield "rename", f"'{other}' and '{pattern}' cannot both be called '{name}'; choose another name for one"
    for name, derived in choice.derive.items():
        if normalize_name(name) in targets:
            yield "derive", f"'{name}' is also the new name of '{targets[normalize_name(name)]}'; choose another name"
        if derived.result is not None:
            try:
                _compile_expression(derived.result)
            except ValueError as exc:
                yield "derive", f"{name}: result: not a JMESPath expression: {str(exc).splitlines()[0]}"


def is_listed(choice: ToolChoice, name: str) -> bool:
    """Whether the agent's own tool of this name is listed."""
    is_included = choice.include is None or matches_any(name, choice.include)
    return is_included and not matches_any(name, choice.exclude)


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    normalized = normalize_name(name)
    return any(_compile_pattern(pattern).fullmatch(normalized) for pattern in patterns)


def cut_result(result: Result, expression: str) -> Result:
    """What a JMESPath expression finds in the result; a text that is JSON is read first. Raises UpstreamFailed."""
    if result.asked is not None or result.job_id is not None:
        return result
    try:
        value = _compile_expression(expression).search(_read_data(result.data))
    except ValueError as exc:
        raise UpstreamFailed(f"The result does not fit the expression '{expression}': {exc}"[:300]) from exc
    data = value if isinstance(value, dict) else {"answer" if isinstance(value, str) else "result": value}
    return msgspec.structs.replace(result, data=data, parts=(), original=msgspec.UNSET)


def _read_data(data: dict[str, Any]) -> Any:
    text = data.get("answer") if data.keys() == {"answer"} else None
    if not isinstance(text, str):
        return data
    try:
        value = decode_json_text(text)
    except (msgspec.DecodeError, RecursionError):
        return data
    return value if isinstance(value, dict | list) else data


def _make_own_call(call: Call, origin: ToolOrigin) -> Call:
    """The call as the agent's own tool gets it. Fixed arguments win over what the caller sent."""
    target, call_input = call.target, call.input
    if origin.name == target.capability and not origin.arguments:
        return call
    target = Target(agent_id=target.agent_id, capability=origin.name, timeout_ms=target.timeout_ms)
    if origin.arguments:
        if call_input.arguments is not msgspec.UNSET:
            call_input = msgspec.structs.replace(call_input, arguments={**call_input.arguments, **origin.arguments})
        else:
            call_input = msgspec.structs.replace(call_input, context={**call_input.context, **origin.arguments})
    return msgspec.structs.replace(call, target=target, input=call_input)


def _derive_capability(name: str, derived: DerivedTool, source: Capability) -> Capability:
    schema = source.input_schema
    if schema is not None and derived.arguments:
        properties, required = schema.get("properties"), schema.get("required")
        schema = dict(schema)
        if isinstance(properties, dict):
            schema["properties"] = {key: value for key, value in properties.items() if key not in derived.arguments}
        if isinstance(required, list):
            schema["required"] = [key for key in required if key not in derived.arguments]
    return msgspec.structs.replace(
        source,
        name=name,
        title="",  # that of the other tool would be in the list twice
        description=source.description if derived.description is None else derived.description,
        input_schema=schema,
        output_schema=source.output_schema if derived.result is None else None,
        metadata=source.metadata if derived.result is None else {},  # a user interface expects the whole result
    )


def _find_rename(choice: ToolChoice, name: str) -> str | None:
    """The new name of the agent's own tool; None if it keeps its own."""
    return next(filter(None, (_apply_rename(name, *pair) for pair in choice.rename.items())), None)


def _undo_rename(choice: ToolChoice, name: str) -> str:
    """The agent's own name of a tool, as far as the choice alone tells it."""
    reverse = ((new, pattern) for pattern, new in choice.rename.items())
    return next(filter(None, (_apply_rename(name, *pair) for pair in reverse)), name)


def _apply_rename(name: str, pattern: str, new: str) -> str | None:
    normalized = normalize_name(name)
    if "*" not in pattern:
        return new if normalize_name(pattern) == normalized else None
    head, _, tail = normalize_name(pattern).partition("*")
    if len(normalized) < len(head) + len(tail) or not (normalized.startswith(head) and normalized.endswith(tail)):
        return None
    return new.replace("*", name[len(head) : len(name) - len(tail)])


def _find_description(choice: ToolChoice, name: str, own_name: str) -> str | None:
    for pattern, description in choice.describe.items():
        if matches_any(name, (pattern,)) or matches_any(own_name, (pattern,)):
            return description
    return None


def _list_unmatched(choice: ToolChoice, capabilities: Sequence[Capability]) -> Iterator[str]:
    """Patterns that match none of the agent's tools, which is mostly a typing mistake."""
    if not capabilities:
        return
    names = [capability.name for capability in capabilities]
    renamed = [new for name in names if (new := _find_rename(choice, name))]
    for key, patterns in (("include", choice.include or ()), ("exclude", choice.exclude), ("rename", choice.rename)):
        for pattern in patterns:
            if not any(matches_any(name, (pattern,)) for name in names):
                yield f"tools.{key}: '{pattern}' matches no tool of the agent{suggest_for_pattern(pattern, names)}"
    for pattern in choice.describe:
        if not any(matches_any(name, (pattern,)) for name in [*names, *renamed]):
            suggestion = suggest_for_pattern(pattern, [*renamed, *names])
            yield f"tools.describe: '{pattern}' matches no tool of the agent{suggestion}"


def _describe_conflict(key: str, source: str, name: str, other: str) -> str:
    what = f"'{source}' cannot be called '{name}'" if source != name else f"'{name}' cannot be added"
    return f"tools.{key}: {what}, because the agent's tool '{other}' has that name; choose another name"


def _count_wildcards(pattern: str) -> int:
    return pattern.count("*")


@lru_cache(maxsize=4096)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    text = re.escape(normalize_name(pattern)).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(text, re.DOTALL)


@lru_cache(maxsize=1024)
def _compile_expression(expression: str) -> Any:
    """Raises ValueError, as all errors of JMESPath are. Imported on use: few agents need it."""
    return load_module("jmespath").compile(expression)
