"""Validates the arguments of calls against the input schemas of capabilities, before any agent is asked.

Routing calls it with what it has found. Most arguments are checked at once; arguments that may take long are checked in
another process, so that they hold up no other call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call, owner_from_principal
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import BadInput, RateLimited
from a2a_fabric.schemas.validators import ArgumentCheck, compile_input_schema

_PROCESS_TIMEOUT = 10.0  # seconds that a process has for the arguments of one call
_MAX_PROCESSES = 2  # processes of the node; a caller gets one
_MAX_WAITING = 16  # calls of one caller
_MAX_COMPILED = 100_000


class ProcessValidator(Protocol):
    """Checks data against a schema in another process, and kills that process on timeout and cancellation.

    Both are JSON. Returns at most one error (`message`, `path`). Raises TimeoutError, and ValueError if the
    process could not check the data.
    """

    def __call__(self, schema: bytes, data: bytes, timeout: float, /) -> Awaitable[Sequence[dict[str, Any]]]: ...


class ArgumentValidator:
    """Arguments that may take long to check go to `process_validator`; without one they are refused."""

    def __init__(self, process_validator: ProcessValidator | None = None) -> None:
        # One compiled schema per capability, by its identity; the entry keeps the capability alive.
        self._compiled: dict[int, tuple[Capability, ArgumentCheck | None]] = {}
        self._process_validator = process_validator
        self._free_processes = asyncio.Semaphore(_MAX_PROCESSES)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # by caller: its lock, and how many hold or await it

    def check(
        self, call: Call, manifest: Manifest, capability: Capability, arguments: dict[str, Any]
    ) -> Awaitable[None] | None:
        """Raises BadInput for arguments that do not match. If the check takes long, returns what has to be awaited."""
        compiled = self._compiled.get(id(capability))
        if compiled is not None and compiled[0] is capability:
            check = compiled[1]
        else:
            check = self._compile(manifest, capability)
        if check is None:
            return None
        try:
            if not check.is_cheap and not check.fits_inline(arguments):
                return self._check_in_process(check, call, capability, arguments)
            if check.validator.is_valid(arguments):
                return None
            error = check.find_error(arguments)
        except (ValueError, RecursionError) as exc:  # nested too deeply for the validator, or a number beyond its range
            raise _unchecked_error(call, capability, f"cannot be checked: {exc}") from exc
        if error is None:
            raise _mismatch_error(call, capability, "they do not match its input schema", ())
        raise _mismatch_error(call, capability, error.message, error.instance_path)

    def _compile(self, manifest: Manifest, capability: Capability) -> ArgumentCheck | None:
        """None if the schema is left to the agent. Raises UpstreamRefused if it cannot be used."""
        if len(self._compiled) >= _MAX_COMPILED:
            self._compiled.clear()
        check = compile_input_schema(manifest, capability)
        self._compiled[id(capability)] = (capability, check)
        return check

    async def _check_in_process(
        self, check: ArgumentCheck, call: Call, capability: Capability, arguments: dict[str, Any]
    ) -> None:
        """Raises BadInput, CallTimeout, and RateLimited if the caller has too many such calls at a time."""
        if self._process_validator is None:
            raise _unchecked_error(call, capability, "are too large to be checked")
        with Deadline(call.target.timeout_ms / 1000):
            async with self._take_turn(owner_from_principal(call.auth)), self._free_processes:
                schema, data = msgspec.json.encode(check.schema), msgspec.json.encode(arguments)
                try:
                    errors = await self._process_validator(schema, data, _PROCESS_TIMEOUT)
                except TimeoutError as exc:
                    problem = f"are too large: checking them took more than {_PROCESS_TIMEOUT:g} s. Send less"
                    raise _unchecked_error(call, capability, problem) from exc
                except ValueError as exc:
                    raise _unchecked_error(call, capability, f"cannot be checked: {exc}") from exc
        for error in errors:
            raise _mismatch_error(call, capability, str(error["message"]), error["path"])

    @asynccontextmanager
    async def _take_turn(self, owner: str) -> AsyncIterator[None]:
        """A caller has one process at a time, so a caller with many large calls delays only itself."""
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
    return BadInput(text, agent_id=call.target.agent_id, capability=capability.name, field=path_text or None)


def _unchecked_error(call: Call, capability: Capability, problem: str) -> BadInput:
    text = f"The arguments for '{capability.name}' {problem}"[:300]
    return BadInput(text, agent_id=call.target.agent_id, capability=capability.name)
