"""Runtime: an agent of document 004, on a platform that takes tasks and messages by REST.

A call is a task: created, followed by its events where they are offered, else looked at
again and again, and deleted when the caller leaves. A platform without tasks is sent a
message instead, and its conversation is looked at for the reply.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import UNSET, Meta

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import parts_of
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, reported_by_agent
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.listener import Listener
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import new_id
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import OutboundError, Reply, StreamedReply
from a2a_fabric.runtimes import rest_wire as wire
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.farewells import SECONDS, Farewells
from a2a_fabric.runtimes.http_exchange import ASK_SECONDS, ours
from a2a_fabric.runtimes.http_probe import judge
from a2a_fabric.runtimes.json_api import JSONAPI, checked_uri, decoded, is_good, object_or_empty
from a2a_fabric.runtimes.polling import LOOK_SECONDS, polled
from a2a_fabric.runtimes.published import complete

_SLACK = 5.0  # seconds; a call's own deadline comes first
_EVENT_BYTES = 16 * 1024 * 1024
_ENDLESS = 1 << 62  # bytes of a stream: nothing of it is kept
_EVENTS = "text/event-stream"
_AGENTS = "/agents/"
_HEALTH: dict[str, Status] = {"online": "online", "degraded": "degraded", "offline": "offline"}


class RestEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the platform is: its API's address with the version, or the address on the agent's card."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    agent: str | None = None  # its id there; the last part of the uri, or its id here, if unset
    transport: str = "http"
    headers: dict[str, str] = {}
    token: str | None = None  # sent as `Authorization: Bearer`
    mode: Literal["auto", "tasks", "messages"] = "auto"


class _NoTasks(Exception):
    """The platform knows messages only."""


class RestRuntime:
    def __init__(self, manifest: Manifest, endpoint: RestEndpoint, context: RuntimeContext) -> None:
        base, agent = _place(endpoint.uri)
        bearer = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        self._manifest = manifest
        self._agent = endpoint.agent or agent or manifest.agent_id
        self._api = JSONAPI(context.http, base, {**bearer, **endpoint.headers}, context.reply_bytes)
        self._mode = endpoint.mode
        self._farewells = Farewells(manifest.agent_id)
        self._tells_of_delivery = True

    async def __call__(self, call: Call, emit: Emit) -> Result:
        try:
            if self._mode == "messages":
                return await self._by_message(call)
            return await self._by_task(call, emit)
        except _NoTasks:
            return await self._by_message(call)
        except FabricError as error:
            error.details.setdefault("upstream", self._api.upstream)
            raise

    async def _by_task(self, call: Call, emit: Emit) -> Result:
        """Raises _NoTasks."""
        answers = call.answers
        own_id = f"task_{new_id().replace('-', '')}" if answers is UNSET else answers.continuation
        beginning = asyncio.ensure_future(self._begun(own_id, call))
        listener = Listener(emit)
        try:
            task = await asyncio.shield(beginning)
            task_id = str(task.id)
            if not task.is_still and call.response.stream:
                task = await self._followed(task, call, listener)
            if not task.is_still:
                task = await polled(lambda: self._look(task_id, call), lambda seen: seen.is_still)
        except BaseException as error:
            if listener.has_left or not isinstance(error, FabricError | _NoTasks):  # nobody waits for it any more
                self._farewells.say(self._withdrawn(beginning, own_id, call))
            raise
        return wire.outcome_of(task)

    async def _withdrawn(self, beginning: asyncio.Future[wire.Task], own_id: str, call: Call) -> None:
        """A task that is only being created is waited for: platforms give ids by themselves, whatever they are sent."""
        try:
            task_id = str((await beginning).id)
        except (FabricError, _NoTasks):
            task_id = own_id  # it may be there all the same
        await self._delete(task_id, call)

    async def _begun(self, task_id: str, call: Call) -> wire.Task:
        if call.answers is not UNSET:
            said = {"answers": msgspec.to_builtins(call.answers.answers)}
            return self._task(await self._post(f"{_task(task_id)}/answers", said, call))
        given = call.input
        parts = wire.sent(parts_of(given))
        body: dict[str, Any] = {
            "id": task_id,
            "agentId": self._agent,
            "capability": call.target.capability,
            "input": wire.input_for(self._manifest.capability(call.target.capability), given),
            "timeoutMs": call.target.timeout_ms,
            **({"parts": parts} if parts else {}),
            **({"conversationId": agent_conversation_id(call)} if call.conversation_id else {}),
        }
        reply = await self._post("/tasks", body, call)
        if self._mode == "auto" and _knows_nothing(reply):
            raise _NoTasks
        return self._task(reply)

    async def _followed(self, task: wire.Task, call: Call, emit: Emit) -> wire.Task:
        """Its events, if the platform has any; the task as it was last seen."""
        timeout = call.target.timeout_ms / 1000 + _SLACK
        headers = {**self._api.headers, "accept": _EVENTS, **journey_headers(call)}
        address = f"{self._api.uri}{_task(str(task.id))}/events"
        try:
            async with self._api.http.stream("GET", address, headers=headers, timeout=timeout, limit=_ENDLESS) as reply:
                if is_good(reply.status) and reply.headers.get("content-type", "").lower().startswith(_EVENTS):
                    return await self._heard(reply, task, emit)
        except OutboundError:
            pass  # its log can still be looked at
        return task

    async def _heard(self, reply: StreamedReply, task: wire.Task, emit: Emit) -> wire.Task:
        """Until the task itself comes, or what it asks."""
        async for data in sse.data_of(reply.chunks(), limit=_EVENT_BYTES):
            told = decoded(data, dict[str, Any])
            kind, body = told.get("event"), told.get("data")
            if kind == "input_required":
                return task  # what is asked stands in the task
            if kind in EVENT_KINDS and isinstance(body, dict):
                if kind != "status":  # how far we are, we say ourselves
                    await emit(Event(kind, body))
            elif "status" in told and "id" in told:
                return decoded(data, wire.Task)
        return task

    async def _by_message(self, call: Call) -> Result:
        capability = self._manifest.capability(call.target.capability)
        conversation = agent_conversation_id(call) or f"conv_{new_id().replace('-', '')}"
        metadata = {"conversation_id": conversation, "capability": call.target.capability}
        body = {
            "id": f"msg_{new_id().replace('-', '')}",
            "parts": wire.message_parts(capability, call.input),
            "metadata": metadata,
        }
        reply = await self._post(f"{_AGENTS}{quote(self._agent, safe='')}/messages", body, call)
        told = decoded(self._good(reply), dict[str, Any])
        if _is_from(told, self._agent):
            return wire.answer_of(told)
        sent_id = str(told.get("id") or body["id"])
        found = await polled(lambda: self._answers(conversation, sent_id, call), bool)
        return wire.answer_of(found[0])

    async def _answers(self, conversation: str, sent_id: str, call: Call) -> list[dict[str, Any]]:
        """Raises FabricError if the platform says that the message did not reach the agent."""
        found = await self._replies(conversation, sent_id, call)
        if not found and self._tells_of_delivery:
            await self._check_delivery(sent_id, call)
        return found

    async def _check_delivery(self, sent_id: str, call: Call) -> None:
        """Nodes say in the message how its delivery goes; other platforms are not asked a second time."""
        path = f"/messages/{quote(sent_id, safe='')}"
        reply = await self._api.get(path, timeout=LOOK_SECONDS, headers=journey_headers(call))
        told = object_or_empty(reply.body).get("metadata") if is_good(reply.status) else None
        delivery = told.get("delivery") if isinstance(told, dict) else None
        if not isinstance(delivery, dict):
            self._tells_of_delivery = False
        elif delivery.get("status") in ("failed", "cancelled"):
            raise wire.failure(delivery.get("error"), delivery["status"], "message")

    async def _replies(self, conversation: str, sent_id: str, call: Call) -> list[dict[str, Any]]:
        path = f"/conversations/{quote(conversation, safe='')}/messages?limit=1000"
        reply = await self._api.get(path, timeout=LOOK_SECONDS, headers=journey_headers(call))
        told = decoded(self._good(reply), Any)
        messages = told.get("messages", ()) if isinstance(told, dict) else told
        return wire.replies_in(messages if isinstance(messages, list) else (), sent_id, self._agent)

    async def _look(self, task_id: str, call: Call) -> wire.Task:
        return self._task(await self._api.get(_task(task_id), timeout=LOOK_SECONDS, headers=journey_headers(call)))

    async def _delete(self, task_id: str, call: Call) -> None:
        address = self._api.uri + _task(task_id)
        headers = {**self._api.headers, **journey_headers(call)}
        try:
            await self._api.http.request(
                "DELETE", address, headers=headers, timeout=SECONDS, limit=self._api.reply_bytes
            )
        except OutboundError as exc:
            raise ours(exc, SECONDS, self._api.upstream) from exc

    async def _post(self, path: str, body: Any, call: Call) -> Reply:
        timeout = call.target.timeout_ms / 1000 + _SLACK
        return await self._api.post(path, body, timeout=timeout, headers=journey_headers(call))

    def _task(self, reply: Reply) -> wire.Task:
        """Some put it into an object of its own."""
        body = self._good(reply)
        inner = object_or_empty(body).get("task")
        return decoded(msgspec.json.encode(inner) if isinstance(inner, dict) else body, wire.Task)

    def _good(self, reply: Reply) -> bytes:
        """The body of a good reply. Raises FabricError for any other, in the platform's own words."""
        if is_good(reply.status):
            return reply.body
        error = object_or_empty(reply.body).get("error")
        told = error if isinstance(error, dict) else {"message": error or ""}
        words = str(told.get("message", ""))[:500]
        details = told.get("details")
        details = details if isinstance(details, dict) else {}
        if reply.status in (400, 422):
            kept = {name: details[name] for name in ("field", "issue") if name in details}
            raise reported_by_agent(BadInput.code, words or "The platform refused the request", kept)
        raise self._api.refusal(reply.status, words)

    async def health(self) -> Status:
        """As the platform says of the agent, if it does."""
        reply = await self._api.get(_AGENTS + quote(self._agent, safe=""), timeout=ASK_SECONDS)
        if reply.status == 404:
            raise AgentOffline(f"The platform has no agent '{self._agent}'", upstream=self._api.upstream)
        judge(reply.status, self._api.upstream)
        metadata = object_or_empty(reply.body).get("metadata")
        said = metadata.get("status") if isinstance(metadata, dict) else None
        return _HEALTH.get(str(said), "online")

    async def describe(self) -> Manifest:
        """What its card says. Whether it streams is not on it, so that is tried."""
        reply = await self._api.get(_AGENTS + quote(self._agent, safe=""), timeout=ASK_SECONDS)
        if not is_good(reply.status):
            return self._manifest
        card = decoded(reply.body, wire.Card)
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            display_name=card.name,
            description=card.description,
            version=card.version,
            capabilities=tuple(_capabilities(card)),
        )
        return complete(self._manifest, published)

    async def aclose(self) -> None:
        await self._farewells.aclose()


