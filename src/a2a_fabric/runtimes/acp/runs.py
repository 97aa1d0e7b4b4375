"""The requests of ACP, each as one method: agents are listed, runs are begun, looked at, resumed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.outbound.port import OutboundError, Reply, StreamedReply
from a2a_fabric.runtimes.acp.wire import Error, RemoteAgent, RemoteAgents, Run, RunEvent, RunEvents
from a2a_fabric.runtimes.farewells import SECONDS
from a2a_fabric.runtimes.http_exchange import ASK_SECONDS, bounded, ours
from a2a_fabric.runtimes.json_api import JSONAPI, decoded, is_good, object_or_empty
from a2a_fabric.runtimes.one_question import unknown_continuation
from a2a_fabric.runtimes.polling import LOOK_SECONDS

NEW = "/runs"
_BROKE = "server_error"  # with HTTP 5xx: the server itself broke; as a run's outcome it is the agent's word

_PAGE = 1000
_PAGES = 20
_REPEATED = 8  # how often one answer may come in a stream: in pieces, in messages, in the run


class AgentUnknown(Exception):
    """The server has no agent of this name."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What sets a run going: a new one, or an answer to one that waits."""

    path: str
    body: dict[str, Any]
    timeout: float
    headers: Mapping[str, str]


class Runs:
    """Of one server. Every method raises FabricError."""

    def __init__(self, api: JSONAPI) -> None:
        self.api = api

    async def status_of(self, name: str | None) -> int:
        """Of the reply when asked for the entry of this agent, or for the list of all agents."""
        path = "/agents?limit=1" if name is None else f"/agents/{quote(name, safe='')}"
        return (await self.api.get(path, timeout=ASK_SECONDS)).status

    async def agent(self, name: str) -> RemoteAgent:
        return decoded((await self._got(f"/agents/{quote(name, safe='')}")).body, RemoteAgent)

    async def agents(self) -> list[RemoteAgent]:
        """All pages; servers that know of none answer with everything at once."""
        found: dict[str, RemoteAgent] = {}
        for _ in range(_PAGES):
            reply = await self._got(f"/agents?limit={_PAGE}&offset={len(found)}")
            before = len(found)
            found |= {agent.name: agent for agent in decoded(reply.body, RemoteAgents).agents}
            if len(found) == before or len(found) < _PAGE:
                break
        return list(found.values())

    async def begin(self, start: Start, mode: str) -> Run:
        """The run as it stands when the server answers. Raises AgentUnknown too."""
        body = {**start.body, "mode": mode}
        reply = await self.api.post(start.path, body, timeout=start.timeout, headers=start.headers)
        if not is_good(reply.status):
            raise self.refused(reply.status, reply.body, start)
        return decoded(reply.body, Run)

    @asynccontextmanager
    async def stream(self, start: Start) -> AsyncIterator[StreamedReply]:
        """The server's answer to a start in mode `stream`. Raises AgentUnknown too."""
        api = self.api
        headers = {**api.headers, "accept": "text/event-stream, application/json;q=0.5"}
        body = msgspec.json.encode({**start.body, "mode": "stream"})
        try:
            async with api.http.stream(
                "POST",
                api.uri + start.path,
                headers={**headers, **start.headers},
                body=body,
                timeout=start.timeout,
                limit=_REPEATED * api.reply_bytes,
            ) as reply:
                if not is_good(reply.status):
                    raise self.refused(reply.status, await bounded(reply, api.reply_bytes), start)
                yield reply
        except OutboundError as exc:
            raise ours(exc, start.timeout, api.upstream) from exc

    async def look(self, run_id: str) -> Run:
        return decoded((await self._looked(path_of(run_id))).body, Run)

    async def events(self, run_id: str) -> list[RunEvent]:
        """All so far."""
        return decoded((await self._looked(f"{path_of(run_id)}/events")).body, RunEvents).events

    async def said_so_far(self, run_id: str) -> int:
        """How many events a run that waits has behind it. Raises BadInput if nobody waits."""
        try:
            return len(await self.events(run_id))
        except UpstreamInterrupted as exc:
            raise unknown_continuation() from exc

    async def cancel(self, run_id: str) -> None:
        await self.api.post(f"{path_of(run_id)}/cancel", {}, timeout=SECONDS)

    async def _got(self, path: str) -> Reply:
        reply = await self.api.get(path, timeout=ASK_SECONDS)
        if not is_good(reply.status):
            raise self.api.refusal(reply.status, _error(reply.body).message)
        return reply

    async def _looked(self, path: str) -> Reply:
        reply = await self.api.get(path, timeout=LOOK_SECONDS)
        if reply.status == 404:
            raise UpstreamInterrupted("The agent's server no longer knows the run", upstream=self.api.upstream)
        if not is_good(reply.status):
            raise self.api.refusal(reply.status, _error(reply.body).message)
        return reply

    def refused(self, status: int, body: bytes, start: Start) -> Exception:
        """Why a run did not start, or an answer was not taken."""
        error = _error(body)
        if start.path == NEW and status == 404:
            return AgentUnknown(error.message)
        if start.path != NEW and error.code and status in (403, 404, 409):
            return unknown_continuation()
        if error.code:
            if status >= 500 and error.code == _BROKE:
                return UpstreamFailed(_words_of(error), upstream_code=_BROKE, upstream=self.api.upstream, status=status)
            return failure(error, upstream=self.api.upstream, status=status)
        return self.api.refusal(status, error.message)


def path_of(run_id: str) -> str:
    return f"{NEW}/{quote(run_id, safe='')}"


def failure(error: Error, **details: Any) -> FabricError:
    """What the server says went wrong, as one of ours."""
    kind = BadInput if error.code == "invalid_input" else UpstreamRefused
    return kind(_words_of(error), upstream_code=error.code or None, data=error.data, **details)


def _words_of(error: Error) -> str:
    return error.message[:500] or "The agent failed without saying why"


def _error(body: bytes) -> Error:
    """Of any reply; an error page that is not JSON says nothing."""
    try:
        return msgspec.convert(object_or_empty(body), Error)
    except msgspec.ValidationError:
        return Error()
