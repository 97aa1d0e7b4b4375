"""The subschemas of a JSON Schema as a graph: which subschema makes which other look at the same value, or at a child.

All drafts are read at once, since a keyword that a draft does not know costs nothing to follow. A
reference that more than one subschema could answer (`$dynamicRef`, one `$id` written twice) leads to
all of them. So the graph never has fewer edges than a validator follows. Nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

# Keywords by what the subschema in them looks at: the same value, or members of an object or an array.
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_LONGEST_SHOWN = 100
_MOST_RESOURCES = 8  # inside one another
_MOST_REFERENCES = 50_000


class BadSchema(ValueError):
    """The text says why, to follow the schema's name in a sentence: `has more than 5000 subschemas`."""


class Subschema:
    """One object (or boolean) of the schema, and the numbers of the subschemas that it applies.

    Of `members` a member of the value meets one at most (`properties`, `items`); each of
    `all_members` may look at every member (`patternProperties`, `contains`, `propertyNames`).
    """

    __slots__ = ("all_members", "bases", "members", "same_value", "value")

    def __init__(self, value: dict[str, Any], bases: tuple[tuple[str, Any], ...]) -> None:
        self.value = value
        self.bases = bases  # (URI, root) of each enclosing resource, the outermost first
        self.same_value: list[int] = []
        self.members: list[int] = []
        self.all_members: list[int] = []


class Graph(msgspec.Struct, frozen=True):
    """The first subschema is the schema itself."""

    subschemas: list[Subschema]


def build_graph(schema: dict[str, Any], most: int) -> Graph:
    """Raises BadSchema if there are more than `most` subschemas, or a reference leads to nothing in the schema."""
    return Graph(_Builder(schema, most).build())


class _Builder:
    def __init__(self, schema: dict[str, Any], most: int) -> None:
        self._schema = schema
        self._most = most
        self._subschemas: list[Subschema] = []
        self._numbers: dict[int, int] = {}  # by id() of the value, which the schema keeps alive
        self._todo: list[int] = []
        self._resources: dict[str, list[int]] = {}  # by URI
        self._anchors: dict[str, list[int]] = {}  # by name, in whichever resource
        self._recursive: list[int] = []
        self._references = 0

    def build(self) -> list[Subschema]:
        self._add(self._schema, (("", self._schema),))
        self._walk()
        linked = 0
        while linked < len(self._subschemas):  # a reference may lead to a place that no keyword leads to
            for subschema in self._subschemas[linked:]:
                linked += 1
                self._link(subschema)
            self._walk()
        return self._subschemas

    def _walk(self) -> None:
        while self._todo:
            subschema = self._subschemas[self._todo.pop()]
            self._visit(subschema)

    def _add(self, value: Any, bases: tuple[tuple[str, Any], ...]) -> int | None:
        """The number of a subschema; None for a boolean, which costs nothing, and for what is no schema."""
        if not isinstance(value, dict):
            return None
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        number = len(self._subschemas)
        if number >= self._most:
            raise BadSchema(f"has more than {self._most} subschemas")
        self._numbers[id(value)] = number
        for key in ("$id", "id"):
            if isinstance(named := value.get(key), str):
                uri = urldefrag(_join(bases[-1][0], named)).url
                bases = (*bases, (uri, value))
                if len(bases) > _MOST_RESOURCES:
                    raise BadSchema(f"has `$id`s nested more than {_MOST_RESOURCES} deep")
                self._resources.setdefault(uri, []).append(number)
                if named.startswith("#"):
                    self._anchors.setdefault(named[1:], []).append(number)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(named := value.get(key), str):
                self._anchors.setdefault(named, []).append(number)
        if value.get("$recursiveAnchor") is True:
            self._recursive.append(number)
        self._subschemas.append(Subschema(value, bases))
        self._todo.append(number)
        return number

    def _visit(self, subschema: Subschema) -> None:
        value, bases = subschema.value, subschema.bases
        same, one, every = subschema.same_value, subschema.members, subschema.all_members
        for key, inner in value.items():
            if key == "properties":
                self._extend(one, _values(inner), bases)
            elif key in ("additionalProperties", "additionalItems"):
                self._extend(one, (inner,), bases)
            elif key in ("items", "prefixItems"):
                self._extend(one, inner if isinstance(inner, list) else (inner,), bases)
            elif key in _SAME_VALUE_LISTS:
                self._extend(same, inner if isinstance(inner, list) else (), bases)
            elif key in _SAME_VALUE:
                self._extend(same, (inner,), bases)
            elif key in _SAME_VALUE_MAPS:
                self._extend(same, _values(inner), bases)
            elif key == "patternProperties":
                self._extend(every, _values(inner), bases)
            elif key in ("contains", "propertyNames", *UNEVALUATED):
                self._extend(every, (inner,), bases)
            elif key in _DEFINITIONS:
                self._extend([], _values(inner), bases)

    def _extend(self, edges: list[int], values: Any, bases: tuple[tuple[str, Any], ...]) -> None:
        for value in values:
            number = self._add(value, bases)
            if number is not None:
                edges.append(number)

    def _link(self, subschema: Subschema) -> None:
        for key in _REFERENCES:
            reference = subschema.value.get(key)
            if isinstance(reference, str):
                found = set(self._targets(reference, subschema.bases))
                if key == "$recursiveRef":
                    found.update(self._recursive)
                if not found and not self._leads_to_boolean(reference, subschema.bases):
                    raise _bad_reference(reference)
                self._references += len(found)
                if self._references > _MOST_REFERENCES:
                    raise BadSchema(f"has references that lead to more than {_MOST_REFERENCES} places")
                subschema.same_value.extend(sorted(found))

    def _targets(self, reference: str, bases: tuple[tuple[str, Any], ...]) -> Iterator[int]:
        for root_bases, root, fragment in self._roots(reference, bases):
            if not fragment or fragment.startswith("/"):
                number = self._add(_at_pointer(root, fragment), root_bases)
                if number is not None:
                    yield number
            else:
                yield from self._anchors.get(fragment, ())

    def _leads_to_boolean(self, reference: str, bases: tuple[tuple[str, Any], ...]) -> bool:
        return any(isinstance(_at_pointer(root, fragment), bool) for _, root, fragment in self._roots(reference, bases))

    def _roots(
        self, reference: str, bases: tuple[tuple[str, Any], ...]
    ) -> Iterator[tuple[tuple[tuple[str, Any], ...], Any, str]]:
        """Each resource that the reference may mean, read from each enclosing one: drafts differ in which counts."""
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
    except ValueError as exc:  # an address that is none
        raise _bad_reference(reference) from exc


def _bad_reference(reference: str) -> BadSchema:
    shown = reference[:_LONGEST_SHOWN]
    return BadSchema(f"refers to '{shown}', which is not in it; other documents are never loaded")


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else ()


def _at_pointer(root: Any, pointer: str) -> Any:
    """What a JSON Pointer leads to; None if that is nothing."""
    found = root
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
