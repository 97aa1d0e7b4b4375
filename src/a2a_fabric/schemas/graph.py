"""The subschemas of a JSON Schema as a graph: which subschema applies which other to the same value, or to a child.

The keywords of all drafts are followed, since a keyword that a draft does not know adds no work. A
reference that could mean several subschemas (`$dynamicRef`, a repeated `$id`) leads to all of them.
So the graph never has fewer edges than a validator follows. No function here is recursive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

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
