"""Schemas of an OpenAPI document as self-contained JSON Schema.

References are inlined up to a bound: a recursive or too large schema becomes one that takes
anything, because the API validates anyway. Spellings of OpenAPI 3.0 are converted, and keywords
that are no JSON Schema are left out, since one bad keyword would make the capability unusable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote

from a2a_fabric.core.errors import UpstreamFailed
from a2a_fabric.schemas.cost import measure_pattern_work
from a2a_fabric.schemas.graph import UnusableSchema

HiddenFlag = Literal["readOnly", "writeOnly"]

_MAX_NODES: dict[str, int] = {"readOnly": 2000, "writeOnly": 1000}  # of one schema, in requests and in replies
_MAX_DOCUMENT_NODES = 200_000  # of one document
_MAX_DEPTH = 40
_OTHER_CUT = ""  # cut for another reason than recursion
_MAX_REFERENCE_CHAIN = 16
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_NUMBERS = ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_TEXTS = ("title", "description", "format", "contentMediaType", "contentEncoding")
_FLAGS = ("uniqueItems", "deprecated")
_VALUES = ("default", "const")
_LISTS = ("enum", "examples")
_SCHEMA_KEYWORDS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "dependentSchemas")


class SchemaResolver:
    """Resolves the schemas of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._remaining_nodes = _MAX_DOCUMENT_NODES
        self.resolved_references: dict[
            tuple[str, HiddenFlag], tuple[Any, int]
        ] = {}  # by reference: the schema and its number of nodes

    def deref(self, value: Any) -> dict[str, Any]:
        """The target of a `$ref`, or the value itself; empty if that is not an object."""
        for _ in range(_MAX_REFERENCE_CHAIN):
            if not isinstance(value, dict):
                return {}
            reference = value.get("$ref")
            if not isinstance(reference, str):
                return value
            value = self.find_target(reference)
        return {}

    def find_target(self, reference: str) -> Any:
        """None if the target is not in the document; other documents are never loaded."""
        if not reference.startswith("#"):
            return None
        node: Any = self._document
        for step in reference[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isascii() and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, dict) and key in node:
                node = node[key]
            else:
                return None
        return node

    def resolve(self, schema: Any, *, hidden: HiddenFlag) -> dict[str, Any]:
        """The schema on its own, without the properties that are hidden on this side."""
        resolution = _Resolution(self, hidden, min(self._remaining_nodes, _MAX_NODES[hidden]))
        result = resolution.resolve(schema, ())
        self._remaining_nodes -= resolution.used_nodes
        return result if isinstance(result, dict) else {}


class _Resolution:
    """Resolves one schema, with a budget. The target of a reference is resolved once per document, unless it is cut."""

    def __init__(self, schemas: SchemaResolver, hidden: HiddenFlag, budget: int) -> None:
        self.used_nodes = 0
        self._schemas = schemas
        self._hidden = hidden
        self._budget = budget
        self._cuts: set[str] = set()  # recursive references, and _OTHER_CUT

    def resolve(self, schema: Any, enclosing: tuple[str, ...], depth: int = 0) -> Any:
        self.used_nodes += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return {}
        if self.used_nodes > self._budget or depth > _MAX_DEPTH:
            self._cuts.add(_OTHER_CUT)
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._follow(reference, schema, enclosing, depth)
        return self._rewrite(schema, enclosing, depth)

    def _follow(self, reference: str, schema: dict[str, Any], enclosing: tuple[str, ...], depth: int) -> Any:
        name = reference.rpartition("/")[2]
        if reference in enclosing:
            self._cuts.add(reference)
            return {"description": f"Another {name}"}
        target, nodes = self._schemas.resolved_references.get((reference, self._hidden), (None, 0))
        if target is None or self.used_nodes + nodes > self._budget:
            target = self._resolve_reference(reference, enclosing, depth)
        else:
            self.used_nodes += nodes
        description = schema.get("description")
        return (
            {**target, "description": description}
            if isinstance(description, str) and isinstance(target, dict)
            else target
        )

    def _resolve_reference(self, reference: str, enclosing: tuple[str, ...], depth: int) -> Any:
        outer_cuts, used_before = self._cuts, self.used_nodes
        self._cuts = set()
        target = self.resolve(self._schemas.find_target(reference), (*enclosing, reference), depth + 1)
        cuts = self._cuts - {reference}
        self._cuts = outer_cuts | cuts
        if not cuts:
            self._schemas.resolved_references[reference, self._hidden] = (target, self.used_nodes - used_before)
        return target

    def _rewrite(self, schema: dict[str, Any], enclosing: tuple[str, ...], depth: int) -> dict[str, Any]:
        def inner(value: Any) -> Any:
            return self.resolve(value, enclosing, depth + 1)

        rewritten = _copy_plain_keywords(schema)
        for name in _SCHEMA_KEYWORDS:
            if isinstance(schema.get(name), dict | bool):
                rewritten[name] = inner(schema[name])
        for name in _SCHEMA_LIST_KEYWORDS:
            if isinstance(schema.get(name), list) and schema[name]:
                rewritten[name] = [inner(each) for each in schema[name]]
        for name in _SCHEMA_MAP_KEYWORDS:
            if isinstance(schema.get(name), dict):
                items = schema[name].items()
                rewritten[name] = {str(key): inner(each) for key, each in items if not self._is_hidden(each)}
        self._copy_required(schema, rewritten)
        return _make_nullable(rewritten) if schema.get("nullable") is True else rewritten

    def _is_hidden(self, schema: Any) -> bool:
        return self._schemas.deref(schema).get(self._hidden) is True

    def _copy_required(self, schema: dict[str, Any], rewritten: dict[str, Any]) -> None:
        required = schema.get("required")
        if isinstance(required, list):
            properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
            hidden_names = {name for name, each in properties.items() if self._is_hidden(each)}  # type: ignore[union-attr]  # a dict
            names = list(dict.fromkeys(name for name in required if isinstance(name, str) and name not in hidden_names))
            if names:
                rewritten["required"] = names


