"""Pages for the operator alone: the calls of the node as they happen, and tools that changed since they were approved.

Only the holder of the node's own key may read them, or a program of the same machine on a node without a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, Forbidden
from a2a_fabric.core.policy import administers
from a2a_fabric.doors.context import CallLog, DoorContext
from a2a_fabric.doors.edge import HttpReply

LOG_PATH = "/operator/log"
TOOLS_PATH = "/operator/tools"
APPROVE_PATH = "/operator/tools/approve"

_MAX_LINES = 1000
_MAX_WAIT = 30.0
_POLL_SECONDS = 0.1  # the log is written ten times a second by a thread of its own


class LogQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`after` is `next` of the reply before; without it, the reply begins with the `last` lines."""

    after: int | None = None
    last: int = 10
    wait: float = 0.0
    agent: str | None = None
    failed: bool = False


class _Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent_id: str
    tools: tuple[str, ...] = ()  # patterns; without any, all tools of the agent that changed


class _LineFacts(msgspec.Struct, frozen=True):
    event: str = ""
    target: str | None = None
    status: str | None = None


_decode_facts = msgspec.json.Decoder(_LineFacts).decode


class OperatorPages:
    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._is_stopping = False

    def stop(self) -> None:
        """Answer those who wait for lines of the log; the node would wait for them."""
        self._is_stopping = True

    async def read_log(self, principal: Principal, query_string: bytes) -> HttpReply:
        """The lines since `after`; if there is none, the reply waits for one, up to `wait` seconds."""
        _check_operator(principal)
        log = self._context.call_log
        if log is None:
            raise BadInput("This node keeps no log of its calls")
        query = _parse_query(query_string)
        lines, position = self._find_lines(log, query)
        if not lines and query.wait > 0:
            self._context.acquire_stream(principal.principal_id)
            try:
                ends_at = time.monotonic() + min(query.wait, _MAX_WAIT)
                while not lines and time.monotonic() < ends_at and not self._is_stopping:
                    await asyncio.sleep(_POLL_SECONDS)
                    lines, position = self._find_lines(log, msgspec.structs.replace(query, after=position))
            finally:
                self._context.release_stream(principal.principal_id)
        head = msgspec.json.encode({"node": log.start_id, "next": position})
        return HttpReply(body=b'%b,"lines":[%b]}' % (head[:-1], b",".join(lines)))

    async def list_changes(self, principal: Principal, query_string: bytes) -> HttpReply:
        _check_operator(principal)
        wanted = dict(parse_qsl(query_string.decode("latin-1"))).get("agent")
        registry = self._context.gateway.registry
        if wanted is not None and registry.catalog.get(wanted) is None:
            raise AgentNotFound(wanted, [each.agent_id for each in registry.catalog.agents])
        reports = {
            manifest.agent_id: report
            for manifest in registry.catalog.agents
            if wanted in (None, manifest.agent_id)
            and ((report := registry.describe_tools(manifest.agent_id)).changes or report.problems)
        }
        agents = [{"agent_id": agent_id, **msgspec.to_builtins(report)} for agent_id, report in reports.items()]
        return HttpReply(body=msgspec.json.encode({"agents": agents}))

    async def approve(self, principal: Principal, body: bytes) -> HttpReply:
        _check_operator(principal)
        try:
            approval = msgspec.json.decode(body, type=_Approval)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise BadInput(f"The body does not name an agent and tools: {exc}"[:300]) from exc
        registry = self._context.gateway.registry
        if registry.catalog.get(approval.agent_id) is None:
            raise AgentNotFound(approval.agent_id, [each.agent_id for each in registry.catalog.agents])
        approved = registry.approve_tools(approval.agent_id, approval.tools)
        return HttpReply(body=msgspec.json.encode({"agent_id": approval.agent_id, "approved": approved}))

    def _find_lines(self, log: CallLog, query: LogQuery) -> tuple[list[bytes], int]:
        found, position = log.read_after(query.after or 0)
        lines = [line for line in found if _matches(line, query)]
        count = min(max(query.last, 0), _MAX_LINES) if query.after is None else _MAX_LINES
        return lines[len(lines) - min(count, len(lines)) :], position


def _matches(line: bytes, query: LogQuery) -> bool:
    """Calls and jobs, and requests that were refused before they became a call."""
    facts = _decode_facts(line)
    if facts.event not in ("call", "job") and not (facts.event == "request" and facts.status == "failed"):
        return False
    if query.agent is not None and facts.target != query.agent:
        return False
    return not query.failed or facts.status in ("failed", "timeout", "rejected")


def _parse_query(query_string: bytes) -> LogQuery:
    values: Mapping[str, str] = dict(parse_qsl(query_string.decode("latin-1")))
    try:
        return msgspec.convert(values, LogQuery, strict=False)
    except msgspec.ValidationError as exc:
        raise BadInput(f"The query is not one for the log: {exc}") from exc


def _check_operator(principal: Principal) -> None:
    if not administers(principal):
        raise Forbidden("Only the operator may read this: use the node's own key (FABRIC_PSK, or the one `up` saved)")
