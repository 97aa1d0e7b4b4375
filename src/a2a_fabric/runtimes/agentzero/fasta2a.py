"""Runtime: Agent Zero through its FastA2A server, which speaks A2A 0.2.5.

The card is at a fixed path and its `url` is of no use; there are no streams. A message is answered at once
with a submitted task, which is polled until it has ended. The answer is the agent's last message. Agent Zero
reads only text and links to files, so everything else is sent as text where possible."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import add_notes, describe_unsupported_parts, parts_from_input
from a2a_fabric.core.delegation import chain_to_metadata, make_propagation_headers
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result, make_input_required
from a2a_fabric.core.trace import new_id
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint
from a2a_fabric.runtimes.agentzero.messages import (
    FastA2ACard,
    FastA2AMessage,
    FastA2ARPCError,
    FastA2ARPCReply,
    FastA2ATask,
    FastA2ATaskStatus,
    extract_object,
    join_text,
    json_block,
    parts_from_task,
    prompt_from_call,
    text_from_part,
)
from a2a_fabric.runtimes.context import complete_manifest
from a2a_fabric.runtimes.context_ids import AgentZeroContextIds
from a2a_fabric.runtimes.probe import check_probe_status
from a2a_fabric.runtimes.prompt import (
    DEFAULT_CAPABILITY,
    question_from_text,
    read_answer_content,
    result_from_messages,
    unknown_continuation,
)
from a2a_fabric.runtimes.prompt import find_answer as the_answer_in
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, POLL_TIMEOUT, BackgroundCancels, poll_until
from a2a_fabric.runtimes.upstream import PROBE_TIMEOUT, JSONAPIClient, decode_reply, is_success

_CARD_PATHS = ("/.well-known/agent.json", "/.well-known/agent-card.json")  # the second since FastA2A 0.6
_OUTPUT_MODES = ["text/plain", "application/json", "application/octet-stream"]
_TASK_NOT_FOUND = -32001
_INVALID_PARAMS = -32602
_MAX_ID_LENGTH = 128


class FastA2ARuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPIClient) -> None:
        self._manifest = manifest
        self._full_manifest = manifest
        self._endpoint = endpoint
        self._api = api
        self._context_ids = AgentZeroContextIds()
        self._background_cancels = BackgroundCancels(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        message, notes = self._make_message(call)
        task = await self._start_task(message, call)
        self._context_ids.remember(call, task.context_id or "")
        return add_notes(self._result_from_task(await self._poll_until_stopped(task), call), notes)

    async def health(self) -> Status:
        """Its card is asked for."""
        return check_probe_status(
            (await self._api.get(_CARD_PATHS[0], timeout=PROBE_TIMEOUT)).status, self._api.upstream
        )

    async def describe(self) -> Manifest:
        card = await self._fetch_card()
        capabilities = tuple(
            Capability(name=skill.id[:256], description=skill.description or skill.name, modalities=("text", "file"))
            for skill in card.skills or ()
            if skill.id
        )
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            capabilities=capabilities or (Capability(name=DEFAULT_CAPABILITY, description="Ask Agent Zero."),),
            display_name=card.name,
            description=card.description[:1000],
            version=card.version,
            tags=tuple(dict.fromkeys(tag for skill in card.skills or () for tag in skill.tags or ())),
        )
        self._full_manifest = complete_manifest(self._manifest, published)
        return self._full_manifest

    async def aclose(self) -> None:
        await self._background_cancels.aclose()

    async def _fetch_card(self) -> FastA2ACard:
        for path in _CARD_PATHS:
            reply = await self._api.get(path, timeout=PROBE_TIMEOUT)
            if reply.status != 404:
                break
        if not is_success(reply.status):
            raise self._api.build_error(reply.status)
        return decode_reply(reply.body, FastA2ACard)

    def _make_message(self, call: Call) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What is said, and notes on what cannot be."""
        message: dict[str, Any] = {"kind": "message", "role": "user", "messageId": new_id()}
        if call.answers:
            return {**message, **_render_answer(call.answers)}, ()
        attachments = parts_from_input(call.input)
        sendable = [part for part in attachments if self._endpoint.inline_files or part.blob is None]
        message["parts"] = [
            _text_part(prompt_from_call(self._full_manifest, call)),
            *(_render_part(part) for part in sendable),
        ]
        if context_id := self._context_ids.find(call):
            message["contextId"] = context_id
        if project := self._endpoint.message_project:
            message["metadata"] = {"project": project}
        if chain_metadata := chain_to_metadata(call.delegation_chain):
            message["metadata"] = {**message.get("metadata", {}), **chain_metadata}
        return message, describe_unsupported_parts(
            [part for part in attachments if part not in sendable], "Agent Zero's A2A"
        )

    async def _start_task(self, message: dict[str, Any], call: Call) -> FastA2ATask:
        """A caller who leaves before the task has a name also cancels it: as soon as it has one."""
        sending = asyncio.ensure_future(self._send_message(message, call))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if not self._background_cancels.start(self._cancel_when_started(sending)):
                sending.cancel()
            raise

    async def _cancel_when_started(self, sending: asyncio.Task[FastA2ATask]) -> None:
        task = await sending
        if not task.is_stopped:
            await self._cancel_task(task.id)

    async def _send_message(self, message: dict[str, Any], call: Call) -> FastA2ATask:
        configuration = {"acceptedOutputModes": _OUTPUT_MODES, "blocking": False}
        params = {"message": message, "configuration": configuration}
        timeout = call.target.timeout_ms / 1000
        result = await self._request("message/send", params, timeout, make_propagation_headers(call))
        if decode_reply(result, _ReplyKind).kind != "message":
            return decode_reply(result, FastA2ATask)
        answer = decode_reply(result, FastA2AMessage)
        return FastA2ATask(
            id="", status=FastA2ATaskStatus(state="completed", message=answer), context_id=answer.context_id
        )

    async def _poll_until_stopped(self, task: FastA2ATask) -> FastA2ATask:
        if task.is_stopped:
            return task
        try:
            return await poll_until(lambda: self._get_task(task.id), lambda seen: seen.is_stopped)
        except BaseException:  # whoever leaves before the end also cancels the work
            self._background_cancels.start(self._cancel_task(task.id))
            raise

    async def _get_task(self, task_id: str) -> FastA2ATask:
        return decode_reply(await self._request("tasks/get", {"id": task_id}, POLL_TIMEOUT), FastA2ATask)

    async def _cancel_task(self, task_id: str) -> None:
        """A worker of FastA2A does one thing after the other: it may hear of it only when it is done."""
        await self._request("tasks/cancel", {"id": task_id}, CANCEL_TIMEOUT)

    async def _request(
        self, method: str, params: dict[str, Any], timeout: float, headers: Mapping[str, str] = {}
    ) -> bytes:
        """The result as JSON. Raises FabricError."""
        body = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        reply = await self._api.post("/", body, timeout=timeout, headers=headers)
        if not is_success(reply.status):
            raise self._api.build_error(reply.status)
        rpc_reply = decode_reply(reply.body, FastA2ARPCReply)
        if rpc_reply.error is not None:
            raise self._error_from_rpc(rpc_reply.error)
        return bytes(rpc_reply.result)

    def _error_from_rpc(self, error: FastA2ARPCError) -> FabricError:
        if error.code == _TASK_NOT_FOUND:
            return UpstreamInterrupted("The agent no longer knows its task", upstream=self._api.upstream)
        kind = BadInput if error.code == _INVALID_PARAMS else UpstreamRefused
        text = error.message[:500] or f"The agent answered with JSON-RPC error {error.code}"
        return kind(text, upstream_code=error.code, upstream=self._api.upstream)

    def _result_from_task(self, task: FastA2ATask, call: Call) -> Result:
        state, parts = task.status.state, parts_from_task(task)
        if state == "completed":
            return extract_object(result_from_messages(parts), self._full_manifest, call)
        text = join_text(parts)
        if state == "input-required":
            return make_input_required(question_from_text(text, {}), f"{task.context_id or ''}/{task.id}")
        if state in ("failed", "rejected", "canceled", "auth-required"):
            explanation = f": {text[:500]}" if text else " without saying why"
            raise UpstreamRefused(f"The agent's task is {state}{explanation}", upstream=self._api.upstream)
        raise UpstreamFailed(f"The agent's task is in a state that A2A does not know: {state[:100]!r}")


class _ReplyKind(msgspec.Struct, frozen=True):
    kind: str = "task"


def _text_part(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


def _render_part(part: Part) -> dict[str, Any]:
    labels = {"name": part.name, "mimeType": part.mime_type}
    file_fields = {name: value for name, value in labels.items() if value}
    if part.url is not None:
        return {"kind": "file", "file": {"uri": part.url, **file_fields}}
    if part.blob is not None:
        return {"kind": "file", "file": {"bytes": part.blob, **file_fields}}
    return _text_part(text_from_part(part) or "")


def _render_answer(answers: Answers) -> dict[str, Any]:
    """The answer to a task that waits. Raises BadInput."""
    context_id, _, task_id = answers.continuation.partition("/")
    if not task_id or len(answers.continuation) > 2 * _MAX_ID_LENGTH:
        raise unknown_continuation()
    answer = the_answer_in(answers)
    content = read_answer_content(answer) if answer.action == "accept" else "I do not want to answer that."
    text = content if isinstance(content, str) else json_block(content)
    context = {"contextId": context_id} if context_id else {}
    return {"parts": [_text_part(text)], "taskId": task_id, **context}
