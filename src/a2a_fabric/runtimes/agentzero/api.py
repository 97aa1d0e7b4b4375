"""Runtime: Agent Zero through its external API: one message per request, answered when the agent is done.

The API cannot cancel: if the caller leaves, the connection is closed, and the agent may go on working."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import add_notes, parts_from_input
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, to_json_object
from a2a_fabric.outbound.port import HTTPReply
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint, VersionedPath
from a2a_fabric.runtimes.agentzero.messages import extract_object, prompt_from_call, text_from_part
from a2a_fabric.runtimes.context import complete_manifest
from a2a_fabric.runtimes.context_ids import ContextIds
from a2a_fabric.runtimes.probe import probe_page
from a2a_fabric.runtimes.prompt import DEFAULT_CAPABILITY
from a2a_fabric.runtimes.upstream import JSONAPIClient, decode_object_or_empty, decode_reply, is_success

_CONTEXT_LOST_NOTE = "the agent no longer knew the conversation, so a new one was started"


class _MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    context_id: str = ""
    response: Any = None


class AgentZeroMessageRuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPIClient) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._api = api
        self._messages = VersionedPath(api, "api_message")
        self._context_ids = ContextIds()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        context_id, notes = self._context_ids.find(call), list[str]()
        reply = await self._messages.post(self._render_body(call, context_id), call)
        if context_id and _is_context_lost(reply):
            self._context_ids.forget(call)
            notes.append(_CONTEXT_LOST_NOTE)
            reply = await self._messages.post(self._render_body(call, ""), call)
        if not is_success(reply.status):
            raise self._api.build_error(reply.status, str(decode_object_or_empty(reply.body).get("error", "")))
        answer = decode_reply(reply.body, _MessageReply)
        self._context_ids.remember(call, answer.context_id)
        result = Result(data=to_json_object(answer.response))
        return add_notes(extract_object(result, self._manifest, call), notes)

    async def health(self) -> Status:
        return await probe_page(self._api.http, f"{self._api.uri}/health", self._api.headers)

    async def describe(self) -> Manifest:
        """The API publishes no description; the agent can be asked anything."""
        ask = Capability(name=DEFAULT_CAPABILITY, description="Ask Agent Zero.", modalities=("text", "file"))
        return complete_manifest(
            self._manifest, Manifest(agent_id=self._manifest.agent_id, endpoint={}, capabilities=(ask,))
        )

    async def aclose(self) -> None:
        """The HTTP client belongs to the node, so there is nothing to close."""

    def _render_body(self, call: Call, context_id: str) -> dict[str, Any]:
        parts = parts_from_input(call.input)
        texts = (prompt_from_call(self._manifest, call), *map(text_from_part, parts))
        fields = {
            "message": "\n\n".join(filter(None, texts)),
            "context_id": context_id,
            "attachments": _render_attachments(parts),
            "lifetime_hours": self._endpoint.lifetime_hours,
            "project_name": None if context_id else self._endpoint.project,
            "agent_profile": None if context_id else self._endpoint.profile,
        }
        return {name: value for name, value in fields.items() if value}


def _render_attachments(parts: Iterable[Part]) -> list[dict[str, str]]:
    """Agent Zero saves each file under its name, so the names must be unique."""
    files: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        if part.blob is not None:
            name = part.name or f"attachment-{number}{mimetypes.guess_extension(part.mime_type or '') or ''}"
            files[name if name not in files else f"{number}-{name}"] = part.blob
    return [{"filename": name, "base64": content} for name, content in files.items()]


def _is_context_lost(reply: HTTPReply) -> bool:
    """Agent Zero forgets a context after its lifetime, and when it restarts."""
    return reply.status == 404 and "context" in str(decode_object_or_empty(reply.body).get("error", "")).lower()
