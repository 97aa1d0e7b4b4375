"""`FabricClient`, as Python programs use it."""

from __future__ import annotations

from contextlib import aclosing

from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import FabricError
from tests.fixtures.node import PSK, Node
from tests.matrix.door_client import DoorClient, Hear, Outcome, Question, words_of


class PythonClient(DoorClient):
    def __init__(self, node: Node) -> None:
        self._client = FabricClient(node.url, PSK)

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        try:
            return await (self._streamed(question, hear) if question.stream else self._called(question))
        except FabricError as error:
            return Outcome(code=error.code, message=error.message)

    async def _called(self, question: Question) -> Outcome:
        result = await self._client.call(
            question.agent,
            question.capability,
            question.task,
            question.arguments,
            question.timeout,
            attachments=question.attachments,
        )
        return Outcome(answer=result.data, parts=result.parts, fallback=result.fallback)

    async def _streamed(self, question: Question, hear: Hear) -> Outcome:
        stream = self._client.stream(
            question.agent,
            question.capability,
            question.task,
            question.arguments,
            question.timeout,
            attachments=question.attachments,
        )
        async with aclosing(stream) as events:
            async for event in events:
                if event.kind == "final":
                    return Outcome(answer=event.data, parts=event.parts, fallback=event.fallback)
                if said := words_of(event.kind, event.data):
                    hear(said)
        raise AssertionError("the stream ended without a final event")

    async def aclose(self) -> None:
        await self._client.aclose()
