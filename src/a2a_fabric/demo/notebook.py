"""notebook, a program that speaks the Agent Client Protocol, made with its SDK: files notes under topics.

`tea: buy green tea` is filed under `tea`. The answer is an outline of all notes of the
session. A text without a topic is a search in the notes."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, run_agent, schema, update_agent_message_text

_MAX_SESSIONS = 100
_MAX_NOTES = 1000

Notes = list[tuple[str, str]]  # topic and words


def parse_notes(text: str) -> Notes:
    """The notes in a text: the lines that name a topic."""
    lines = (line.strip(" -*\t").partition(":") for line in text.splitlines())
    pairs = ((topic.strip(), words.strip()) for topic, _, words in lines)
    return [(topic, words) for topic, words in pairs if topic and words]


def render_outline(notes: Notes) -> str:
    topics: dict[str, list[str]] = {}
    for topic, words in notes:
        topics.setdefault(topic, []).append(words)
    return "\n".join(f"{topic}\n" + "\n".join(f"  - {each}" for each in words) for topic, words in topics.items())


def answer(notes: Notes, text: str) -> str:
    """Add the notes of a text and show all notes, or search for a text without notes."""
    new = parse_notes(text)
    notes += new[: _MAX_NOTES - len(notes)]
    if new:
        return render_outline(notes)
    query = text.strip().lower()
    matches = [note for note in notes if query in " ".join(note).lower()]
    return render_outline(matches) or "Nothing is noted about that. A note is `topic: words`."


class Notebook:
    """The agent, with the notes of the latest sessions."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Notes] = OrderedDict()
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> schema.InitializeResponse:
        about = {"name": "notebook", "title": "Notebook", "version": "1.0.0"}
        return schema.InitializeResponse.model_validate({"protocolVersion": PROTOCOL_VERSION, "agentInfo": about})

    async def new_session(self, cwd: str, mcp_servers: Any = None, **more: Any) -> schema.NewSessionResponse:
        session_id = str(uuid.uuid4())
        self._sessions[session_id] = []
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return schema.NewSessionResponse(session_id=session_id)

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> schema.PromptResponse:
        if session_id not in self._sessions:
            raise RequestError.resource_not_found(session_id)
        self._sessions.move_to_end(session_id)
        text = "\n".join(block.text for block in prompt if block.type == "text")
        for line in answer(self._sessions[session_id], text).splitlines(keepends=True):
            await self._client.session_update(session_id=session_id, update=update_agent_message_text(line))
        return schema.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **more: Any) -> None:
        """A turn ends at once, so there is nothing to cancel."""


if __name__ == "__main__":
    agent: Any = Notebook()  # the SDK calls only what is there
    asyncio.run(run_agent(agent))
