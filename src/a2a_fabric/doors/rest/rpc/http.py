"""The HTTP cycles of the RPC client: `POST /` and `GET /stream`.

Methods that begin with `a2a/` belong to the directory door, which may be open on the same node."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from starlette.routing import BaseRoute, Route

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError, suggest_nearest
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.doors.edge import (
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    EventStream,
    HttpReply,
    Shortcut,
    bad_input_from,
    replay_body,
    to_encodable_text,
)
from a2a_fabric.doors.rest.http import CREDENTIAL_ERRORS, RestCycle
from a2a_fabric.doors.rest.rpc.methods import HEARTBEAT_FRAME, RpcMethods
from a2a_fabric.doors.rest.rpc.models import RpcProtocolError, RpcStreamQuery, protocol_error_from
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

_DIRECTORY_PATH = "/a2a"
# The largest body of a caller whom this door refuses, while the request may still be one for the directory.
_UNAUTHENTICATED_BODY_BYTES = 64 * 1024


class _RpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    params: Raw
    id: Raw


def parse_request(body: bytes) -> _RpcRequest:
    """Raises RpcProtocolError."""
    if problem := find_json_problem(body):
        raise RpcProtocolError(PARSE_ERROR, f"Parse error: {problem}", 400)
    try:
        frame = jsonrpc.decode_frame(body)
    except jsonrpc.JSONRPCError as error:
        raise RpcProtocolError(error.code, error.message, 400) from error
    if not isinstance(frame.method, str):
        raise RpcProtocolError(INVALID_REQUEST, "Invalid Request: `method` is missing", 400)
    return _RpcRequest(method=frame.method, params=frame.read_params(), id=frame.read_id() or jsonrpc.NULL)


class _RpcCycle(RestCycle):
    def __init__(self, state: DoorEdge, methods: RpcMethods, *asgi: Any) -> None:
        super().__init__(state, *asgi)
        self._methods = methods
        self._id = jsonrpc.NULL

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        protocol_error = error if isinstance(error, RpcProtocolError) else protocol_error_from(error)
        message = to_encodable_text(protocol_error.message)
        body = jsonrpc.encode_error(self._id, {**protocol_error.to_object(), "message": message})
        code = error.code if isinstance(error, FabricError) else error.log_code
        return ErrorReply(protocol_error.status, body, code, error.message)


class _RpcRequestCycle(_RpcCycle):
    """`POST /`."""

    def __init__(self, state: DoorEdge, methods: RpcMethods, *asgi: Any) -> None:
        super().__init__(state, methods, *asgi)
        self._has_directory = _DIRECTORY_PATH in self.scope["app"].hot_paths
        self._is_refused = False
        self._directory_body: bytes | None = None

    async def run(self) -> None:
        await super().run()
        if self._directory_body is not None:
            scope = {**self.scope, "path": _DIRECTORY_PATH, "raw_path": _DIRECTORY_PATH.encode()}
            await self.scope["app"](scope, replay_body(self._directory_body, self._receive), self._send)

    def identify(self) -> Principal:
        try:
            return super().identify()
        except CREDENTIAL_ERRORS:
            if not self._has_directory:
                raise
            self._is_refused = True  # unless the request is for the directory, which may admit this caller
            return Principal()

    def count_request(self) -> None:
        """Only requests of this door are counted, and the method tells whose request it is."""

    async def receive_body(self, shortcut: Shortcut | None, limit: int | None = None) -> bytes:
        return await super().receive_body(shortcut, _UNAUTHENTICATED_BODY_BYTES if self._is_refused else limit)

    async def answer(self, body: bytes) -> HttpReply | EventStream | None:
        try:
            request = parse_request(body)
        except RpcProtocolError:
            if self._is_refused:
                super().identify()  # raises why: what a stranger sends is not judged
            raise
        if request.method.startswith("a2a/") and self._has_directory:
            self._directory_body = body
            return None
        if self._is_refused:
            super().identify()  # raises why
        self.operation, self._id = request.method[:64], request.id
        super().count_request()
        row = self._methods.table.get(request.method)
        if row is None:
            hint = suggest_nearest(request.method, self._methods.table)
            raise RpcProtocolError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}{hint}", 404)
        try:
            arguments = msgspec.json.decode(request.params, type=row.params)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise bad_input_from(exc) from exc
        self.delegation_chain = self.head.delegation_chain
        reply = await row.handler(arguments, self)
        if isinstance(reply, EventStream):
            return reply
        return HttpReply(body=jsonrpc.encode_result(self._id, reply))


class _RpcStreamCycle(_RpcCycle):
    """`GET /stream`, for the EventSource that the client opens."""

    allowed_methods = ("GET",)
    reads_body = False
    operation = "stream"

    async def answer(self, body: bytes) -> EventStream:
        pairs = parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
        try:
            query = msgspec.convert(dict(pairs), RpcStreamQuery)
        except msgspec.ValidationError as exc:
            raise bad_input_from(exc) from exc
        return await self._methods.open_stream(query, self)


def build_rpc_routes(state: DoorEdge, methods: RpcMethods) -> list[BaseRoute]:
    rpc_state = replace(state, keepalive_frame=HEARTBEAT_FRAME)
    requests = CycleEndpoint(partial(_RpcRequestCycle, rpc_state, methods))
    streams = CycleEndpoint(partial(_RpcStreamCycle, rpc_state, methods))
    return [Route("/", requests, methods=["POST"]), Route("/stream", streams)]  # GET / is the node's front page
