# mypy: ignore-errors
"""A client made with the A2A SDK of version 0.3, which runs in an environment of its own.

    python a2a_v03_client.py URL KEY TRANSPORT

URL is an agent's address; the client does one thing after the other and prints what it got, as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, TaskIdParams, TaskQueryParams, TextPart


def said(*parts: Any, skill: str, **more: Any) -> Message:
    wrapped = [Part(root=part) for part in parts]
    return Message(message_id=uuid4().hex, role="user", parts=wrapped, metadata={"skill": skill}, **more)


async def told(client: Any, message: Message) -> list[dict[str, Any]]:
    """Every event with the task as the client has put it together until then."""
    found = []
    async for each in client.send_message(message):
        task, event = each if isinstance(each, tuple) else (each, None)
        shown = task.model_dump(mode="json", by_alias=True, exclude_none=True)
        found.append({"task": shown, "event": None if event is None else event.kind})
    return found


async def main(url: str, key: str, transport: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        how: dict[str, Any] = {"supported_transports": [transport], "use_client_preference": True}
        out: dict[str, Any] = {"card": card.model_dump(mode="json", by_alias=True, exclude_none=True)}
        plainly, streaming = (
            ClientFactory(ClientConfig(httpx_client=http, streaming=each, **how)).create(card) for each in (False, True)
        )
        data = DataPart(data={"text": "hello", "times": 3})
        out["sent"] = await told(plainly, said(data, skill="shout"))
        task_id = out["sent"][-1]["task"]["id"]
        got = await plainly.get_task(TaskQueryParams(id=task_id, history_length=1))
        out["got"] = got.model_dump(mode="json", by_alias=True, exclude_none=True)
        asked = await told(plainly, said(TextPart(text="a door"), skill="paint"))
        waiting = asked[-1]["task"]["id"]
        out["asked"] = asked[-1]["task"]["status"]
        out["answered"] = await told(plainly, said(TextPart(text="red"), skill="", task_id=waiting))
        ended = await plainly.cancel_task(TaskIdParams(id=waiting))
        out["cancelled"] = ended.status.state.value
        out["streamed"] = await told(streaming, said(TextPart(text="one two three"), skill="talk"))
        try:
            await plainly.get_task(TaskQueryParams(id="nobody-has-this"))
        except Exception as error:
            out["missing"] = f"{type(error).__name__}: {error}"
    print(json.dumps(out))


asyncio.run(main(*sys.argv[1:4]))
