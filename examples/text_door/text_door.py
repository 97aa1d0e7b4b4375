"""A door for plain text: `POST /text/AGENT/CAPABILITY` with a JSON string as the task, answered with text.

Settings in fabric.yaml:

    doors: [{kind: text, prefix: /text}]
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.routing import Route

from a2a_fabric import Door, DoorContext
from a2a_fabric.core import BadInput, Call, DoorPlugin, FabricError, Input, Target, ignore_event
from a2a_fabric.doors.edge import (
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    HttpReply,
    RefusedRequest,
    RequestCycle,
    check_json,
)

# Everything else that an agent or the gateway reports is 502.
STATUS_BY_CODE = {
    "AUTH_REQUIRED": 401,
    "AUTH_INVALID": 401,
    "AUTH_DENIED": 403,
    "AGENT_NOT_FOUND": 404,
    "CAPABILITY_NOT_FOUND": 404,
    "BAD_INPUT": 400,
    "PAYLOAD_TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "AGENT_OFFLINE": 503,
    "TIMEOUT": 504,
}


class TextDoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `text`."""

    prefix: Annotated[str, Meta(pattern="^/", description="Where the agents are found.")] = "/text"


class TextRequest(RequestCycle):
    """One request. The edge has checked its method, caller, size and content type before `answer` is called."""

    async def answer(self, body: bytes) -> HttpReply:
        self.operation, self.is_call = "text", True
        context, path = self.edge.context, self.scope["path_params"]
        check_json(body)
        try:
            task = msgspec.json.decode(body, type=str)
        except msgspec.DecodeError as exc:
            raise BadInput(f"The body is not a JSON string: {exc}") from exc
        call = Call(
            trace=self.trace,
            auth=self.principal,
            target=Target(
                agent_id=path["agent_id"],
                capability=path["capability"],
                timeout_ms=context.gateway.default_timeout_ms,
            ),
            input=Input(task=task),
            delegation_chain=self.head.delegation_chain,
        )
        result = await context.gateway.call(call, ignore_event)
        answer = result.data.get("answer", result.data)
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        return HttpReply(body=text.encode(), media_type=b"text/plain; charset=utf-8")

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        code = error.code if isinstance(error, FabricError) else error.log_code
        status = error.status if isinstance(error, RefusedRequest) else STATUS_BY_CODE.get(code, 502)
        return ErrorReply(status=status, body=msgspec.json.encode(error.message), code=code, message=error.message)


def build(settings: TextDoorSettings, context: DoorContext) -> Door:
    edge = DoorEdge(context=context, identify=context.identify, body_limit=context.body_limit)
    endpoint = CycleEndpoint(lambda *asgi: TextRequest(edge, *asgi))
    return Door(routes=[Route(f"{settings.prefix}/{{agent_id}}/{{capability}}", endpoint)])


plugin = DoorPlugin(settings=TextDoorSettings, build=build)
