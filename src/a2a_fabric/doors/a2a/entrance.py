"""HTTP: a card, a JSON-RPC request or one of the REST paths in; an answer or a stream of events out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.nesting import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.a2a import incoming, jsonrpc
from a2a_fabric.doors.a2a.extensions import Agreement
from a2a_fabric.doors.a2a.faults import Fault, fault_of
from a2a_fabric.doors.a2a.house import House
from a2a_fabric.doors.a2a.paths import SCOPE, Place
from a2a_fabric.doors.a2a.shapes import Told, Update
from a2a_fabric.doors.a2a.versions import HEADER, Version, is_old, needs, version_of
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.a2a.writing import WRITERS
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import TOO_DEEP, ClientGone, Head, may_be_json, read_body, while_connected
from a2a_fabric.doors.replying import JSON, EventReply, Headers, frame, whole

_log = logging.getLogger(__name__)

_A2A_JSON = b"application/a2a+json"
_HAS_BODY = frozenset({"SendMessage", "SendStreamingMessage", "CreateTaskPushNotificationConfig"})
_LOGGED = frozenset({"a2a.SendMessage", "a2a.SendStreamingMessage"})  # the call has its own line


class Entrance:
    """ASGI."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        place: Place = scope[SCOPE]
        exchange = _Exchange(self._house, place, scope, send)
        try:
            if scope["method"] not in place.methods:
                await exchange.refuse_method()
                return
            if place.kind == "card":
                await exchange.show_card()
                return
            visit = exchange.identify()
            body = await exchange.read(receive)
            await while_connected(scope, receive, lambda: exchange.answer(body, visit))
        except ClientGone:
            return
        except Fault as fault:
            await exchange.refuse(fault)
        except FabricError as error:
            await exchange.refuse(fault_of(error, exchange.trace.trace_id))
        except asyncio.CancelledError:
            raise
        except Exception:
            current_trace.set(exchange.trace)
            _log.exception("a request failed inside the gateway")
            await exchange.refuse(fault_of(InternalError(), exchange.trace.trace_id))


