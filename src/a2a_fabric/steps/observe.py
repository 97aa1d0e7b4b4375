"""Step: every call leaves one log line and one metrics update, and runs under its own trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import current_trace


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. `code` is None when it went well, CANCELLED when the caller left."""

    call: Call
    manifest: Manifest | None
    seconds: float
    code: str | None = None
    message: str | None = None
    result: Result | None = None


class Observer(Protocol):
    def __call__(self, outcome: Outcome) -> None: ...


def observe(find: Callable[[str], Manifest | None], observer: Observer) -> Step:
    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            started = time.perf_counter()
            token = current_trace.set(call.trace)
            code = message = result = None
            try:
                result = await inner(call, emit)
                return result
            except FabricError as error:
                code, message = error.code, error.message
                error.observed = True
                raise
            except asyncio.CancelledError:
                code, message = "CANCELLED", "the caller left"
                raise
            except BaseException:
                code, message = "INTERNAL_ERROR", "see the traceback under this trace id"
                raise
            finally:
                current_trace.reset(token)
                observer(
                    Outcome(
                        call=call,
                        manifest=find(call.target.agent_id),
                        seconds=time.perf_counter() - started,
                        code=code,
                        message=message,
                        result=result,
                    )
                )

        return handle

    return step
