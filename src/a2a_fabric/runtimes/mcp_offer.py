"""What a session offers to a server of the handshake era: to ask a person, a model, or for folders, during a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.client.session import ClientRequestContext
from pydantic import BaseModel

from a2a_fabric.core.question import Question
from a2a_fabric.runtimes.mcp_questions import Response, question_of

_REFUSED = -1  # the specification's own example for a model that somebody declined to ask

Ask = Callable[[Question], Awaitable[Response | None]]


class Offer:
    """The SDK's three callbacks; whom to ask is decided by `ask`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        response = await self._ask(question_of("elicitation/create", _plain(params)))
        return types.ElicitResult.model_validate(response, by_name=False)

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        response = await self._ask(question_of("sampling/createMessage", _plain(params)))
        if response is None:
            return types.ErrorData(code=_REFUSED, message="The request to a model was declined")
        if isinstance(response.get("content"), list):
            return types.CreateMessageResultWithTools.model_validate(response, by_name=False)
        return types.CreateMessageResult.model_validate(response, by_name=False)

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        return types.ListRootsResult.model_validate(await self._ask(question_of("roots/list", {})), by_name=False)


def _plain(params: BaseModel) -> dict[str, Any]:
    """As the server sent it, without what concerns only our own conversation with it."""
    return params.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude={"meta", "task"})
