"""An A2A agent behind the gateway: finds its card, chooses how to speak to it, and makes calls of its skills."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.delegation import in_metadata, journey_headers
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.listener import Listener
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.a2a import questions
from a2a_fabric.runtimes.a2a.card import description_of
from a2a_fabric.runtimes.a2a.contact import Contact, make_contact
from a2a_fabric.runtimes.a2a.conversations import Conversations
from a2a_fabric.runtimes.a2a.discovery import look
from a2a_fabric.runtimes.a2a.endpoint import A2AEndpoint
from a2a_fabric.runtimes.a2a.exchange import Exchange
from a2a_fabric.runtimes.a2a.gathering import Gathering
from a2a_fabric.runtimes.a2a.line import Errand
from a2a_fabric.runtimes.a2a.outgoing import SKILL, Manner, Outgoing, parts_for
from a2a_fabric.runtimes.a2a.pushes import Pushes
from a2a_fabric.runtimes.a2a.refusals import LOST_TASK, NOT_UNDERSTOOD, reason_of
from a2a_fabric.runtimes.a2a.result import result_of, text_of
from a2a_fabric.runtimes.a2a.said import State
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.farewells import Farewells
from a2a_fabric.runtimes.http_probe import judge
from a2a_fabric.runtimes.one_question import answer_in, unknown_continuation
from a2a_fabric.runtimes.published import complete

_GRACE = 10.0  # seconds beyond the call's own deadline, which ends it first
_REFUSALS: dict[State, str] = {
    "failed": "The agent's task failed",
    "rejected": "The agent rejected the task",
    "canceled": "The agent's task was cancelled",
}


class A2ARuntime:
    def __init__(self, manifest: Manifest, endpoint: A2AEndpoint, context: RuntimeContext) -> None:
        self._manifest = manifest
        self._described = manifest
        self._endpoint = endpoint
        self._context = context
        self._contact: Contact | None = None
        self._is_stale = False
        self._looking: asyncio.Future[Contact] | None = None
        self._conversations = Conversations()
        self._farewells = Farewells(manifest.agent_id)
        self._streams_always = False  # an agent that does not tell which tasks it has
        self._refuses_pushes = False  # whatever its card says
        self._pushes_get_lost = False

    async def __call__(self, call: Call, emit: Emit) -> Result:
        contact = await self._reached()
        try:
            return await self._answered(contact, call, emit)
        except FabricError as exc:
            exc.details.setdefault("agent_id", self._manifest.agent_id)
            if isinstance(exc, AgentOffline) or reason_of(exc) in NOT_UNDERSTOOD:
                self._is_stale = True  # it may have moved, or have become another: look again before the next call
            raise

    async def health(self) -> Status:
        contact = await self._reached()
        if contact.place is None:
            return await contact.line.probe()
        reply = await look(self._context.http, contact.place, self._endpoint.headers)
        return judge(reply.status, contact.place)

    async def describe(self) -> Manifest:
        """The manifest, with the skills of the card as capabilities."""
        contact = await self._looked()
        self._described = complete(self._manifest, description_of(self._manifest, contact.card))
        return self._described

    async def aclose(self) -> None:
        await self._farewells.aclose()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        contact, self._contact = self._contact, None
        if contact is not None:
            await contact.line.aclose()

    async def _reached(self) -> Contact:
        """Looked for once, by whoever comes first, and again after something went wrong. Raises FabricError."""
        return self._contact if self._contact is not None and not self._is_stale else await self._looked()

    async def _looked(self) -> Contact:
        """All who want to know at the same time share one look."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(self._has_looked)
        return await asyncio.shield(self._looking)

    async def _look(self) -> Contact:
        known = self._contact
        self._contact = found = await make_contact(self._endpoint, self._context, known)
        self._is_stale = False
        if known is not None and known.line is not found.line:
            await known.line.aclose()
        return found

    def _has_looked(self, look: asyncio.Future[Contact]) -> None:
        self._looking = None
        if not look.cancelled():
            look.exception()  # there may be nobody left who wants to know

    async def _answered(self, contact: Contact, call: Call, emit: Emit) -> Result:
        message = self._continued(call.answers, call) if call.answers else self._message(contact, call)
        if isinstance(call.answers, Answers) and answer_in(call.answers).action == "cancel":
            return await self._given_up(contact, message, call)
        listener = Listener(emit)
        with self._callback(contact) as callback:
            exchange = self._exchange(contact, message, call, listener, callback)
            await self._heard_out(exchange, contact, call, listener)
        self._conversations.remember(call, exchange.gathering.context_id)
        return _outcome(exchange.gathering)

    async def _heard_out(self, exchange: Exchange, contact: Contact, call: Call, listener: Listener) -> None:
        try:
            wants_stream = call.response.stream or self._must_stream(contact)
            await exchange.heard_out(streamed=contact.card.streaming and wants_stream)
        except BaseException as exc:
            if listener.has_left or not isinstance(exc, FabricError):  # nobody waits for the agent any more
                self._leave(exchange)
                raise
            if call.answers and reason_of(exc) in LOST_TASK and exchange.gathering.state == "unknown":
                raise unknown_continuation() from exc
            raise
        finally:
            self._learn_of_pushes(exchange)

    def _callback(self, contact: Contact) -> AbstractContextManager[Callback | None]:
        """Where the agent may tell us how its task goes on, if it does such things and can reach us."""
        if not contact.card.pushes or not self._endpoint.push or self._refuses_pushes:
            return nullcontext()
        return self._context.callbacks.opened(is_near=contact.interface.is_near)

    def _learn_of_pushes(self, exchange: Exchange) -> None:
        self._refuses_pushes = self._refuses_pushes or exchange.refuses_pushes
        if exchange.pushes is not None and exchange.pushes.get_lost is not None:
            self._pushes_get_lost = exchange.pushes.get_lost

    def _must_stream(self, contact: Contact) -> bool:
        """Whether there is no other way to learn the task's id early enough to cancel it."""
        return self._streams_always or contact.interface.version == "0.3"

    def _waits_for(self, contact: Contact, *, hears_pushes: bool) -> bool:
        """Of 0.3 nobody would learn which task to cancel before it is over; of others, what happens on the way."""
        if self._endpoint.blocking is not None:
            return self._endpoint.blocking
        return contact.interface.version != "0.3" and not hears_pushes

    def _exchange(
        self, contact: Contact, message: Outgoing, call: Call, emit: Emit, callback: Callback | None
    ) -> Exchange:
        errand = _errand(call)
        modes = contact.meant_by(call.target.capability).output_modes
        is_told = call.response.stream
        hears_pushes = is_told and callback is not None and not contact.card.streaming and not self._pushes_get_lost
        manner = Manner(output_modes=modes, blocking=self._waits_for(contact, hears_pushes=hears_pushes))
        patience = None if self._pushes_get_lost else self._endpoint.look_seconds
        pushes = Pushes(callback, patience, is_told=is_told) if callback is not None else None
        gathering = Gathering(self._context.reply_bytes, message.task_id, message.context_id, is_told=is_told)
        return Exchange(contact.line, message, manner, errand, gathering, emit if is_told else None, pushes)

    def _message(self, contact: Contact, call: Call) -> Outgoing:
        name = call.target.capability
        meant = contact.meant_by(name)
        parts = parts_for(call, self._described.capability(name), takes_json=meant.takes_json)
        metadata = in_metadata(call.delegation_chain)
        if meant.skill is not None:
            metadata[SKILL] = meant.skill
        return Outgoing(parts=parts, metadata=metadata, context_id=self._conversations.context_of(call))

    def _continued(self, answers: Answers, call: Call) -> Outgoing:
        waiting = questions.read(answers)
        answer = answer_in(answers)
        parts = questions.parts_of_answer(answer, waiting) if answer.action != "cancel" else ()
        metadata = in_metadata(call.delegation_chain)
        return Outgoing(parts=parts, metadata=metadata, task_id=waiting.task_id, context_id=waiting.context_id)

    async def _given_up(self, contact: Contact, message: Outgoing, call: Call) -> Result:
        """The caller does not want to answer at all: then the task is over."""
        await contact.line.cancel(message.task_id, _errand(call))
        raise BadInput("The agent's question was cancelled, and its task with it", field="answers")

    def _leave(self, exchange: Exchange) -> None:
        """The agent is told in the background, so that nobody waits for one that does not listen."""

        async def leave() -> None:
            try:
                await exchange.abandon()
            finally:
                self._streams_always = self._streams_always or exchange.cannot_list

        self._farewells.say(leave())


def _errand(call: Call) -> Errand:
    return Errand(headers=journey_headers(call), timeout=call.target.timeout_ms / 1000 + _GRACE)


def _outcome(gathering: Gathering) -> Result:
    """Raises UpstreamRefused for a task that did not succeed."""
    if gathering.is_asking:
        return questions.asked_by(gathering)
    if gathering.state in _REFUSALS and gathering.message is None:
        words = text_of(gathering.words)
        raise UpstreamRefused((words or _REFUSALS[gathering.state])[:500], state=gathering.state)
    return result_of(gathering.parts)
