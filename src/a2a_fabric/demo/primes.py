"""primes, a gRPC agent (if grpcio is installed): finds the prime factors of a number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from a2a_fabric.runtimes.proto import messages as proto
from a2a_fabric.runtimes.proto.service import handlers

_MAX_NUMBER = 10**12
_SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 2, "maximum": _MAX_NUMBER}},
    "required": ["number"],
}
_STOP_SECONDS = 1.0


def find_factors(number: int) -> Iterator[int]:
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
    async def describe(self, request: proto.DescribeRequest, context: Any) -> proto.Description:
        factor = proto.Capability(
            name="factor",
            description="The prime factors of a number.",
            input_schema_json=json.dumps(_SCHEMA),
            streaming=True,
            idempotent=True,
        )
        about = "Finds the prime factors of numbers."
        return proto.Description(agent_id="primes", description=about, version="1.0.0", capabilities=[factor])

    async def health(self, request: proto.HealthRequest, context: Any) -> proto.HealthReply:
        return proto.HealthReply(status="online")

    async def call(self, request: proto.CallRequest, context: Any) -> proto.Outcome:
        if request.target.capability != "factor":
            return _error_outcome("CAPABILITY_NOT_FOUND", "Only 'factor' is offered")
        number = _parse_number(request)
        if number is None:
            return _error_outcome("BAD_INPUT", f"Send a whole number from 2 to {_MAX_NUMBER}")
        prime_factors = await asyncio.to_thread(lambda: list(find_factors(number)))
        answer = {"answer": f"{number} = {' × '.join(map(str, prime_factors))}", "factors": prime_factors}
        return proto.Outcome(result=proto.Result(data_json=json.dumps(answer)))

    async def stream(self, request: proto.CallRequest, context: Any) -> AsyncIterator[proto.StreamItem]:
        outcome = await self.call(request, context)
        if outcome.HasField("result"):
            text = json.loads(outcome.result.data_json)["answer"]
            yield proto.StreamItem(event=proto.Event(kind="token", data_json=json.dumps({"text": text})))
        yield proto.StreamItem(outcome=outcome)


def _parse_number(request: proto.CallRequest) -> int | None:
    number = json.loads(request.input.arguments_json or "{}").get("number")
    return number if isinstance(number, int) and 2 <= number <= _MAX_NUMBER else None


def _error_outcome(code: str, message: str) -> proto.Outcome:
    return proto.Outcome(error=proto.Error(code=code, message=message))


@asynccontextmanager
async def serve() -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(Primes()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(_STOP_SECONDS)
