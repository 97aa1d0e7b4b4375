"""The OpenAPI document of the REST door, and a page at `/docs` that shows it.

The document is generated from the structs that requests are decoded into. An operation id consists of the tag and the
name of the handler, so handler names are public. The page works offline and under a strict CSP."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import to_portable_schema
from a2a_fabric.doors.edge import CycleEndpoint, DoorEdge, HttpReply
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.http import RestPageCycle, RestRoute, page_endpoint
from a2a_fabric.identity.settings import openid_metadata_url
from a2a_fabric.operations.operation import ADMIN_PREFIX, Operation
from a2a_fabric.version import __version__

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
REF_TEMPLATE = "#/components/schemas/{name}"
_ERROR_REF = {"$ref": "#/components/schemas/Error"}
ERROR_RESPONSES = {
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
_RATE_LIMIT_HEADERS = {
    "X-RateLimit-Limit": "Requests in a minute.",
    "X-RateLimit-Remaining": "Requests that are left.",
    "X-RateLimit-Reset": "Seconds until all are there again.",
}


def build_document(endpoints: Sequence[RestRoute], base_url: str, issuers: Sequence[str]) -> dict[str, Any]:
    schemes = build_security_schemes(issuers)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _render_operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agents, messages and tasks",
            "version": "1.0.0",
            "summary": "A2A protocol 1.0.0 over REST.",
            "description": f"Served by a2a-fabric {__version__}. The same paths are there without the version.",
        },
        "servers": [{"url": f"{base_url}/v1"}],
        "security": [{name: []} for name in schemes],
        "tags": [{"name": name} for name in dict.fromkeys(endpoint.tag for endpoint in endpoints)],
        "paths": paths,
        "components": {
            "schemas": _build_schemas(),
            "securitySchemes": schemes,
        },
    }


def build_security_schemes(issuers: Sequence[str]) -> dict[str, dict[str, str]]:
    urls = [openid_metadata_url(issuer) for issuer in issuers]
    return {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        **{f"issuer{n}": {"type": "openIdConnect", "openIdConnectUrl": url} for n, url in enumerate(urls, 1)},
    }


def _build_schemas() -> dict[str, Any]:
    components = to_portable_schema(msgspec.json.schema_components(models.SCHEMAS, ref_template=REF_TEMPLATE)[1])
    return dict(sorted(components.items()))


def _render_operation(endpoint: RestRoute) -> dict[str, Any]:
    name = endpoint.handler.__name__
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.tag}_{name}",
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            *list_path_parameters(endpoint.path),
            *list_query_parameters(endpoint.query),
            *_list_header_parameters(endpoint),
        ],
        "responses": _render_responses(endpoint),
    }
    if endpoint.body is not None:
        content = {"schema": _build_ref(endpoint.body), "example": endpoint.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def list_path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in _PLACEHOLDER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def list_query_parameters(query: type[msgspec.Struct] | Mapping[str, Any] | None) -> Iterable[dict[str, Any]]:
    """`query` is a struct, or the JSON Schema of an object."""
    if query is None:
        return
    schema = query if isinstance(query, Mapping) else msgspec.json.schema(query)["$defs"][query.__name__]
    schema = to_portable_schema(dict(schema))
    for name, field_schema in schema["properties"].items():
        parameter_schema = {key: value for key, value in field_schema.items() if key != "description"}
        parameter = {"name": name, "in": "query", "required": False, "schema": _remove_null(parameter_schema)}
        yield {**parameter, **({"description": field_schema["description"]} if "description" in field_schema else {})}


def _remove_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: it leaves the parameter out."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        enum = [each for each in schema.get("enum", ()) if each is not None]
        return {"type": "string", "enum": enum} if enum else schema
    return dict(kinds[0])


def _list_header_parameters(endpoint: RestRoute) -> Iterable[dict[str, Any]]:
    if endpoint.takes_idempotency_key:
        yield _render_header("Idempotency-Key", "The same key again gives the same, instead of a second one.")
    if endpoint.reply is None:
        yield _render_header("Last-Event-ID", "Begin after this event.")
    elif endpoint.method == "GET":
        yield _render_header("If-None-Match", "An ETag: 304 if nothing has changed since.")


def _render_header(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _render_responses(endpoint: RestRoute) -> dict[str, Any]:
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR_REF}}}
        for status, text in ERROR_RESPONSES.items()
    }
    headers = {name: {"description": text, "schema": {"type": "integer"}} for name, text in _RATE_LIMIT_HEADERS.items()}
    success: dict[str, Any] = {"description": "As asked.", "headers": headers, "content": _render_content(endpoint)}
    statuses = {str(endpoint.status): success}
    if endpoint.takes_idempotency_key:
        statuses["200"] = {**success, "description": "It was there already."}
    if endpoint.method == "GET" and endpoint.reply is not None:
        statuses["304"] = {"description": "Nothing has changed."}
    return {**statuses, **errors}


def _render_content(endpoint: RestRoute) -> dict[str, Any]:
    if endpoint.reply is None:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": _build_ref(endpoint.reply)}}


def _build_ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REF_TEMPLATE.format(name=kind.__name__)}


def build_admin_document(operations: Sequence[Operation[Any]], base_url: str, issuers: Sequence[str]) -> dict[str, Any]:
    """The operations for operators, each at an address of its own (`doors/fabric`)."""
    schemes = build_security_schemes(issuers)
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for operation in operations:
        name = operation.name.removeprefix(ADMIN_PREFIX)
        definitions = dict(operation.input_schema.get("$defs", {}))
        schemas |= definitions
        schemas[name] = {key: value for key, value in operation.input_schema.items() if key != "$defs"}
        body = {"schema": {"$ref": REF_TEMPLATE.format(name=name)}, "example": {}}
        envelope = {"type": "object", "required": ["ok", "trace", "result", "error"]}
        answer = {"description": "`result` has the answer.", "content": {"application/json": {"schema": envelope}}}
        errors = {
            status: {"description": text, "content": {"application/json": {"schema": envelope}}}
            for status, text in ERROR_RESPONSES.items()
        }
        paths[f"/{name}"] = {
            "post": {
                "operationId": f"admin_{name.replace('.', '_')}",
                "summary": operation.description,
                "tags": ["viewers" if operation.read_only else "operators"],
                "parameters": [],
                "requestBody": {"required": True, "content": {"application/json": body}},
                "responses": {"200": answer, **errors},
            }
        }
    text = msgspec.json.encode(schemas).replace(b"#/$defs/", b"#/components/schemas/")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Administration",
            "version": __version__,
            "summary": "What the console and the command line use.",
            "description": "Viewers need the scope `console:view`, operators `console:operate` or the node's own key.",
        },
        "servers": [{"url": f"{base_url}/admin/v1"}],
        "security": [{name: []} for name in schemes],
        "tags": [{"name": "viewers"}, {"name": "operators"}],
        "paths": paths,
        "components": {"schemas": msgspec.json.decode(text), "securitySchemes": schemes},
    }


_FILES_DIRECTORY = Path(__file__).with_name("docs")
NO_CACHE = (b"cache-control", b"no-cache")


def openapi_endpoint(state: DoorEdge, endpoints: Sequence[RestRoute]) -> CycleEndpoint:
    """The OpenAPI document. It holds no secrets, so every caller may read it."""

    def build_page(cycle: RestPageCycle) -> HttpReply:
        openapi = build_document(endpoints, cycle.base_url, state.context.list_issuers())
        return HttpReply(body=msgspec.json.encode(openapi), headers=[NO_CACHE])

    return page_endpoint(state, build_page)


def admin_openapi_endpoint(state: DoorEdge) -> CycleEndpoint:
    """The same for the operations for operators."""

    def build_page(cycle: RestPageCycle) -> HttpReply:
        operations = state.context.operations.list_named(ADMIN_PREFIX)
        openapi = build_admin_document(operations, cycle.base_url, state.context.list_issuers())
        return HttpReply(body=msgspec.json.encode(openapi), headers=[NO_CACHE])

    return page_endpoint(state, build_page)


def docs_endpoint(state: DoorEdge) -> CycleEndpoint:
    """The page, in one piece. Only its own style and script may run in it, and it may request only this node."""
    style, script = ((_FILES_DIRECTORY / name).read_text("utf-8") for name in ("page.css", "page.js"))
    page = (_FILES_DIRECTORY / "page.html").read_text("utf-8")
    body = page.replace("{style}", style).replace("{script}", script).encode()
    policy = (
        f"default-src 'none'; script-src {_build_csp_hash(script)}; style-src {_build_csp_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        NO_CACHE,
    ]
    return page_endpoint(
        state, lambda cycle: HttpReply(body=body, headers=headers, media_type=b"text/html; charset=utf-8")
    )


def _build_csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def redirect_endpoint(state: DoorEdge, path: str) -> CycleEndpoint:
    """From the path that an older platform used."""
    return page_endpoint(state, lambda cycle: HttpReply(status=301, body=b"{}", headers=[(b"location", path.encode())]))
