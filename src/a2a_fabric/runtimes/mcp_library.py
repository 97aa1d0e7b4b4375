"""An MCP server's prompts and resources: listed from memory, asked for over the link that calls share.

The lists are learnt when the link opens, when the server says that they changed, and
again with each look at its health, always in a task of their own: a server that is slow
at it holds up nobody. What cannot be learnt now stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import in_headers, in_metadata
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.question import Question
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import traceparent
from a2a_fabric.outbound.library import NOTHING, Entries, Holdings, Query
from a2a_fabric.runtimes.mcp_asked import Asked, Reply, reporting
from a2a_fabric.runtimes.mcp_content import RPCError, failure_of
from a2a_fabric.runtimes.mcp_http import call_headers
from a2a_fabric.runtimes.mcp_keeper import Keeper
from a2a_fabric.runtimes.mcp_link import Link, asking
from a2a_fabric.runtimes.mcp_parking import PREFIX, Parking
from a2a_fabric.runtimes.mcp_questions import answers_in, is_answerable, put_by
from a2a_fabric.runtimes.mcp_watching import NOT_FOUND, Watching

_log = logging.getLogger(__name__)

MOST = 1000  # of each kind
ENTRY_BYTES = 64 * 1024
LIST_BYTES = 4 * 1024 * 1024
_PAGES = 200
_LEARN_WITHIN = 30.0  # seconds for all lists
_FRESH_FOR = 5.0  # seconds in which a look at the server's health learns nothing new
_ANY = TypeAdapter(dict[str, Any])


class MCPLibrary:
    """`changed` hears when the holdings are others than before."""

    def __init__(self, agent_id: str, keeper: Keeper, parking: Parking, changed: Callable[[], None]) -> None:
        self.holdings = NOTHING
        self._parking = parking
        self._watching = Watching(agent_id, keeper)
        self._agent_id = agent_id
        self._keeper = keeper
        self._changed = changed
        self._learning: asyncio.Task[None] | None = None
        self._is_due = False
        self._learnt_at = float("-inf")
        self._is_closed = False

    def learn(self) -> None:
        """Soon, and once more if it is being done already."""
        self._is_due = True
        if self._learning is None and not self._is_closed:
            self._learning = asyncio.ensure_future(self._learn())

    def refresh(self) -> None:
        """Learn, unless it was done just now."""
        if self._learning is None and asyncio.get_running_loop().time() - self._learnt_at > _FRESH_FOR:
            self.learn()

    async def ask(self, query: Query, emit: Emit | None = None) -> dict[str, Any]:
        with Deadline(query.timeout):
            reply = await self._outcome(query, emit)
            if isinstance(reply, RPCError) and reply.trouble == "gone":  # a session that it has forgotten
                reply = await self._outcome(query, emit)
        if isinstance(reply, RPCError):
            raise self._failure(reply, query)
        return reply

    async def watch(
        self, uri: str, told: Callable[[], None], lost: Callable[[], None], patience: float
    ) -> Callable[[], None]:
        return await self._watching.watch(uri, told, lost, patience)

    def updated(self, uri: str) -> None:
        """The server says that a resource has changed."""
        self._watching.heard(uri)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._watching.aclose()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait([self._learning])

    async def _learn(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                async with asyncio.timeout(_LEARN_WITHIN):
                    await self._look()
        except TimeoutError:
            _log.warning("%s: its prompts and resources did not come within %g s", self._agent_id, _LEARN_WITHIN)
        except Exception:
            _log.exception("%s: learning of its prompts and resources failed", self._agent_id)
        finally:
            self._learning = None
            self._learnt_at = asyncio.get_running_loop().time()

    async def _look(self) -> None:
        link = self._keeper.current
        offered = link.session.server_capabilities if link is not None else None
        if link is None or offered is None:
            return
        has_prompts, has_resources = offered.prompts is not None, offered.resources is not None
        known = self.holdings
        found = Holdings(
            prompts=await self._list(link, types.ListPromptsRequest, known.prompts) if has_prompts else (),
            resources=await self._list(link, types.ListResourcesRequest, known.resources) if has_resources else (),
            templates=await self._list(link, types.ListResourceTemplatesRequest, known.templates)
            if has_resources
            else (),
        )
        if found != known:
            self.holdings = found
            self._changed()

    async def _list(self, link: Link, request: Any, known: Entries) -> Entries:
        """All pages within bounds; what is known already if they cannot be had."""
        try:
            return _bounded(await self._entries(link.session, request), self._agent_id)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return ()
            _log.info("%s: %s: %s", self._agent_id, _method(request), error)
        except ValidationError:
            _log.warning("%s: the answer to %s does not follow the protocol", self._agent_id, _method(request))
        return known

    async def _entries(self, session: ClientSession, request: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_PAGES):
            asked = request(params=types.PaginatedRequestParams(cursor=cursor))
            page: dict[str, Any] = await session.send_request(asked, _ANY)  # type: ignore[type-var]  # any JSON
            entries += page[_KEYS[_method(request)]]
            cursor = page.get("nextCursor")
            if cursor is None or cursor in seen or len(entries) >= MOST:
                break
            seen.add(cursor)
        return entries

    async def _outcome(self, query: Query, emit: Emit | None) -> Reply:
        """The server's reply, or what it wants to know first: a session waits for the answer, parked."""
        state = query.params.get("requestState")
        if isinstance(state, str) and state.startswith(PREFIX):
            asked = self._parking.resume(answers_in(query.params, state), query.owner, _what(query))
        else:
            link = await self._keeper.link(query.patience)
            if query.method == "completion/complete":
                return await self._completed(link, query)
            asked = self._begun(link, query, stream=emit is not None)
        outcome = await self._parking.outcome(asked, emit or ignore, partial(_can_answer, query.client))
        if isinstance(outcome, Result):
            return put_by(outcome.asked) if outcome.asked is not None else {}
        return outcome

    def _begun(self, link: Link, query: Query, *, stream: bool) -> Asked:
        asked = Asked(query.owner, _what(query))
        in_call = asking.set(asked)
        try:
            asked.start(self._reply(link, query, asked if stream else None), ended=link.asked.pop)
            link.asked[asked] = None
        finally:
            asking.reset(in_call)
        return asked

    async def _completed(self, link: Link, query: Query) -> Reply:
        offered = link.session.server_capabilities
        if offered is None or offered.completions is None:
            return {"completion": {"values": []}}
        with link.on_nobodys_behalf():
            return await self._reply(link, query, None)

    async def _reply(self, link: Link, query: Query, listener: Asked | None) -> Reply:
        in_trace = call_headers.set({"traceparent": traceparent(query.trace), **in_headers(query.delegation_chain)})
        try:
            return await _sent(link, query, listener)
        except MCPError as error:
            if link.is_over and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(link.why, agent_id=self._agent_id) from error
            reply = RPCError(error.code, error.message, error.data)
            if reply.trouble == "gone":
                self._keeper.drop(link)
            return reply
        except ValidationError as error:
            raise UpstreamFailed("The MCP server's answer does not follow the protocol") from error
        finally:
            call_headers.reset(in_trace)

    def _failure(self, reply: RPCError, query: Query) -> FabricError:
        if reply.code == NOT_FOUND and reply.trouble is None:
            return BadInput(reply.message[:500] or "Unknown resource", upstream_code=NOT_FOUND)
        return failure_of(reply, self._agent_id, query.method, ())


