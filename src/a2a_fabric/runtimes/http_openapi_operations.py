"""The operations of an OpenAPI document, each as a capability and as what is needed to call it.

Parameters and the fields of the body become arguments of one flat object; a body that is
not simply an object is the argument `body`. Files of a form may be given as attachments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import Capability, Modality, SideEffects, fold
from a2a_fabric.runtimes.http_media import is_json
from a2a_fabric.runtimes.http_openapi_bodies import BODY, FORM, MULTIPART, Body, bodies_of
from a2a_fabric.runtimes.http_openapi_schema import Schemas, fields_of
from a2a_fabric.runtimes.http_openapi_swagger import METHODS

Place = Literal["path", "query", "header", "cookie"]

MOST = 5000

_STYLES: dict[Place, str] = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_OURS_TO_SEND = ("accept", "content-type", "authorization")  # by the specification, no parameters
_EFFECTS: dict[str, tuple[bool, SideEffects]] = {
    "get": (True, "reads"),
    "head": (True, "reads"),
    "options": (True, "reads"),
    "trace": (True, "reads"),
    "put": (True, "writes"),
    "delete": (True, "writes"),
    "post": (False, "writes"),
    "patch": (False, "writes"),
}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_ABOUT = 1000


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    argument: str  # its name among the arguments
    name: str
    place: Place
    style: str
    explode: bool
    required: bool = False
    is_json: bool = False
    schema: dict[str, Any] = {}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    capability: Capability
    method: str
    path: str
    server: str | None  # as the document writes it
    parameters: tuple[Parameter, ...]
    bodies: tuple[Body, ...] = ()
    answers_json: bool = False  # and nothing else


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest chooses, and what it gives with every request, so that no caller has to."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    headers: frozenset[str] = frozenset()  # in lower case
    query: frozenset[str] = frozenset()


def operations_of(document: Mapping[str, Any], given: Given) -> dict[str, Operation]:
    """By folded name, in the document's order."""
    found: dict[str, Operation] = {}
    schemas = Schemas(document)
    for method, path, item, operation in _all(document, schemas):
        name = _name(method, path, operation)
        if not _is_chosen(name, method, path, operation, given):
            continue
        number, unique = 1, name
        while fold(unique) in found:
            number += 1
            unique = f"{name}_{number}"
        found[fold(unique)] = _operation(unique, method, path, item, operation, document, schemas, given)
        if len(found) >= MOST:
            break
    return found


