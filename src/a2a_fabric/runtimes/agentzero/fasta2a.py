"""Runtime: Agent Zero through its FastA2A server, which speaks A2A 0.2.5, in the dialect of 0.3.

The `url` of its card is of no use, and there are no streams. A message is answered at once with a submitted task,
which is polled until it has ended. The answer is the agent's last message. Agent Zero reads only text and links to
files, so everything else is sent as text where possible."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    describe_unsupported_parts,
    join_text,
    make_propagation_headers,
    make_propagation_metadata,
    parts_from_input,
)
from a2a_fabric.core.errors import UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Answers, Part, Result, make_input_required
from a2a_fabric.protocols.a2a.card import CARD_PATHS, A2ACard, read_card
from a2a_fabric.protocols.a2a.decode import check_rpc_reply, parse_rpc_reply
from a2a_fabric.protocols.a2a.errors import TASK_NOT_FOUND, upstream_reason
from a2a_fabric.protocols.a2a.models import RUNNING_TASK_STATES, A2AMessage, A2ATask, A2ATaskStatus, SendOptions
from a2a_fabric.protocols.a2a.render import RENDERERS
from a2a_fabric.protocols.jsonrpc import encode_request
from a2a_fabric.runtimes.agentzero.endpoint import (
    AgentZeroEndpoint,
    extract_object,
    json_block,
    prompt_from_call,
    text_from_part,
)
from a2a_fabric.runtimes.context import complete_manifest
from a2a_fabric.runtimes.prompt import (
    DEFAULT_CAPABILITY,
    find_answer,
    question_from_text,
    read_answer_content,
    result_from_messages,
)
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, POLL_TIMEOUT, BackgroundCancels, ContextIds, poll_until
from a2a_fabric.runtimes.upstream import (
    PROBE_TIMEOUT,
    JSONAPIClient,
    check_probe_status,
    decode_reply,
    is_success,
    read_excerpt,
)

_CARD_PATHS = CARD_PATHS[::-1]  # FastA2A before 0.6 knows only the older one
_SEND_OPTIONS = SendOptions(output_modes=("text/plain", "application/json", "application/octet-stream"), blocking=False)
_MAX_ID_LENGTH = 128


class FastA2ARuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPIClient) -> None:
        self._manifest = manifest
        self._full_manifest = manifest
        self._endpoint = endpoint
        self._api = api
        self._context_ids = ContextIds()
        self._background_cancels = BackgroundCancels(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        message, notes = self._make_message(call)
        task = await self._start_task(message, call)
        self._context_ids.remember(call, task.context_id)
        return add_notes(self._result_from_task(await self._poll_until_stopped(task), call), notes)

    async def health(self) -> Status:
        """Online if the agent serves its card."""
        reply = await self._api.get(_CARD_PATHS[0], timeout=PROBE_TIMEOUT)
        return check_probe_status(reply.status, self._api.upstream)

    async def describe(self) -> Manifest:
        card = await self._fetch_card()
        capabilities = tuple(
            Capability(name=skill.id, description=skill.description or skill.name, modalities=("text", "file"))
            for skill in card.skills
        )
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            capabilities=capabilities or (Capability(name=DEFAULT_CAPABILITY, description="Ask Agent Zero."),),
            display_name=card.name,
            description=card.description[:1000],
            version=card.version,
            tags=tuple(dict.fromkeys(tag for skill in card.skills for tag in skill.tags)),
        )
        self._full_manifest = complete_manifest(self._manifest, published)
        return self._full_manifest

    async def aclose(self) -> None:
        await self._background_cancels.aclose()

    async def _fetch_card(self) -> A2ACard:
        for path in _CARD_PATHS:
            reply = await self._api.get(path, timeout=PROBE_TIMEOUT)
            if reply.status != 404:
                break
        if not is_success(reply.status):
            raise self._api.build_error(reply.status, read_excerpt(reply.body))
        return read_card(decode_reply(reply.body, dict[str, Any]), None)

    def _make_message(self, call: Call) -> tuple[A2AMessage, tuple[str, ...]]:
        """The message, and notes on attachments that cannot be sent."""
        if call.answers:
            return _make_answer_message(call.answers), ()
        attachments = parts_from_input(call.input)
        sendable = [part for part in attachments if self._endpoint.inline_files or part.blob is None]
        project = self._endpoint.message_project
        message = A2AMessage(
            id=new_id(),
            role="user",
            parts=(_text_part(prompt_from_call(self._full_manifest, call)), *map(_adapt_part, sendable)),
            context_id=self._context_ids.find(call),
            metadata={**({"project": project} if project else {}), **make_propagation_metadata(call)},
        )
        unsupported = [part for part in attachments if part not in sendable]
        return message, describe_unsupported_parts(unsupported, "Agent Zero's A2A")

    async def _start_task(self, message: A2AMessage, call: Call) -> A2ATask:
        """If the caller leaves before the task has an id, the task is cancelled as soon as it has one."""
        sending = asyncio.ensure_future(self._send_message(message, call))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if not self._background_cancels.start(self._cancel_when_started(sending)):
                sending.cancel()
            raise

    async def _cancel_when_started(self, sending: asyncio.Task[A2ATask]) -> None:
        task = await sending
        if not _is_stopped(task):
            await self._cancel_task(task.id)

    async def _send_message(self, message: A2AMessage, call: Call) -> A2ATask:
        params = RENDERERS["0.3"].render_send_params(message, _SEND_OPTIONS)
        timeout = call.target.timeout_ms / 1000
        return self._parse_task(await self._request("message/send", params, timeout, make_propagation_headers(call)))

    async def _poll_until_stopped(self, task: A2ATask) -> A2ATask:
        if _is_stopped(task):
            return task
        try:
            return await poll_until(lambda: self._get_task(task.id), _is_stopped)
        except BaseException:  # the caller left, or the agent is lost: the task is no longer needed
            self._background_cancels.start(self._cancel_task(task.id))
            raise

    async def _get_task(self, task_id: str) -> A2ATask:
        return self._parse_task(await self._request("tasks/get", {"id": task_id}, POLL_TIMEOUT))

    async def _cancel_task(self, task_id: str) -> None:
        """A FastA2A worker runs one task at a time, so it may read this only after the task has ended."""
        check_rpc_reply(await self._request("tasks/cancel", {"id": task_id}, CANCEL_TIMEOUT))

    async def _request(
        self, method: str, params: dict[str, Any], timeout: float, headers: Mapping[str, str] = {}
    ) -> bytes:
        """Raises FabricError."""
        body = msgspec.Raw(encode_request(new_id(), method, params))
        reply = await self._api.post("/", body, timeout=timeout, headers=headers)
        if not is_success(reply.status):
            raise self._api.build_error(reply.status, read_excerpt(reply.body))
        return reply.body

    def _parse_task(self, body: bytes) -> A2ATask:
        """Raises FabricError: UpstreamInterrupted if the agent has lost the task."""
        try:
            update = parse_rpc_reply(body, "0.3")
        except UpstreamRefused as exc:
            exc.details["upstream"] = self._api.upstream
            if upstream_reason(exc) == TASK_NOT_FOUND:
                raise UpstreamInterrupted("The agent no longer knows its task", upstream=self._api.upstream) from exc
            raise
        if isinstance(update, A2AMessage):
            status = A2ATaskStatus(state="completed", message=update)
            return A2ATask(id="", status=status, context_id=update.context_id)
        if not isinstance(update, A2ATask):
            raise UpstreamFailed("The agent's answer is neither a message nor a task", upstream=self._api.upstream)
        return update

    def _result_from_task(self, task: A2ATask, call: Call) -> Result:
        state, parts = task.status.state, _answer_parts(task)
        if state == "completed":
            return extract_object(result_from_messages(parts), self._full_manifest, call)
        text = join_text(parts)
        if state == "input-required":
            return make_input_required(question_from_text(text, {}), f"{task.context_id}/{task.id}")
        if state == "unknown":
            raise UpstreamFailed("The agent's task is in a state that A2A does not know", upstream=self._api.upstream)
        explanation = f": {text[:500]}" if text else " without saying why"
        raise UpstreamRefused(f"The agent's task is {state}{explanation}", upstream=self._api.upstream)


def _is_stopped(task: A2ATask) -> bool:
    """Ended, waiting for input, or in an unknown state."""
    return task.status.state not in RUNNING_TASK_STATES


def _answer_parts(task: A2ATask) -> list[Part]:
    """The parts of the agent's last message, and of the artifacts those that are not among them."""
    message = task.last_agent_message or task.status.message
    parts = list(message.parts) if message is not None else []
    artifact_parts = [part for artifact in task.artifacts or () for part in artifact.parts]
    return [*parts, *(part for part in artifact_parts if part not in parts)]


def _text_part(text: str) -> Part:
    return Part(kind="text", text=text)


def _adapt_part(part: Part) -> Part:
    """Files stay files; everything else becomes text."""
    is_file = part.url is not None or part.blob is not None
    return replace(part, meta={}) if is_file else _text_part(text_from_part(part) or "")


def _make_answer_message(answers: Answers) -> A2AMessage:
    """The answer to a task that waits. Raises BadInput."""
    context_id, _, task_id = answers.continuation.partition("/")
    if not task_id or len(answers.continuation) > 2 * _MAX_ID_LENGTH:
        raise unknown_continuation()
    answer = find_answer(answers)
    content = read_answer_content(answer) if answer.action == "accept" else "I do not want to answer that."
    text = content if isinstance(content, str) else json_block(content)
    return A2AMessage(id=new_id(), role="user", parts=(_text_part(text),), task_id=task_id, context_id=context_id)