def _copy_plain_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    """Copy the keywords that hold no schemas, if their values are valid."""
    rewritten: dict[str, Any] = {}
    if (kind := _clean_type(schema.get("type"))) is not None:
        rewritten["type"] = kind
    for names, is_valid in (
        (_TEXTS, lambda value: isinstance(value, str)),
        (_NUMBERS, lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
        (_COUNTS, lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0),
        (_FLAGS, lambda value: isinstance(value, bool)),
        (_LISTS, lambda value: isinstance(value, list) and value),
        (_VALUES, lambda value: True),
    ):
        rewritten |= {name: schema[name] for name in names if name in schema and is_valid(schema[name])}
    for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(limit) is True and bound in rewritten:
            rewritten[limit] = rewritten.pop(bound)
    if isinstance(schema.get("pattern"), str) and _is_valid_pattern(schema["pattern"]):
        rewritten["pattern"] = schema["pattern"]
    if schema.get("type") == "file":  # OpenAPI 2.0
        rewritten |= {"type": "string", "format": "binary"}
    return rewritten


def _clean_type(value: Any) -> str | list[str] | None:
    if isinstance(value, str):
        return value if value in _TYPES else None
    if isinstance(value, list):
        types = [each for each in dict.fromkeys(map(str, value)) if each in _TYPES]
        return types or None
    return None


def _is_valid_pattern(pattern: str) -> bool:
    try:
        measure_pattern_work(pattern)
    except UnusableSchema:
        return False
    return True


def _make_nullable(rewritten: dict[str, Any]) -> dict[str, Any]:
    kind = rewritten.get("type")
    if isinstance(kind, str):
        rewritten["type"] = [kind, "null"]
    if "enum" in rewritten and None not in rewritten["enum"]:
        rewritten["enum"] = [*rewritten["enum"], None]
    return rewritten if kind is not None else {"anyOf": [rewritten, {"type": "null"}]}


class ObjectFields:
    """The properties of an object, each of which can be an argument."""

    def __init__(self, properties: dict[str, Any], required: list[str], *, takes_extra_fields: bool) -> None:
        self.properties = properties
        self.required = required
        self.takes_extra_fields = takes_extra_fields  # whether fields besides these are accepted


def read_fields(schema: dict[str, Any]) -> ObjectFields | None:
    """None if the schema is not simply an object: an array, a choice or a value."""
    if schema.get("type", "object") != "object" or any(name in schema for name in ("anyOf", "oneOf", "not", "if")):
        return None
    parts = [read_fields(each) for each in schema.get("allOf", ()) if isinstance(each, dict)]
    if any(part is None for part in parts) or not (parts or isinstance(schema.get("properties"), dict)):
        return None
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in parts:
        properties |= part.properties if part else {}
        required += part.required if part else []
    properties |= schema.get("properties", {})
    required += schema.get("required", [])
    return ObjectFields(
        properties, list(dict.fromkeys(required)), takes_extra_fields=schema.get("additionalProperties") is not False
    )


def is_binary_schema(schema: Any) -> bool:
    """Whether a field of a form is a file."""
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary":
        return True
    media = str(schema.get("contentMediaType", ""))
    return bool(media) and not media.startswith(("text/", "application/json"))


def check_version(document: Any) -> dict[str, Any]:
    """Raises UpstreamFailed if it is no OpenAPI document."""
    mapping = document if isinstance(document, dict) else {}
    if str(mapping.get("openapi", "")).startswith("3.") or str(mapping.get("swagger", "")) == "2.0":
        return mapping
    raise UpstreamFailed("The document is not OpenAPI 3 (or 2.0): it has no `openapi: 3.…`")