class _Exchange:
    """One HTTP request and its reply."""

    def __init__(self, house: House, place: Place, scope: Any, send: Send) -> None:
        self._house = house
        self._place = place
        self._scope = scope
        self._send = send
        self._head = Head(scope["headers"])
        self._began_at = time.perf_counter()
        self._has_replied = False
        self._request_id: str | int | None = None
        self._version: Version = "0.3"
        self._name = "a2a"
        self._extensions = Agreement()
        self.trace = self._head.trace or new_trace()

    async def show_card(self) -> None:
        visit = self._house.card_visit(self._scope, self._head, self._place.agent_id, self.trace)
        card = self._house.operations.cards.served(visit)
        self._name = "a2a.card"
        headers: Headers = [
            (b"cache-control", b"private, max-age=%d" % self._house.settings.card_seconds),
            (b"etag", card.etag.encode()),
            (b"last-modified", card.last_modified.encode()),
            (b"vary", b"Host, Authorization"),
            (b"access-control-allow-origin", b"*"),
        ]
        is_known = _is_known(self._head, card.etag, card.last_modified)
        body = b"" if is_known or self._scope["method"] == "HEAD" else card.body
        await self._reply(304 if is_known else 200, body, headers)

    def identify(self) -> Visit:
        """Who is asking, and at which agent; before the body is read. Raises FabricError."""
        return self._house.visit(self._scope, self._head, self._place.agent_id, self.trace)

    async def read(self, receive: Receive) -> bytes:
        """Raises Fault, FabricError, ClientGone."""
        if self._scope["method"] in ("GET", "DELETE"):
            return b""
        content_type = self._head.get(b"content-type")
        try:
            body = await read_body(receive, self._head, self._house.body_bytes)
        except TimeoutError as exc:
            raise Fault("REQUEST_TIMEOUT", "The body did not arrive in time") from exc
        if body and content_type is not None and not may_be_json(content_type):
            told = f"The content type must be application/json, not '{content_type[:80]}'"
            raise Fault("CONTENT_TYPE_NOT_SUPPORTED", told)
        if is_too_deep(body):
            raise Fault("PARSE_ERROR", f"Invalid JSON payload: {TOO_DEEP}")
        return body

    async def answer(self, body: bytes, visit: Visit) -> None:
        """Raises Fault, FabricError."""
        if self._place.kind == "rpc":
            self._request_id = jsonrpc.id_in(body)
        self._extensions = visit.extensions
        self._version = version_of(self._asked_version(), self._house.versions)
        if self._place.kind == "rpc":
            await self._answer_rpc(body, visit)
        else:
            await self._answer_rest(body, visit)

    def _asked_version(self) -> str | None:
        said = self._head.get(HEADER)
        return said if said is not None else dict(self._query()).get("A2A-Version")

    def _query(self) -> list[tuple[str, str]]:
        return parse_qsl(self._scope.get("query_string", b"").decode("latin-1"), max_num_fields=30)

    async def _answer_rpc(self, body: bytes, visit: Visit) -> None:
        request = jsonrpc.read(body, self._version)
        self._name = f"a2a.{request.operation}"
        writer = WRITERS[request.version]
        if request.streams:
            with self._house.stream(visit):
                told = await self._house.streaming[request.operation](request.params, request.version, visit)
                await self._stream(told, lambda update: jsonrpc.success(request.id, writer.said(update)), visit)
            return
        result = await self._house.plain[request.operation](request.params, request.version, visit)
        await self._reply(200, jsonrpc.success(request.id, result))

    async def _answer_rest(self, body: bytes, visit: Visit) -> None:
        place = self._place
        operation = place.methods[self._scope["method"]]
        needs("1.0" if place.dialect == "1.0" else "0.3", self._version, "This path")
        self._name = f"a2a.{operation}"
        given = self._given(operation, body)
        if operation in self._house.streaming:
            writer = WRITERS[place.dialect]
            with self._house.stream(visit):
                told = await self._house.streaming[operation](given, place.dialect, visit)
                await self._stream(told, lambda update: msgspec.json.encode(writer.said(update)), visit)
            return
        result = await self._house.plain[operation](given, place.dialect, visit)
        media = _A2A_JSON if place.dialect == "1.0" else JSON
        await self._reply(200, msgspec.json.encode({} if result is None else result), media=media)

    def _given(self, operation: str, body: bytes) -> dict[str, Any]:
        """Raises Fault."""
        place = self._place
        if operation in _HAS_BODY:
            given = _decoded(body)
        else:
            given = incoming.from_query(dict(self._query()))
            given.pop("A2A-Version", None)
        if place.task_id is not None:
            given["taskId" if place.config_id is not None or "Push" in operation else "id"] = place.task_id
        if place.config_id is not None:
            given["id"] = place.config_id
        return given

    async def _stream(self, told: AsyncGenerator[Told], render: Callable[[Update], bytes], visit: Visit) -> None:
        settings = self._house.settings
        reply = EventReply(self._house.context, self._send, settings.keep_alive, read_within=settings.read_seconds)
        try:
            frames = await _begun(_framed(told, render))
            await reply.send_all(frames, self._headers(), visit.principal.principal_id)
            await reply.end()
            self._note(None, 200)
        except (FabricError, Fault) as error:
            if not reply.is_open:
                raise
            fault = error if isinstance(error, Fault) else fault_of(error, self.trace.trace_id)
            await reply.end(self._broken(fault))
            self._note(fault, 200)
        except ClientGone:
            raise
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self.trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(self._broken(fault_of(InternalError(), self.trace.trace_id)))

    def _broken(self, fault: Fault) -> bytes:
        if self._place.kind == "rpc":
            return frame("error", None, self._failure(fault))
        return frame("error", None, msgspec.json.encode(fault.as_status()))

    def _failure(self, fault: Fault) -> bytes:
        """For JSON-RPC. Also what is refused before its version is known is told in the numbers of that version."""
        speaks_old = "0.3" in self._house.versions and is_old(self._asked_version())
        return jsonrpc.failure(self._request_id, fault, is_old=speaks_old)

    async def refuse(self, fault: Fault) -> None:
        if self._has_replied:
            return
        is_rpc = self._place.kind == "rpc"
        status = fault.words.status if is_rpc else fault.words.http
        body = self._failure(fault) if is_rpc else msgspec.json.encode(fault.as_status())
        await self._reply(status, body, _because(fault, status), fault=fault)

    async def refuse_method(self) -> None:
        if not self._place.methods:
            await self.refuse(Fault("METHOD_NOT_FOUND", f"Nothing at {self._scope['path'][:200]}"))
            return
        fault = Fault("METHOD_NOT_FOUND", f"Use {', '.join(self._place.methods)} here")
        body = fault.as_status()
        body["error"]["code"] = 405
        await self._reply(405, msgspec.json.encode(body), [(b"allow", ", ".join(self._place.methods).encode())])

    async def _reply(
        self,
        status: int,
        body: bytes,
        headers: Headers | None = None,
        media: bytes = JSON,
        fault: Fault | None = None,
    ) -> None:
        self._has_replied = True
        await whole(self._send, status, body, [*self._headers(), *(headers or ())], media)
        self._note(fault, status)

    def _headers(self) -> Headers:
        return [(b"x-trace-id", self.trace.trace_id.encode()), *self._extensions.headers(self._version)]

    def _note(self, fault: Fault | None, status: int) -> None:
        if fault is None and self._name in _LOGGED:
            return
        code, message = (fault.reason, fault.message) if fault else (None, None)
        seconds = time.perf_counter() - self._began_at
        self._house.context.log(self.trace, self._name, code=code, message=message, seconds=seconds, status=status)


async def _framed(told: AsyncGenerator[Told], render: Callable[[Update], bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(told):
        async for each in told:
            yield frame(None, each.number, render(each.update))


async def _begun(frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Once its first event is there: what fails before is refused as a whole."""
    return _from([await anext(frames, b"")], frames)


async def _from(first: list[bytes], frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(frames):
        yield first.pop()
        async for each in frames:
            yield each


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return incoming.needs_object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise Fault("INVALID_REQUEST", f"Invalid JSON payload: {str(exc)[:200]}") from exc


def _is_known(head: Head, etag: str, last_modified: str) -> bool:
    told = head.get(b"if-none-match")
    if told is not None:
        tags = [each.strip().removeprefix("W/") for each in told.split(",")]
        return etag in tags or "*" in tags
    return head.get(b"if-modified-since") == last_modified


def _because(fault: Fault, status: int) -> Headers:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if fault.retry_after is not None:
        return [(b"retry-after", b"%d" % max(1, round(fault.retry_after + 0.499)))]
    return []
