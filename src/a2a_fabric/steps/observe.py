"""Step: writes one log line and one metrics update per call, and runs the call under its own trace."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.redaction import reveal_to_operator
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import current_trace


class Observer(Protocol):
    """Records how calls end."""

    def record_success(self, call: Call, result: Result, seconds: float) -> None: ...

    def record_failure(self, call: Call, code: str, message: str, seconds: float) -> None:
        """`code` is CANCELLED when the caller left."""
        ...


def observe(observer: Observer) -> Step:
    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            started = time.perf_counter()
            token = current_trace.set(call.trace)
            try:
                result = await inner(call, emit)
            except BaseException as exc:
                code, message = _describe_failure(exc)
                observer.record_failure(call, code, message, time.perf_counter() - started)
                if isinstance(exc, FabricError):
                    reveal_to_operator(exc, call.auth)
                raise
            finally:
                current_trace.reset(token)
            observer.record_success(call, result, time.perf_counter() - started)
            return result

        return handle

    return step


def _describe_failure(exc: BaseException) -> tuple[str, str]:
    if isinstance(exc, FabricError):
        exc.is_logged = True
        return exc.code, exc.full_message
    if isinstance(exc, asyncio.CancelledError):
        return "CANCELLED", "the caller left"
    return "INTERNAL_ERROR", "see the traceback under this trace id"
