"""The OpenAPI document of the door, made of the same structs that requests are decoded into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.doors.rest import wire
from a2a_fabric.doors.rest.visit import Endpoint
from a2a_fabric.identity.pages import openid_page
from a2a_fabric.version import __version__

_REF = "#/components/schemas/{name}"
_ERROR = {"$ref": "#/components/schemas/Error"}
_COMMON = {
    "400": "The request is malformed.",
    "401": "Credentials are missing or wrong.",
    "403": "The caller may not do this.",
    "404": "It is not there, or not the caller's.",
    "409": "It is in another state, or the id was used for something else.",
    "413": "The body is too large.",
    "429": "Too many requests; see Retry-After.",
    "500": "A mistake of the gateway's.",
    "503": "The agent or the store is away.",
}
_LEFT = {
    "X-RateLimit-Limit": "Requests in a minute.",
    "X-RateLimit-Remaining": "Requests that are left.",
    "X-RateLimit-Reset": "Seconds until all are there again.",
}


def document(endpoints: Sequence[Endpoint], base: str, issuers: Sequence[str]) -> dict[str, Any]:
    schemes = _schemes(issuers)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agents, messages and tasks",
            "version": "1.0.0",
            "summary": "A2A protocol 1.0.0 over REST.",
            "description": f"Served by a2a-fabric {__version__}. The same paths are there without the version.",
        },
        "servers": [{"url": f"{base}/v1"}],
        "security": [{name: []} for name in schemes],
        "tags": [{"name": name} for name in dict.fromkeys(endpoint.tag for endpoint in endpoints)],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": schemes,
        },
    }


def _schemes(issuers: Sequence[str]) -> dict[str, dict[str, str]]:
    places = [openid_page(issuer) for issuer in issuers]
    return {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        **{f"issuer{n}": {"type": "openIdConnect", "openIdConnectUrl": url} for n, url in enumerate(places, 1)},
    }


def _schemas() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(wire.SCHEMAS, ref_template=_REF)
    return dict(sorted(components.items()))


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    name = endpoint.handler.__name__
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.tag}_{name}",
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_in_path(endpoint.path), *_in_query(endpoint.query), *_in_head(endpoint)],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        content = {"schema": _ref(endpoint.body), "example": endpoint.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _in_path(path: str) -> Iterable[dict[str, Any]]:
    for piece in path.split("/"):
        if piece.startswith("{"):
            schema = {"type": "string", "minLength": 1}
            yield {"name": piece.strip("{}"), "in": "path", "required": True, "schema": schema}


def _in_query(query: type[msgspec.Struct] | None) -> Iterable[dict[str, Any]]:
    if query is None:
        return
    schema = msgspec.json.schema(query)["$defs"][query.__name__]
    for name, about in schema["properties"].items():
        shown = {key: value for key, value in about.items() if key != "description"}
        parameter = {"name": name, "in": "query", "required": False, "schema": _without_null(shown)}
        yield {**parameter, **({"description": about["description"]} if "description" in about else {})}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: it leaves the parameter out."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        enum = [each for each in schema.get("enum", ()) if each is not None]
        return {"type": "string", "enum": enum} if enum else schema
    return dict(kinds[0])


def _in_head(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.is_keyed:
        yield _header("Idempotency-Key", "The same key again gives the same, instead of a second one.")
    if endpoint.reply is None:
        yield _header("Last-Event-ID", "Begin after this event.")
    elif endpoint.verb == "GET":
        yield _header("If-None-Match", "An ETag: 304 if nothing has changed since.")


def _header(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for status, text in _COMMON.items()
    }
    headers = {name: {"description": text, "schema": {"type": "integer"}} for name, text in _LEFT.items()}
    good: dict[str, Any] = {"description": "As asked.", "headers": headers, "content": _content(endpoint)}
    statuses = {str(endpoint.status): good}
    if endpoint.is_keyed:
        statuses["200"] = {**good, "description": "It was there already."}
    if endpoint.verb == "GET" and endpoint.reply is not None:
        statuses["304"] = {"description": "Nothing has changed."}
    return {**statuses, **errors}


def _content(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.reply is None:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": _ref(endpoint.reply)}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
