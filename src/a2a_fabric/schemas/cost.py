"""Estimates, without compiling it, how much work a JSON Schema can cause for arguments of a given size and depth.

The subschemas are a graph: which subschema applies which other to the same value, or to a child. The keywords
of all drafts are followed, since a keyword that a draft does not know adds no work. A reference that could mean
several subschemas (`$dynamicRef`, a repeated `$id`) leads to all of them. So the graph never has fewer edges
than a validator follows. No function here is recursive.

`work[d]` is the most work that the schema causes for each byte of a JSON value that is nested `d`
deep, in units of about one simple check (`type`, `minLength`). The work of subschemas that check the same value
adds up, and `properties` and `items` apply one subschema to each member.
A schema that doubles its work at every `$ref` is recognized by its numbers, without doing that work;
the work of a schema that describes trees grows with the depth of the arguments.

Regular expressions are measured with RE2. The validator's engine matches what RE2 understands in
time linear in the text. Look-around and back-references backtrack instead, so the validator limits
the steps (`MAX_BACKTRACKS`), and such a pattern counts as costly here: long arguments are then
checked in another process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import msgspec
import re2  # type: ignore[import-untyped]  # re2 has no stubs

# Keywords by what their subschema checks: the same value, or members of an object or an array.
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_MAX_SHOWN = 100
_MAX_RESOURCES = 8  # nested resources
_MAX_REFERENCES = 50_000


class UnusableSchema(ValueError):
    """The text says why, as the rest of a sentence after the schema's name: `has more than 5000 subschemas`."""


class Subschema:
    """One object (or boolean) of the schema, and the numbers of the subschemas that it applies.

    At most one of `members` applies to a member of the value (`properties`, `items`); each of
    `all_members` may apply to every member (`patternProperties`, `contains`, `propertyNames`).
    """

    __slots__ = ("all_members", "bases", "members", "same_value", "value")

    def __init__(self, value: dict[str, Any], bases: tuple[tuple[str, Any], ...]) -> None:
        self.value = value
        self.bases = bases  # (URI, root) of each enclosing resource, the outermost first
        self.same_value: list[int] = []
        self.members: list[int] = []
        self.all_members: list[int] = []


def build_graph(schema: dict[str, Any], max_subschemas: int) -> list[Subschema]:
    """The subschemas; the first is the schema itself.

    Raises UnusableSchema if there are more than `max_subschemas`, or a reference that the schema cannot resolve.
    """
    return _GraphBuilder(schema, max_subschemas).build()


