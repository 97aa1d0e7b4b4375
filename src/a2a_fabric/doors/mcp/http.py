"""Streamable HTTP: who is calling is settled here, then the SDK serves the request, in whichever era it comes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AgentNotFound,
    AgentOffline,
    BadInput,
    FabricError,
    Forbidden,
    InternalError,
    PayloadTooLarge,
    RateLimited,
)
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import (
    SHORTCUT,
    ClientGone,
    Head,
    Shortcut,
    again,
    body_at_hand,
    head_of,
    may_be_json,
    read_body,
    while_connected,
)
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import Message, RPCError
from a2a_fabric.doors.mcp.passing import LISTEN
from a2a_fabric.doors.mcp.seats import Seats
from a2a_fabric.doors.mcp.short import Request, ShortWay
from a2a_fabric.doors.mcp.visit import DirectVisit, Visit


class Serving(Protocol):
    """A room, or the way through to an agent."""

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None: ...


Enter = Callable[[Any, Principal], Awaitable[Serving]]

_log = logging.getLogger(__name__)

_STATUS: dict[type[FabricError], int] = {
    AgentOffline: 503,
    AgentNotFound: 404,
    Forbidden: 403,
    PayloadTooLarge: 413,
    BadInput: 400,
    RateLimited: 429,
}


class Entrance:
    """ASGI. `enter` finds the room for a scope; it raises FabricError if there is none for this caller."""

    def __init__(
        self, context: DoorContext, enter: Enter, short: ShortWay | None = None, seats: Seats | None = None
    ) -> None:
        self._context = context
        self._enter = enter
        self._short = short
        self._seats = seats or Seats(1800.0)
        self._standing: set[asyncio.Task[Any]] = set()
        self._opening: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = head_of(scope)
        shortcut: Shortcut | None = scope.get(SHORTCUT)
        body: bytes | None = None
        try:
            principal = self._context.identify(head.credentials)
            body = body_at_hand(shortcut, self._context.body_bytes)
            if body is None:
                body = await read_body(receive, head, self._context.body_bytes)
            if self._short and shortcut and (known := self._short.knows(scope, head, body)) is not None:
                await self._short.answer(known, DirectVisit(principal, head), send, shortcut)
                return
            if scope["method"] == "POST" and not may_be_json(head.get(b"content-type")):
                raise RPCError(jsonrpc.INVALID_REQUEST, "The content type must be application/json")
            message = jsonrpc.read(body) if scope["method"] == "POST" else None
            plain = self._short.understands(scope, head, message) if self._short and message else None
            if self._short and plain and self._short.is_sound(plain):
                answering = partial(self._short.answer, plain, DirectVisit(principal, head), send, shortcut)
                await (answering() if shortcut else while_connected(scope, receive, answering))
                return
            direct = DirectVisit(principal, head)
            if self._short and message and await self._in_session(self._short, head, message, direct, scope, send):
                return
            visit = Visit(principal, head.trace, direct.delegation_chain)
            visit.asked = direct.asked
            room = await self._enter(scope, principal)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.has_left:
                raise
            return
        except RPCError as error:  # what is no message has no id either
            await self._refuse(error, scope, head, None, send)
            return
        except (FabricError, TimeoutError) as error:
            await self._refuse(error, scope, head, jsonrpc.id_of(body or b""), send)  # none of a body not read
            return
        except Exception as exc:
            await self._break(exc, scope, head, jsonrpc.id_of(body or b""), send)
            return
        noting = send if scope["method"] == "GET" else self._noting(plain, head, message, principal, send)
        try:
            if message is not None and message.method == "initialize":
                await self._open(partial(self._serve, room, visit, scope, again(body, receive)), noting)
            else:
                is_stream = scope["method"] == "GET" or (message is not None and message.method == LISTEN)
                await self._serve(room, visit, scope, again(body, receive), noting, is_stream=is_stream)
        except RateLimited as error:  # before anything was sent
            await self._refuse(error, scope, head, None if message is None else message.id, send)

    async def _in_session(
        self, short: ShortWay, head: Head, message: Message, visit: DirectVisit, scope: Any, send: Send
    ) -> bool:
        """Whether the call took the short way to its end. A question that came up instead is the SDK's to put."""
        self._seats.hear(head, message, visit.principal)
        shortcut: Shortcut | None = scope.get(SHORTCUT)
        seat = self._seats.find(head, message, visit.principal) if shortcut is not None else None
        params = short.understands_in_session(head, message) if seat is not None else None
        if shortcut is None or seat is None or params is None:
            return False
        request_id: Any = message.id  # a request's is no null
        seat.begin(request_id, asyncio.current_task())  # type: ignore[arg-type]  # we run in one
        try:
            visit.asked = await short.answer_in_session(request_id, params, visit, send, shortcut)
        except asyncio.CancelledError:
            if shortcut.has_left:
                return True
            if not seat.was_cancelled(request_id):
                raise
            seat.running[request_id].uncancel()
            await self._reply(RPCError(jsonrpc.REQUEST_CANCELLED, "Request cancelled", status=200), request_id, send)
        finally:
            seat.end(request_id, time.monotonic())
        return visit.asked is None

    async def _serve(
        self, room: Serving, visit: Visit, scope: Any, receive: Receive, send: Send, *, is_stream: bool = False
    ) -> None:
        """`is_stream` if it stands and waits for news. Raises RateLimited; then nothing has been sent."""
        caller = visit.principal.principal_id
        if is_stream:
            self._context.stream_opened(caller)
        serving = room.serve(scope, receive, _promptly(send), visit)
        try:
            await (self._stand(serving, send) if scope["method"] == "GET" else serving)
        finally:
            visit.leave()
            if is_stream:
                self._context.stream_closed(caller)

    def _noting(
        self, plain: Request | None, head: Head, message: Message | None, principal: Principal, send: Send
    ) -> Send:
        """What the SDK takes now may go the short way from now on."""
        if self._short is None or (plain is None and b"mcp-session-id" not in head):
            return send
        short, seats, asked = self._short, self._seats, message

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                seats.note(head, asked, principal, message["status"])
                if plain is not None and message["status"] == 200:
                    short.found_sound(plain)
            await send(message)

        return sending

    async def _open(self, serving: Callable[[Send], Coroutine[Any, Any, None]], send: Send) -> None:
        """Clients may leave as soon as they have heard which session is theirs: it is opened all the same."""
        has_begun = False

        async def telling(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        task = asyncio.ensure_future(serving(telling))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if not has_begun:
                task.cancel()
            raise
        await task

    def stop(self) -> None:
        """Streams that wait for news would hold up the end of the node; calls that run may finish."""
        for task in self._standing:
            task.cancel()

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

    async def _break(self, exc: Exception, scope: Any, head: Head, request_id: Any, send: Send) -> None:
        """Our own mistake: told with the trace under which the log has the rest."""
        trace = head.trace or new_trace()
        token = current_trace.set(trace)
        _log.error("a request to %s failed inside the gateway", scope["path"], exc_info=exc)
        current_trace.reset(token)
        error = InternalError()
        told = RPCError(jsonrpc.INTERNAL_ERROR, error.message, error_body(error, trace), status=500)
        await self._reply(told, request_id, send)
        self._context.log(trace, scope["path"], code=error.code, message=error.message, seconds=0.0, status=500)

    async def _refuse(self, refused: Exception, scope: Any, head: Head, request_id: Any, send: Send) -> None:
        trace = head.trace or new_trace()
        error = refused if isinstance(refused, RPCError) else _as_rpc(refused, trace)
        await self._reply(error, request_id, send, refused.retry_after if isinstance(refused, RateLimited) else None)
        code = refused.code if isinstance(refused, FabricError) else "BAD_INPUT"
        self._context.log(trace, scope["path"], code=code, message=error.message, seconds=0.0, status=error.status)

    async def _reply(self, error: RPCError, request_id: Any, send: Send, retry_after: float | None = None) -> None:
        body = jsonrpc.failure(error, request_id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
        if retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _as_rpc(refused: Exception, trace: Trace) -> RPCError:
    if not isinstance(refused, FabricError):
        return RPCError(jsonrpc.INVALID_REQUEST, "The request body did not arrive in time", status=408)
    status = next((status for kind, status in _STATUS.items() if isinstance(refused, kind)), 401)
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
