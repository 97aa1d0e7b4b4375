"""Step: the arguments fit the schema of the capability that was asked for, or the agent never hears of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import jsonschema_rs

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import check_attachments
from a2a_fabric.core.errors import BadInput, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result

_VALIDATORS_KEPT = 100_000
_MASK = "the value"  # what was given never stands in a message: messages are logged, payloads are not


class Validators:
    """One compiled validator per capability; the catalog keeps the capability alive, the entry pins it."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Capability, jsonschema_rs.Validator]] = {}

    def of(self, capability: Capability) -> jsonschema_rs.Validator:
        known = self._compiled.get(id(capability))
        if known is not None and known[0] is capability:
            return known[1]
        if len(self._compiled) >= _VALIDATORS_KEPT:
            self._compiled.clear()
        validator = compile_schema(capability)
        self._compiled[id(capability)] = (capability, validator)
        return validator


def compile_schema(capability: Capability) -> jsonschema_rs.Validator:
    """Raises UpstreamRefused if the agent's own schema is not one, or wants to load something from elsewhere."""
    try:
        return jsonschema_rs.validator_for(capability.input_schema or {}, offline=True, mask=_MASK)
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise UpstreamRefused(f"The input schema of capability '{capability.name}' is not valid: {exc}"[:500]) from exc


def validate(find: Callable[[str], Manifest | None]) -> Step:
    validators = Validators()

    def step(inner: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # a check alone needs no coroutine of its own
            if call.input.attachments:
                check_attachments(call.input)
            manifest = find(call.target.agent_id)
            capability = manifest.capability(call.target.capability) if manifest else None
            if capability is not None and capability.input_schema:
                _check(call, capability, validators.of(capability))
            return inner(call, emit)

        return handle

    return step


def _check(call: Call, capability: Capability, validator: jsonschema_rs.Validator) -> None:
    arguments = arguments_for(capability, call.input)
    try:
        if validator.is_valid(arguments):
            return
        error = next(iter(validator.iter_errors(arguments)))
    except ValueError as exc:  # the validator looks only so far down, or a number is none it can hold
        raise BadInput(
            f"The arguments for '{capability.name}' cannot be checked: {exc}"[:300],
            agent_id=call.target.agent_id,
            capability=capability.name,
        ) from exc
    where = ".".join(str(step) for step in error.instance_path)
    raise BadInput(
        f"Bad arguments for '{capability.name}': {where + ': ' if where else ''}{error.message[:300]}",
        agent_id=call.target.agent_id,
        capability=capability.name,
        field=where or None,
    )
