"""Step: refuses calls that policy does not allow, and calls that went in a circle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import DelegationGuard
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.policy import find_refusal, find_refusal_of_unknown
from a2a_fabric.core.result import Result


def authorize(find_agent: Callable[[str], Manifest | None], delegation_guard: DelegationGuard | None = None) -> Step:
    delegation_guard = delegation_guard or DelegationGuard()

    def step(inner: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # a check alone needs no coroutine of its own
            target = call.target
            manifest = find_agent(target.agent_id)
            if call.delegation_chain:
                delegation_guard.check(call.delegation_chain, None if manifest is None else manifest.agent_id)
            if manifest is not None:
                reason = find_refusal(call.auth, manifest, target.capability)
            else:
                reason = find_refusal_of_unknown(call.auth, target.agent_id, target.capability)
            if reason is not None:
                raise Forbidden(
                    f"Refused by policy: {reason}", agent_id=target.agent_id[:128], capability=target.capability[:128]
                )
            return inner(call, emit)

        return handle

    return step