class _GraphBuilder:
    def __init__(self, schema: dict[str, Any], max_subschemas: int) -> None:
        self._schema = schema
        self._max_subschemas = max_subschemas
        self._subschemas: list[Subschema] = []
        self._numbers: dict[int, int] = {}  # by id() of the value, which the schema keeps alive
        self._todo: list[int] = []
        self._resources: dict[str, list[int]] = {}  # by URI
        self._anchors: dict[str, list[int]] = {}  # by name, of all resources
        self._recursive: list[int] = []
        self._references = 0

    def build(self) -> list[Subschema]:
        self._add(self._schema, (("", self._schema),))
        self._walk()
        linked = 0
        while linked < len(self._subschemas):  # a reference may lead to a subschema that no keyword leads to
            for subschema in self._subschemas[linked:]:
                linked += 1
                self._link(subschema)
            self._walk()
        return self._subschemas

    def _walk(self) -> None:
        while self._todo:
            subschema = self._subschemas[self._todo.pop()]
            self._scan_keywords(subschema)

    def _add(self, value: Any, bases: tuple[tuple[str, Any], ...]) -> int | None:
        """The number of a subschema; None for a boolean, which causes no work, and for a value that is no schema."""
        if not isinstance(value, dict):
            return None
        existing = self._numbers.get(id(value))
        if existing is not None:
            return existing
        number = len(self._subschemas)
        if number >= self._max_subschemas:
            raise UnusableSchema(f"has more than {self._max_subschemas} subschemas")
        self._numbers[id(value)] = number
        for key in ("$id", "id"):
            if isinstance(identifier := value.get(key), str):
                uri = urldefrag(_join(bases[-1][0], identifier)).url
                bases = (*bases, (uri, value))
                if len(bases) > _MAX_RESOURCES:
                    raise UnusableSchema(f"has `$id`s nested more than {_MAX_RESOURCES} deep")
                self._resources.setdefault(uri, []).append(number)
                if identifier.startswith("#"):
                    self._anchors.setdefault(identifier[1:], []).append(number)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(identifier := value.get(key), str):
                self._anchors.setdefault(identifier, []).append(number)
        if value.get("$recursiveAnchor") is True:
            self._recursive.append(number)
        self._subschemas.append(Subschema(value, bases))
        self._todo.append(number)
        return number

    def _scan_keywords(self, subschema: Subschema) -> None:
        value, bases = subschema.value, subschema.bases
        same_value, members, all_members = subschema.same_value, subschema.members, subschema.all_members
        for key, inner in value.items():
            if key == "properties":
                self._extend(members, _dict_values(inner), bases)
            elif key in ("additionalProperties", "additionalItems"):
                self._extend(members, (inner,), bases)
            elif key in ("items", "prefixItems"):
                self._extend(members, inner if isinstance(inner, list) else (inner,), bases)
            elif key in _SAME_VALUE_LISTS:
                self._extend(same_value, inner if isinstance(inner, list) else (), bases)
            elif key in _SAME_VALUE:
                self._extend(same_value, (inner,), bases)
            elif key in _SAME_VALUE_MAPS:
                self._extend(same_value, _dict_values(inner), bases)
            elif key == "patternProperties":
                self._extend(all_members, _dict_values(inner), bases)
            elif key in ("contains", "propertyNames", *UNEVALUATED):
                self._extend(all_members, (inner,), bases)
            elif key in _DEFINITIONS:
                self._extend([], _dict_values(inner), bases)

    def _extend(self, edges: list[int], values: Any, bases: tuple[tuple[str, Any], ...]) -> None:
        for value in values:
            number = self._add(value, bases)
            if number is not None:
                edges.append(number)

    def _link(self, subschema: Subschema) -> None:
        for key in _REFERENCES:
            reference = subschema.value.get(key)
            if isinstance(reference, str):
                targets = set(self._find_targets(reference, subschema.bases))
                if key == "$recursiveRef":
                    targets.update(self._recursive)
                if not targets and not self._leads_to_boolean(reference, subschema.bases):
                    raise _bad_reference_error(reference)
                self._references += len(targets)
                if self._references > _MAX_REFERENCES:
                    raise UnusableSchema(f"has references to more than {_MAX_REFERENCES} subschemas")
                subschema.same_value.extend(sorted(targets))

    def _find_targets(self, reference: str, bases: tuple[tuple[str, Any], ...]) -> Iterator[int]:
        for root_bases, root, fragment in self._find_roots(reference, bases):
            if not fragment or fragment.startswith("/"):
                number = self._add(_resolve_pointer(root, fragment), root_bases)
                if number is not None:
                    yield number
            else:
                yield from self._anchors.get(fragment, ())

    def _leads_to_boolean(self, reference: str, bases: tuple[tuple[str, Any], ...]) -> bool:
        return any(
            isinstance(_resolve_pointer(root, fragment), bool)
            for _, root, fragment in self._find_roots(reference, bases)
        )

    def _find_roots(
        self, reference: str, bases: tuple[tuple[str, Any], ...]
    ) -> Iterator[tuple[tuple[tuple[str, Any], ...], Any, str]]:
        """Each resource that the reference may mean, seen from each enclosing resource, since drafts differ in this."""
        if reference.startswith("#"):
            fragment = unquote(reference[1:])
            for number, (_, root) in enumerate(bases):
                yield bases[: number + 1], root, fragment
            return
        for uri, _ in bases:
            target = urldefrag(_join(uri, reference))
            for number in self._resources.get(target.url, ()):
                subschema = self._subschemas[number]
                yield subschema.bases, subschema.value, unquote(target.fragment)
            if target.url == "":
                yield bases[:1], self._schema, unquote(target.fragment)


