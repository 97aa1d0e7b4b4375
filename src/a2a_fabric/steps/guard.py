"""The step *guard*: runs the operator's guards on the arguments of a call and on its result.

Pieces of an answer (`token`, `artifact` and `tool_call` events) are not sent while a guard is to see the result: a
secret that is split over two of them would pass. The result, which holds the whole answer, is checked and sent. Other
events carry whole messages and are checked one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Call, Emit, Handler, Step, add_notes
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.guards import (
    CallGuard,
    GuardRequest,
    GuardSettings,
    GuardVerdict,
    Phase,
    read_arguments,
    read_result,
    replace_arguments,
    replace_result,
)
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.view import compile_patterns

_PIECES = frozenset({"token", "artifact", "tool_call"})
_log = logging.getLogger(__name__)


class ActiveGuard:
    """One guard with its settings."""

    def __init__(self, settings: GuardSettings, guard: CallGuard) -> None:
        self.name = settings.name
        self.phases = settings.phases
        self._settings = settings
        self._guard = guard
        self._agents = None if settings.agents is None else compile_patterns(settings.agents)

    def concerns(self, agent_id: str) -> bool:
        return self._agents is None or self._agents.fullmatch(agent_id) is not None

    async def check(self, call: Call, phase: Phase, payload: dict[str, Any]) -> GuardVerdict:
        """Raises Forbidden if the guard fails and is set to refuse then."""
        request = GuardRequest(
            phase=phase,
            agent_id=call.target.agent_id,
            capability=call.target.capability,
            principal_id=call.auth.principal_id,
            trace_id=call.trace.trace_id,
            payload=payload,
        )
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                return await self._guard(request)
        except Exception as exc:
            why = "took too long" if isinstance(exc, TimeoutError) else f"failed: {type(exc).__name__}: {exc}"
            _log.warning("guard %s %s (%s of agent %s)", self.name, why[:500], phase, call.target.agent_id)
            if self._settings.on_failure == "allow":
                return GuardVerdict()
            raise self.refuse(phase, "it could not be checked. Try again later") from exc

    async def aclose(self) -> None:
        """A guard may have an `aclose` of its own."""
        close = getattr(self._guard, "aclose", None)
        if close is not None:
            await close()

    def refuse(self, phase: Phase, reason: str) -> Forbidden:
        what = "The call was refused" if phase == "arguments" else "The result was withheld"
        return Forbidden(f"{what} by guard '{self.name}': {reason}", guard=self.name, phase=phase)


def guard_calls(guards: Sequence[ActiveGuard]) -> Step:
    """Each guard sees what the one before it left."""

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            concerned = [guard for guard in guards if guard.concerns(call.target.agent_id)]
            if not concerned:
                return await inner(call, emit)
            before = [guard for guard in concerned if "arguments" in guard.phases]
            after = [guard for guard in concerned if "result" in guard.phases]
            payload, notes = await _run(before, call, "arguments", read_arguments(call)) if before else (None, [])
            checked = call if payload is None else _rebuild(before, call, payload)
            result = await inner(checked, _guard_events(after, call, emit) if after else emit)
            if after:
                reply, more_notes = await _run(after, call, "result", read_result(result))
                notes += more_notes
                if reply is not None:
                    result = _rebuild_result(after, result, reply)
            return add_notes(result, notes)

        return handle

    return step


async def _run(
    guards: Sequence[ActiveGuard], call: Call, phase: Phase, payload: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[str]]:
    """The payload to go on with, None if none was replaced, and notes for the caller. Raises Forbidden."""
    replaced, notes = None, list[str]()
    for guard in guards:
        verdict = await guard.check(call, phase, payload)
        if verdict.action == "refuse":
            raise guard.refuse(phase, verdict.reason or "it is not allowed here")
        if verdict.action == "replace" and verdict.payload is not None:
            payload = replaced = verdict.payload
            notes.append(f"Guard '{guard.name}' changed the {phase}{f': {verdict.reason}' if verdict.reason else ''}")
    return replaced, notes


def _rebuild(guards: Sequence[ActiveGuard], call: Call, payload: dict[str, Any]) -> Call:
    try:
        return replace_arguments(call, payload)
    except msgspec.ValidationError as exc:
        raise guards[-1].refuse("arguments", "what it returned is not a call") from exc


def _rebuild_result(guards: Sequence[ActiveGuard], result: Result, payload: dict[str, Any]) -> Result:
    try:
        return replace_result(result, payload)
    except msgspec.ValidationError as exc:
        raise guards[-1].refuse("result", "what it returned is not a result") from exc


def _guard_events(guards: Sequence[ActiveGuard], call: Call, emit: Emit) -> Callable[[Event], Awaitable[None]]:
    async def forward(event: Event) -> None:
        if event.kind in _PIECES:
            return
        payload, _ = await _run(guards, call, "result", {"data": event.data})
        if payload is not None:
            event = msgspec.structs.replace(event, data=payload.get("data", {}))
        await emit(event)

    return forward
