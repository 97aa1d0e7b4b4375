"""Step: validates the arguments against the capability's input schema before the agent is called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call, owner_from_principal
from a2a_fabric.core.content import bind_arguments, check_attachments
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import BadInput, RateLimited
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result
from a2a_fabric.schemas.validators import ArgumentCheck, ArgumentChecks

_PROCESS_TIMEOUT = 10.0  # seconds of a process for one call's arguments
_MAX_PROCESSES = 2  # processes of the node; a caller gets one
_MAX_WAITING = 16  # calls of one caller


class ProcessValidator(Protocol):
    """Checks data against a schema in another process, and kills that process when time is up or nobody waits.

    Both are JSON. Returns at most one error (`message`, `path`). Raises TimeoutError, and ValueError if the
    process could not check the data.
    """

    def __call__(self, schema: bytes, data: bytes, timeout: float, /) -> Awaitable[Sequence[dict[str, Any]]]: ...


def validate(find_agent: Callable[[str], Manifest | None], process_validator: ProcessValidator | None = None) -> Step:
    """Arguments that may take long to check go to `beside`; without one they are refused."""
    checks = ArgumentChecks()
    processes = _ValidationProcesses(process_validator)

    def step(inner: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # a check alone needs no coroutine of its own
            if call.input.attachments:
                check_attachments(call.input)
            manifest = find_agent(call.target.agent_id)
            if manifest is None:
                return inner(call, emit)
            capability = manifest.find_capability(call.target.capability)
            if capability is not None and capability.input_schema:
                check = checks.get_check(manifest, capability)
                if check is not None and not _try_check_inline(check, call, capability):
                    return _check_in_process(processes, check, capability, inner, call, emit)
            return inner(call, emit)

        return handle

    return step


def _try_check_inline(check: ArgumentCheck, call: Call, capability: Capability) -> bool:
    """False if the arguments have to be checked elsewhere. Raises BadInput for arguments that do not fit."""
    arguments = bind_arguments(capability, call.input)
    try:
        if not check.is_cheap and not check.fits_inline(arguments):
            return False
        if check.validator.is_valid(arguments):
            return True
        error = check.find_error(arguments)
    except (ValueError, RecursionError) as exc:  # the validator looks only so far down, or a number is none it can hold
        raise _bad_arguments_error(
            call, capability, f"The arguments for '{capability.name}' cannot be checked: {exc}"[:300]
        ) from exc
    if error is None:
        raise _mismatch_error(call, capability, "they do not fit its input schema", ())
    raise _mismatch_error(call, capability, error.message, error.instance_path)


async def _check_in_process(
    processes: _ValidationProcesses,
    check: ArgumentCheck,
    capability: Capability,
    inner: Handler,
    call: Call,
    emit: Emit,
) -> Result:
    """Within the call's own time, which the agent's work does not get back."""
    with Deadline(call.target.timeout_ms / 1000):
        await processes.check(check, call, capability)
    return await inner(call, emit)


class _ValidationProcesses:
    """Takes turns: a caller has one process at a time, so callers with large arguments wait for themselves first."""

    def __init__(self, process_validator: ProcessValidator | None) -> None:
        self._process_validator = process_validator
        self._free = asyncio.Semaphore(_MAX_PROCESSES)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # by caller; how many hold it or wait for it

    async def check(self, check: ArgumentCheck, call: Call, capability: Capability) -> None:
        """Raises BadInput, and RateLimited if the caller has too many such calls at once."""
        if self._process_validator is None:
            raise _bad_arguments_error(
                call, capability, f"The arguments for '{capability.name}' are too large to be checked"
            )
        async with self._take_turn(owner_from_principal(call.auth)), self._free:
            arguments = msgspec.json.encode(bind_arguments(capability, call.input))
            try:
                errors = await self._process_validator(msgspec.json.encode(check.schema), arguments, _PROCESS_TIMEOUT)
            except TimeoutError as exc:
                problem = f"are too large for its input schema: checking them took more than {_PROCESS_TIMEOUT:g} s. Send less"
                raise _bad_arguments_error(
                    call, capability, f"The arguments for '{capability.name}' {problem}"
                ) from exc
            except ValueError as exc:
                problem = f"cannot be checked: {exc}"[:300]
                raise _bad_arguments_error(
                    call, capability, f"The arguments for '{capability.name}' {problem}"
                ) from exc
        for error in errors:
            raise _mismatch_error(call, capability, str(error["message"]), error["path"])

    @asynccontextmanager
    async def _take_turn(self, owner: str) -> AsyncIterator[None]:
        lock, waiting = self._turns.get(owner) or (asyncio.Lock(), 0)
        if waiting >= _MAX_WAITING:
            raise RateLimited(f"{waiting} calls of this caller with large arguments are being checked already", 1.0)
        self._turns[owner] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[owner]
            if waiting == 1:
                del self._turns[owner]
            else:
                self._turns[owner] = (lock, waiting - 1)


def _mismatch_error(call: Call, capability: Capability, message: str, path: Sequence[str | int]) -> BadInput:
    path_text = ".".join(str(step) for step in path)
    text = f"Bad arguments for '{capability.name}': {path_text + ': ' if path_text else ''}{message[:300]}"
    return _bad_arguments_error(call, capability, text, path_text or None)


def _bad_arguments_error(call: Call, capability: Capability, message: str, field: str | None = None) -> BadInput:
    return BadInput(message, agent_id=call.target.agent_id, capability=capability.name, field=field)
