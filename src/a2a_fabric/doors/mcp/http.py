"""Streamable HTTP: who is calling is settled here, then the SDK serves the request, in whichever era it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, AgentOffline, FabricError, Forbidden, PayloadTooLarge
from a2a_fabric.core.trace import Trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import SHORTCUT, ClientGone, Head, body_at_hand, read_body
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.visit import Visit


class Serving(Protocol):
    """A room, or the way through to an agent."""

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None: ...


Enter = Callable[[Any, Principal], Awaitable[Serving]]

_STATUS: dict[type[FabricError], int] = {AgentOffline: 503, AgentNotFound: 404, Forbidden: 403, PayloadTooLarge: 413}


class Entrance:
    """ASGI. `enter` finds the room for a scope; it raises FabricError if there is none for this caller."""

    def __init__(self, context: DoorContext, enter: Enter) -> None:
        self._context = context
        self._enter = enter
        self._standing: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = Head(scope["headers"])
        try:
            visit = Visit(self._context.identify(head.credentials), head.trace)
            body = await self._body(scope, head, receive)
            if scope["method"] == "POST":
                jsonrpc.read(body)
            room = await self._enter(scope, visit.principal)
        except ClientGone:
            return
        except (FabricError, RPCError, TimeoutError) as error:
            await self._refuse(error, scope, head.trace or new_trace(), send)
            return
        serving = room.serve(scope, _again(body, receive), _promptly(send), visit)
        try:
            await (self._stand(serving, send) if scope["method"] == "GET" else serving)
        finally:
            visit.leave()

    def stop(self) -> None:
        """Streams that wait for news would hold up the end of the node; calls that run may finish."""
        for task in self._standing:
            task.cancel()

    async def _body(self, scope: Any, head: Head, receive: Receive) -> bytes:
        body = body_at_hand(scope.get(SHORTCUT), self._context.body_bytes)
        return body if body is not None else await read_body(receive, head, self._context.body_bytes)

    async def _stand(self, serving: Awaitable[None], send: Send) -> None:
        task = asyncio.ensure_future(serving)
        self._standing.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._standing.discard(task)
        if task.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            task.result()

    async def _refuse(self, refused: Exception, scope: Any, trace: Trace, send: Send) -> None:
        error = refused if isinstance(refused, RPCError) else _as_rpc(refused, trace)
        body = jsonrpc.failure(error)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        code = refused.code if isinstance(refused, FabricError) else "BAD_INPUT"
        self._context.log(trace, scope["path"], code=code, message=error.message, seconds=0.0, status=error.status)


def _as_rpc(refused: Exception, trace: Trace) -> RPCError:
    if not isinstance(refused, FabricError):
        return RPCError(jsonrpc.INVALID_REQUEST, "The request body did not arrive in time", status=408)
    status = _STATUS.get(type(refused), 401)
    return RPCError(jsonrpc.INVALID_REQUEST, refused.message, error_body(refused, trace), status=status)


def _promptly(send: Send) -> Send:
    """The head of a stream leaves at once; our server would keep it for the first event, which may be long coming."""

    async def sending(message: Any) -> None:
        await send(message)
        if message["type"] == "http.response.start" and _is_stream(message["headers"]):
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    return sending


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then what comes after it."""
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
