"""Step: only callers whom policy lets through reach the agent they asked for, and no call goes round in circles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import Delegations
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.policy import refusal, refusal_of_unknown
from a2a_fabric.core.result import Result


def authorize(find: Callable[[str], Manifest | None], delegations: Delegations | None = None) -> Step:
    delegations = delegations or Delegations()

    def step(inner: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # a check alone needs no coroutine of its own
            target = call.target
            manifest = find(target.agent_id)
            if call.delegation_chain:
                delegations.check(call.delegation_chain, None if manifest is None else manifest.agent_id)
            if manifest is not None:
                why = refusal(call.auth, manifest, target.capability)
            else:
                why = refusal_of_unknown(call.auth, target.agent_id, target.capability)
            if why is not None:
                raise Forbidden(
                    f"Refused by policy: {why}", agent_id=target.agent_id[:128], capability=target.capability[:128]
                )
            return inner(call, emit)

        return handle

    return step