def _all(document: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        item = schemas.deref(item)
        for method in METHODS:
            if isinstance(item.get(method), dict):
                yield method, str(path), item, item[method]


def _name(method: str, path: str, operation: dict[str, Any]) -> str:
    named = operation.get("operationId")
    text = named if isinstance(named, str) and named.strip() else f"{method} {path}"
    return _NOT_IN_NAMES.sub("_", text).strip("_")[:200] or method


def _is_chosen(name: str, method: str, path: str, operation: dict[str, Any], given: Given) -> bool:
    tags = operation.get("tags")
    words = [name, f"{method} {path}", *(str(tag) for tag in tags if tag)] if isinstance(tags, list) else [
        name, f"{method} {path}",
    ]  # fmt: skip
    return (not given.include or _any(given.include, words)) and not _any(given.exclude, words)


def _any(patterns: Sequence[str], words: Sequence[str]) -> bool:
    return any(fnmatchcase(word.lower(), pattern.lower()) for pattern in patterns for word in words)


def _operation(
    name: str,
    method: str,
    path: str,
    item: dict[str, Any],
    operation: dict[str, Any],
    document: Mapping[str, Any],
    schemas: Schemas,
    given: Given,
) -> Operation:
    parameters = _parameters(item, operation, schemas, given)
    bodies = bodies_of(operation, schemas, {each.argument for each in parameters})
    idempotent, effects = _EFFECTS[method]
    takes = bodies[0] if bodies else None
    capability = Capability(
        name=name,
        description=_about(operation, item),
        input_schema=_input_schema(parameters, takes),
        output_schema=_output_schema(operation, schemas),
        modalities=_modalities(operation, bodies, schemas),
        idempotent=idempotent,
        side_effects=effects,
    )
    return Operation(
        capability=capability,
        method=method.upper(),
        path=path,
        server=_server(operation, item, document),
        parameters=parameters,
        bodies=bodies,
        answers_json=_answers_json(operation, schemas),
    )


def _about(operation: dict[str, Any], item: dict[str, Any]) -> str:
    said = [str(operation[key] or "").strip() for key in ("summary", "description") if operation.get(key)]
    said = said or [str(item[key] or "").strip() for key in ("summary", "description") if item.get(key)]
    if len(said) == 2 and said[1].startswith(said[0].rstrip(".")):
        said = said[1:]
    return "\n\n".join(said)[:_ABOUT]


def _parameters(
    item: dict[str, Any], operation: dict[str, Any], schemas: Schemas, given: Given
) -> tuple[Parameter, ...]:
    """Those of the operation stand before those of its path."""
    named: dict[tuple[str, str], dict[str, Any]] = {}
    for source in (item.get("parameters"), operation.get("parameters")):
        for each in source if isinstance(source, list) else ():
            found = schemas.deref(each)
            named[str(found.get("name")), str(found.get("in"))] = found
    made: list[Parameter] = []
    for (name, place), each in named.items():
        if place in _STYLES and not _is_given(name, place, given):
            taken = {parameter.argument for parameter in made}
            made.append(_parameter(name if name not in taken else f"{name}_in_{place}", each, schemas))
    return tuple(made)


def _is_given(name: str, place: str, given: Given) -> bool:
    if place == "header":
        return name.lower() in given.headers or name.lower() in _OURS_TO_SEND
    return place == "query" and name in given.query


def _parameter(argument: str, given: dict[str, Any], schemas: Schemas) -> Parameter:
    place: Place = given["in"]
    content = given.get("content")
    described = next(iter(content.values()), {}) if isinstance(content, dict) and content else given
    schema = schemas.resolved(described.get("schema", {}) if isinstance(described, dict) else {}, hidden="readOnly")
    if isinstance(given.get("description"), str):
        schema = {**schema, "description": given["description"]}
    style = str(given.get("style") or _STYLES[place])
    return Parameter(
        argument=argument,
        name=str(given["name"]),
        place=place,
        style=style,
        explode=given["explode"] if isinstance(given.get("explode"), bool) else style in ("form", "deepObject"),
        required=given.get("required") is True or place == "path",
        is_json=described is not given,
        schema=schema,
    )


def _input_schema(parameters: Sequence[Parameter], body: Body | None) -> dict[str, Any]:
    properties = {each.argument: each.schema for each in parameters}
    required = [each.argument for each in parameters if each.required]
    is_open = False
    if body is not None and body.fields is not None:
        properties |= body.schema["properties"]
        required += [name for name in body.needed if name not in body.files] if body.required else []
        is_open = body.is_open
    elif body is not None:
        properties[BODY] = body.schema
        takes_files = not is_json(body.media_type)
        required += [BODY] if body.required and not takes_files else []
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(dict.fromkeys(required))
    return schema if is_open else {**schema, "additionalProperties": False}


def _successes(operation: dict[str, Any], schemas: Schemas) -> list[dict[str, Any]]:
    responses = operation.get("responses")
    named = responses if isinstance(responses, dict) else {}
    good = [each for code, each in named.items() if re.fullmatch(r"2(\d\d|XX)", str(code), re.IGNORECASE)]
    return [schemas.deref(each) for each in good or [named.get("default")]]


def _output_schema(operation: dict[str, Any], schemas: Schemas) -> dict[str, Any] | None:
    """Only where there is but one way to succeed, and it is JSON; as an object, which results are."""
    successes = _successes(operation, schemas)
    content = successes[0].get("content") if len(successes) == 1 else None
    if not isinstance(content, dict) or not content or not all(is_json(_bare(kind)) for kind in content):
        return None
    described = next(iter(content.values()))
    schema = schemas.resolved(described.get("schema") if isinstance(described, dict) else None, hidden="writeOnly")
    if not schema:
        return None
    if schema.get("type") == "object" or fields_of(schema) is not None:
        return {**schema, "type": "object"}
    kind = schema.get("type")
    if kind not in ("array", "string", "number", "integer", "boolean"):
        return None
    name = "answer" if kind == "string" else "result"
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def _answers_json(operation: dict[str, Any], schemas: Schemas) -> bool:
    contents = [each.get("content") for each in _successes(operation, schemas)]
    kinds = [_bare(kind) for content in contents if isinstance(content, dict) for kind in content]
    return bool(kinds) and all(is_json(kind) for kind in kinds)


def _bare(kind: Any) -> str:
    return str(kind).partition(";")[0].strip().lower()


def _modalities(operation: dict[str, Any], bodies: Sequence[Body], schemas: Schemas) -> tuple[Modality, ...]:
    contents = [each.get("content") for each in _successes(operation, schemas)]
    kinds = {_bare(kind) for content in contents if isinstance(content, dict) for kind in content}
    found: list[Modality] = ["file"] if any(body.files for body in bodies) else []
    found += [_modality(kind) for kind in sorted(kinds | {body.media_type for body in bodies})]
    return tuple(dict.fromkeys(found)) or ("json",)


def _modality(kind: str) -> Modality:
    if is_json(kind) or kind in (FORM, MULTIPART, "*/*"):
        return "json"
    first = kind.partition("/")[0]
    return first if first in ("text", "image", "audio", "video") else "file"  # type: ignore[return-value]  # one of them


def _server(operation: dict[str, Any], item: dict[str, Any], document: Mapping[str, Any]) -> str | None:
    """The nearest one, its variables at their defaults."""
    for source in (operation, item, document):
        servers = source.get("servers")
        if isinstance(servers, list) and servers and isinstance(servers[0], dict) and servers[0].get("url"):
            return _with_defaults(str(servers[0]["url"]), servers[0].get("variables"))
    return None


def _with_defaults(url: str, variables: Any) -> str:
    for name, each in variables.items() if isinstance(variables, dict) else ():
        url = url.replace(f"{{{name}}}", str(each.get("default", "")) if isinstance(each, dict) else "")
    return url
