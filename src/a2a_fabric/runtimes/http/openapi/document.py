"""OpenAPI documents: discovered, fetched or read from a file, parsed from JSON or YAML; their schemas as JSON Schema.

Version 2.0 (Swagger) is converted to version 3, as far as calling its operations needs it.
References in schemas are inlined up to a bound: a recursive or too large schema becomes one that takes
anything, because the API validates anyway. Spellings of OpenAPI 3.0 are converted, and keywords
that are no JSON Schema are left out, since one bad keyword would make the capability unusable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
import yaml

from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, FabricError, UpstreamFailed
from a2a_fabric.outbound.port import HTTPClient, OutboundError
from a2a_fabric.runtimes.upstream import error_from_outbound, error_from_status, redact_url
from a2a_fabric.schemas.cost import UnusableSchema, measure_pattern_work

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


METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")

_STYLES: Mapping[str, tuple[str, bool]] = {
    "multi": ("form", True),
    "ssv": ("spaceDelimited", False),
    "pipes": ("pipeDelimited", False),
}
_PARAMETER_KEYS = {"name", "in", "required", "description", "schema", "collectionFormat", "allowEmptyValue"}


def to_version_3(document: dict[str, Any]) -> dict[str, Any]:
    """The same document if it is of version 3."""
    if "openapi" in document:
        return document
    paths = document.get("paths")
    return {
        **document,
        "openapi": "3.0.3",
        "servers": _build_servers(document),
        "paths": {path: _convert_path_item(item, document) for path, item in paths.items()}
        if isinstance(paths, dict)
        else {},
    }


def _build_servers(document: dict[str, Any]) -> list[dict[str, str]]:
    base = str(document.get("basePath") or "/")
    host = document.get("host")
    if not host:
        return [{"url": base}]
    schemes = document.get("schemes")
    usable_schemes = [each for each in schemes if each in ("https", "http")] if isinstance(schemes, list) else []
    prefix = (
        f"{max(usable_schemes)}:" if usable_schemes else ""
    )  # https if it is offered; else the scheme of the document's address
    return [{"url": f"{prefix}//{host}{base}"}]


def _convert_path_item(item: Any, document: dict[str, Any]) -> Any:
    if not isinstance(item, dict):
        return item
    shared_parameters = _resolve_parameters(item.get("parameters"), document)
    converted = {key: value for key, value in item.items() if key not in ("parameters", *METHODS)}
    for method in METHODS:
        if isinstance(item.get(method), dict):
            converted[method] = _convert_operation(item[method], shared_parameters, document)
    return converted


def _convert_operation(
    operation: dict[str, Any], shared_parameters: list[dict[str, Any]], document: dict[str, Any]
) -> dict[str, Any]:
    own_parameters = _resolve_parameters(operation.get("parameters"), document)
    by_name = {(str(each.get("name")), str(each.get("in"))): each for each in (*shared_parameters, *own_parameters)}
    parameters = list(by_name.values())
    converted = {
        **operation,
        "parameters": [
            _convert_parameter(each) for each in parameters if str(each.get("in")) not in ("body", "formData")
        ],
    }
    body = _convert_body(parameters, operation.get("consumes") or document.get("consumes"))
    if body is not None:
        converted["requestBody"] = body
    produces = operation.get("produces") or document.get("produces") or ["application/json"]
    responses = operation.get("responses")
    if isinstance(responses, dict):
        converted["responses"] = {code: _convert_response(each, produces, document) for code, each in responses.items()}
    return converted


def _resolve_parameters(parameters: Any, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Resolve references to shared parameters, because the location of a parameter decides its conversion."""
    resolved = []
    for each in parameters if isinstance(parameters, list) else ():
        if isinstance(each, dict):
            name = str(each.get("$ref", "")).removeprefix("#/parameters/")
            shared = document.get("parameters")
            resolved.append(shared[name] if isinstance(shared, dict) and isinstance(shared.get(name), dict) else each)
    return resolved


def _convert_parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    style, explode = _STYLES.get(str(parameter.get("collectionFormat")), ("", False))
    converted: dict[str, Any] = {
        key: parameter[key] for key in ("name", "in", "required", "description") if key in parameter
    }
    schema = {key: value for key, value in parameter.items() if key not in _PARAMETER_KEYS}
    return {**converted, "schema": schema, "explode": explode, **({"style": style} if style else {})}


def _convert_body(parameters: list[dict[str, Any]], consumes: Any) -> dict[str, Any] | None:
    consumes = [str(each) for each in consumes] if isinstance(consumes, list) else []
    for each in parameters:
        if each.get("in") == "body":
            kinds = consumes or ["application/json"]
            content = {kind: {"schema": each.get("schema", {})} for kind in kinds}
            return {"required": each.get("required") is True, "content": content}
    form = [each for each in parameters if each.get("in") == "formData"]
    if not form:
        return None
    has_files = any(each.get("type") == "file" for each in form)
    kinds = [kind for kind in consumes if "form" in kind and (not has_files or "multipart" in kind)]
    properties = {str(each.get("name")): _convert_parameter(each)["schema"] | _copy_description(each) for each in form}
    required = [str(each.get("name")) for each in form if each.get("required") is True]
    schema = {"type": "object", "properties": properties, "required": required}
    default_type = "multipart/form-data" if has_files else "application/x-www-form-urlencoded"
    return {"required": bool(required), "content": {kind: {"schema": schema} for kind in kinds or [default_type]}}


