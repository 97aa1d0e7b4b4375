"""Runtime: Agent Zero through its external API: one message in, its answer out, when it is done.

The API has no word for stopping: a caller who leaves closes the connection, and the agent
may go on with what it was asked.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import noted, parts_of
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.agentzero.conversations import Conversations
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint
from a2a_fabric.runtimes.agentzero.moved import Moved
from a2a_fabric.runtimes.agentzero.words import part_in_words, said_in, with_object
from a2a_fabric.runtimes.http_probe import probe_page
from a2a_fabric.runtimes.json_api import JSONAPI, decoded, is_good, object_or_empty
from a2a_fabric.runtimes.prompt import ASK
from a2a_fabric.runtimes.published import complete

_FORGOTTEN = "the agent no longer knew the conversation, so it began anew"


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    context_id: str = ""
    response: Any = None


class MessageRuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPI) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._api = api
        self._messages = Moved(api, "api_message")
        self._conversations = Conversations()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        context_id, notes = self._conversations.context_of(call), list[str]()
        reply = await self._messages.post(self._body(call, context_id), call)
        if context_id and _is_forgotten(reply):
            self._conversations.forget(call)
            notes.append(_FORGOTTEN)
            reply = await self._messages.post(self._body(call, None), call)
        if not is_good(reply.status):
            raise self._api.refusal(reply.status, str(object_or_empty(reply.body).get("error", "")))
        answer = decoded(reply.body, _Answer)
        self._conversations.keep(call, answer.context_id)
        result = Result(data=as_object(answer.response))
        return noted(with_object(result, self._manifest, call), notes)

    async def health(self) -> Status:
        return await probe_page(self._api.http, f"{self._api.uri}/health", self._api.headers)

    async def describe(self) -> Manifest:
        """It publishes nothing of itself here; it can be asked anything."""
        ask = Capability(name=ASK, description="Ask Agent Zero.", modalities=("text", "file"))
        return complete(self._manifest, Manifest(agent_id=self._manifest.agent_id, endpoint={}, capabilities=(ask,)))

    async def aclose(self) -> None:
        """Nothing of our own to release."""

    def _body(self, call: Call, context_id: str | None) -> dict[str, Any]:
        parts = parts_of(call.input)
        words = (said_in(self._manifest, call), *map(part_in_words, parts))
        told = {
            "message": "\n\n".join(filter(None, words)),
            "context_id": context_id,
            "attachments": _files(parts),
            "lifetime_hours": self._endpoint.lifetime_hours,
            "project_name": None if context_id else self._endpoint.project,
            "agent_profile": None if context_id else self._endpoint.profile,
        }
        return {name: value for name, value in told.items() if value}


def _files(parts: Iterable[Part]) -> list[dict[str, str]]:
    """Agent Zero saves each under its name, so no two may have the same."""
    files: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        if part.blob is not None:
            name = part.name or f"attachment-{number}{mimetypes.guess_extension(part.mime_type or '') or ''}"
            files[name if name not in files else f"{number}-{name}"] = part.blob
    return [{"filename": name, "base64": content} for name, content in files.items()]


def _is_forgotten(reply: Reply) -> bool:
    """Contexts have a lifetime, and end with the process."""
    return reply.status == 404 and "context" in str(object_or_empty(reply.body).get("error", "")).lower()