def _join(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError as exc:  # the reference is not a valid URI
        raise _bad_reference_error(reference) from exc


def _bad_reference_error(reference: str) -> UnusableSchema:
    excerpt = reference[:_MAX_SHOWN]
    return UnusableSchema(f"refers to '{excerpt}', which is not in it; other documents are never loaded")


def _dict_values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else ()


def _resolve_pointer(root: Any, pointer: str) -> Any:
    """The value at a JSON Pointer, or None if there is none."""
    value = root
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


MAX_PATTERN_CHARS = 2000  # characters of one pattern
MAX_BACKTRACKING_CHARS = 500  # characters of one pattern that RE2 does not support
MAX_COMPILED_BYTES = 1 << 18  # bytes of one compiled pattern
MAX_BACKTRACKS = 1000  # steps back for one text; then the validator gives up
_BACKTRACKING_WORK = 200  # work for each byte of text, measured with patterns that use MAX_BACKTRACKS
_STEPS_PER_WORK = 8  # instructions of a compiled pattern
_UNSUPPORTED_BY_RE2 = ("invalid perl operator", "invalid escape sequence", "invalid named capture group")


@lru_cache(maxsize=4096)
def measure_pattern_work(pattern: str) -> int:
    """The work for each byte of text that the pattern is matched against. Raises UnusableSchema."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise UnusableSchema(f"has a pattern that is longer than {MAX_PATTERN_CHARS} characters")
    try:
        compiled: Any = re2.compile(pattern.encode("utf-8", "surrogatepass"), _make_re2_options())
    except re2.error as exc:
        reason = _error_reason(exc)
        if not reason.startswith(_UNSUPPORTED_BY_RE2):
            raise UnusableSchema(f"has a pattern that cannot be compiled: {reason}") from exc
        if len(pattern) > MAX_BACKTRACKING_CHARS:
            problem = f"look-around or back-references and is longer than {MAX_BACKTRACKING_CHARS} characters"
            raise UnusableSchema(f"has a pattern that needs {problem}") from exc
        return _BACKTRACKING_WORK
    return 1 + int(compiled.programsize) // _STEPS_PER_WORK


def _make_re2_options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_COMPILED_BYTES
    return options


def _error_reason(exc: Exception) -> str:
    reason = exc.args[0] if exc.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


MAX_SCHEMA_BYTES = 256 * 1024  # size of one schema
MAX_SCHEMA_DEPTH = 100  # objects and arrays inside one another; the validator's own limit is twice that
MAX_SUBSCHEMAS = 5000
MAX_WORK = 1_000_000  # for one value that has no members
MAX_PATTERN_WORK = 4000  # limit for all patterns together, because compiling them takes time
MAX_ARGUMENT_DEPTH = 16  # depth of arguments up to which work is computed

_SATURATED = 1 << 60
_UNEVALUATED_FACTOR = 3  # how often a validator checks the same value for each `unevaluated...`


class SchemaCost(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` says why the schema is refused, as the rest of a sentence after its name; `work` is then empty."""

    problem: str | None = None
    work: tuple[int, ...] = ()  # by depth of the arguments; unless it grows, the last holds for deeper arguments
    grows: bool = False  # whether deeper arguments take more work than the last entry says
    has_choices: bool = False  # `anyOf` or `oneOf`, whose errors describe every choice

    @property
    def most_work(self) -> int:
        return _SATURATED if self.grows else self.work[-1]

    def work_at(self, depth: int) -> int:
        return self.work[depth] if depth < len(self.work) else self.most_work


def assess_schema(schema: dict[str, Any]) -> SchemaCost:
    """The cost of a schema. The time that this takes is proportional to the size of the schema."""
    try:
        check_size(schema)
        subschemas = build_graph(schema, MAX_SUBSCHEMAS)
        own_work = _measure_own_work(subschemas)
        work, grows = _compute_work_by_depth(subschemas, own_work, _order_inner_first(subschemas))
    except UnusableSchema as exc:
        return SchemaCost(problem=str(exc))
    if work[0] > MAX_WORK:
        return SchemaCost(
            problem=f"takes more than {MAX_WORK} steps to check a single value, "
            "because its references or `unevaluated...` keywords multiply"
        )
    has_choices = any("anyOf" in each.value or "oneOf" in each.value for each in subschemas)
    return SchemaCost(work=work, grows=grows, has_choices=has_choices)


def check_size(schema: Any) -> int:
    """The approximate size in bytes. Raises UnusableSchema if the schema is too long or too deep to be passed on."""
    size, depth = measure(schema, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH)
    if depth > MAX_SCHEMA_DEPTH:
        raise UnusableSchema(f"is nested more than {MAX_SCHEMA_DEPTH} deep")
    if size > MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    return size


def measure(value: Any, max_bytes: int, max_depth: int) -> tuple[int, int]:
    """The approximate size of a value in bytes of JSON, and its depth.

    Counting stops beyond either bound, so it ends soon for a YAML value that repeats one part a million times.
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
            if size > max_bytes:
                return size, depth
        if has_containers:
            depth += 1
        if not inner or depth > max_depth:
            return size, depth
        level = inner


def _measure_own_work(subschemas: list[Subschema]) -> list[int]:
    """The work of each subschema without the subschemas that it applies. Raises UnusableSchema."""
    patterns = 0
    work_by_subschema = []
    for subschema in subschemas:
        work, pattern_work = _measure_subschema_work(subschema.value)
        patterns += pattern_work
        if patterns > MAX_PATTERN_WORK:
            raise UnusableSchema("has too many or too large patterns")
        work_by_subschema.append(work + pattern_work)
    return work_by_subschema


def _measure_subschema_work(value: dict[str, Any]) -> tuple[int, int]:
    work = 1
    for key in ("enum", "const", "required", "dependentRequired", "dependencies"):
        if key in value:
            work += count_values(value[key]) // 8 + 1
    if value.get("uniqueItems") is True:
        work += 4
    if "multipleOf" in value or "format" in value:
        work += 4
    patterns = [value["pattern"]] if isinstance(value.get("pattern"), str) else []
    pattern_properties = value.get("patternProperties")
    patterns += (
        [name for name in pattern_properties if isinstance(name, str)] if isinstance(pattern_properties, dict) else []
    )
    return work, sum(map(measure_pattern_work, patterns))


def count_values(value: Any, most: int = MAX_SCHEMA_BYTES) -> int:
    """The number of JSON values in a value, itself included. Counting stops beyond `most`."""
    count = 0
    todo = [value]
    while todo and count <= most:
        each = todo.pop()
        count += 1
        if isinstance(each, dict):
            todo.extend(each.values())
        elif isinstance(each, list):
            todo.extend(each)
    return count


def _order_inner_first(subschemas: list[Subschema]) -> list[int]:
    """Order the subschemas so that each comes after those that it applies to the same value.

    Raises UnusableSchema if there is no such order, because a subschema applies itself to the same value.
    """
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
        raise UnusableSchema("refers to itself without going down into the value, so checking would never end")
    return order


def _compute_work_by_depth(
    subschemas: list[Subschema], own: list[int], order: list[int]
) -> tuple[tuple[int, ...], bool]:
    """The work of the schema for values of depth 0, 1, ... until it stays the same, and whether it still grows."""
    before = [0] * len(own)
    work: list[int] = []
    for _ in range(MAX_ARGUMENT_DEPTH + 1):
        now = [0] * len(own)
        for number in order:
            now[number] = _compute_work(subschemas[number], own[number], now, before)
        work.append(now[0])
        if now == before:
            return tuple(work), False
        before = now
    return tuple(work), True


def _compute_work(subschema: Subschema, own: int, now: list[int], member_work: list[int]) -> int:
    work = sum(now[inner] for inner in subschema.same_value)
    if work and any(key in subschema.value for key in UNEVALUATED):
        work *= _UNEVALUATED_FACTOR
    work += own
    if subschema.members:
        work += max(member_work[inner] for inner in subschema.members)
    work += sum(member_work[inner] for inner in subschema.all_members)
    return min(work, _SATURATED)
