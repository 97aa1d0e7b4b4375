"""The OpenAPI document of all paths that the doors describe themselves (`doors/api_docs.py`), for `/docs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import to_portable_schema
from a2a_fabric.doors.api_docs import WEBSOCKET, DoorDescription, PathDescription
from a2a_fabric.doors.edge import CycleEndpoint, DoorEdge, HttpReply
from a2a_fabric.doors.rest.http import RestPageCycle, page_endpoint
from a2a_fabric.doors.rest.openapi import (
    ERROR_RESPONSES,
    NO_CACHE,
    REF_TEMPLATE,
    build_security_schemes,
    list_path_parameters,
    list_query_parameters,
)
from a2a_fabric.version import __version__

_NO_WORD = re.compile(r"\W+")


def doors_openapi_endpoint(state: DoorEdge) -> CycleEndpoint:
    """It holds no secrets and names no agents of the node, so every caller may read it."""

    def build_page(cycle: RestPageCycle) -> HttpReply:
        described = state.context.describe_doors()
        openapi = build_doors_document(described, cycle.base_url, state.context.list_issuers())
        return HttpReply(body=msgspec.json.encode(openapi), headers=[NO_CACHE])

    return page_endpoint(state, build_page)


def build_doors_document(doors: Sequence[DoorDescription], base_url: str, issuers: Sequence[str]) -> dict[str, Any]:
    schemes = build_security_schemes(issuers)
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        for path in door.paths:
            paths.setdefault(path.path, {}).setdefault(path.method.lower(), _render_path(door.name, path, schemes))
    bodies = {path.body for door in doors for path in door.paths if isinstance(path.body, type)}
    schemas = msgspec.json.schema_components(bodies, ref_template=REF_TEMPLATE)[1]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Doors",
            "version": __version__,
            "summary": "What this node serves besides REST and the admin API.",
            "description": "Only doors that are open are here. Examples use the agent `percy` of the demo.",
        },
        "servers": [{"url": base_url}],
        "security": [{name: []} for name in schemes],
        "tags": [{"name": door.name, "description": f"{door.about} See `docs/{door.page}`."} for door in doors],
        "paths": paths,
        "components": {"schemas": dict(sorted(to_portable_schema(schemas).items())), "securitySchemes": schemes},
    }


def _render_path(door: str, path: PathDescription, schemes: Iterable[str]) -> dict[str, Any]:
    words = _NO_WORD.sub("_", path.path).strip("_")
    operation: dict[str, Any] = {
        "operationId": f"{door.replace('-', '_')}_{path.method.lower()}_{words}",
        "summary": path.summary,
        "tags": [door],
        "parameters": [_add_example(each, path) for each in _list_parameters(path)],
        "responses": _render_responses(path),
    }
    if path.body is not None:
        schema = {"$ref": REF_TEMPLATE.format(name=path.body.__name__)} if isinstance(path.body, type) else path.body
        content = {"schema": schema, **({} if path.example is None else {"example": path.example})}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if path.credentials == "none":
        operation["security"] = []
    elif path.credentials == "optional":
        operation["security"] = [{}, *({name: []} for name in schemes)]
    return operation


def _list_parameters(path: PathDescription) -> Iterable[dict[str, Any]]:
    yield from list_path_parameters(path.path)
    for parameter in list_query_parameters(path.query):
        if b"$ref" not in msgspec.json.encode(parameter["schema"]):  # an object, which a query cannot hold
            yield parameter
    for name, description in path.headers.items():
        yield {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _add_example(parameter: Mapping[str, Any], path: PathDescription) -> dict[str, Any]:
    name = parameter["name"]
    example = {"example": path.values[name]} if name in path.values else {}
    return {**parameter, "required": parameter["in"] == "path" or name in path.required, **example}


def _render_responses(path: PathDescription) -> dict[str, Any]:
    errors = {status: {"description": text} for status, text in ERROR_RESPONSES.items()}
    if path.status == WEBSOCKET:
        return {str(WEBSOCKET): {"description": "The connection is a WebSocket from now on."}, **errors}
    answer: dict[str, Any] = {"description": "As asked."}
    if path.status == 200:  # the others have no content
        answer["content"] = {path.reply: {"schema": {"type": "string"} if path.reply.startswith("text/") else {}}}
    return {str(path.status): answer, **errors}
