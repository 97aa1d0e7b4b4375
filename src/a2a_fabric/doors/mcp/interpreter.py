"""Between a client of the handshake era and a server of the stateless one, which has never heard of hands.

The handshake is answered from what the server says of itself. Every request is given the
envelope that the stateless era wants; a result that asks for input becomes questions to the
client, whose answers go back with the same request; and news come from a subscription.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from a2a_fabric.core.errors import FabricError
from a2a_fabric.doors.mcp import eras, jsonrpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.line import Asked, Line, Said

_ROUNDS = 32
_ANSWERED_WITHIN = 600.0  # seconds that a person may take
_LISTENING_WITHIN = 10.0
_PAGES = 100

Tell = Callable[[SessionMessage], Awaitable[None]]


class Interpreter:
    """`tell` speaks to the client. `hear` never waits; everything that runs ends with `aclose`."""

    def __init__(self, line: Line, tell: Tell, timeout: float) -> None:
        self._line = line
        self._tell = tell
        self._timeout = timeout
        self._client: Mapping[str, Any] = {}
        self._about: Mapping[str, Any] = {}
        self._level: str | None = None
        self._watched: set[str] = set()
        self._working: dict[types.RequestId, asyncio.Task[None]] = {}
        self._ids = itertools.count(1)
        self._answers: dict[types.RequestId, asyncio.Future[Said]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}

    def hear(self, said: Said) -> None:
        if isinstance(said, types.JSONRPCRequest):
            task = asyncio.ensure_future(self._answer(said))
            self._working[said.id] = task
            task.add_done_callback(lambda _: self._working.pop(said.id, None))
        elif isinstance(said, types.JSONRPCResponse | types.JSONRPCError):
            waiting = self._answers.pop(said.id, None) if said.id is not None else None
            if waiting is not None and not waiting.done():
                waiting.set_result(said)
        elif (given_up := eras.cancelled(said)) is not None and (working := self._working.get(given_up)) is not None:
            working.cancel()

    async def aclose(self) -> None:
        tasks = [*self._working.values(), *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _answer(self, asked: types.JSONRPCRequest) -> None:
        answer: Said = eras.cancellation(asked.id)
        try:
            result = await self._result(asked, asked.params or {})
            answer = types.JSONRPCResponse(jsonrpc="2.0", id=asked.id, result=dict(result))
        except RPCError as error:
            data = types.ErrorData(code=error.code, message=error.message, data=error.data)
            answer = types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=data)
        except (FabricError, TimeoutError) as error:
            why = error.message if isinstance(error, FabricError) else f"No answer within {self._timeout:g} s"
            failed = types.ErrorData(code=types.INTERNAL_ERROR, message=why)
            answer = types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=failed)
        finally:
            await self._tell(SessionMessage(answer))

    async def _result(self, asked: types.JSONRPCRequest, params: Mapping[str, Any]) -> Mapping[str, Any]:
        match asked.method:
            case "initialize":
                return await self._shake_hands(params)
            case "ping":
                return {}
            case "logging/setLevel":
                self._level = params.get("level")
                return {}
            case "resources/subscribe" | "resources/unsubscribe":
                return await self._watch(str(params.get("uri")), is_on=asked.method.endswith("/subscribe"))
        return await self._in_rounds(asked, params)

    async def _shake_hands(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self._client = params
        self._about = await self._asked("server/discover", {}, None)
        await self._listen()
        return eras.as_initialize(self._about, params.get("protocolVersion"))

    async def _watch(self, uri: str, *, is_on: bool) -> Mapping[str, Any]:
        (self._watched.add if is_on else self._watched.discard)(uri)
        await self._listen()
        return {}

    async def _in_rounds(self, asked: types.JSONRPCRequest, params: Mapping[str, Any]) -> Mapping[str, Any]:
        given = params
        for _ in range(_ROUNDS):
            result = await self._asked(asked.method, given, asked.id)
            if asked.method == "tools/list":
                self._learn(result)
            if result.get("resultType") != eras.INPUT_REQUIRED:
                return result
            given = {**params, "inputResponses": await self._put(result.get("inputRequests") or {}, asked.id)}
            if result.get("requestState") is not None:
                given["requestState"] = result["requestState"]
        raise RPCError(jsonrpc.INTERNAL_ERROR, f"The MCP server asked for input {_ROUNDS} times")

    async def _put(self, questions: Mapping[str, Any], about: types.RequestId) -> dict[str, Any]:
        """The client's answers to all of them, asked at once."""
        given = await asyncio.gather(*(self._put_one(each, about) for each in questions.values()))
        return dict(zip(questions, given, strict=True))

    async def _put_one(self, question: Mapping[str, Any], about: types.RequestId) -> Mapping[str, Any]:
        number = f"fabric-{next(self._ids)}"
        waiting = self._answers[number] = asyncio.get_running_loop().create_future()
        method = str(question.get("method"))
        request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=question.get("params"))
        try:
            await self._tell(SessionMessage(request, ServerMessageMetadata(related_request_id=about)))
            async with asyncio.timeout(_ANSWERED_WITHIN):
                answer = await waiting
        finally:
            self._answers.pop(number, None)
        if isinstance(answer, types.JSONRPCResponse):
            return answer.result
        assert isinstance(answer, types.JSONRPCError)  # noqa: S101  # nothing else answers
        if method == "elicitation/create":
            return {"action": "cancel"}
        raise RPCError(answer.error.code, answer.error.message, answer.error.data)

    async def _asked(self, method: str, params: Mapping[str, Any], about: types.RequestId | None) -> Mapping[str, Any]:
        """Raises RPCError, FabricError or TimeoutError."""
        try:
            return await self._asked_once(method, params, about)
        except RPCError as error:
            if error.code != jsonrpc.HEADER_MISMATCH or method != "tools/call":
                raise
        await self._look()  # its schema may say which arguments are to be headers too
        return await self._asked_once(method, params, about)

    async def _asked_once(
        self, method: str, params: Mapping[str, Any], about: types.RequestId | None
    ) -> Mapping[str, Any]:
        whole = eras.enveloped(params, self._client, self._level)
        headers = {**eras.stateless_headers(method, whole), **self._mirrored(method, whole)}
        asked = await self._line.ask(method, whole, headers=headers)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._told(asked, about)
        except BaseException:
            await self._line.cancel(asked, headers)
            raise
        finally:
            self._line.forget(asked)

    async def _told(self, asked: Asked, about: types.RequestId | None) -> Mapping[str, Any]:
        while True:
            said = await asked.next()
            if isinstance(said, types.JSONRPCResponse):
                return said.result
            if isinstance(said, types.JSONRPCError):
                raise RPCError(said.error.code, said.error.message, said.error.data)
            if isinstance(said, types.JSONRPCNotification) and about is not None:
                await self._tell(SessionMessage(said, ServerMessageMetadata(related_request_id=about)))

    async def _listen(self) -> None:
        """To what a client of the handshake era is told unasked; the old subscription ends when the new one stands."""
        before, capabilities = self._listening, self._about.get("capabilities") or {}
        wanted = eras.wishes(capabilities, self._watched)
        if wanted:
            stands = asyncio.Event()
            self._listening = asyncio.ensure_future(self._pass_news_on(wanted, stands))
            await asyncio.wait(
                {self._listening, asyncio.ensure_future(stands.wait())},
                timeout=_LISTENING_WITHIN,
                return_when=asyncio.FIRST_COMPLETED,
            )
            stands.set()
        if before is not None:
            before.cancel()

    async def _pass_news_on(self, wanted: Mapping[str, Any], stands: asyncio.Event) -> None:
        params = eras.enveloped({"notifications": wanted}, self._client)
        headers = eras.stateless_headers("subscriptions/listen", params)
        asked = await self._line.ask("subscriptions/listen", params, headers=headers)
        try:
            while True:
                said = await asked.next()
                stands.set()
                if isinstance(said, types.JSONRPCResponse | types.JSONRPCError):
                    return
                if isinstance(said, types.JSONRPCNotification) and eras.is_news(said.method):
                    await self._tell(SessionMessage(_unsubscribed(said)))
        except FabricError:
            return  # the line is over, and so is everything on it
        finally:
            await self._line.cancel(asked, headers)

    def _mirrored(self, method: str, params: Mapping[str, Any]) -> Mapping[str, str]:
        header_map = self._header_maps.get(str(params.get("name"))) if method == "tools/call" else None
        return mcp_param_headers(header_map, params.get("arguments") or {}) if header_map else {}

    async def _look(self) -> None:
        cursor: Any = None
        for _ in range(_PAGES):
            page = await self._asked_once("tools/list", {"cursor": cursor} if cursor is not None else {}, None)
            self._learn(page)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return

    def _learn(self, page: Mapping[str, Any]) -> None:
        for tool in page.get("tools") or ():
            if isinstance(tool, dict) and (found := x_mcp_header_map(tool.get("inputSchema"))):
                self._header_maps[str(tool.get("name"))] = found


def _unsubscribed(said: types.JSONRPCNotification) -> types.JSONRPCNotification:
    """Without the name of a subscription that the client knows nothing of."""
    params = dict(said.params or {})
    meta = {key: value for key, value in (params.pop("_meta", None) or {}).items() if key != eras.SUBSCRIPTION_ID}
    return said.model_copy(update={"params": {**params, "_meta": meta} if meta else (params or None)})
