"""The last handler of the waist: ask the candidates of the plan in turn, until one answers.

Each attempt gets what is left of the time (only a share of it while others may
still be asked). A result that did not come from the agent asked for says so; when
all fail, the error names every hop. How many attempts there may be in all is the
matter of `steps.retries`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call, Input, ResponseForm, Target
from a2a_fabric.core.delegation import Delegations
from a2a_fabric.core.errors import AllAttemptsFailed, BadInput, CallTimeout, FabricError
from a2a_fabric.core.events import Event, status
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.question import Answers, Questions
from a2a_fabric.core.result import Fallback, Result, asking
from a2a_fabric.core.routing import (
    Candidate,
    Plan,
    Planning,
    RoutingPolicy,
    may_move_on,
    needs_share,
    only,
    share_load,
)
from a2a_fabric.steps.retries import Retries, say_exhausted


class HealthReports(Protocol):
    """Who listens to how attempts went."""

    def succeeded(self, agent_id: str, latency: float) -> None: ...

    def failed(self, agent_id: str, error: FabricError) -> None: ...


class Route:
    """Plans, attempts, falls back."""

    def __init__(
        self,
        plan: Planning,
        handler_of: Callable[[Manifest], Handler],
        health: HealthReports,
        policy: RoutingPolicy,
        delegations: Delegations | None = None,
        retries: Retries | None = None,
        busy: Callable[[str], int] = lambda agent_id: 0,
        fell_back: Callable[[str, str, str], None] = lambda requested, used, reason: None,
    ) -> None:
        self._plan = plan
        self._handler_of = handler_of
        self._health = health
        self._policy = policy
        self._retries = retries or Retries(policy.retries)
        self._busy = busy  # how many calls an agent is working on
        self._fell_back = fell_back  # hears of each answer by another agent than the one asked for
        self._delegations = delegations or Delegations()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        target = call.target
        plan = self._plan(target.agent_id, target.capability, call.auth, call.response.stream, call.any_agent is True)
        if call.answers:
            plan, call = _resumed(plan, call, call.answers)
        elif plan.replicas:
            plan = share_load(plan, self._busy, _conversation_key(call))
        hops = [f"{plan.agent_id}: capability_not_found"] if plan.skipped else []
        ends_at = time.monotonic() + target.timeout_ms / 1000
        last = len(plan.candidates) - 1
        watched = None
        if last:
            watched = _Watched(emit)
            self._retries.count(plan.agent_id)
        if call.response.stream:
            await emit(status("running", agent_id=plan.candidates[0].manifest.agent_id))
        for number, candidate in enumerate(plan.candidates):
            agent_id = candidate.manifest.agent_id
            started = time.monotonic()
            try:
                handler = self._handler_of(candidate.manifest)
                timeout = ends_at - started
                if last and needs_share(plan, number):
                    timeout *= self._policy.attempt_share
                request = self._request(call, candidate, timeout)
                result = await handler(request, watched or emit)
            except FabricError as error:
                self._health.failed(agent_id, error)
                hops.append(f"{candidate.manifest.place}: {error.reason}")
                has_streamed = watched is not None and watched.has_streamed
                is_over = number == last or time.monotonic() >= ends_at
                may_go_on = may_move_on(error, candidate.capability, has_streamed=has_streamed)
                if may_go_on and not is_over and not self._retries.allow(plan.agent_id, error):
                    say_exhausted(error, plan.agent_id)
                    may_go_on = False
                if is_over or not may_go_on:
                    _explain(error, plan, candidate, hops)
                    if may_go_on and len(hops) > 1:
                        raise _all_failed(plan, hops, target.timeout_ms / 1000) from error
                    raise  # not `from error`: a cause of itself would keep the whole call alive
                await _announce(plan.candidates[number + 1], hops[-1], emit, call, has_streamed=has_streamed)
            else:
                self._health.succeeded(agent_id, time.monotonic() - started)
                if result.asked is not None:
                    result = await _asked(result.asked, agent_id, emit, call)
                if candidate.tier == "primary" and not hops:
                    return result
                result = _with_fallback(result, plan, candidate, hops, call)
                if result.fallback is not None and result.fallback.used != plan.agent_id:
                    self._fell_back(plan.agent_id, agent_id, _kind_of(result.fallback))
                return result
        raise AssertionError("a plan has at least one candidate")

    def _request(self, call: Call, candidate: Candidate, timeout: float) -> Call:
        time_ms = timeout * 1000
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
        return Call(
            trace=call.trace,
            auth=call.auth,
            target=target,
            input=_bound(call.input, capability),
            response=form,
            answers=call.answers,
            conversation_id=call.conversation_id,
            delegation_chain=self._delegations.extended(call.delegation_chain, candidate.manifest.agent_id),
            on_behalf_of=call.on_behalf_of,
        )


def _bound(given: Input, capability: Capability | None) -> Input:
    """With its arguments, if the catalog knows the schema; else the runtime works them out, which may know more."""
    if capability is None or capability.input_schema is None:
        return given
    return Input(
        task=given.task,
        context=given.context,
        attachments=given.attachments,
        arguments=arguments_for(capability, given),
    )


class _Watched:
    """An emitter that remembers whether words of an answer have gone out."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.has_streamed = False

    async def __call__(self, event: Event) -> None:
        if event.kind in ("token", "artifact"):
            self.has_streamed = True
        await self._emit(event)


