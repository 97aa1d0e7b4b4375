"""Guards: checks of the operator on what goes to an agent and what comes back. A guard lets it pass, refuses it, or
returns it with parts redacted.

A guard sees a payload, as plain JSON: the arguments of a call or its result (`steps.guard`), what is asked of a prompt
or a resource and the answer, or a message for an inbox. `Guards` runs those that concern an agent in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import AgentError, FabricError, Forbidden
from a2a_fabric.core.result import Event
from a2a_fabric.core.view import compile_patterns

Phase = Literal["arguments", "result"]


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One guard. Guards run in the order of the list."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64, description="The guard's name in refusals and logs."
        ),
    ]
    kind: Annotated[
        str,
        Meta(
            min_length=1,
            description="`secrets` (built in), `http` (your address decides), a plug-in's name, or MODULE:FUNCTION.",
        ),
    ]
    phases: Annotated[
        tuple[Phase, ...], Meta(min_length=1, description="What it sees: `arguments` of calls, `result`s, or both.")
    ] = ("arguments", "result")
    agents: Annotated[
        tuple[str, ...] | None, Meta(description="Only calls to these agents and tools; `*` and `?`. Unset: all.")
    ] = None
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000, description="How long it may take for each check.")] = 2000
    on_failure: Annotated[
        Literal["refuse", "allow"],
        Meta(description="What happens if it fails or takes too long: the call is refused, or goes on unchecked."),
    ] = "refuse"
    options: Annotated[dict[str, Any], Meta(description="The guard's own settings.")] = {}


class GuardRequest(msgspec.Struct, frozen=True, kw_only=True):
    phase: Phase
    agent_id: str
    capability: str
    principal_id: str | None
    trace_id: str
    payload: dict[str, Any]


class GuardVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`replace` brings the payload to go on with; `reason` is for the caller, so it must not repeat what was found."""

    action: Literal["allow", "refuse", "replace"] = "allow"
    payload: dict[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=500)] = ""


class CallGuard(Protocol):
    """Called for every call that it concerns; cancelled when its time is over. What it raises counts as a failure."""

    async def __call__(self, request: GuardRequest, /) -> GuardVerdict: ...


class GuardSubject(NamedTuple):
    """What a check is about: the agent and what is wanted of it, who wants it, and the trace."""

    agent_id: str
    capability: str
    principal_id: str | None
    trace_id: str


class CheckedPayload(NamedTuple):
    """`payload` is None if no guard replaced it. `notes` say what was changed, for the caller."""

    payload: dict[str, Any] | None
    notes: list[str]


_PIECES = frozenset({"token", "artifact", "tool_call"})  # of an answer; a secret may be split over two of them
_UNCHANGED = CheckedPayload(None, [])
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

    async def check(self, subject: GuardSubject, phase: Phase, payload: dict[str, Any]) -> GuardVerdict:
        """Raises Forbidden if the guard fails and is set to refuse then."""
        request = GuardRequest(phase=phase, payload=payload, **subject._asdict())
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                verdict = await self._guard(request)
            if verdict.action == "replace" and verdict.payload is None:
                raise ValueError("the verdict `replace` needs a payload")
            return verdict
        except Exception as exc:
            why = "took too long" if isinstance(exc, TimeoutError) else f"failed: {type(exc).__name__}: {exc}"
            _log.warning("guard %s %s (%s of agent %s)", self.name, why[:500], phase, subject.agent_id)
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


class Guards:
    """The guards of a node, in the order in which they run."""

    def __init__(self, guards: Sequence[ActiveGuard] = ()) -> None:
        self._guards = tuple(guards)

    def __bool__(self) -> bool:
        return bool(self._guards)

    def concern(self, agent_id: str) -> bool:
        """Whether one of them has to see what goes to the agent or comes back."""
        return any(guard.concerns(agent_id) for guard in self._guards)

    def select(self, agent_ids: Iterable[str], phase: Phase) -> list[ActiveGuard]:
        """Those that have to see what goes to one of these agents, or comes back."""
        ids = tuple(agent_ids)
        return [guard for guard in self._guards if phase in guard.phases and any(map(guard.concerns, ids))]

    async def check(self, subject: GuardSubject, phase: Phase, payload: dict[str, Any]) -> CheckedPayload:
        """Raises Forbidden."""
        selected = self.select((subject.agent_id,), phase)
        return await run_guards(selected, subject, phase, payload) if selected else _UNCHANGED

    async def check_object(
        self, subject: GuardSubject, phase: Phase, field: str, content: dict[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """The content to go on with, which guards see under this field, and notes. Raises Forbidden."""
        checked = await self.check(subject, phase, {field: content})
        if checked.payload is None:
            return content, checked.notes
        changed = checked.payload.get(field)
        if not isinstance(changed, dict):
            guard = self.select((subject.agent_id,), phase)[-1]
            raise guard.refuse(phase, f"what it returned has no object `{field}`")
        return changed, checked.notes

    async def aclose(self) -> None:
        for guard in reversed(self._guards):
            await guard.aclose()


async def run_guards(
    guards: Sequence[ActiveGuard], subject: GuardSubject, phase: Phase, payload: dict[str, Any]
) -> CheckedPayload:
    """Each guard sees what the one before it left. Raises Forbidden."""
    replaced, notes = None, list[str]()
    for guard in guards:
        verdict = await guard.check(subject, phase, payload)
        if verdict.action == "refuse":
            raise guard.refuse(phase, verdict.reason or "it is not allowed here")
        if verdict.action == "replace" and verdict.payload is not None:
            payload = replaced = verdict.payload
            notes.append(f"Guard '{guard.name}' changed the {phase}{f': {verdict.reason}' if verdict.reason else ''}")
    return CheckedPayload(replaced, notes)


def guard_events(
    guards: Sequence[ActiveGuard], subject: GuardSubject, emit: Emit
) -> Callable[[Event], Awaitable[None]]:
    """`emit` for events that carry whole messages; the others (`_PIECES`) are dropped."""

    async def forward(event: Event) -> None:
        if event.kind in _PIECES:
            return
        checked = await run_guards(guards, subject, "result", {"data": event.data})
        if checked.payload is not None:
            event = replace(event, data=checked.payload.get("data", {}))
        await emit(event)

    return forward


async def guard_error(guards: Sequence[ActiveGuard], subject: GuardSubject, error: FabricError) -> None:
    """The text of an agent's error is an answer, too; it is changed in place. Raises Forbidden if one refuses it."""
    if not isinstance(error, AgentError) and not error.is_answer:
        return
    payload = {"error": error.message, "details": error.details}
    checked = await run_guards(guards, subject, "result", payload)
    if checked.payload is None:
        return
    message, details = checked.payload.get("error"), checked.payload.get("details", {})
    if not isinstance(message, str) or not isinstance(details, dict):
        raise guards[-1].refuse("result", "what it returned is not an error") from error
    error.message, error.details, error.private, error.args = message, details, None, (message,)
