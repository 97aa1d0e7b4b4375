"""Step: an attempt ends when its time is up, whatever the agent does."""

from __future__ import annotations

from a2a_fabric.core.call import Call
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result


def deadline(inner: Handler) -> Handler:
    async def handle(call: Call, emit: Emit) -> Result:
        with Deadline(call.target.timeout_ms / 1000):
            return await inner(call, emit)

    return handle
