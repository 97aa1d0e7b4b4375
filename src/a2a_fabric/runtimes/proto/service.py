"""The service of `agent.proto` for Python: the stub that a node calls, and the handlers of a server.

server = grpc.aio.server()
server.add_generic_rpc_handlers((handlers(MyAgent()),))"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import grpc
import grpc.aio

from a2a_fabric.runtimes.proto.messages import (
    CallRequest,
    DescribeRequest,
    Description,
    HealthReply,
    HealthRequest,
    Outcome,
    StreamItem,
)

SERVICE = "a2a_fabric.agent.v1.Agent"


class AgentServicer(Protocol):
    """What a server implements. `context` has the metadata, the time left, and `abort`."""

    async def call(self, request: CallRequest, context: grpc.aio.ServicerContext) -> Outcome: ...

    def stream(self, request: CallRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[StreamItem]: ...

    async def describe(self, request: DescribeRequest, context: grpc.aio.ServicerContext) -> Description: ...

    async def health(self, request: HealthRequest, context: grpc.aio.ServicerContext) -> HealthReply: ...


def handlers(agent: AgentServicer) -> grpc.GenericRpcHandler:
    """For `server.add_generic_rpc_handlers`."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {
        "Call": unary(agent.call, CallRequest.FromString, Outcome.SerializeToString),
        "Stream": stream(agent.stream, CallRequest.FromString, StreamItem.SerializeToString),
        "Describe": unary(agent.describe, DescribeRequest.FromString, Description.SerializeToString),
        "Health": unary(agent.health, HealthRequest.FromString, HealthReply.SerializeToString),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class AgentStub:
    """The same from the other side."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.unary_unary(f"/{SERVICE}/Call", CallRequest.SerializeToString, Outcome.FromString)
        self.stream = channel.unary_stream(f"/{SERVICE}/Stream", CallRequest.SerializeToString, StreamItem.FromString)
        self.describe = channel.unary_unary(
            f"/{SERVICE}/Describe", DescribeRequest.SerializeToString, Description.FromString
        )
        self.health = channel.unary_unary(f"/{SERVICE}/Health", HealthRequest.SerializeToString, HealthReply.FromString)
