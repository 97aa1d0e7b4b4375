"""The operations of an OpenAPI document, each as a capability and with what is needed to call it.

Parameters and the fields of the body become arguments of one flat object; a body that is
not simply an object is the argument `body`. Files of a form may be given as attachments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import Capability, Modality, SideEffects, normalize_name
from a2a_fabric.runtimes.http.media import is_json_type
from a2a_fabric.runtimes.http.openapi.document import (
    METHODS,
    ObjectFields,
    SchemaResolver,
    is_binary_schema,
    read_fields,
)

BODY = "body"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """One media type of the body. With `fields` None, the body is the argument `body` as a whole."""

    media_type: str
    required: bool
    schema: dict[str, Any]
    fields: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()  # the fields that are bytes or lists of bytes
    required_fields: tuple[str, ...] = ()
    takes_extra_fields: bool = True  # whether fields without a description are accepted


def read_bodies(operation: dict[str, Any], schemas: SchemaResolver, used_names: set[str]) -> tuple[RequestBody, ...]:
    """The body in every media type that it may have, the best first."""
    request_body = schemas.deref(operation.get("requestBody"))
    content = request_body.get("content")
    if not isinstance(content, dict):
        return ()
    required = request_body.get("required") is True
    bodies = [_read_body(str(kind), each, required, schemas, used_names) for kind, each in content.items()]
    return tuple(sorted(bodies, key=_rank_body))


def _rank_body(body: RequestBody) -> int:
    kinds = (is_json_type(body.media_type), body.media_type == MULTIPART, body.media_type == FORM)
    return kinds.index(True) if True in kinds else 3 + (not body.media_type.startswith("text/"))


def _read_body(kind: str, media: Any, required: bool, schemas: SchemaResolver, used_names: set[str]) -> RequestBody:
    media_type = kind.partition(";")[0].strip().lower()
    raw_schema = media.get("schema", {}) if isinstance(media, dict) else {}
    schema = schemas.resolve(raw_schema, hidden="readOnly")
    fields = read_fields(schema)
    if fields is None or not _can_flatten(media_type, fields, used_names):
        return RequestBody(media_type=media_type, required=required, schema=_build_whole_schema(media_type, schema))
    files = tuple(name for name, each in fields.properties.items() if media_type == MULTIPART and _holds_bytes(each))
    return RequestBody(
        media_type=media_type,
        required=required,
        schema={
            **schema,
            "properties": {name: _build_property(name, each, files) for name, each in fields.properties.items()},
        },
        fields=tuple(fields.properties),
        files=files,
        required_fields=tuple(fields.required),
        takes_extra_fields=fields.takes_extra_fields,
    )


def _can_flatten(media_type: str, fields: ObjectFields, used_names: set[str]) -> bool:
    is_object = is_json_type(media_type) or media_type in (FORM, MULTIPART) or media_type in ("*/*", "application/*")
    return is_object and not used_names & fields.properties.keys()


def _build_whole_schema(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    if is_json_type(media_type) or media_type in (FORM, MULTIPART, "*/*", "application/*"):
        return schema
    if media_type.startswith("text/") or media_type.endswith("xml"):
        return {"type": "string", "description": f"The body, as {media_type}."}
    return {"type": "string", "description": f"The body in base64, as {media_type}; or attach a file."}


def _holds_bytes(schema: Any) -> bool:
    return is_binary_schema(schema) or (isinstance(schema, dict) and is_binary_schema(schema.get("items")))


def _build_property(name: str, schema: Any, files: Sequence[str]) -> Any:
    if name not in files:
        return schema
    description = f"{schema['description']} " if schema.get("description") else ""
    full_description = f"{description}Its content in base64; or attach a file."
    if schema.get("type") == "array":
        return {"type": "array", "items": {"type": "string"}, "description": full_description}
    return {"type": "string", "description": full_description}


ParameterLocation = Literal["path", "query", "header", "cookie"]

MAX_OPERATIONS = 5000

_STYLES: dict[ParameterLocation, str] = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_RESERVED_HEADERS = ("accept", "content-type", "authorization")  # the specification says these are no parameters
_METHOD_EFFECTS: dict[str, tuple[bool, SideEffects]] = {
    "get": (True, "reads"),
    "head": (True, "reads"),
    "options": (True, "reads"),
    "trace": (True, "reads"),
    "put": (True, "writes"),
    "delete": (True, "writes"),
    "post": (False, "writes"),
    "patch": (False, "writes"),
}
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_DESCRIPTION_LENGTH = 1000


class OperationParameter(msgspec.Struct, frozen=True, kw_only=True):
    argument: str  # its name among the arguments
    name: str
    location: ParameterLocation
    style: str
    explode: bool
    required: bool = False
    is_json: bool = False
    schema: dict[str, Any] = {}


class OpenAPIOperation(msgspec.Struct, frozen=True, kw_only=True):
    capability: Capability
    method: str
    path: str
    server: str | None  # as the document writes it
    parameters: tuple[OperationParameter, ...]
    bodies: tuple[RequestBody, ...] = ()
    answers_json: bool = False  # every successful reply is JSON


class OperationSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The operations that the manifest selects, and the headers and query that it adds to every request."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    headers: frozenset[str] = frozenset()  # in lower case
    query: frozenset[str] = frozenset()


def read_operations(document: Mapping[str, Any], selection: OperationSelection) -> dict[str, OpenAPIOperation]:
    """The operations by normalized name, in the document's order."""
    operations: dict[str, OpenAPIOperation] = {}
    schemas = SchemaResolver(document)
    for method, path, item, operation in _iterate_operations(document, schemas):
        name = _name_operation(method, path, operation)
        if not _is_selected(name, method, path, operation, selection):
            continue
        number, unique_name = 1, name
        while normalize_name(unique_name) in operations:
            number += 1
            unique_name = f"{name}_{number}"
        operations[normalize_name(unique_name)] = _read_operation(
            unique_name, method, path, item, operation, document, schemas, selection
        )
        if len(operations) >= MAX_OPERATIONS:
            break
    return operations


