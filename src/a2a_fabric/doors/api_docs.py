"""How a door describes its paths, so that `/docs` can show them: each door has such a table beside its code.

Where a protocol has its own specification, a path has a true example and the name of our docs page, and no second model
of the protocol's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

EVENTS = "text/event-stream"
WEBSOCKET = 101  # the status of a path that is a WebSocket

# A request of any JSON-RPC method.
RPC_REQUEST: Mapping[str, Any] = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["string", "integer"]},
        "method": {"type": "string"},
        "params": {"type": "object"},
    },
}


class PathDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One method at one path. `values` are examples of what stands in the path, the query or the headers."""

    method: str
    path: str  # as in OpenAPI
    summary: str
    body: type[msgspec.Struct] | Mapping[str, Any] | None = None  # what it is decoded into, or a JSON Schema
    example: Any = None  # of a body
    query: type[msgspec.Struct] | Mapping[str, Any] | None = None
    headers: Mapping[str, str] = {}  # by name: what each is for
    required: tuple[str, ...] = ()  # of the query and the headers
    values: Mapping[str, str] = {}
    reply: str = "application/json"  # the media type
    status: int = 200
    credentials: Literal["required", "optional", "none"] = "required"


class DoorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of one door, or of a part of the node that is no door. `page` is a page of our docs."""

    name: str
    about: str
    page: str
    paths: tuple[PathDescription, ...]
