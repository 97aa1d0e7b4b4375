"""Loading an OpenAPI document: discovered, fetched or read from a file, parsed from JSON or YAML.

Version 2.0 (Swagger) is converted to version 3, as far as calling its operations needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import yaml

from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, FabricError, UpstreamFailed
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError
from a2a_fabric.runtimes.http.openapi.schema import check_version
from a2a_fabric.runtimes.upstream import error_from_outbound, error_from_status, redact_url

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
    return await _document_from_reply(reply, url)


async def _document_from_reply(reply: HTTPReply, url: str) -> OpenAPIDocument:
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
