"""Schemas of an OpenAPI document as JSON Schema that stands on its own.

References are put in place, as far as that ends: a schema inside itself, or one that
grows beyond all bounds, becomes one that takes anything, for the API checks it anyway.
What OpenAPI 3.0 spells in its own way is respelt, and what is no JSON Schema is left out,
since one bad keyword would make the whole capability useless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import unquote

from a2a_fabric.core.errors import UpstreamFailed
from a2a_fabric.schemas.graph import BadSchema
from a2a_fabric.schemas.patterns import work_of

Hidden = Literal["readOnly", "writeOnly"]

_NODES: dict[str, int] = {"readOnly": 2000, "writeOnly": 1000}  # of one schema, asked and answered
_ALL_NODES = 200_000  # of one document
_DEPTH = 40
_ELSE = ""  # cut for another reason than a circle
_CHAIN = 16
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_NUMBERS = ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_TEXTS = ("title", "description", "format", "contentMediaType", "contentEncoding")
_FLAGS = ("uniqueItems", "deprecated")
_VALUES = ("default", "const")
_LISTS = ("enum", "examples")
_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")


class Schemas:
    """Of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._left = _ALL_NODES
        self.known: dict[tuple[str, Hidden], tuple[Any, int]] = {}  # by reference: resolved, and how many nodes

    def deref(self, value: Any) -> dict[str, Any]:
        """What a `$ref` leads to, or the value itself; empty if that is nothing that can be used."""
        for _ in range(_CHAIN):
            if not isinstance(value, dict):
                return {}
            reference = value.get("$ref")
            if not isinstance(reference, str):
                return value
            value = self.target(reference)
        return {}

    def target(self, reference: str) -> Any:
        """None for what is not in the document; other documents are never loaded."""
        if not reference.startswith("#"):
            return None
        found: Any = self._document
        for step in reference[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                return None
        return found

    def resolved(self, schema: Any, *, hidden: Hidden) -> dict[str, Any]:
        """The schema on its own, without the properties that are hidden on this side."""
        resolving = _Resolving(self, hidden, min(self._left, _NODES[hidden]))
        found = resolving.of(schema, ())
        self._left -= resolving.used
        return found if isinstance(found, dict) else {}


class _Resolving:
    """One schema, with a budget. What a reference leads to is made once for the whole document, if nothing cuts it."""

    def __init__(self, schemas: Schemas, hidden: Hidden, budget: int) -> None:
        self.used = 0
        self._schemas = schemas
        self._hidden = hidden
        self._budget = budget
        self._cuts: set[str] = set()  # references inside themselves, and ELSE

    def of(self, schema: Any, inside: tuple[str, ...], depth: int = 0) -> Any:
        self.used += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return {}
        if self.used > self._budget or depth > _DEPTH:
            self._cuts.add(_ELSE)
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._followed(reference, schema, inside, depth)
        return self._spelt(schema, inside, depth)

    def _followed(self, reference: str, schema: dict[str, Any], inside: tuple[str, ...], depth: int) -> Any:
        name = reference.rpartition("/")[2]
        if reference in inside:
            self._cuts.add(reference)
            return {"description": f"Another {name}"}
        found, nodes = self._schemas.known.get((reference, self._hidden), (None, 0))
        if found is None or self.used + nodes > self._budget:
            found = self._made(reference, inside, depth)
        else:
            self.used += nodes
        said = schema.get("description")
        return {**found, "description": said} if isinstance(said, str) and isinstance(found, dict) else found

    def _made(self, reference: str, inside: tuple[str, ...], depth: int) -> Any:
        outer, before = self._cuts, self.used
        self._cuts = set()
        found = self.of(self._schemas.target(reference), (*inside, reference), depth + 1)
        cuts = self._cuts - {reference}
        self._cuts = outer | cuts
        if not cuts:
            self._schemas.known[reference, self._hidden] = (found, self.used - before)
        return found

    def _spelt(self, schema: dict[str, Any], inside: tuple[str, ...], depth: int) -> dict[str, Any]:
        def inner(value: Any) -> Any:
            return self.of(value, inside, depth + 1)

        spelt = _plain(schema)
        for name in _ONE:
            if isinstance(schema.get(name), dict | bool):
                spelt[name] = inner(schema[name])
        for name in _MANY:
            if isinstance(schema.get(name), list) and schema[name]:
                spelt[name] = [inner(each) for each in schema[name]]
        for name in _NAMED:
            if isinstance(schema.get(name), dict):
                spelt[name] = self._properties(schema[name], inner)
        self._require(schema, spelt)
        return _nullable(spelt) if schema.get("nullable") is True else spelt

    def _properties(self, named: dict[str, Any], inner: Callable[[Any], Any]) -> dict[str, Any]:
        return {str(name): inner(each) for name, each in named.items() if not self._is_hidden(each)}

    def _is_hidden(self, schema: Any) -> bool:
        return self._schemas.deref(schema).get(self._hidden) is True

    def _require(self, schema: dict[str, Any], spelt: dict[str, Any]) -> None:
        required = schema.get("required")
        if isinstance(required, list):
            given = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
            gone = {name for name, each in given.items() if self._is_hidden(each)}  # type: ignore[union-attr]  # a dict
            named = list(dict.fromkeys(name for name in required if isinstance(name, str) and name not in gone))
            if named:
                spelt["required"] = named


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The keywords that hold no schemas, where they hold what they should."""
    spelt: dict[str, Any] = {}
    if (kind := _type(schema.get("type"))) is not None:
        spelt["type"] = kind
    for names, right in (
        (_TEXTS, lambda value: isinstance(value, str)),
        (_NUMBERS, _is_number),
        (_COUNTS, lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0),
        (_FLAGS, lambda value: isinstance(value, bool)),
        (_LISTS, lambda value: isinstance(value, list) and value),
        (_VALUES, lambda value: True),
    ):
        spelt |= {name: schema[name] for name in names if name in schema and right(schema[name])}
    for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(limit) is True and bound in spelt:
            spelt[limit] = spelt.pop(bound)
    if isinstance(schema.get("pattern"), str) and _compiles(schema["pattern"]):
        spelt["pattern"] = schema["pattern"]
    if schema.get("type") == "file":  # OpenAPI 2.0
        spelt |= {"type": "string", "format": "binary"}
    return spelt


def _type(given: Any) -> str | list[str] | None:
    if isinstance(given, str):
        return given if given in _TYPES else None
    if isinstance(given, list):
        known = [each for each in dict.fromkeys(map(str, given)) if each in _TYPES]
        return known or None
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compiles(pattern: str) -> bool:
    try:
        work_of(pattern)
    except BadSchema:
        return False
    return True


def _nullable(spelt: dict[str, Any]) -> dict[str, Any]:
    kind = spelt.get("type")
    if isinstance(kind, str):
        spelt["type"] = [kind, "null"]
    if "enum" in spelt and None not in spelt["enum"]:
        spelt["enum"] = [*spelt["enum"], None]
    return spelt if kind is not None else {"anyOf": [spelt, {"type": "null"}]}


class Fields:
    """An object's properties laid open, so that each can be an argument of its own."""

    def __init__(self, properties: dict[str, Any], required: list[str], *, is_open: bool) -> None:
        self.properties = properties
        self.required = required
        self.is_open = is_open  # for more than these


def fields_of(schema: dict[str, Any]) -> Fields | None:
    """None for what is not simply an object: an array, a choice, a value."""
    if schema.get("type", "object") != "object" or any(name in schema for name in ("anyOf", "oneOf", "not", "if")):
        return None
    parts = [fields_of(each) for each in schema.get("allOf", ()) if isinstance(each, dict)]
    if any(part is None for part in parts) or not (parts or isinstance(schema.get("properties"), dict)):
        return None
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in parts:
        properties |= part.properties if part else {}
        required += part.required if part else []
    properties |= schema.get("properties", {})
    required += schema.get("required", [])
    return Fields(properties, list(dict.fromkeys(required)), is_open=schema.get("additionalProperties") is not False)


def is_bytes(schema: Any) -> bool:
    """Whether a field of a form is a file."""
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary":
        return True
    media = str(schema.get("contentMediaType", ""))
    return bool(media) and not media.startswith(("text/", "application/json"))


def checked(document: Any) -> dict[str, Any]:
    """Raises UpstreamFailed if it is no OpenAPI document."""
    known = document if isinstance(document, dict) else {}
    if str(known.get("openapi", "")).startswith("3.") or str(known.get("swagger", "")) == "2.0":
        return known
    raise UpstreamFailed("The document is not OpenAPI 3 (or 2.0): it has no `openapi: 3.…`")
