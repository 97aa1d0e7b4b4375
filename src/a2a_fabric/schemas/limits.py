"""Judges a JSON Schema without compiling it: how much work can it cause, for arguments of which size and depth?

`work[d]` is the most work that the schema causes for each byte of a JSON value that is nested `d`
deep, in units of about one simple check (`type`, `minLength`). It follows from the graph of
subschemas: what looks at the same value adds up, and of `properties` and `items` a member meets one.
A schema that doubles its work at every `$ref` is seen by its numbers, without doing that work; one
that describes trees has work that grows with the depth, and the arguments of a call say how deep.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.schemas.graph import UNEVALUATED, BadSchema, Graph, Subschema, build_graph
from a2a_fabric.schemas.patterns import work_of

MAX_BYTES = 256 * 1024  # of one schema
MAX_DEPTH = 100  # objects and arrays inside one another; the validator's own limit is twice that
MAX_SUBSCHEMAS = 5000
MAX_WORK = 1_000_000  # for one value that has no members
MAX_PATTERN_WORK = 4000  # of all patterns together: compiling them takes time, too
DEPTHS = 16  # of arguments, up to which work is computed

_SATURATED = 1 << 60
_UNEVALUATED = 3  # a validator looks at the same value up to so often for each `unevaluated...`


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is why the schema is refused, to follow its name in a sentence; then there is no work."""

    problem: str | None = None
    work: tuple[int, ...] = ()  # by depth of the arguments; the last one holds for deeper ones unless it grows
    grows: bool = False  # whether deeper arguments take more work than the last entry says
    has_choices: bool = False  # `anyOf` and `oneOf`, whose errors name what is wrong with every choice

    @property
    def most_work(self) -> int:
        return _SATURATED if self.grows else self.work[-1]

    def work_at(self, depth: int) -> int:
        return self.work[depth] if depth < len(self.work) else self.most_work


def judge(schema: dict[str, Any]) -> Judgement:
    """Takes time in proportion to the schema's size, whatever is in it."""
    try:
        check_size(schema)
        graph = build_graph(schema, MAX_SUBSCHEMAS)
        own_work = _own_work(graph)
        work, grows = _work_by_depth(graph, own_work, _inner_first(graph))
    except BadSchema as exc:
        return Judgement(problem=str(exc))
    if work[0] > MAX_WORK:
        return Judgement(
            problem=f"takes more than {MAX_WORK} steps to check a single value, "
            "because its references or `unevaluated...` keywords multiply"
        )
    has_choices = any("anyOf" in each.value or "oneOf" in each.value for each in graph.subschemas)
    return Judgement(work=work, grows=grows, has_choices=has_choices)


def check_size(schema: Any) -> int:
    """About how many bytes it has. Raises BadSchema for what is too long or too deep even to be passed on."""
    size, depth = measure(schema, MAX_BYTES, MAX_DEPTH)
    if depth > MAX_DEPTH:
        raise BadSchema(f"is nested more than {MAX_DEPTH} deep")
    if size > MAX_BYTES:
        raise BadSchema(f"is longer than {MAX_BYTES} bytes")
    return size


def measure(value: Any, most_bytes: int, most_depth: int) -> tuple[int, int]:
    """About how many bytes of JSON, and how many objects and arrays inside one another.

    Counting stops beyond either bound, so it ends soon for a YAML value that holds one part a million times.
    """
    size = depth = 0
    level = [value]
    while True:
        inner: list[Any] = []
        has_containers = False
        for each in level:
            if isinstance(each, str):
                size += len(each) + 2
            elif isinstance(each, dict):
                has_containers = True
                size += 2 + sum(map(len, map(str, each))) + 4 * len(each)
                inner += each.values()
            elif isinstance(each, list | tuple):
                has_containers = True
                size += 2 + len(each)
                inner += each
            else:
                size += 4
            if size > most_bytes:
                return size, depth
        if has_containers:
            depth += 1
        if not inner or depth > most_depth:
            return size, depth
        level = inner


def _own_work(graph: Graph) -> list[int]:
    """Of each subschema without those that it applies. Raises BadSchema."""
    patterns = 0
    found = []
    for subschema in graph.subschemas:
        work, of_patterns = _own_work_of(subschema.value)
        patterns += of_patterns
        if patterns > MAX_PATTERN_WORK:
            raise BadSchema("has too many or too large patterns")
        found.append(work + of_patterns)
    return found


def _own_work_of(value: dict[str, Any]) -> tuple[int, int]:
    work = 1
    for key in ("enum", "const", "required", "dependentRequired", "dependencies"):
        if key in value:
            work += count_values(value[key]) // 8 + 1
    if value.get("uniqueItems") is True:
        work += 4
    if "multipleOf" in value or "format" in value:
        work += 4
    patterns = [value["pattern"]] if isinstance(value.get("pattern"), str) else []
    named = value.get("patternProperties")
    patterns += [name for name in named if isinstance(name, str)] if isinstance(named, dict) else []
    return work, sum(map(work_of, patterns))


def count_values(value: Any) -> int:
    """How many JSON values it holds, itself included."""
    count = 0
    todo = [value]
    while todo:
        each = todo.pop()
        count += 1
        if isinstance(each, dict):
            todo.extend(each.values())
        elif isinstance(each, list):
            todo.extend(each)
    return count


def _inner_first(graph: Graph) -> list[int]:
    """The subschemas in an order in which those that look at the same value come before the one that applies them.

    Raises BadSchema if there is no such order: a subschema applies itself to the very value that it was given.
    """
    subschemas = graph.subschemas
    appliers: list[list[int]] = [[] for _ in subschemas]
    missing = []
    for number, subschema in enumerate(subschemas):
        missing.append(len(subschema.same_value))
        for inner in subschema.same_value:
            appliers[inner].append(number)
    order = [number for number, count in enumerate(missing) if count == 0]
    for number in order:
        for outer in appliers[number]:
            missing[outer] -= 1
            if missing[outer] == 0:
                order.append(outer)
    if len(order) < len(subschemas):
        raise BadSchema("refers to itself without going down into the value, so checking would never end")
    return order


def _work_by_depth(graph: Graph, own: list[int], order: list[int]) -> tuple[tuple[int, ...], bool]:
    """Work of the whole schema for values of depth 0, 1, ... until it stays the same, and whether it still grows."""
    before = [0] * len(own)
    work: list[int] = []
    for _ in range(DEPTHS + 1):
        now = [0] * len(own)
        for number in order:
            now[number] = _work_of(graph.subschemas[number], own[number], now, before)
        work.append(now[0])
        if now == before:
            return tuple(work), False
        before = now
    return tuple(work), True


def _work_of(subschema: Subschema, own: int, now: list[int], of_members: list[int]) -> int:
    work = sum(now[inner] for inner in subschema.same_value)
    if work and any(key in subschema.value for key in UNEVALUATED):
        work *= _UNEVALUATED
    work += own
    if subschema.members:
        work += max(of_members[inner] for inner in subschema.members)
    work += sum(of_members[inner] for inner in subschema.all_members)
    return min(work, _SATURATED)
