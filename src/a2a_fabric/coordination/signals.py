"""Signals between agents: messages with a fixed set of types, and what they do to the conversation that they concern.

An agent sends signals beside its answer (`signals` in its result), or with `fabric.signal.send`. Each one is put into
the inbox of the agent that it names. Two of them also concern the conversation: `handoff_suggestion` moves it to the
other agent, and `escalate` gives it back to the orchestrator, so that the words of the next request choose again.

A conversation moves only to an agent that the card of the sending agent names (`dependencies.agents`, or a rule that
delegates to it), that accepts work from agents, and that the caller may call. The person sees every signal as a note
beside the answer, and the move as a message of the conversation. `signals` of another form are the agent's own data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Emit, Handler, Principal, add_notes
from a2a_fabric.core.coordination import find_refusal_of_delegation
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.message import Party
from a2a_fabric.core.propagation import new_ordered_id
from a2a_fabric.core.result import Part, Result, format_timestamp
from a2a_fabric.messages.inboxes import InboxDraft, Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.messages.requests import TALKS_TO
from a2a_fabric.registry.registry import Registry

_log = logging.getLogger(__name__)

SignalType = Literal["handoff_suggestion", "task_complete", "blocked", "error", "escalate"]
SignalStatus = Literal["delivered", "handed_over", "given_back", "noted", "refused"]

SIGNALS_KEY = "signals"  # in the result of an agent
MESSAGE_TYPE = "message_type"  # in the metadata of a message
_MAX_SIGNALS = 8  # of one answer
_MAX_PAYLOAD = 64 * 1024  # bytes
_MAX_REASON = 500  # characters


class AgentSignal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What one agent tells another one, or the person and the orchestrator if it names none."""

    type: SignalType
    to: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    payload: dict[str, Any] = {}
    signal_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    timestamp: Annotated[str, Meta(max_length=64)] | None = None
    sender: Annotated[str, Meta(max_length=128)] | None = msgspec.field(default=None, name="from")

    @property
    def reason(self) -> str:
        """What the payload says for people."""
        for key in ("reason", "message", "error", "summary"):
            if isinstance(text := self.payload.get(key), str):
                return " ".join(text.split())[:_MAX_REASON]
        return ""


class SignalOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of a signal, as the caller sees it."""

    signal_id: str
    type: SignalType
    sender: str = msgspec.field(name="from")
    status: SignalStatus
    to: str | None = None
    reason: str = ""


def parse_signals(value: Any) -> tuple[AgentSignal, ...]:
    """The signals in a result; empty if the value is something else, which an agent may call `signals`, too."""
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_SIGNALS:
        return ()
    try:
        signals = msgspec.convert(value, tuple[AgentSignal, ...])
    except msgspec.ValidationError:
        return ()
    return signals if all(len(msgspec.json.encode(each.payload)) <= _MAX_PAYLOAD for each in signals) else ()


class SignalExchange:
    """Connect it before the first call: the messages of a node are built after its pipeline."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.time) -> None:
        self._registry = registry
        self._clock = clock

    def connect(self, messages: Messages, inboxes: Inboxes) -> None:
        self._messages = messages
        self._inboxes = inboxes

    def step(self, inner: Handler) -> Handler:
        """Takes the signals out of each result, and adds what became of them."""

        async def handle(call: Call, emit: Emit) -> Result:
            result = await inner(call, emit)
            if SIGNALS_KEY not in result.data:
                return result
            signals = parse_signals(result.data[SIGNALS_KEY])
            return result if not signals else await self._take(call, result, signals)

        return handle

    async def _take(self, call: Call, result: Result, signals: tuple[AgentSignal, ...]) -> Result:
        sender = call.target.agent_id if result.fallback is None else result.fallback.used
        conversation_id = call.conversation_id or None
        outcomes = [await self._try_send(call.auth, sender, each, conversation_id) for each in signals]
        data = {**result.data, SIGNALS_KEY: msgspec.to_builtins(outcomes)}
        return add_notes(replace(result, data=data), tuple(map(describe_outcome, outcomes)))

    async def _try_send(
        self, principal: Principal, sender: str, signal: AgentSignal, conversation_id: str | None
    ) -> SignalOutcome:
        """A signal that cannot be delivered does not spoil the answer that came with it."""
        try:
            return await self.send(principal, sender, signal, conversation_id)
        except FabricError as error:
            _log.info("a signal of agent %s was not delivered: %s", sender, error.message)
            return _refuse(signal, sender, error.message)

    async def send(
        self, principal: Principal, sender: str, signal: AgentSignal, conversation_id: str | None
    ) -> SignalOutcome:
        """Deliver a signal. The caller of this method has checked that the principal may speak for the sender.

        Raises Forbidden, RateLimited, StoreError.
        """
        signal = replace(signal, signal_id=signal.signal_id or new_ordered_id("sig_"), sender=sender)
        reason = self._find_refusal(principal, sender, signal)
        if reason is not None:
            return _refuse(signal, sender, reason)
        status: SignalStatus = "noted"
        if signal.to is not None:
            await self._deliver(principal, sender, signal)
            status = "delivered"
        if conversation_id is not None and signal.type in ("handoff_suggestion", "escalate"):
            target = signal.to if signal.type == "handoff_suggestion" else None
            await self._move(principal, sender, signal, conversation_id, target)
            status = "handed_over" if target is not None else "given_back"
        return SignalOutcome(
            signal_id=str(signal.signal_id),
            type=signal.type,
            sender=sender,
            to=signal.to,
            status=status,
            reason=signal.reason,
        )

    def _find_refusal(self, principal: Principal, sender: str, signal: AgentSignal) -> str | None:
        is_handoff = signal.type == "handoff_suggestion"
        if signal.to is None:
            return "a hand-over names the agent (`to`)" if is_handoff else None
        target, caller = self._registry.get_for(principal, signal.to), self._registry.catalog.get(sender)
        if target is None or target.is_tool:  # also one that the caller may not know
            return f"there is no agent '{signal.to}'"
        if caller is None:
            return f"there is no agent '{sender}'"
        return find_refusal_of_delegation(caller, target, is_declared=is_handoff)

    async def _deliver(self, principal: Principal, sender: str, signal: AgentSignal) -> None:
        sent = replace(signal, timestamp=format_timestamp(self._clock()))
        draft = InboxDraft(
            parts=(Part(kind="json", data=msgspec.to_builtins(sent)),),
            metadata={MESSAGE_TYPE: signal.type},
            sender=Party(id=sender),
        )
        await self._inboxes.send_from_agent(principal, Party(id=str(signal.to)), draft)

    async def _move(
        self, principal: Principal, sender: str, signal: AgentSignal, conversation_id: str, target: str | None
    ) -> None:
        text = f"{_describe_move(sender, target, signal.reason)}."
        await self._messages.record(
            principal,
            conversation_id,
            sender=Party(id=sender),
            parts=(Part(kind="text", text=text),),
            metadata={TALKS_TO: target, MESSAGE_TYPE: signal.type},
        )


def describe_outcome(outcome: SignalOutcome) -> str:
    """A note for a person: one sentence without its full stop."""
    sender, to = outcome.sender, outcome.to
    if outcome.status == "refused":
        return f"'{sender}' sent the signal {outcome.type}, which was refused: {outcome.reason}"
    if outcome.status == "handed_over":
        move = _describe_move(sender, to, outcome.reason)
        return f'{move}; say "switch back" to let your words choose again'
    if outcome.status == "given_back":
        return _describe_move(sender, None, outcome.reason)
    receiver = "" if to is None else f" to '{to}'"
    return f"'{sender}' sent the signal {outcome.type}{receiver}{_add_reason(outcome.reason)}"


def _describe_move(sender: str, target: str | None, reason: str) -> str:
    if target is None:
        return f"'{sender}' gives this conversation back{_add_reason(reason)}"
    return f"'{sender}' hands this conversation over to '{target}'{_add_reason(reason)}"


def _add_reason(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _refuse(signal: AgentSignal, sender: str, reason: str) -> SignalOutcome:
    return SignalOutcome(
        signal_id=signal.signal_id or new_ordered_id("sig_"),
        type=signal.type,
        sender=sender,
        to=signal.to,
        status="refused",
        reason=reason,
    )
