"""Where everything stops that goes through to an agent: steps, gate, log, refusals, and the end of the node.

`tools/call` is a call like any other: it is seen, allowed, counted and logged as one. Other
requests pass the agent's gate. What stands waiting for news, what only ends a session, and
answers to the agent's own questions take no place there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    Forbidden,
    InternalError,
    RateLimited,
    UpstreamFailed,
    UpstreamRefused,
)
from a2a_fabric.core.trace import current_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import ClientGone, while_connected
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.passing import Passing, Way
from a2a_fabric.doors.mcp.visit import Visit

_log = logging.getLogger(__name__)

METHODS = ("POST", "GET", "DELETE")
_STATUS: dict[type[FabricError], int] = {
    AgentOffline: 503,
    CallTimeout: 504,
    UpstreamRefused: 502,
    UpstreamFailed: 502,
    RateLimited: 429,
    Forbidden: 403,
    InternalError: 500,
    BadInput: 400,
}
_ELSE = 502

Work = Callable[[], Awaitable[None]]


class Standing:
    """Streams that wait for news: they would hold up the end of the node."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    async def __call__(self, work: Awaitable[None]) -> bool:
        """Whether it ended by itself, and not because the node stops."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


class Checkpoint:
    """Before one agent."""

    def __init__(self, context: DoorContext, manifest: Manifest, way: Way, standing: Standing) -> None:
        self._context = context
        self._manifest = manifest
        self._way = way
        self._standing = standing

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None:
        """One HTTP request. If the caller leaves, the agent's side is closed too."""
        body = (await receive())["body"]
        passing = Passing(scope, receive, send, visit, body)
        began_at = time.monotonic()
        failed: FabricError | None = None
        try:
            await while_connected(scope, receive, lambda: self._pass(passing))
        except ClientGone:
            pass
        except FabricError as error:
            failed = error
            if not passing.send.has_begun:
                await self._refuse(passing, error)
        finally:
            if failed is None or not failed.observed:
                self._note(passing, failed, time.monotonic() - began_at)

    async def _pass(self, passing: Passing) -> None:
        """Raises FabricError."""
        passage, manifest = self._context.passage, self._manifest

        async def work() -> None:
            if passage is not None:
                passing.chain = passage.delegated(passing.chain_given(), manifest)
            await self._go(passing)

        if passage is not None and not passing.is_call:
            passage.delegated(passing.chain_given(), manifest)  # before the agent's gate: it is about the caller
        if passing.is_request and passing.is_standing:
            if not await self._standing(work()):
                await self._end(passing)
        elif passage is None or not passing.is_request:
            await work()
        elif passing.is_call:
            await passage.call(passing.as_call(manifest.agent_id), manifest, work)
            if passing.left is not None:
                raise passing.left
        else:
            await passage.request(manifest, work, passing.principal.principal_id)

    async def _go(self, passing: Passing) -> None:
        """Raises FabricError, also for what the agent said to the caller itself."""
        try:
            if passing.verb not in METHODS:
                raise RPCError(jsonrpc.INVALID_REQUEST, f"{passing.verb} is not a method of MCP", status=405)
            await self._way.go(passing)
        except asyncio.CancelledError as left:
            if passing.verdict is None or not passing.verdict.has_answer:
                raise
            passing.left = left  # clients leave with the answer, before the stream ends: that cancels no call
        except RPCError as error:
            raise _Refused(error) from error
        except FabricError:
            raise
        except Exception as exc:
            current_trace.set(passing.trace)
            _log.exception("a request to %s failed inside the gateway", self._manifest.agent_id)
            raise InternalError from exc
        found = passing.verdict.error() if passing.verdict is not None else None
        if found is not None:
            raise found

    async def _end(self, passing: Passing) -> None:
        if not passing.send.has_begun:
            raise AgentOffline("The node is shutting down", agent_id=self._manifest.agent_id)
        await passing.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, passing: Passing, error: FabricError) -> None:
        rpc = error.told if isinstance(error, _Refused) else as_rpc(error, passing)
        headers = [(b"content-type", b"application/json")]
        if rpc.status == 405:
            headers.append((b"allow", ", ".join(METHODS).encode()))
        if isinstance(error, RateLimited):
            headers.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
        await passing.send.whole(rpc.status, jsonrpc.failure(rpc, passing.id), headers)

    def _note(self, passing: Passing, failed: FabricError | None, seconds: float) -> None:
        """Calls have a line of their own."""
        if passing.is_call and self._context.passage is not None:
            return
        self._context.log(
            passing.trace,
            f"{passing.scope['path']} {passing.method or passing.verb}",
            code=failed.code if failed else None,
            message=failed.sentence if failed else None,
            seconds=seconds,
            status=passing.send.status,
        )


class _Refused(BadInput):
    """The request is none that MCP knows; `told` is the answer in its own words."""

    def __init__(self, told: RPCError) -> None:
        super().__init__(told.message)
        self.told = told


def as_rpc(error: FabricError, passing: Passing) -> RPCError:
    """The canonical error, in the protocol's own frame."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), _ELSE)
    return RPCError(jsonrpc.INTERNAL_ERROR, error.message, error_body(error, passing.trace), status=status)