def _iterate_operations(
    document: Mapping[str, Any], schemas: SchemaResolver
) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        item = schemas.deref(item)
        for method in METHODS:
            if isinstance(item.get(method), dict):
                yield method, str(path), item, item[method]


def _name_operation(method: str, path: str, operation: dict[str, Any]) -> str:
    operation_id = operation.get("operationId")
    text = operation_id if isinstance(operation_id, str) and operation_id.strip() else f"{method} {path}"
    return _INVALID_NAME_CHARACTERS.sub("_", text).strip("_")[:200] or method


def _is_selected(name: str, method: str, path: str, operation: dict[str, Any], selection: OperationSelection) -> bool:
    tags = operation.get("tags")
    labels = [name, f"{method} {path}", *(str(tag) for tag in tags if tag)] if isinstance(tags, list) else [
        name, f"{method} {path}",
    ]  # fmt: skip
    return (not selection.include or _matches_any(selection.include, labels)) and not _matches_any(
        selection.exclude, labels
    )


def _matches_any(patterns: Sequence[str], labels: Sequence[str]) -> bool:
    return any(fnmatchcase(label.lower(), pattern.lower()) for pattern in patterns for label in labels)


def _read_operation(
    name: str,
    method: str,
    path: str,
    item: dict[str, Any],
    operation: dict[str, Any],
    document: Mapping[str, Any],
    schemas: SchemaResolver,
    selection: OperationSelection,
) -> OpenAPIOperation:
    parameters = _read_parameters(item, operation, schemas, selection)
    bodies = read_bodies(operation, schemas, {each.argument for each in parameters})
    idempotent, effects = _METHOD_EFFECTS[method]
    first_body = bodies[0] if bodies else None
    capability = Capability(
        name=name,
        description=_describe(operation, item),
        input_schema=_build_input_schema(parameters, first_body),
        output_schema=_build_output_schema(operation, schemas),
        modalities=_read_modalities(operation, bodies, schemas),
        idempotent=idempotent,
        side_effects=effects,
    )
    return OpenAPIOperation(
        capability=capability,
        method=method.upper(),
        path=path,
        server=_find_server(operation, item, document),
        parameters=parameters,
        bodies=bodies,
        answers_json=_answers_json(operation, schemas),
    )


def _describe(operation: dict[str, Any], item: dict[str, Any]) -> str:
    texts = [str(operation[key] or "").strip() for key in ("summary", "description") if operation.get(key)]
    texts = texts or [str(item[key] or "").strip() for key in ("summary", "description") if item.get(key)]
    if len(texts) == 2 and texts[1].startswith(texts[0].rstrip(".")):
        texts = texts[1:]
    return "\n\n".join(texts)[:_DESCRIPTION_LENGTH]


def _read_parameters(
    item: dict[str, Any], operation: dict[str, Any], schemas: SchemaResolver, selection: OperationSelection
) -> tuple[OperationParameter, ...]:
    """Parameters of the operation come before those of its path."""
    definitions: dict[tuple[str, str], dict[str, Any]] = {}
    for source in (item.get("parameters"), operation.get("parameters")):
        for each in source if isinstance(source, list) else ():
            definition = schemas.deref(each)
            definitions[str(definition.get("name")), str(definition.get("in"))] = definition
    parameters: list[OperationParameter] = []
    for (name, location), each in definitions.items():
        if location in _STYLES and not _is_preset(name, location, selection):
            used_names = {parameter.argument for parameter in parameters}
            parameters.append(
                _read_parameter(name if name not in used_names else f"{name}_in_{location}", each, schemas)
            )
    return tuple(parameters)


def _is_preset(name: str, location: str, selection: OperationSelection) -> bool:
    if location == "header":
        return name.lower() in selection.headers or name.lower() in _RESERVED_HEADERS
    return location == "query" and name in selection.query


