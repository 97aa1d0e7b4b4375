"""Streamable HTTP: who is calling is settled here, then the SDK serves the request, in whichever era it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, AgentOffline, FabricError, Forbidden, PayloadTooLarge
from a2a_fabric.core.trace import Trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import SHORTCUT, ClientGone, Head, body_at_hand, read_body, while_connected
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.short import Request, ShortWay
from a2a_fabric.doors.mcp.visit import DirectVisit, Visit


class Serving(Protocol):
    """A room, or the way through to an agent."""

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None: ...


Enter = Callable[[Any, Principal], Awaitable[Serving]]

_STATUS: dict[type[FabricError], int] = {AgentOffline: 503, AgentNotFound: 404, Forbidden: 403, PayloadTooLarge: 413}


class Entrance:
    """ASGI. `enter` finds the room for a scope; it raises FabricError if there is none for this caller."""

    def __init__(self, context: DoorContext, enter: Enter, short: ShortWay | None = None) -> None:
        self._context = context
        self._enter = enter
        self._short = short
        self._standing: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = Head(scope["headers"])
        try:
            principal = self._context.identify(head.credentials)
            body = await self._body(scope, head, receive)
            message = jsonrpc.read(body) if scope["method"] == "POST" else None
            plain = self._short.understands(scope, head, message) if self._short and message else None
            if self._short and plain and self._short.is_sound(plain):
                visit, shortcut = DirectVisit(principal, head.trace), scope.get(SHORTCUT)
                answer = partial(self._short.answer, plain, visit, send, shortcut)
                await while_connected(scope, receive, answer)
                return
            room = await self._enter(scope, principal)
        except ClientGone:
            return
        except (FabricError, RPCError, TimeoutError) as error:
            await self._refuse(error, scope, head.trace or new_trace(), send)
            return
        await self._serve(room, Visit(principal, head.trace), scope, _again(body, receive), self._noting(plain, send))

    async def _serve(self, room: Serving, visit: Visit, scope: Any, receive: Receive, send: Send) -> None:
        serving = room.serve(scope, receive, _promptly(send), visit)
        try:
            await (self._stand(serving, send) if scope["method"] == "GET" else serving)
        finally:
            visit.leave()

    def _noting(self, plain: Request | None, send: Send) -> Send:
        """What the SDK takes now may go the short way from now on."""
        if self._short is None or plain is None:
            return send
        short = self._short

        async def sending(message: Any) -> None:
            if message.get("status") == 200:
                short.found_sound(plain)
            await send(message)

        return sending

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
