"""JSON Schemas from Python types, in the form that manifests carry: one object, no reference at the top."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result

_REF = "#/$defs/{name}"


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type. Raises TypeError for a type that JSON cannot carry."""
    (schema,), definitions = msgspec.json.schema_components([kind], ref_template=_REF)
    if "$ref" in schema:
        schema, definitions = _inlined(schema["$ref"], definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _inlined(ref: str, definitions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = ref.rpartition("/")[2]
    is_recursive = ref.encode() in msgspec.json.encode(definitions)
    rest = {name: schema for name, schema in definitions.items() if name != own or is_recursive}
    return definitions[own], rest


def result_schema_of(returns: Any) -> dict[str, Any] | None:
    """The schema of the object that a returned value becomes; None where the hint says nothing useful."""
    if returns in (Result, Part) or Part in get_args(returns):
        return None
    try:
        schema = schema_of(returns)
    except TypeError:
        return None
    kind = schema.get("type")
    if kind == "object":
        return schema if "properties" in schema else None
    if not isinstance(kind, str) or kind == "null":
        return None
    definitions = schema.pop("$defs", None)
    key = "answer" if kind == "string" else "result"
    wrapped = {"type": "object", "properties": {key: schema}, "required": [key]}
    return {**wrapped, "$defs": definitions} if definitions else wrapped