_KEYS = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def _method(request: Any) -> str:
    return str(request.model_fields["method"].default)


def _bounded(entries: Iterable[dict[str, Any]], agent_id: str) -> Entries:
    kept: list[dict[str, Any]] = []
    room = LIST_BYTES
    for entry in entries:
        size = len(msgspec.json.encode(entry))
        if len(kept) == MOST or size > room:
            _log.warning("%s: it has more to list than %d entries or %d bytes", agent_id, MOST, LIST_BYTES)
            break
        if size <= ENTRY_BYTES:
            kept.append(entry)
            room -= size
    return tuple(kept)


def _what(query: Query) -> str:
    """What a request that comes again with answers has in common with the first."""
    return f"{query.method} {query.params.get('name') or query.params.get('uri')}"


def _can_answer(client: Mapping[str, Any], questions: Mapping[str, Question]) -> bool:
    return all(is_answerable(client, question) for question in questions.values())


def _meta(query: Query) -> dict[str, Any]:
    return {"traceparent": traceparent(query.trace), **in_metadata(query.delegation_chain)}


async def _sent(link: Link, query: Query, listener: Asked | None) -> dict[str, Any]:
    """As the session would send it, but with what the asking client can do: a stateless server may want it to.

    The session has no public way for that; it says of every request what it can do itself.
    """
    session, version = link.session, str(link.session.protocol_version)
    params = {**query.params, "_meta": _meta(query)}
    if link.era != "stateless":
        params = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
    data, options = {"method": query.method, "params": params}, CallOptions()
    session._stamp(data, options)
    if link.era == "stateless":
        data["params"]["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = query.client  # type: ignore[index]  # as stamped
    if listener is not None:
        options["on_progress"] = reporting(listener)
        if link.era == "stateless":
            data["params"]["_meta"][types.LOG_LEVEL_META_KEY] = "info"  # type: ignore[index]  # as stamped
    raw = await session._dispatcher.send_raw_request(query.method, params, options)
    methods.validate_server_result(query.method, version, raw)
    return raw
