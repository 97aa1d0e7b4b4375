"""primes, an agent over gRPC (where grpcio is installed): takes numbers apart into their prime factors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from a2a_fabric.runtimes.proto.messages import (
    CallRequest,
    Capability,
    DescribeRequest,
    Description,
    Error,
    Event,
    HealthReply,
    HealthRequest,
    Outcome,
    Result,
    StreamItem,
)
from a2a_fabric.runtimes.proto.service import handlers

_MOST = 10**12
_SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 2, "maximum": _MOST}},
    "required": ["number"],
}
_STOP_SECONDS = 1.0


def factors(number: int) -> Iterator[int]:
    """The smallest first."""
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1 if divisor == 2 else 2
    if number > 1:
        yield number


class Primes:
    async def describe(self, request: DescribeRequest, context: Any) -> Description:
        factor = Capability(
            name="factor",
            description="The prime factors of a number.",
            input_schema_json=json.dumps(_SCHEMA),
            streaming=True,
            idempotent=True,
        )
        about = "Takes numbers apart into their prime factors."
        return Description(agent_id="primes", description=about, version="1.0.0", capabilities=[factor])

    async def health(self, request: HealthRequest, context: Any) -> HealthReply:
        return HealthReply(status="online")

    async def call(self, request: CallRequest, context: Any) -> Outcome:
        if request.target.capability != "factor":
            return _failed("CAPABILITY_NOT_FOUND", "Only 'factor' is offered")
        number = _number_of(request)
        if number is None:
            return _failed("BAD_INPUT", f"Send a whole number from 2 to {_MOST}")
        found = await asyncio.to_thread(lambda: list(factors(number)))
        answer = {"answer": f"{number} = {' × '.join(map(str, found))}", "factors": found}
        return Outcome(result=Result(data_json=json.dumps(answer)))

    async def stream(self, request: CallRequest, context: Any) -> AsyncIterator[StreamItem]:
        outcome = await self.call(request, context)
        if outcome.HasField("result"):
            words = json.loads(outcome.result.data_json)["answer"]
            yield StreamItem(event=Event(kind="token", data_json=json.dumps({"text": words})))
        yield StreamItem(outcome=outcome)


def _number_of(request: CallRequest) -> int | None:
    given = json.loads(request.input.arguments_json or "{}").get("number")
    return given if isinstance(given, int) and 2 <= given <= _MOST else None


def _failed(code: str, message: str) -> Outcome:
    return Outcome(error=Error(code=code, message=message))


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(Primes()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(_STOP_SECONDS)
