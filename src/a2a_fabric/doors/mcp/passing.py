"""One request on its way through to an agent that is an MCP server: what every way through is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.call import Call, Input, Target
from a2a_fabric.core.delegation import META_KEY, MaybeChain
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import Head, again
from a2a_fabric.doors.mcp.verdict import Verdict
from a2a_fabric.doors.mcp.visit import Visit

LISTEN = "subscriptions/listen"
_STREAM = b"text/event-stream"


class _Meta(msgspec.Struct):
    traceparent: Any = None
    chain: Any = msgspec.field(name=META_KEY, default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    name: Any = None
    arguments: Any = None


class _Frame(msgspec.Struct):
    method: str | None = None
    id: str | int | None = None
    params: msgspec.Raw = msgspec.Raw(b"")


class Watched:
    """The reply, as it leaves."""

    def __init__(self, send: Send, verdict: Verdict | None) -> None:
        self.status = 499  # the client left before there was an answer
        self._send = send
        self._verdict = verdict

    @property
    def has_begun(self) -> bool:
        return self.status != 499

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._verdict is not None:
                self._verdict.begin(is_stream=_is_stream(message["headers"]))
        elif self._verdict is not None:
            self._verdict.read(message.get("body", b""))
        await self._send(message)

    async def whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self({"type": "http.response.body", "body": body})


class Passing:
    """`send` is the caller's; `method` and `id` are those of the message, if it is one that can be read.

    `chain` is the delegation chain that goes to the agent.
    """

    def __init__(self, scope: Any, receive: Receive, send: Send, visit: Visit, body: bytes) -> None:
        self.scope = scope
        self.receive = again(body, receive)
        self._receive = receive
        self._visit = visit
        self.chain: MaybeChain = msgspec.UNSET
        self.principal = visit.principal
        self.body = body
        self.verb: str = scope["method"]
        self.head = Head(scope["headers"])
        frame = _decoded(body, _Frame) or _Frame()
        self.method, self.id = frame.method, frame.id
        self._params = _decoded(frame.params, _Params) or _Params()
        self.verdict = Verdict() if self.is_call else None
        self.send = Watched(send, self.verdict)
        self.left: asyncio.CancelledError | None = None  # if the caller left when it had its answer
        meta = self._params.meta
        self.trace = visit.trace({"traceparent": meta.traceparent} if meta is not None else None)

    @property
    def is_request(self) -> bool:
        """And not a notification, nor an answer to a question of the agent's: those are waited for by what runs."""
        return self.verb == "POST" and self.method is not None and self.id is not None

    @property
    def is_call(self) -> bool:
        return self.is_request and self.method == "tools/call" and isinstance(self._params.name, str)

    @property
    def is_standing(self) -> bool:
        """Streams that wait for news, in either era."""
        return self.verb == "GET" or (self.is_request and self.method == LISTEN)

    def chain_given(self) -> MaybeChain:
        """The delegation chain that came with the request. Raises BadInput."""
        meta = self._params.meta
        return self._visit.chain(meta.chain if meta is not None else None)

    def write_chain(self) -> None:
        """Put the chain into the message itself, for ways on which no header reaches the agent."""
        if not self.chain or not self.is_request:
            return
        message = _decoded(self.body, dict[str, Any])
        params = message.get("params") or {} if message else None
        if not isinstance(params, dict):
            return
        meta = params.get("_meta")
        told = {**(meta if isinstance(meta, dict) else {}), META_KEY: self.chain}
        self.body = msgspec.json.encode({**message, "params": {**params, "_meta": told}})
        self.receive = again(self.body, self._receive)

    def as_call(self, agent_id: str) -> Call:
        given = self._params.arguments
        return Call(
            trace=self.trace,
            auth=self.principal,
            target=Target(agent_id=agent_id, capability=str(self._params.name)),
            input=Input(context=given if isinstance(given, dict) else {}),
            delegation_chain=self.chain_given(),
        )


class Way(Protocol):
    """To one agent. Raises FabricError or RPCError; if something was sent already, the caller has been told."""

    async def go(self, passing: Passing) -> None: ...


def _decoded(body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in headers)
