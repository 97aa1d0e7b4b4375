"""A call of one operation as an HTTP request: arguments go where the document puts them, attachments where files go."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.core.content import not_carried
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part
from a2a_fabric.runtimes import http_multipart
from a2a_fabric.runtimes.http_api import Request
from a2a_fabric.runtimes.http_media import is_json
from a2a_fabric.runtimes.http_multipart import Field
from a2a_fabric.runtimes.http_openapi_bodies import BODY, FORM, MULTIPART, Body
from a2a_fabric.runtimes.http_openapi_operations import Operation, Parameter
from a2a_fabric.runtimes.http_template import as_text, piece_of_path, with_query

Sent = Sequence[tuple[Parameter, Any]]

_BETWEEN = {"form": ",", "simple": ",", "spaceDelimited": " ", "pipeDelimited": "|", "label": ".", "matrix": ","}


def request_for(
    operation: Operation,
    base: str,
    arguments: dict[str, Any],
    parts: Sequence[Part],
    *,
    headers: Mapping[str, str],
    query: Sequence[tuple[str, str]] = (),
) -> Request:
    """Raises BadInput for what is missing or cannot be sent."""
    rest = dict(arguments)
    sent = [(each, rest.pop(each.argument, None)) for each in operation.parameters]
    for parameter, value in sent:
        if value is None and parameter.required:
            raise _missing(operation, parameter.argument)
    body = _chosen(operation.bodies, rest, parts)
    media_type, content, left = _body(operation, body, rest, list(parts)) if body else (None, None, parts)
    more = dict(_headers(sent))
    if media_type is not None:
        more["content-type"] = media_type
    pairs = [pair for parameter, value in sent if parameter.place == "query" for pair in _query(parameter, value)]
    return Request(
        method=operation.method,
        url=with_query(base.rstrip("/") + _path(operation.path, sent), [*pairs, *query]),
        headers={**more, **headers},
        body=content,
        notes=not_carried(left, "this operation"),
        wants_json=operation.answers_json,
    )


def _path(path: str, sent: Sent) -> str:
    for parameter, value in sent:
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _in_path(parameter, value))
    return path if path.startswith("/") else f"/{path}"


def _in_path(parameter: Parameter, value: Any) -> str:
    name, between = parameter.name, _BETWEEN.get(parameter.style, ",")
    pieces = [piece_of_path(parameter.argument, each) for each in _flat(parameter, value)]
    if not pieces:
        raise BadInput(f"'{parameter.argument}' cannot be empty", field=parameter.argument)
    if parameter.style == "label":
        return f".{(between if parameter.explode else ',').join(pieces)}"
    if parameter.style == "matrix":
        keyed = isinstance(value, dict) and parameter.explode
        joined = f";{name}=".join(pieces) if parameter.explode else ",".join(pieces)
        return f";{';'.join(pieces)}" if keyed else f";{name}={joined}"
    return between.join(pieces)


def _query(parameter: Parameter, value: Any) -> Iterator[tuple[str, str]]:
    name = parameter.name
    if value is None:
        return
    if parameter.is_json:
        yield name, as_text(value)
    elif parameter.style == "deepObject" and isinstance(value, dict):
        yield from ((f"{name}[{key}]", as_text(each)) for key, each in value.items())
    elif isinstance(value, dict) and parameter.explode:
        yield from ((str(key), as_text(each)) for key, each in value.items())
    elif isinstance(value, list) and parameter.explode:
        yield from ((name, as_text(each)) for each in value)
    else:
        yield name, _BETWEEN.get(parameter.style, ",").join(_flat(parameter, value))


def _flat(parameter: Parameter, value: Any) -> list[str]:
    """The pieces of a value: an object's names and values, a list's items, or the value alone."""
    if parameter.is_json:
        return [as_text(value)]
    if isinstance(value, dict):
        if parameter.explode:
            return [f"{key}={as_text(each)}" for key, each in value.items()]
        return [piece for key, each in value.items() for piece in (str(key), as_text(each))]
    return [as_text(each) for each in value] if isinstance(value, list) else [as_text(value)]


def _headers(sent: Sent) -> Iterator[tuple[str, str]]:
    cookies = []
    for parameter, value in sent:
        if value is not None and parameter.place == "header":
            yield parameter.name.lower(), _fit(parameter, ",".join(_flat(parameter, value)))
        elif value is not None and parameter.place == "cookie":
            cookies.append(f"{parameter.name}={quote(','.join(_flat(parameter, value)), safe='')}")
    if cookies:
        yield "cookie", "; ".join(cookies)


def _fit(parameter: Parameter, text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise BadInput(f"'{parameter.argument}' holds characters that cannot be sent", field=parameter.argument)
    return text


def _chosen(bodies: Sequence[Body], rest: dict[str, Any], parts: Sequence[Part]) -> Body | None:
    """The first, unless there are files to send and another one takes them."""
    if any(part.blob is not None or part.text is not None for part in parts):
        for body in bodies:
            if body.files or (body.fields is None and _is_binary(body.media_type)):
                return body
    if not bodies or (not rest and not bodies[0].required):
        return None
    return bodies[0]


def _is_binary(media_type: str) -> bool:
    named = (is_json(media_type), media_type in (FORM, MULTIPART), media_type.startswith("text/"))
    return not any(named) and not media_type.endswith("xml")


def _body(operation: Operation, body: Body, rest: dict[str, Any], parts: list[Part]) -> tuple[str, bytes, list[Part]]:
    """Media type, content, and the attachments that did not go with it."""
    if body.fields is None:
        return _whole(operation, body, rest.get(BODY), parts)
    for name in body.needed:
        if rest.get(name) is None and name not in body.files and body.required:
            raise _missing(operation, name)
    if body.media_type == MULTIPART:
        return _multipart(operation, body, rest, parts)
    if body.media_type == FORM:
        return FORM, urlencode(list(_form(rest))).encode(), parts
    kind = body.media_type if is_json(body.media_type) else "application/json"
    return kind, msgspec.json.encode(rest), parts


def _whole(operation: Operation, body: Body, value: Any, parts: list[Part]) -> tuple[str, bytes, list[Part]]:
    kind = body.media_type
    if is_json(kind) or kind in ("*/*", "application/*"):
        return (kind if is_json(kind) else "application/json"), msgspec.json.encode(value), parts
    if kind == FORM:
        return FORM, urlencode(list(_form(value if isinstance(value, dict) else {}))).encode(), parts
    if kind == MULTIPART:
        return _multipart(operation, body, value if isinstance(value, dict) else {}, parts)
    if not _is_binary(kind):
        if value is None and body.required:
            raise _missing(operation, BODY)
        return kind, as_text("" if value is None else value).encode(), parts
    if value is not None:
        return _type_of(kind, None), _bytes(BODY, value), parts
    found = next((part for part in parts if part.blob is not None or part.text is not None), None)
    if found is None:
        raise BadInput(f"'{operation.capability.name}' needs a file: attach one, or give it as `body`", field=BODY)
    return _type_of(kind, found), content_of(found), [part for part in parts if part is not found]


def _type_of(kind: str, part: Part | None) -> str:
    if "*" not in kind:
        return kind
    return (part.mime_type if part is not None else None) or "application/octet-stream"


def _form(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield name, as_text(each)


def _multipart(
    operation: Operation, body: Body, rest: dict[str, Any], parts: list[Part]
) -> tuple[str, bytes, list[Part]]:
    made: list[Field] = []
    for name, value in rest.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                made.append(_file(name, each) if name in body.files else _field(name, each))
    left = list(parts)
    for name in body.files:
        if rest.get(name) is None:
            taken = _attached(name, body, left)
            made += [_attachment(name, part) for part in taken]
            left = [part for part in left if part not in taken]
            if not taken and name in body.needed:
                raise BadInput(
                    f"'{operation.capability.name}' needs a file: attach one, or give it as `{name}`", field=name
                )
    kind, content = http_multipart.encoded(made)
    return kind, content, left


def _attached(name: str, body: Body, parts: list[Part]) -> list[Part]:
    """By the field's name if an attachment has it; else the next one, or all where many are taken."""
    usable = [part for part in parts if part.blob is not None or part.text is not None]
    schema = body.schema["properties"][name]
    if schema.get("type") == "array":
        return usable
    return [part for part in usable if part.name == name][:1] or usable[:1]


def _field(name: str, value: Any) -> Field:
    if isinstance(value, dict | list):
        return Field(name=name, content=msgspec.json.encode(value), media_type="application/json")
    return Field(name=name, content=as_text(value).encode("utf-8", "replace"))


def _file(name: str, value: Any) -> Field:
    return Field(name=name, content=_bytes(name, value), media_type="application/octet-stream", filename=name)


def _attachment(name: str, part: Part) -> Field:
    kind = part.mime_type or ("text/plain" if part.text is not None else "application/octet-stream")
    return Field(name=name, content=content_of(part), media_type=kind, filename=part.name or name)


def content_of(part: Part) -> bytes:
    """The bytes of an attachment. Raises BadInput."""
    if part.text is not None:
        return part.text.encode("utf-8", "replace")
    return _bytes(part.name or "attachment", part.blob)


def _bytes(name: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError) as exc:
        raise BadInput(f"'{name}' is not base64", field=name) from exc


def _missing(operation: Operation, argument: str) -> BadInput:
    return BadInput(f"'{operation.capability.name}' needs '{argument}'", field=argument)