def _read_parameter(argument: str, definition: dict[str, Any], schemas: SchemaResolver) -> OperationParameter:
    location: ParameterLocation = definition["in"]
    content = definition.get("content")
    schema_holder = next(iter(content.values()), {}) if isinstance(content, dict) and content else definition
    schema = schemas.resolve(
        schema_holder.get("schema", {}) if isinstance(schema_holder, dict) else {}, hidden="readOnly"
    )
    if isinstance(definition.get("description"), str):
        schema = {**schema, "description": definition["description"]}
    style = str(definition.get("style") or _STYLES[location])
    return OperationParameter(
        argument=argument,
        name=str(definition["name"]),
        location=location,
        style=style,
        explode=definition["explode"]
        if isinstance(definition.get("explode"), bool)
        else style in ("form", "deepObject"),
        required=definition.get("required") is True or location == "path",
        is_json=schema_holder is not definition,
        schema=schema,
    )


def _build_input_schema(parameters: Sequence[OperationParameter], body: RequestBody | None) -> dict[str, Any]:
    properties = {each.argument: each.schema for each in parameters}
    required = [each.argument for each in parameters if each.required]
    takes_extra_fields = False
    if body is not None and body.fields is not None:
        properties |= body.schema["properties"]
        required += [name for name in body.required_fields if name not in body.files] if body.required else []
        takes_extra_fields = body.takes_extra_fields
    elif body is not None:
        properties[BODY] = body.schema
        takes_files = not is_json_type(body.media_type)
        required += [BODY] if body.required and not takes_files else []
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(dict.fromkeys(required))
    return schema if takes_extra_fields else {**schema, "additionalProperties": False}


def _success_responses(operation: dict[str, Any], schemas: SchemaResolver) -> list[dict[str, Any]]:
    responses = operation.get("responses")
    by_status = responses if isinstance(responses, dict) else {}
    successful = [each for code, each in by_status.items() if re.fullmatch(r"2(\d\d|XX)", str(code), re.IGNORECASE)]
    return [schemas.deref(each) for each in successful or [by_status.get("default")]]


def _build_output_schema(operation: dict[str, Any], schemas: SchemaResolver) -> dict[str, Any] | None:
    """The schema of the result, if the operation has exactly one successful reply and that is JSON."""
    successes = _success_responses(operation, schemas)
    content = successes[0].get("content") if len(successes) == 1 else None
    if (
        not isinstance(content, dict)
        or not content
        or not all(is_json_type(_strip_parameters(kind)) for kind in content)
    ):
        return None
    media = next(iter(content.values()))
    schema = schemas.resolve(media.get("schema") if isinstance(media, dict) else None, hidden="writeOnly")
    if not schema:
        return None
    if schema.get("type") == "object" or read_fields(schema) is not None:
        return {**schema, "type": "object"}
    kind = schema.get("type")
    if kind not in ("array", "string", "number", "integer", "boolean"):
        return None
    name = "answer" if kind == "string" else "result"
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def _answers_json(operation: dict[str, Any], schemas: SchemaResolver) -> bool:
    contents = [each.get("content") for each in _success_responses(operation, schemas)]
    kinds = [_strip_parameters(kind) for content in contents if isinstance(content, dict) for kind in content]
    return bool(kinds) and all(is_json_type(kind) for kind in kinds)


def _strip_parameters(kind: Any) -> str:
    return str(kind).partition(";")[0].strip().lower()


def _read_modalities(
    operation: dict[str, Any], bodies: Sequence[RequestBody], schemas: SchemaResolver
) -> tuple[Modality, ...]:
    contents = [each.get("content") for each in _success_responses(operation, schemas)]
    kinds = {_strip_parameters(kind) for content in contents if isinstance(content, dict) for kind in content}
    modalities: list[Modality] = ["file"] if any(body.files for body in bodies) else []
    modalities += [_modality_from_type(kind) for kind in sorted(kinds | {body.media_type for body in bodies})]
    return tuple(dict.fromkeys(modalities)) or ("json",)


def _modality_from_type(kind: str) -> Modality:
    if is_json_type(kind) or kind in (FORM, MULTIPART, "*/*"):
        return "json"
    first = kind.partition("/")[0]
    return first if first in ("text", "image", "audio", "video") else "file"  # type: ignore[return-value]  # one of them


def _find_server(operation: dict[str, Any], item: dict[str, Any], document: Mapping[str, Any]) -> str | None:
    """The server of the operation, its path or the document, with default values for its variables."""
    for source in (operation, item, document):
        servers = source.get("servers")
        if isinstance(servers, list) and servers and isinstance(servers[0], dict) and servers[0].get("url"):
            return _fill_defaults(str(servers[0]["url"]), servers[0].get("variables"))
    return None


def _fill_defaults(url: str, variables: Any) -> str:
    for name, each in variables.items() if isinstance(variables, dict) else ():
        url = url.replace(f"{{{name}}}", str(each.get("default", "")) if isinstance(each, dict) else "")
    return url
