# mypy: ignore-errors
"""A client made with Google's ADK: a RemoteA2aAgent in a session of its own, in an environment of its own.

    python adk_client.py URL KEY TEXT...

URL is an agent's address. Each text is a turn of one session. It prints what ADK's session has of each turn, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import Any

import httpx

warnings.simplefilter("ignore")  # ADK warns that its A2A is experimental

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402


async def take_turn(runner: InMemoryRunner, session_id: str, text: str) -> dict[str, Any]:
    message = types.Content(role="user", parts=[types.Part(text=text)])
    turn: dict[str, Any] = {"texts": [], "errors": [], "data": []}
    async for event in runner.run_async(user_id="user", session_id=session_id, new_message=message):
        if event.error_message:
            turn["errors"].append(event.error_message)
        for part in event.content.parts or [] if event.content else []:
            if part.text and not event.partial and not part.thought:
                turn["texts"].append(part.text)
            elif part.inline_data is not None:
                turn["data"].append(part.inline_data.data.decode())
            elif part.function_call is not None:
                turn["data"].append(part.function_call.model_dump(mode="json"))
    return turn


async def main(url: str, key: str, *texts: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        card = f"{url}/.well-known/agent-card.json"
        agent = RemoteA2aAgent(name="remote", agent_card=card, httpx_client=http)
        runner = InMemoryRunner(agent=agent, app_name="client")
        session = await runner.session_service.create_session(app_name="client", user_id="user")
        print(json.dumps([await take_turn(runner, session.id, text) for text in texts]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
