"""The last handler of the waist: ask the candidates of the plan in turn, until one answers.

Each attempt gets what is left of the time (only a share of it while others may
still be asked). A result that did not come from the agent asked for says so; when
all fail, the error names every hop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call, Input, ResponseForm, Target
from a2a_fabric.core.errors import AllAttemptsFailed, FabricError
from a2a_fabric.core.events import Event, status
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Fallback, Result
from a2a_fabric.core.routing import Candidate, Plan, RoutingPolicy, Wish, may_move_on


class HealthReports(Protocol):
    """Who listens to how attempts went."""

    def succeeded(self, agent_id: str, latency: float) -> None: ...

    def failed(self, agent_id: str, error: FabricError) -> None: ...


class Route:
    """Plans, attempts, falls back."""

    def __init__(
        self,
        plan: Callable[[Wish], Plan],
        handler_of: Callable[[Manifest], Handler],
        health: HealthReports,
        policy: RoutingPolicy,
    ) -> None:
        self._plan = plan
        self._handler_of = handler_of
        self._health = health
        self._policy = policy

    async def __call__(self, call: Call, emit: Emit) -> Result:
        target = call.target
        wish = Wish(
            agent_id=target.agent_id, capability=target.capability, principal=call.auth, stream=call.response.stream
        )
        plan = self._plan(wish)
        hops = [f"{plan.agent_id}: capability_not_found"] if plan.skipped else []
        ends_at = time.monotonic() + target.timeout_ms / 1000
        watched = _Watched(emit) if len(plan.candidates) > 1 else None
        last = len(plan.candidates) - 1
        if call.response.stream:
            await emit(status("running", agent_id=plan.candidates[0].manifest.agent_id))
        for number, candidate in enumerate(plan.candidates):
            try:
                result = await self._attempt(call, candidate, watched or emit, ends_at, is_last=number == last)
            except FabricError as error:
                hops.append(f"{candidate.manifest.place}: {error.reason}")
                has_streamed = watched is not None and watched.has_streamed
                is_over = number == last or time.monotonic() >= ends_at
                may_go_on = may_move_on(error, candidate.capability, has_streamed=has_streamed)
                if is_over or not may_go_on:
                    _explain(error, plan, candidate, hops)
                    if may_go_on and len(hops) > 1:
                        raise AllAttemptsFailed(
                            plan.agent_id, _primary_first(plan, hops), capability=plan.capability
                        ) from error
                    raise  # not `from error`: a cause of itself would keep the whole call alive
                await _announce(plan.candidates[number + 1], hops[-1], emit, call, has_streamed=has_streamed)
            else:
                return _with_fallback(result, plan, candidate, hops, call)
        raise AssertionError("a plan has at least one candidate")

    async def _attempt(self, call: Call, candidate: Candidate, emit: Emit, ends_at: float, *, is_last: bool) -> Result:
        started = time.monotonic()
        manifest = candidate.manifest
        try:
            handler = self._handler_of(manifest)
            result = await handler(self._request(call, candidate, ends_at - started, is_last=is_last), emit)
        except FabricError as error:
            self._health.failed(manifest.agent_id, error)
            raise
        self._health.succeeded(manifest.agent_id, time.monotonic() - started)
        return result

    def _request(self, call: Call, candidate: Candidate, remaining: float, *, is_last: bool) -> Call:
        time_ms = remaining * 1000 if is_last else remaining * 1000 * self._policy.attempt_share
        capability = candidate.capability
        most = capability.max_timeout_ms if capability is not None else None
        if most is not None and most < time_ms:
            time_ms = most
        name = capability.name if capability is not None else call.target.capability
        form = call.response
        if form.stream != candidate.stream:
            form = ResponseForm(stream=candidate.stream, format=form.format)
        whole_ms = int(time_ms) if time_ms > 1 else 1
        target = Target(agent_id=candidate.manifest.agent_id, capability=name, timeout_ms=whole_ms)
        given = call.input
        bound = Input(
            task=given.task,
            context=given.context,
            attachments=given.attachments,
            arguments=arguments_for(capability, given),
        )
        return Call(trace=call.trace, auth=call.auth, target=target, input=bound, response=form)


class _Watched:
    """An emitter that remembers whether words of an answer have gone out."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.has_streamed = False

    async def __call__(self, event: Event) -> None:
        if event.kind in ("token", "artifact"):
            self.has_streamed = True
        await self._emit(event)


def _explain(error: FabricError, plan: Plan, candidate: Candidate, hops: list[str]) -> None:
    """Who failed at what; and, if this failure forbade asking anybody else, who was asked before."""
    error.details.setdefault("agent_id", candidate.manifest.agent_id)
    error.details.setdefault("capability", plan.capability)
    if len(hops) > 1:
        error.details["attempts"] = list(hops)


def _primary_first(plan: Plan, hops: list[str]) -> list[str]:
    """The agent that was asked for leads, though it was asked last (or never) because it is known to be offline."""
    place = next((c.manifest.place for c in plan.candidates if c.tier == "primary"), plan.agent_id)
    rest = list(hops)
    own = next((hop for hop in hops if hop.startswith(f"{place}: ")), None)
    if own is not None:
        rest.remove(own)
    return [own or f"{place}: offline", *rest]


async def _announce(following: Candidate, hop: str, emit: Emit, call: Call, *, has_streamed: bool) -> None:
    """Tell a listening caller that somebody else goes on; `reset` means: forget the words so far."""
    if call.response.stream:
        more = {"reset": True} if has_streamed else {}
        message = f"{hop}; trying {following.manifest.place} ({following.reason})"
        await emit(status("running", message, fallback=following.manifest.agent_id, **more))


def _with_fallback(result: Result, plan: Plan, candidate: Candidate, hops: list[str], call: Call) -> Result:
    used = candidate.manifest.agent_id
    degraded = (
        "non-streaming" if call.response.stream and not candidate.stream and candidate.tier != "primary" else None
    )
    if used == plan.agent_id and not hops and degraded is None:
        return result
    reason = hops[-1].rpartition(": ")[2] if hops else f"{plan.agent_id} is offline"
    fallback = Fallback(
        requested=plan.agent_id,
        used=used,
        reason=reason,
        attempts=(*hops, f"{candidate.manifest.place}: ok"),
        degraded=degraded,
    )
    return Result(data=result.data, parts=result.parts, fallback=fallback)
