"""The body of an operation, in each of the ways in which it may be written.

The fields of an object lie open, as arguments beside the parameters; anything else
is one argument, `body`. Files of a form may be given as attachments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.runtimes.http_media import is_json
from a2a_fabric.runtimes.http_openapi_schema import Fields, Schemas, fields_of, is_bytes

BODY = "body"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """One way to write the body. With `fields` None it is the argument `body` as a whole."""

    media_type: str
    required: bool
    schema: dict[str, Any]
    fields: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()  # those of the fields that are bytes, or lists of them
    needed: tuple[str, ...] = ()
    is_open: bool = True  # for fields that are not described


def bodies_of(operation: dict[str, Any], schemas: Schemas, taken: set[str]) -> tuple[Body, ...]:
    """Every way in which the body may be written, the best first."""
    wanted = schemas.deref(operation.get("requestBody"))
    content = wanted.get("content")
    if not isinstance(content, dict):
        return ()
    required = wanted.get("required") is True
    made = [_body(str(kind), each, required, schemas, taken) for kind, each in content.items()]
    return tuple(sorted(made, key=_rank))


def _rank(body: Body) -> int:
    kinds = (is_json(body.media_type), body.media_type == MULTIPART, body.media_type == FORM)
    return kinds.index(True) if True in kinds else 3 + (not body.media_type.startswith("text/"))


def _body(kind: str, given: Any, required: bool, schemas: Schemas, taken: set[str]) -> Body:
    media_type = kind.partition(";")[0].strip().lower()
    described = given.get("schema", {}) if isinstance(given, dict) else {}
    schema = schemas.resolved(described, hidden="readOnly")
    fields = fields_of(schema)
    if fields is None or not _can_lie_open(media_type, fields, taken):
        return Body(media_type=media_type, required=required, schema=_whole_body(media_type, schema))
    files = tuple(name for name, each in fields.properties.items() if media_type == MULTIPART and _holds_bytes(each))
    return Body(
        media_type=media_type,
        required=required,
        schema={
            **schema,
            "properties": {name: _property(name, each, files) for name, each in fields.properties.items()},
        },
        fields=tuple(fields.properties),
        files=files,
        needed=tuple(fields.required),
        is_open=fields.is_open,
    )


def _can_lie_open(media_type: str, fields: Fields, taken: set[str]) -> bool:
    is_object = is_json(media_type) or media_type in (FORM, MULTIPART) or media_type in ("*/*", "application/*")
    return is_object and not taken & fields.properties.keys()


def _whole_body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    if is_json(media_type) or media_type in (FORM, MULTIPART, "*/*", "application/*"):
        return schema
    if media_type.startswith("text/") or media_type.endswith("xml"):
        return {"type": "string", "description": f"The body, as {media_type}."}
    return {"type": "string", "description": f"The body in base64, as {media_type}; or attach a file."}


def _holds_bytes(schema: Any) -> bool:
    return is_bytes(schema) or (isinstance(schema, dict) and is_bytes(schema.get("items")))


def _property(name: str, schema: Any, files: Sequence[str]) -> Any:
    if name not in files:
        return schema
    said = f"{schema['description']} " if schema.get("description") else ""
    about = f"{said}Its content in base64; or attach a file."
    if schema.get("type") == "array":
        return {"type": "array", "items": {"type": "string"}, "description": about}
    return {"type": "string", "description": about}
