"""Runtime `tool`: built-in tools. What they have no word for is asked of the one that comes closest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.agents.plain_http import app
from tests.matrix.agents.kind import REASON, Asked, Kind, Started
from tests.matrix.agents.listening import NOWHERE, listening
from tests.matrix.door_client import Question

SUM = "123456789 ** 2"
RESULT = {"result": 15241578750190521, "expression": SUM, "type": "int"}


def calculate(**more: Any) -> Question:
    return Question(agent="math.calculate", capability="eval", **more)


def evaluate(expression: str, **more: Any) -> Question:
    return calculate(arguments={"expression": expression}, **more)


class Tool(Kind):
    runtime = "tool"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        away = {
            "agent_id": f"{self.name}-away",
            "runtime": "http",
            "endpoint": {"uri": NOWHERE},
            "capabilities": [{"name": "eval"}],
            "fallbacks": ["math.calculate"],
        }
        async with listening(app) as url:
            self._url = url
            yield Started(manifests=[away])

    def typed(self) -> Asked:
        return Asked(question=evaluate(SUM), answer=RESULT)

    def in_words(self) -> Asked:
        return Asked(question=calculate(arguments={}, task=SUM), answer=RESULT)

    def free(self) -> Asked:
        return Asked(question=Question(agent="math.calculate", capability="free", arguments={}), answer={})

    def counting(self, go_on: Path) -> Asked:
        return Asked(question=evaluate(SUM, stream=True), answer=RESULT)

    def refusing(self) -> Question:
        return evaluate(REASON)

    def sleeping(self, note: Path) -> Question:
        """It waits for a page of a server that sleeps."""
        body = json.dumps({"name": "sleep", "arguments": {"note": str(note)}})
        arguments = {"url": self._url, "method": "POST", "body": body, "timeout": 300_000}
        return Question(agent="web.http_request", capability="request", arguments=arguments)

    def failing(self) -> Question:
        return Question(agent="web.fetch_page", capability="fetch", arguments={"url": NOWHERE})

    def showing(self) -> Question:
        return evaluate(SUM, attachments=super().showing().attachments)

    def stood_in_for(self) -> Asked:
        away = Question(agent=f"{self.name}-away", capability="eval", arguments={"expression": SUM})
        return Asked(question=away, answer=RESULT)
