"""The endpoints for requests in plain words: `/route` says which agent fits, `/ask` lets it answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import ignore_event
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.http import RestCycle, RestReply, RestRoute
from a2a_fabric.doors.rest.models import parts_to_wire
from a2a_fabric.messages.delivery import parts_from_result
from a2a_fabric.operations import OperationRequest
from a2a_fabric.operations.routing import ROUTE_KEY

_EXAMPLE = {"text": "what should I cook tonight?", "conversationId": "kitchen"}


class RestRequests:
    def __init__(self, context: DoorContext) -> None:
        self._operations = context.operations

    def list_endpoints(self) -> Sequence[RestRoute]:
        return (
            RestRoute(method="POST", path="/route", handler=self.route, tag="requests", body=models.RouteRequest,
                summary="Show which agent a request in words is for, and why.", reply=models.RouteReply,
                example=_EXAMPLE),
            RestRoute(method="POST", path="/ask", handler=self.ask, tag="requests", body=models.AskRequest,
                summary="Ask in words: the agent that fits answers.", reply=models.AskReply, example=_EXAMPLE),
        )  # fmt: skip

    async def route(self, context: RestCycle) -> RestReply:
        body: models.RouteRequest = context.body
        arguments = {"text": body.text, "conversation_id": body.conversation_id}
        result = await self._operations.run("fabric.route", arguments, context.principal, context.trace)
        data = result.data
        return RestReply(
            body=models.RouteReply(
                agent_id=data["agent_id"],
                capability=data["capability"],
                reason=data["reason"],
                candidates=tuple(models.RouteCandidate(**each) for each in data["candidates"]),
                parts=tuple(models.RequestPart(**each) for each in data.get("parts", ())),
            )
        )

    async def ask(self, context: RestCycle) -> RestReply:
        body: models.AskRequest = context.body
        arguments: dict[str, Any] = {
            "text": body.text,
            "conversation_id": body.conversation_id,
            "context": body.input,
            "timeout_ms": body.timeout_ms,
        }
        prepared = self._operations.prepare(
            "fabric.ask", msgspec.Raw(msgspec.json.encode(arguments)), context.principal
        )
        request = OperationRequest(
            trace=context.trace, principal=context.principal, delegation_chain=context.delegation_chain
        )
        result = await prepared.run(request, ignore_event)
        chosen = result.data.get(ROUTE_KEY, result.data)
        data = {name: value for name, value in result.data.items() if name != ROUTE_KEY}
        answer = msgspec.structs.replace(result, data={"answer": data["answer"]} if data.get("switched") else data)
        return RestReply(
            body=models.AskReply(
                agent_id=chosen["agent_id"],
                capability=chosen["capability"],
                reason=chosen["reason"],
                conversation_id=body.conversation_id,
                task_id=result.job_id,
                parts=parts_to_wire(parts_from_result(answer)),
                output=answer.data,
            )
        )
