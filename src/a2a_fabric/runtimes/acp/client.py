"""The HTTP client for an ACP server, one method per request: list agents; create, read, resume and cancel runs.

Replies are read as far as they are needed: unknown fields are skipped, and missing ones have a default.
Messages to the server are built in `content`, as plain objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.outbound.port import HTTPReply, OutboundError, StreamedReply
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, POLL_TIMEOUT
from a2a_fabric.runtimes.upstream import (
    PROBE_TIMEOUT,
    JSONAPIClient,
    decode_object_or_empty,
    decode_reply,
    error_from_outbound,
    is_success,
    read_bounded,
)

RUNNING_STATUSES = frozenset({"created", "in-progress", "cancelling"})


class ACPMessagePart(msgspec.Struct, frozen=True, kw_only=True):
    content_type: str | None = None  # unset: text/plain
    content: str | None = None
    content_encoding: str | None = None
    content_url: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None  # of kind `citation` or `trajectory`


class ACPMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = ""
    parts: list[ACPMessagePart] = []


class ACPAwaitRequest(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "message"
    message: ACPMessage = ACPMessage()


class ACPError(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    message: str = ""
    data: Any = None


class ACPRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    session_id: str | None = None
    await_request: ACPAwaitRequest | None = None
    output: list[ACPMessage] = []
    error: ACPError | None = None

    @property
    def is_stopped(self) -> bool:
        """Ended, waiting for input, or in an unknown state."""
        return self.status not in RUNNING_STATUSES


class ACPRunEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    run: ACPRun | None = None
    message: ACPMessage | None = None
    part: ACPMessagePart | None = None
    error: ACPError | None = None
    generic: Any = None


class ACPRunEvents(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ACPRunEvent] = []


class ACPMetadata(msgspec.Struct, frozen=True, kw_only=True):
    tags: list[str] | None = None


class ACPAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's manifest, as the server publishes it."""

    name: str
    description: str | None = None
    metadata: ACPMetadata | None = None
    input_content_types: list[str] | None = None
    output_content_types: list[str] | None = None


class ACPAgents(msgspec.Struct, frozen=True, kw_only=True):
    agents: list[ACPAgent] = []


RUNS_PATH = "/runs"
_SERVER_ERROR = "server_error"  # with HTTP 5xx the server itself failed; as the outcome of a run, the agent did

_PAGE_SIZE = 1000
_MAX_PAGES = 20
_MAX_REPEATS = 8  # a stream may hold an answer several times: in pieces, in messages, in the run


class ACPAgentUnknown(Exception):
    """The server has no agent of this name."""


class ACPRunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that starts a run, or resumes one that waits for an answer."""

    path: str
    body: dict[str, Any]
    timeout: float
    headers: Mapping[str, str]


class ACPClient:
    """The client of one server. Every method raises FabricError."""

    def __init__(self, api: JSONAPIClient) -> None:
        self.api = api

    async def agent_status(self, name: str | None) -> int:
        """The HTTP status of the agent's entry, or, without a name, of the list of agents."""
        path = "/agents?limit=1" if name is None else f"/agents/{quote(name, safe='')}"
        return (await self.api.get(path, timeout=PROBE_TIMEOUT)).status

    async def get_agent(self, name: str) -> ACPAgent:
        return decode_reply((await self._get(f"/agents/{quote(name, safe='')}")).body, ACPAgent)

    async def list_agents(self) -> list[ACPAgent]:
        """The agents of all pages; a server without paging answers with all agents at once."""
        agents: dict[str, ACPAgent] = {}
        for _ in range(_MAX_PAGES):
            reply = await self._get(f"/agents?limit={_PAGE_SIZE}&offset={len(agents)}")
            before = len(agents)
            agents |= {agent.name: agent for agent in decode_reply(reply.body, ACPAgents).agents}
            if len(agents) == before or len(agents) < _PAGE_SIZE:
                break
        return list(agents.values())

    async def start_run(self, run_request: ACPRunRequest, mode: str) -> ACPRun:
        """The run as the server's reply has it. Also raises ACPAgentUnknown."""
        body = {**run_request.body, "mode": mode}
        reply = await self.api.post(run_request.path, body, timeout=run_request.timeout, headers=run_request.headers)
        if not is_success(reply.status):
            raise self.error_from_start(reply.status, reply.body, run_request)
        return decode_reply(reply.body, ACPRun)

    @asynccontextmanager
    async def stream_run(self, run_request: ACPRunRequest) -> AsyncIterator[StreamedReply]:
        """The reply to a request in mode `stream`. Also raises ACPAgentUnknown."""
        api = self.api
        headers = {**api.headers, "accept": "text/event-stream, application/json;q=0.5"}
        body = msgspec.json.encode({**run_request.body, "mode": "stream"})
        try:
            async with api.http.stream(
                "POST",
                api.uri + run_request.path,
                headers={**headers, **run_request.headers},
                body=body,
                timeout=run_request.timeout,
                limit=_MAX_REPEATS * api.reply_bytes,
            ) as reply:
                if not is_success(reply.status):
                    raise self.error_from_start(reply.status, await read_bounded(reply, api.reply_bytes), run_request)
                yield reply
        except OutboundError as exc:
            raise error_from_outbound(exc, run_request.timeout, api.upstream) from exc

    async def get_run(self, run_id: str) -> ACPRun:
        return decode_reply((await self._get_run_resource(run_path(run_id))).body, ACPRun)

    async def list_events(self, run_id: str) -> list[ACPRunEvent]:
        """All events of the run so far."""
        return decode_reply((await self._get_run_resource(f"{run_path(run_id)}/events")).body, ACPRunEvents).events

    async def count_events(self, run_id: str) -> int:
        """The number of events of a run that waits. Raises BadInput if the server does not know the run."""
        try:
            return len(await self.list_events(run_id))
        except UpstreamInterrupted as exc:
            raise unknown_continuation() from exc

    async def cancel_run(self, run_id: str) -> None:
        await self.api.post(f"{run_path(run_id)}/cancel", {}, timeout=CANCEL_TIMEOUT)

    async def _get(self, path: str) -> HTTPReply:
        reply = await self.api.get(path, timeout=PROBE_TIMEOUT)
        if not is_success(reply.status):
            raise self.api.build_error(reply.status, _parse_error(reply.body).message)
        return reply

    async def _get_run_resource(self, path: str) -> HTTPReply:
        reply = await self.api.get(path, timeout=POLL_TIMEOUT)
        if reply.status == 404:
            raise UpstreamInterrupted("The agent's server no longer knows the run", upstream=self.api.upstream)
        if not is_success(reply.status):
            raise self.api.build_error(reply.status, _parse_error(reply.body).message)
        return reply

    def error_from_start(self, status: int, body: bytes, run_request: ACPRunRequest) -> Exception:
        """The error for a run that did not start, or did not accept an answer."""
        error = _parse_error(body)
        if run_request.path == RUNS_PATH and status == 404:
            return ACPAgentUnknown(error.message)
        if run_request.path != RUNS_PATH and error.code and status in (403, 404, 409):
            return unknown_continuation()
        if error.code:
            if status >= 500 and error.code == _SERVER_ERROR:
                return UpstreamFailed(
                    _error_text(error), upstream_code=_SERVER_ERROR, upstream=self.api.upstream, status=status
                )
            return error_from_acp(error, upstream=self.api.upstream, status=status)
        return self.api.build_error(status, error.message)


def run_path(run_id: str) -> str:
    return f"{RUNS_PATH}/{quote(run_id, safe='')}"


def error_from_acp(error: ACPError, **details: Any) -> FabricError:
    kind = BadInput if error.code == "invalid_input" else UpstreamRefused
    return kind(_error_text(error), upstream_code=error.code or None, data=error.data, **details)


def _error_text(error: ACPError) -> str:
    return error.message[:500] or "The agent failed without saying why"


def _parse_error(body: bytes) -> ACPError:
    """The error in a reply; empty if the body is not an error object."""
    try:
        return msgspec.convert(decode_object_or_empty(body), ACPError)
    except msgspec.ValidationError:
        return ACPError()