def _capabilities(card: wire.Card) -> list[Capability]:
    names = [each.get("name") if isinstance(each, dict) else each for each in card.capabilities]
    return [Capability(name=name, streaming=True) for name in names if isinstance(name, str) and 0 < len(name) <= 256]


def _place(uri: str) -> tuple[str, str | None]:
    """The API's address and, if it is the address of an agent there, which."""
    path = urlsplit(uri).path
    base, found, agent = path.rpartition(_AGENTS)
    if not found or "/" in agent.strip("/"):
        return uri, None
    return uri[: uri.index(path)] + base, unquote(agent.strip("/")) or None


def _task(task_id: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}"


def _knows_nothing(reply: Reply) -> bool:
    """Whether there is nothing at that address; an agent or a task that is not there has a body that says so."""
    if reply.status in (405, 501):
        return True
    return reply.status == 404 and not isinstance(object_or_empty(reply.body).get("error"), dict)


def _is_from(message: dict[str, Any], agent: str) -> bool:
    sender = message.get("sender")
    return isinstance(sender, dict) and sender.get("id") == agent and sender.get("type") == "agent"


def build(manifest: Manifest, context: RuntimeContext) -> RestRuntime:
    endpoint = decode_endpoint(manifest, RestEndpoint)
    checked_uri(manifest, endpoint.uri)
    return RestRuntime(manifest, endpoint, context)