def _copy_description(parameter: dict[str, Any]) -> dict[str, Any]:
    return {"description": parameter["description"]} if "description" in parameter else {}


def _convert_response(response: Any, produces: Any, document: dict[str, Any]) -> Any:
    if isinstance(response, dict) and str(response.get("$ref", "")).startswith("#/responses/"):
        shared = document.get("responses")
        response = shared.get(response["$ref"].rpartition("/")[2], response) if isinstance(shared, dict) else response
    if not isinstance(response, dict) or "schema" not in response:
        return response
    kinds = [str(each) for each in produces] if isinstance(produces, list) else []
    return {**response, "content": {kind: {"schema": response["schema"]} for kind in kinds or ["application/json"]}}


USUAL_PATHS = ("openapi.json", "openapi.yaml", "swagger.json", "v3/api-docs", "api/openapi.json")
_FETCH_TIMEOUT = 20.0
_MAX_BYTES = 32 * 1024 * 1024
_MAX_YAML_BYTES = 4 * 1024 * 1024  # parsing YAML is slow

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _DatelessLoader(_SafeLoader):  # type: ignore[misc]  # which of the two is known at run time only
    """Dates stay strings, because JSON has no dates."""


_DatelessLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


class OpenAPIDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document, converted to version 3; `source` is its address, None for a file."""

    value: dict[str, Any]
    source: str | None = None
    revision: str = ""  # changes when the document changes


async def fetch_document(
    http: HTTPClient, url: str, headers: dict[str, str], previous: OpenAPIDocument | None = None
) -> OpenAPIDocument:
    """Returns the known document if it has not changed. Raises FabricError."""
    request_headers = {"accept": "application/json, application/yaml;q=0.9, */*;q=0.5", **headers}
    if previous is not None and previous.revision and previous.source == url:
        request_headers["if-none-match"] = previous.revision
    try:
        reply = await http.request("GET", url, headers=request_headers, timeout=_FETCH_TIMEOUT, limit=_MAX_BYTES)
    except OutboundError as exc:
        raise error_from_outbound(exc, _FETCH_TIMEOUT, redact_url(url)) from exc
    if reply.status == 304 and previous is not None:
        return previous
    if reply.status != 200:
        raise error_from_status(reply.status, "there is no OpenAPI document at this address")
    value = await asyncio.to_thread(parse_document, reply.body)
    return OpenAPIDocument(value=value, source=url, revision=reply.headers.get("etag", ""))


async def discover_document(http: HTTPClient, uri: str, headers: dict[str, str]) -> OpenAPIDocument:
    """Look at the address, then at the usual paths below it and at its origin. Raises FabricError."""
    first_error: FabricError | None = None
    for url in list_candidate_urls(uri):
        try:
            return await fetch_document(http, url, headers)
        except (AgentOffline, AgentBusy):
            raise
        except FabricError as exc:
            first_error = first_error or exc
    raise UpstreamFailed(
        f"No OpenAPI document at {redact_url(uri)} or in the usual places beside it; name it as `openapi`"
    ) from first_error


def list_candidate_urls(uri: str) -> list[str]:
    parts = urlsplit(uri)
    folder, origin = f"{uri.partition('?')[0].rstrip('/')}/", f"{parts.scheme}://{parts.netloc}/"
    return list(dict.fromkeys([uri, *(urljoin(base, name) for base in (folder, origin) for name in USUAL_PATHS)]))


async def read_document(path: Path, previous: OpenAPIDocument | None = None) -> OpenAPIDocument:
    """Raises BadInput."""
    return await asyncio.to_thread(_read_file, path, previous)


def _read_file(path: Path, previous: OpenAPIDocument | None) -> OpenAPIDocument:
    try:
        stat = path.stat()
        revision = f"{stat.st_mtime_ns} {stat.st_size}"
        if previous is not None and previous.revision == revision:
            return previous
        if stat.st_size > _MAX_BYTES:
            raise BadInput(f"{path.name}: larger than {_MAX_BYTES} bytes")
        return OpenAPIDocument(value=parse_document(path.read_bytes()), revision=revision)
    except OSError as exc:
        raise BadInput(f"The OpenAPI document {path.name} cannot be read: {exc.strerror}") from exc


def parse_document(body: bytes) -> dict[str, Any]:
    """Raises UpstreamFailed if it is not an OpenAPI document."""
    return to_version_3(check_version(_decode(body)))


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if body.lstrip()[:1] in (b"{", b"[", b"<") or len(body) > _MAX_YAML_BYTES:
            raise UpstreamFailed(f"The OpenAPI document cannot be read: {exc}"[:300]) from exc
    try:
        return _stringify_keys(yaml.load(body, Loader=_DatelessLoader))  # noqa: S506  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise UpstreamFailed(f"The OpenAPI document cannot be read: {exc}"[:300]) from exc


def _stringify_keys(value: Any, converted: dict[int, Any] | None = None) -> Any:
    """`200:` is a number in YAML and a string in JSON. A value behind a YAML alias stays one object."""
    converted = {} if converted is None else converted
    if id(value) in converted:
        return converted[id(value)]
    if isinstance(value, dict):
        copy: Any = {}
        converted[id(value)] = copy
        copy.update({_to_key(key): _stringify_keys(inner, converted) for key, inner in value.items()})
        return copy
    if isinstance(value, list):
        converted[id(value)] = copy = []
        copy.extend(_stringify_keys(inner, converted) for inner in value)
        return copy
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _to_key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)
