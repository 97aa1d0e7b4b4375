"""An agent over gRPC, without Fabric's library for agents: only the published `agent.proto` and grpcio.

    pip install 'a2a-fabric[grpc]'
    python examples/grpc_agent.py 50051

    # agents.yaml
    - {agent_id: adder, runtime: grpc, endpoint: {uri: "grpc://127.0.0.1:50051"}}

In other languages compile src/a2a_fabric/runtimes/proto/agent.proto, and implement the service `Agent`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
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

NUMBER = {"type": "integer"}
ADDS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
COUNTS = {"type": "object", "properties": {"to": NUMBER}, "required": ["to"]}


class Adder:
    """Adds, and counts aloud."""

    async def describe(self, request: DescribeRequest, context: grpc.aio.ServicerContext) -> Description:
        return Description(
            agent_id="adder",
            description="Adds, and counts aloud.",
            version="1.0.0",
            capabilities=[
                Capability(name="add", description="The sum.", input_schema_json=json.dumps(ADDS), idempotent=True),
                Capability(name="count", description="1, 2, 3…", input_schema_json=json.dumps(COUNTS), streaming=True),
            ],
        )

    async def health(self, request: HealthRequest, context: grpc.aio.ServicerContext) -> HealthReply:
        return HealthReply(status="online")

    async def call(self, request: CallRequest, context: grpc.aio.ServicerContext) -> Outcome:
        arguments = json.loads(request.input.arguments_json)
        match request.target.capability:
            case "add":
                return done(sum=arguments["a"] + arguments["b"])
            case "count":
                return done(counted=arguments["to"])
        return Outcome(error=Error(code="CAPABILITY_NOT_FOUND", message="I add, and I count"))

    async def stream(self, request: CallRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[StreamItem]:
        """A caller who leaves cancels this coroutine: there is nothing to do about it here."""
        if request.target.capability == "count":
            for number in range(1, json.loads(request.input.arguments_json)["to"] + 1):
                yield StreamItem(event=Event(kind="token", data_json=json.dumps({"text": f"{number} "})))
        yield StreamItem(outcome=await self.call(request, context))


def done(**answer: Any) -> Outcome:
    return Outcome(result=Result(data_json=json.dumps(answer)))


async def main(port: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(Adder()),))
    taken = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(f"adder listens on grpc://127.0.0.1:{taken}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50051))
