"""One address of the directory: a body in, an answer out, in the form in which it was asked.

A batch is answered as a whole, in its own order: what changes the directory is done
first, one after the other, all the rest at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.nesting import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.directory import wire
from a2a_fabric.doors.directory.faults import INVALID_REQUEST, PARSE_ERROR, Fault, fault_of
from a2a_fabric.doors.directory.place import Address, Place
from a2a_fabric.doors.directory.visit import Stream, Visit
from a2a_fabric.doors.directory.wire import Post, Refused, Request
from a2a_fabric.doors.http import (
    SHORTCUT,
    TOO_DEEP,
    ClientGone,
    Head,
    Shortcut,
    body_at_hand,
    may_be_json,
    read_body,
    while_connected,
)
from a2a_fabric.doors.replying import EventReply, Headers, frame, whole

_log = logging.getLogger(__name__)

_LISTS = frozenset({"types", "capabilities"})
_NUMBERS = frozenset({"after", "limit"})


class Entrance:
    """ASGI."""

    def __init__(self, place: Place, address: Address) -> None:
        self._place = place
        self._address = address

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._place, self._address, scope, send)
        shortcut: Shortcut | None = scope.get(SHORTCUT)
        try:
            principal = exchange.identify()
            post = await exchange.read(receive, shortcut)
            if shortcut is not None:
                await exchange.answer(post, principal)
            else:
                await while_connected(scope, receive, lambda: exchange.answer(post, principal))
        except ClientGone:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.has_left:
                raise
        except Fault as fault:
            await exchange.refuse(fault)
            fault.__traceback__ = None  # the exchange may keep the fault, and its frames keep the exchange


class _Exchange:
    """One HTTP request and its reply."""

    def __init__(self, place: Place, address: Address, scope: Any, send: Send) -> None:
        self._place = place
        self._address = address
        self._scope = scope
        self._send = send
        self._head = Head(scope["headers"])
        self._trace = self._head.trace or new_trace()
        self._post: Post | None = None

    async def read(self, receive: Receive, shortcut: Shortcut | None) -> Post:
        """Raises Fault, ClientGone."""
        verb, address = self._scope["method"], self._address
        if verb in ("GET", "HEAD") and address.page is not None:
            query = _asked(self._scope.get("query_string", b""))
            return Post(requests=(wire.bare(address.page, {**query, **address.asked}),))
        if verb != "POST" or not address.takes_posts:
            raise Fault(INVALID_REQUEST, f"Invalid Request: use {address.verbs}", status=405)
        self._check_type()
        body = await self._body(receive, shortcut)
        if is_too_deep(body):
            raise Fault(PARSE_ERROR, f"Parse error: {TOO_DEEP}")
        return wire.read(body, address.method, self._place.settings.max_batch)

    def _check_type(self) -> None:
        if not may_be_json(self._head.get(b"content-type")):
            raise Fault(INVALID_REQUEST, "Invalid Request: the content type must be application/json", status=415)

    async def _body(self, receive: Receive, shortcut: Shortcut | None) -> bytes:
        limit = self._place.context.body_bytes
        try:
            body = body_at_hand(shortcut, limit)
            return body if body is not None else await read_body(receive, self._head, limit)
        except FabricError as error:
            raise fault_of(error, self._trace.trace_id) from error
        except TimeoutError as exc:
            raise Fault(INVALID_REQUEST, "Invalid Request: the body did not arrive in time", status=408) from exc

    def identify(self) -> Principal:
        """Who is asking; before the body is read. Raises Fault."""
        try:
            return self._place.identify(self._head.credentials)
        except FabricError as error:
            raise fault_of(error, self._trace.trace_id) from error

    async def answer(self, post: Post, principal: Principal) -> None:
        """Raises Fault for what concerns the request as a whole."""
        self._post = post
        if post.is_batch:
            replies = [reply for reply in await self._all(post.requests, principal) if reply is not None]
            body = b"[%b]" % b",".join(replies)
            await whole(self._send, 200 if replies else 204, body if replies else b"", self._headers())
            return
        [request] = post.requests
        if isinstance(request, Refused):
            raise request.fault
        await self._answer_one(request, principal)

    async def _answer_one(self, request: Request, principal: Principal) -> None:
        try:
            result = await self._done(request, principal)
        except Fault:
            if not request.is_notification:
                raise
            result = {}
        if isinstance(result, Stream):
            await self._stream(request, result, principal)
        elif request.is_notification:
            await whole(self._send, 204, b"", self._headers())
        else:
            await whole(self._send, 200, wire.success(request, result), self._headers())

    async def _all(self, requests: Sequence[Request | Refused], principal: Principal) -> list[bytes | None]:
        replies: dict[int, bytes | None] = {}
        rest: list[int] = []
        for number, request in enumerate(requests):
            method = self._place.methods.get(request.method) if isinstance(request, Request) else None
            if method is None or method.first:
                replies[number] = await self._one_of_many(request, principal)
            else:
                rest.append(number)
        async with asyncio.TaskGroup() as group:
            running = {n: group.create_task(self._one_of_many(requests[n], principal)) for n in rest}
        replies |= {number: task.result() for number, task in running.items()}
        return [replies[number] for number in range(len(requests))]

    async def _one_of_many(self, request: Request | Refused, principal: Principal) -> bytes | None:
        """None for a notification."""
        if isinstance(request, Refused):
            return wire.failure(request.fault, request)
        try:
            result = await self._done(request, principal)
        except Fault as fault:
            return None if request.is_notification else wire.failure(fault, request)
        return None if request.is_notification else wire.success(request, result)

    async def _done(self, request: Request, principal: Principal) -> dict[str, Any] | Stream:
        """Raises Fault only."""
        name = self._name_of(request)
        try:
            chain = self._head.delegation_chain
        except FabricError as error:
            raise fault_of(error, self._trace.trace_id) from error
        visit = Visit(
            principal=principal,
            trace=self._head.trace or (self._trace if len(self._requests) == 1 else new_trace()),
            base=self._place.base_of(self._scope, self._head),
            agent_id=self._address.agent_id,
            after=self._head.last_event_id,
            waits=not request.is_notification,
            delegation_chain=chain,
        )
        began_at = time.perf_counter()
        fault: Fault | None = None
        try:
            method = self._place.methods.find(name, at_agent=self._address.agent_id is not None and not request.is_bare)
            if method.streams and (self._is_batch or request.is_notification):
                raise Fault(INVALID_REQUEST, f"Invalid Request: {name} must be a request of its own")
            return await method(request, visit)
        except Fault as exc:
            fault = exc
            raise
        except Exception as exc:
            current_trace.set(visit.trace)
            _log.exception("a request failed inside the gateway")
            fault = fault_of(InternalError(), visit.trace.trace_id)
            raise fault from exc
        finally:
            self._note(visit, name, fault, time.perf_counter() - began_at)
            fault = None  # else it and this frame refer to each other

    def _name_of(self, request: Request) -> str:
        """Some clients send the same method whatever they want, to the right address."""
        of_path = self._address.method
        is_led = self._place.settings.path_wins and self._address.agent_id is None and not request.is_bare
        return of_path if is_led and of_path is not None else request.method

    @property
    def _is_batch(self) -> bool:
        return self._post is not None and self._post.is_batch

    @property
    def _requests(self) -> Sequence[Request | Refused]:
        return self._post.requests if self._post is not None else ()

    async def _stream(self, request: Request, stream: Stream, principal: Principal) -> None:
        if not _accepts_events(self._head.get(b"accept")):
            await self._without_events(request, stream)
            return
        reply = EventReply(self._place.context, self._send, self._place.settings.keep_alive)

        try:
            await reply.send_all(_frames(request, stream), self._headers(), principal.principal_id)
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise fault_of(error, self._trace.trace_id) from error
            await reply.end(self._broken(request, error))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self._trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(self._broken(request, InternalError()))

    def _broken(self, request: Request, error: FabricError) -> bytes:
        return frame("error", None, wire.failure(fault_of(error, self._trace.trace_id), request))

    async def _without_events(self, request: Request, stream: Stream) -> None:
        """The answer alone, for a client that takes nothing else."""
        async with aclosing(stream.told) as pieces:
            if not stream.ends:
                raise Fault(INVALID_REQUEST, "Invalid Request: accept text/event-stream", status=406, bare=406)
            try:
                async for told in pieces:
                    if told.is_answer:
                        await whole(self._send, 200, wire.success(request, told.body), self._headers())
                        return
            except FabricError as error:
                raise fault_of(error, self._trace.trace_id) from error

    async def refuse(self, fault: Fault) -> None:
        request = self._requests[0] if len(self._requests) == 1 else None
        is_bare = isinstance(request, Request) and request.is_bare
        status = fault.bare if is_bare and fault.status == 200 else fault.status
        body = wire.failure(fault, None if self._is_batch else request)
        await whole(self._send, status, body, [*self._headers(), *self._because(fault, status)])

    def _because(self, fault: Fault, status: int) -> Headers:
        if status == 401:
            return [(b"www-authenticate", b'Bearer realm="fabric"')]
        if status == 405:
            return [(b"allow", self._address.verbs.encode())]
        if fault.retry_after is not None:
            return [(b"retry-after", b"%d" % max(1, round(fault.retry_after + 0.499)))]
        return []

    def _headers(self) -> Headers:
        return [(b"x-trace-id", self._trace.trace_id.encode())]

    def _note(self, visit: Visit, method: str, fault: Fault | None, seconds: float) -> None:
        if fault is None and method == "a2a/task":
            return  # the call has its own line
        code, message = (str(fault.code), fault.detail) if fault else (None, None)
        status = fault.status if fault else 200
        self._place.context.log(visit.trace, method[:64], code=code, message=message, seconds=seconds, status=status)


async def _frames(request: Request, stream: Stream) -> AsyncGenerator[bytes]:
    async with aclosing(stream.told) as pieces:
        async for told in pieces:
            data = wire.success(request, told.body) if told.is_answer else wire.notice(request, told.body)
            yield frame(told.event, told.number, data)


def _accepts_events(accept: str | None) -> bool:
    return accept is None or any(kind in accept for kind in ("text/event-stream", "text/*", "*/*"))


def _asked(query: bytes) -> dict[str, Any]:
    """The parameters of a stream that a browser opens; lists are separated by commas."""
    asked: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), max_num_fields=20):
        if name in _LISTS:
            asked[name] = value.split(",")
        else:
            asked[name] = int(value) if name in _NUMBERS and value.isascii() and value.isdigit() else value
    return asked
