"""A request of the stateless era, as it must be: what its headers say is what its body says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.methods import INPUT_REQUIRED_METHODS
from starlette.datastructures import Headers

from a2a_fabric.doors.mcp import eras, jsonrpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.passing import LISTEN, Passing

_FINE = 200  # codes without a status of their own


class Request:
    def __init__(self, request_id: str | int, method: str, params: Mapping[str, Any], headers: Headers) -> None:
        self.id = request_id
        self.method = method
        self.params = params
        self.headers = headers
        self.meta: Mapping[str, Any] = params["_meta"]
        given = self.meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        self.capabilities: Mapping[str, Any] = given if isinstance(given, dict) else {}

    @property
    def log_level(self) -> str | None:
        level = self.meta.get(types.LOG_LEVEL_META_KEY)
        return level if isinstance(level, str) else None

    @property
    def what(self) -> tuple[Any, ...]:
        """What a request that comes again with answers has in common with the first."""
        return self.method, self.params.get("name"), self.params.get("uri")

    @property
    def needs_a_line(self) -> bool:
        """Whether the server may say something about it that does not name it."""
        may_ask = self.method in INPUT_REQUIRED_METHODS and any(
            each in self.capabilities for each in eras.QUESTIONS.values()
        )
        return self.method != LISTEN and (may_ask or self.log_level is not None)

    def wants(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether a notification on the way to the answer is for this client."""
        if method == "notifications/message":
            return self.log_level is not None
        if method == "notifications/progress":
            return params.get("progressToken") is not None
        return True

    def check_params(self, schema: Any) -> None:
        """Raises RPCError if a header that mirrors an argument says something else than the argument."""
        arguments = self.params.get("arguments")
        wrong = validate_mcp_param_headers(schema, arguments if isinstance(arguments, dict) else {}, self.headers)
        if wrong is not None:
            raise _refusal(wrong)

    @property
    def mirrors_arguments(self) -> bool:
        """Whether `check_params` could find something."""
        return self.method == "tools/call" and (
            bool(self.params.get("arguments")) or any(name.startswith("mcp-param-") for name in self.headers)
        )


def read(passing: Passing) -> Request | None:
    """None for a notification, to which there is nothing to say. Raises RPCError."""
    headers = Headers(raw=passing.scope["headers"])
    if passing.verb != "POST":
        raise RPCError(jsonrpc.INVALID_REQUEST, "The stateless era only knows POST", status=405)
    accept = headers.get("accept", "*/*")
    if "*/*" not in accept and not ("application/json" in accept and "text/event-stream" in accept):
        raise RPCError(jsonrpc.INVALID_REQUEST, "Accept application/json and text/event-stream", status=406)
    message = jsonrpc.read(passing.body)
    if message.method is msgspec.UNSET:
        raise RPCError(jsonrpc.INVALID_REQUEST, "Only requests and notifications can be sent")
    if not message.is_request:
        wrong = unsupported_protocol_version_rejection(headers.get("mcp-protocol-version", ""))
        if wrong is not None:
            raise _refusal(wrong)
        return None
    params = msgspec.json.decode(message.params) if message.params else {}
    _check(message.method, params, headers)
    return Request(message.id, message.method, params, headers)  # type: ignore[arg-type]  # a request's id is no null


def _check(method: str, params: Any, headers: Headers) -> None:
    if (twice := find_duplicated_routing_header(headers.items())) is not None:
        raise RPCError(jsonrpc.HEADER_MISMATCH, f"{twice} header appears more than once")
    found = classify_inbound_request({"method": method, "params": params}, headers=dict(headers))
    if isinstance(found, InboundLadderRejection):
        raise _refusal(found)


def _refusal(wrong: InboundLadderRejection) -> RPCError:
    return RPCError(wrong.code, wrong.message, wrong.data, status=status_of(wrong.code))


def status_of(code: int) -> int:
    return ERROR_CODE_HTTP_STATUS.get(code, _FINE)
