"""OpenAPI 2.0 (Swagger) respelt as version 3, as far as calling its operations needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")

_STYLES: Mapping[str, tuple[str, bool]] = {
    "multi": ("form", True),
    "ssv": ("spaceDelimited", False),
    "pipes": ("pipeDelimited", False),
}
_ABOUT_THE_PARAMETER = {"name", "in", "required", "description", "schema", "collectionFormat", "allowEmptyValue"}


def as_version_3(document: dict[str, Any]) -> dict[str, Any]:
    """The same document if it is of version 3."""
    if "openapi" in document:
        return document
    paths = document.get("paths")
    return {
        **document,
        "openapi": "3.0.3",
        "servers": _servers(document),
        "paths": {path: _item(item, document) for path, item in paths.items()} if isinstance(paths, dict) else {},
    }


def _servers(document: dict[str, Any]) -> list[dict[str, str]]:
    base = str(document.get("basePath") or "/")
    host = document.get("host")
    if not host:
        return [{"url": base}]
    schemes = document.get("schemes")
    chosen = [each for each in schemes if each in ("https", "http")] if isinstance(schemes, list) else []
    prefix = f"{max(chosen)}:" if chosen else ""  # https where there is a choice; else that of the document
    return [{"url": f"{prefix}//{host}{base}"}]


def _item(item: Any, document: dict[str, Any]) -> Any:
    if not isinstance(item, dict):
        return item
    shared = _listed(item.get("parameters"), document)
    made = {key: value for key, value in item.items() if key not in ("parameters", *METHODS)}
    for method in METHODS:
        if isinstance(item.get(method), dict):
            made[method] = _operation(item[method], shared, document)
    return made


def _operation(operation: dict[str, Any], shared: list[dict[str, Any]], document: dict[str, Any]) -> dict[str, Any]:
    own = _listed(operation.get("parameters"), document)
    named = {(str(each.get("name")), str(each.get("in"))): each for each in (*shared, *own)}
    given = list(named.values())
    made = {
        **operation,
        "parameters": [_parameter(each) for each in given if str(each.get("in")) not in ("body", "formData")],
    }
    body = _body(given, operation.get("consumes") or document.get("consumes"))
    if body is not None:
        made["requestBody"] = body
    produces = operation.get("produces") or document.get("produces") or ["application/json"]
    responses = operation.get("responses")
    if isinstance(responses, dict):
        made["responses"] = {code: _response(each, produces, document) for code, each in responses.items()}
    return made


def _listed(parameters: Any, document: dict[str, Any]) -> list[dict[str, Any]]:
    """With the references to shared parameters followed: where they stand decides what they become."""
    found = []
    for each in parameters if isinstance(parameters, list) else ():
        if isinstance(each, dict):
            name = str(each.get("$ref", "")).removeprefix("#/parameters/")
            shared = document.get("parameters")
            found.append(shared[name] if isinstance(shared, dict) and isinstance(shared.get(name), dict) else each)
    return found


def _parameter(given: dict[str, Any]) -> dict[str, Any]:
    style, explode = _STYLES.get(str(given.get("collectionFormat")), ("", False))
    kept: dict[str, Any] = {key: given[key] for key in ("name", "in", "required", "description") if key in given}
    schema = {key: value for key, value in given.items() if key not in _ABOUT_THE_PARAMETER}
    return {**kept, "schema": schema, "explode": explode, **({"style": style} if style else {})}


def _body(given: list[dict[str, Any]], consumes: Any) -> dict[str, Any] | None:
    consumes = [str(each) for each in consumes] if isinstance(consumes, list) else []
    for each in given:
        if each.get("in") == "body":
            kinds = consumes or ["application/json"]
            content = {kind: {"schema": each.get("schema", {})} for kind in kinds}
            return {"required": each.get("required") is True, "content": content}
    form = [each for each in given if each.get("in") == "formData"]
    if not form:
        return None
    has_files = any(each.get("type") == "file" for each in form)
    kinds = [kind for kind in consumes if "form" in kind and (not has_files or "multipart" in kind)]
    properties = {str(each.get("name")): _parameter(each)["schema"] | _described(each) for each in form}
    required = [str(each.get("name")) for each in form if each.get("required") is True]
    schema = {"type": "object", "properties": properties, "required": required}
    usual = "multipart/form-data" if has_files else "application/x-www-form-urlencoded"
    return {"required": bool(required), "content": {kind: {"schema": schema} for kind in kinds or [usual]}}


def _described(given: dict[str, Any]) -> dict[str, Any]:
    return {"description": given["description"]} if "description" in given else {}


def _response(given: Any, produces: Any, document: dict[str, Any]) -> Any:
    if isinstance(given, dict) and str(given.get("$ref", "")).startswith("#/responses/"):
        shared = document.get("responses")
        given = shared.get(given["$ref"].rpartition("/")[2], given) if isinstance(shared, dict) else given
    if not isinstance(given, dict) or "schema" not in given:
        return given
    kinds = [str(each) for each in produces] if isinstance(produces, list) else []
    return {**given, "content": {kind: {"schema": given["schema"]} for kind in kinds or ["application/json"]}}