def _resumed(plan: Plan, call: Call, answers: Answers) -> tuple[Plan, Call]:
    """An answer goes back to the agent that asked, whoever that was, and to nobody else. Raises BadInput."""
    agent_id, _, rest = answers.continuation.partition(":")
    alone = only(plan, agent_id)
    if alone is None:
        raise BadInput("Nobody waits for an answer with this continuation", field="continuation")
    theirs = Answers(continuation=rest, answers=answers.answers)
    return alone, msgspec.structs.replace(call, answers=theirs)


async def _asked(asked: Questions, agent_id: str, emit: Emit, call: Call) -> Result:
    """The agent's question, with a continuation that says whose it is."""
    result = asking(asked.questions, f"{agent_id}:{asked.continuation}")
    if call.response.stream:
        await emit(Event("input_required", result.data["input_required"]))
    return result


def _explain(error: FabricError, plan: Plan, candidate: Candidate, hops: list[str]) -> None:
    """Who failed at what; and, if this failure forbade asking anybody else, who was asked before."""
    error.details.setdefault("agent_id", candidate.manifest.agent_id)
    error.details.setdefault("capability", plan.capability)
    if len(hops) > 1:
        error.details["attempts"] = list(hops)


def _conversation_key(call: Call) -> str | None:
    """Conversations of different callers are different, though they may have the same id."""
    return f"{owner_of(call.auth)}\0{call.conversation_id}" if call.conversation_id else None


def _all_failed(plan: Plan, hops: list[str], timeout: float) -> FabricError:
    """Every hop is named. If all of them ran out of time, so did the call."""
    first, *rest = _primary_first(plan, hops)
    if all(hop.endswith(": timeout") for hop in hops):
        return CallTimeout(timeout, agent_id=plan.agent_id, capability=plan.capability, primary=first, fallbacks=rest)
    return AllAttemptsFailed(plan.agent_id, [first, *rest], capability=plan.capability)


def _kind_of(fallback: Fallback) -> str:
    """One of a few words, for metrics."""
    return "shared" if fallback.shared is True else fallback.reason.rpartition(" ")[2]


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
    shared = (
        candidate.tier == "pool" and not hops and any(c.tier == "primary" for c in plan.candidates[: plan.replicas])
    )
    if shared:
        reason = f"pool {candidate.manifest.pool} shares the work"
    else:
        reason = hops[-1].rpartition(": ")[2] if hops else f"{plan.agent_id} is {plan.status}"
    fallback = Fallback(
        requested=plan.agent_id,
        used=used,
        reason=reason,
        attempts=(*hops, f"{candidate.manifest.place}: ok"),
        degraded=degraded,
        shared=shared or msgspec.UNSET,
    )
    return msgspec.structs.replace(result, fallback=fallback)
