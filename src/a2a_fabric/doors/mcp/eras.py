"""What one era of MCP says, in the other era's words: plain functions from messages to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.methods import CACHEABLE_METHODS, CLIENT_REQUESTS, SPEC_CLIENT_METHODS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.version import __version__

HANDSHAKE = LATEST_HANDSHAKE_VERSION
STATELESS = LATEST_MODERN_VERSION
US = {"name": "a2a-fabric", "version": __version__}
INPUT_REQUIRED = "input_required"
SUBSCRIPTION_ID = SUBSCRIPTION_ID_META_KEY
VERSION_HEADER = MCP_PROTOCOL_VERSION_HEADER

# What a server may ask of its client, and the capability that the client must have declared.
QUESTIONS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}

# By the flag with which a stateless client asks for it: the capability, and the notification.
CHANGES = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
UPDATED = "notifications/resources/updated"
_NEWS = frozenset({*(method for _, method in CHANGES.values()), UPDATED})
_ENVELOPE = frozenset(
    {
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.LOG_LEVEL_META_KEY,
    }
)
_NOT_FOUND_BEFORE = -32002  # a resource, in the handshake era


def is_news(method: str) -> bool:
    return method in _NEWS


def is_known_to_stateless(method: str) -> bool:
    """False for what only the handshake era has; methods of extensions are the server's own business."""
    return method not in SPEC_CLIENT_METHODS or (method, STATELESS) in CLIENT_REQUESTS


def without_envelope(params: Mapping[str, Any]) -> dict[str, Any]:
    """As the handshake era has them: who asks was said when hands were shaken."""
    plain = {key: value for key, value in params.items() if key not in ("_meta", "inputResponses", "requestState")}
    meta = {key: value for key, value in (params.get("_meta") or {}).items() if key not in _ENVELOPE}
    return {**plain, "_meta": meta} if meta else plain


def enveloped(
    params: Mapping[str, Any] | None, client: Mapping[str, Any], log_level: str | None = None
) -> dict[str, Any]:
    """As the stateless era has them; `client` is what the client said of itself when it shook hands."""
    given = dict(params or {})
    meta = {
        **(given.get("_meta") or {}),
        types.PROTOCOL_VERSION_META_KEY: STATELESS,
        types.CLIENT_INFO_META_KEY: client.get("clientInfo") or US,
        types.CLIENT_CAPABILITIES_META_KEY: client.get("capabilities") or {},
    }
    if log_level is not None:
        meta[types.LOG_LEVEL_META_KEY] = log_level
    return {**given, "_meta": meta}


def stateless_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    headers = {VERSION_HEADER: STATELESS, MCP_METHOD_HEADER: method}
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    return {**headers, MCP_NAME_HEADER: encode_header_value(name)} if isinstance(name, str) else headers


def initialize_params(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The handshake that a stateless client would have made, from the envelope of its request."""
    return {
        "protocolVersion": HANDSHAKE,
        "clientInfo": meta.get(types.CLIENT_INFO_META_KEY) or US,
        "capabilities": meta.get(types.CLIENT_CAPABILITIES_META_KEY) or {},
    }


def as_initialize(discovered: Mapping[str, Any], wanted: Any) -> dict[str, Any]:
    about = (discovered.get("_meta") or {}).get(types.SERVER_INFO_META_KEY)
    told = {
        "protocolVersion": wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else HANDSHAKE,
        "capabilities": discovered.get("capabilities") or {},
        "serverInfo": about or discovered.get("serverInfo") or {"name": "unknown", "version": "0"},
    }
    more = {key: discovered[key] for key in ("instructions", "_meta") if discovered.get(key) is not None}
    return {**told, **more}


def as_discover(initialized: Mapping[str, Any]) -> dict[str, Any]:
    told = {"supportedVersions": [STATELESS], "capabilities": initialized.get("capabilities") or {}}
    more = {key: initialized[key] for key in ("instructions", "_meta") if initialized.get(key) is not None}
    return completed("server/discover", {**told, **more}, initialized.get("serverInfo"))


def completed(method: str, result: Mapping[str, Any], about: Any) -> dict[str, Any]:
    """A result of the handshake era with what the stateless one requires; what the server said itself stays."""
    told = {"resultType": "complete", **result}
    if method in CACHEABLE_METHODS:
        told = {"ttlMs": 0, "cacheScope": "private", **told}
    if about is not None:
        told["_meta"] = {types.SERVER_INFO_META_KEY: about, **(told.get("_meta") or {})}
    return told


def error_code(method: str, code: int) -> int:
    """For the stateless era."""
    return types.INVALID_PARAMS if method == "resources/read" and code == _NOT_FOUND_BEFORE else code


def input_required(questions: Mapping[str, Any], state: str, about: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"resultType": INPUT_REQUIRED, "inputRequests": dict(questions), "requestState": state}
    return {**told, "_meta": {types.SERVER_INFO_META_KEY: about}} if about is not None else told


def honoured(wanted: Mapping[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a listener's wishes that a server of the handshake era will tell about."""
    told: dict[str, Any] = {}
    for flag, (capability, _) in CHANGES.items():
        if wanted.get(flag) and (capabilities.get(capability) or {}).get("listChanged"):
            told[flag] = True
    uris = wanted.get("resourceSubscriptions")
    if uris and (capabilities.get("resources") or {}).get("subscribe"):
        told["resourceSubscriptions"] = list(uris)
    return told


def wishes(capabilities: Mapping[str, Any], uris: Iterable[str]) -> dict[str, Any]:
    """What to listen to on behalf of a client of the handshake era, who is told without asking."""
    told: dict[str, Any] = {
        flag: True for flag, (name, _) in CHANGES.items() if (capabilities.get(name) or {}).get("listChanged")
    }
    listed = sorted(uris)
    return {**told, "resourceSubscriptions": listed} if listed else told


def is_wanted(method: str, params: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    if method == UPDATED:
        return params.get("uri") in wanted.get("resourceSubscriptions", ())
    return any(wanted.get(flag) and method == told for flag, (_, told) in CHANGES.items())


def cancelled(said: types.JSONRPCMessage) -> types.RequestId | None:
    """The request that its caller gives up by saying this."""
    if not isinstance(said, types.JSONRPCNotification) or said.method != "notifications/cancelled":
        return None
    given_up = (said.params or {}).get("requestId")
    return given_up if isinstance(given_up, str | int) else None


def cancellation(request_id: types.RequestId) -> types.JSONRPCError:
    """What ends the stream of such a request, in the handshake era over HTTP."""
    error = types.ErrorData(code=jsonrpc.REQUEST_CANCELLED, message="Request cancelled")
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
