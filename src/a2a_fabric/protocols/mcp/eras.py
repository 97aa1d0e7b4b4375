"""Translates messages between the two MCP eras: pure functions from messages to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.inbound import NAME_BEARING_METHODS, encode_header_value
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.methods import CACHEABLE_METHODS, CLIENT_REQUESTS, SPEC_CLIENT_METHODS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from a2a_fabric.protocols.mcp.wire import (
    HANDSHAKE_VERSION,
    INPUT_REQUIRED,
    METHOD_HEADER,
    NAME_HEADER,
    OWN_INFO,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    STATELESS_VERSION,
    VERSION_HEADER,
)

SUBSCRIPTION_ID = SUBSCRIPTION_ID_META_KEY

# By the request with which a server asks its client: the capability that the client must have declared.
QUESTION_CAPABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

# By the flag with which a stateless client subscribes: the server's capability, and the notification.
LIST_CHANGES = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
RESOURCE_UPDATED = "notifications/resources/updated"
_CHANGE_METHODS = frozenset({*(method for _, method in LIST_CHANGES.values()), RESOURCE_UPDATED})
_ENVELOPE_KEYS = frozenset(
    {
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.LOG_LEVEL_META_KEY,
    }
)


def is_change(method: str) -> bool:
    return method in _CHANGE_METHODS


def is_stateless_method(method: str) -> bool:
    """False for methods that only the handshake era has. Methods of extensions are left to the server."""
    return method not in SPEC_CLIENT_METHODS or (method, STATELESS_VERSION) in CLIENT_REQUESTS


def remove_envelope(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the handshake era has them: there the client described itself once, in `initialize`."""
    plain = {key: value for key, value in params.items() if key not in ("_meta", "inputResponses", "requestState")}
    meta = {key: value for key, value in (params.get("_meta") or {}).items() if key not in _ENVELOPE_KEYS}
    return {**plain, "_meta": meta} if meta else plain


def add_envelope(
    params: Mapping[str, Any] | None, client: Mapping[str, Any], log_level: str | None = None
) -> dict[str, Any]:
    """The parameters as the stateless era has them; `client` holds the parameters of the client's `initialize`."""
    plain = dict(params or {})
    meta = {
        **(plain.get("_meta") or {}),
        types.PROTOCOL_VERSION_META_KEY: STATELESS_VERSION,
        types.CLIENT_INFO_META_KEY: client.get("clientInfo") or OWN_INFO,
        types.CLIENT_CAPABILITIES_META_KEY: client.get("capabilities") or {},
    }
    if log_level is not None:
        meta[types.LOG_LEVEL_META_KEY] = log_level
    return {**plain, "_meta": meta}


def make_stateless_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    headers = {VERSION_HEADER: STATELESS_VERSION, METHOD_HEADER: method}
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    return {**headers, NAME_HEADER: encode_header_value(name)} if isinstance(name, str) else headers


def to_initialize_params(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the `initialize` that a stateless client would have sent, from its request's envelope."""
    return {
        "protocolVersion": HANDSHAKE_VERSION,
        "clientInfo": meta.get(types.CLIENT_INFO_META_KEY) or OWN_INFO,
        "capabilities": meta.get(types.CLIENT_CAPABILITIES_META_KEY) or {},
    }


def to_initialize_result(discovered: Mapping[str, Any], requested_version: Any) -> dict[str, Any]:
    server_info = (discovered.get("_meta") or {}).get(types.SERVER_INFO_META_KEY)
    result = {
        "protocolVersion": requested_version if requested_version in HANDSHAKE_PROTOCOL_VERSIONS else HANDSHAKE_VERSION,
        "capabilities": discovered.get("capabilities") or {},
        "serverInfo": server_info or discovered.get("serverInfo") or {"name": "unknown", "version": "0"},
    }
    optional = {key: discovered[key] for key in ("instructions", "_meta") if discovered.get(key) is not None}
    return {**result, **optional}


def to_discover_result(initialized: Mapping[str, Any]) -> dict[str, Any]:
    result = {"supportedVersions": [STATELESS_VERSION], "capabilities": initialized.get("capabilities") or {}}
    optional = {key: initialized[key] for key in ("instructions", "_meta") if initialized.get(key) is not None}
    return complete_result("server/discover", {**result, **optional}, initialized.get("serverInfo"))


def complete_result(method: str, result: Mapping[str, Any], server_info: Any) -> dict[str, Any]:
    """A result of the handshake era with the fields that the stateless era requires; the server's own fields stay."""
    completed_result = {"resultType": "complete", **result}
    if method in CACHEABLE_METHODS:
        completed_result = {"ttlMs": 0, "cacheScope": "private", **completed_result}
    if server_info is not None:
        completed_result["_meta"] = {types.SERVER_INFO_META_KEY: server_info, **(completed_result.get("_meta") or {})}
    return completed_result


def to_stateless_error_code(method: str, code: int) -> int:
    return types.INVALID_PARAMS if method == "resources/read" and code == RESOURCE_NOT_FOUND else code


def make_input_required(questions: Mapping[str, Any], state: str, server_info: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": INPUT_REQUIRED, "inputRequests": dict(questions), "requestState": state}
    return {**result, "_meta": {types.SERVER_INFO_META_KEY: server_info}} if server_info is not None else result


def accept_subscription(requested: Mapping[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a requested subscription that a server of the handshake era can fulfil."""
    accepted: dict[str, Any] = {}
    for flag, (capability, _) in LIST_CHANGES.items():
        if requested.get(flag) and (capabilities.get(capability) or {}).get("listChanged"):
            accepted[flag] = True
    uris = requested.get("resourceSubscriptions")
    if uris and (capabilities.get("resources") or {}).get("subscribe"):
        accepted["resourceSubscriptions"] = list(uris)
    return accepted


def make_subscription(capabilities: Mapping[str, Any], uris: Iterable[str]) -> dict[str, Any]:
    """The subscription for a client of the handshake era, which is notified without asking."""
    subscription: dict[str, Any] = {
        flag: True for flag, (name, _) in LIST_CHANGES.items() if (capabilities.get(name) or {}).get("listChanged")
    }
    listed = sorted(uris)
    return {**subscription, "resourceSubscriptions": listed} if listed else subscription


def is_subscribed(method: str, params: Mapping[str, Any], subscription: Mapping[str, Any]) -> bool:
    if method == RESOURCE_UPDATED:
        return params.get("uri") in subscription.get("resourceSubscriptions", ())
    return any(subscription.get(flag) and method == notification for flag, (_, notification) in LIST_CHANGES.items())


def find_cancelled_id(message: types.JSONRPCMessage) -> types.RequestId | None:
    """The id of the request that this message cancels; None if it cancels none."""
    if not isinstance(message, types.JSONRPCNotification) or message.method != "notifications/cancelled":
        return None
    request_id = (message.params or {}).get("requestId")
    return request_id if isinstance(request_id, str | int) else None


def make_cancelled_error(request_id: types.RequestId) -> types.JSONRPCError:
    """The answer to a cancelled request. Over HTTP the handshake era needs one, so that the stream ends."""
    error = types.ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
