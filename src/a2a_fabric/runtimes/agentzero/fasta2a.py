"""Runtime: Agent Zero through its FastA2A server, which speaks A2A as it was at version 0.2.5.

The card is at one place only and its address is of no use; there are no streams; a message is
answered at once with a task that is `submitted`, and the task has to be looked at until it is done.
Its answer is the last thing that the agent said. Words are all that Agent Zero reads, besides
links to files; so everything that can be said in words is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import not_carried, noted, parts_of
from a2a_fabric.core.delegation import in_metadata, journey_headers
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result, asking
from a2a_fabric.core.trace import new_id
from a2a_fabric.runtimes.agentzero.conversations import Conversations
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint
from a2a_fabric.runtimes.agentzero.task import (
    Card,
    Message,
    RPCError,
    RPCReply,
    Task,
    TaskStatus,
    parts_said,
    words_in,
)
from a2a_fabric.runtimes.agentzero.words import json_in_words, part_in_words, said_in, with_object
from a2a_fabric.runtimes.answer import answer_in
from a2a_fabric.runtimes.farewells import SECONDS, Farewells
from a2a_fabric.runtimes.http_exchange import ASK_SECONDS
from a2a_fabric.runtimes.http_probe import judge
from a2a_fabric.runtimes.json_api import JSONAPI, decoded, is_good
from a2a_fabric.runtimes.one_question import answer_in as the_answer_in
from a2a_fabric.runtimes.one_question import asked_in_words, content_of, unknown_continuation
from a2a_fabric.runtimes.polling import LOOK_SECONDS, polled
from a2a_fabric.runtimes.prompt import ASK
from a2a_fabric.runtimes.published import complete

_CARDS = ("/.well-known/agent.json", "/.well-known/agent-card.json")  # the second since FastA2A 0.6
_TAKEN = ["text/plain", "application/json", "application/octet-stream"]
_TASK_NOT_FOUND = -32001
_INVALID_PARAMS = -32602
_LONGEST_ID = 128


class FastA2ARuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPI) -> None:
        self._manifest = manifest
        self._described = manifest
        self._endpoint = endpoint
        self._api = api
        self._conversations = Conversations()
        self._farewells = Farewells(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        message, notes = self._message(call)
        task = await self._begun(message, call)
        self._conversations.keep(call, task.context_id or "")
        return noted(self._outcome(await self._at_rest(task), call), notes)

    async def health(self) -> Status:
        """Its card is asked for."""
        return judge((await self._api.get(_CARDS[0], timeout=ASK_SECONDS)).status, self._api.upstream)

    async def describe(self) -> Manifest:
        card = await self._card()
        found = tuple(
            Capability(name=skill.id[:256], description=skill.description or skill.name, modalities=("text", "file"))
            for skill in card.skills or ()
            if skill.id
        )
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            capabilities=found or (Capability(name=ASK, description="Ask Agent Zero."),),
            display_name=card.name,
            description=card.description[:1000],
            version=card.version,
            tags=tuple(dict.fromkeys(tag for skill in card.skills or () for tag in skill.tags or ())),
        )
        self._described = complete(self._manifest, published)
        return self._described

    async def aclose(self) -> None:
        await self._farewells.aclose()

    async def _card(self) -> Card:
        for path in _CARDS:
            reply = await self._api.get(path, timeout=ASK_SECONDS)
            if reply.status != 404:
                break
        if not is_good(reply.status):
            raise self._api.refusal(reply.status)
        return decoded(reply.body, Card)

    def _message(self, call: Call) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What is said, and notes on what cannot be."""
        told: dict[str, Any] = {"kind": "message", "role": "user", "messageId": new_id()}
        if call.answers:
            return {**told, **_answering(call.answers)}, ()
        attached = parts_of(call.input)
        carried = [part for part in attached if self._endpoint.inline_files or part.blob is None]
        told["parts"] = [_text(said_in(self._described, call)), *(_sent(part) for part in carried)]
        if context_id := self._conversations.context_of(call):
            told["contextId"] = context_id
        if project := self._endpoint.told_project:
            told["metadata"] = {"project": project}
        if passed := in_metadata(call.delegation_chain):
            told["metadata"] = {**told.get("metadata", {}), **passed}
        return told, not_carried([part for part in attached if part not in carried], "Agent Zero's A2A")

    async def _begun(self, message: dict[str, Any], call: Call) -> Task:
        """A caller who leaves before the task has a name also cancels it: as soon as it has one."""
        sending = asyncio.ensure_future(self._sent(message, call))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if not self._farewells.say(self._cancelled_once(sending)):
                sending.cancel()
            raise

    async def _cancelled_once(self, sending: asyncio.Task[Task]) -> None:
        task = await sending
        if not task.is_at_rest:
            await self._cancelled(task.id)

    async def _sent(self, message: dict[str, Any], call: Call) -> Task:
        configuration = {"acceptedOutputModes": _TAKEN, "blocking": False}
        params = {"message": message, "configuration": configuration}
        timeout = call.target.timeout_ms / 1000
        result = await self._asked("message/send", params, timeout, journey_headers(call))
        if decoded(result, _Kind).kind != "message":
            return decoded(result, Task)
        said = decoded(result, Message)
        return Task(id="", status=TaskStatus(state="completed", message=said), context_id=said.context_id)

    async def _at_rest(self, task: Task) -> Task:
        if task.is_at_rest:
            return task
        try:
            return await polled(lambda: self._looked(task.id), lambda seen: seen.is_at_rest)
        except BaseException:  # whoever leaves before the end also cancels the work
            self._farewells.say(self._cancelled(task.id))
            raise

    async def _looked(self, task_id: str) -> Task:
        return decoded(await self._asked("tasks/get", {"id": task_id}, LOOK_SECONDS), Task)

    async def _cancelled(self, task_id: str) -> None:
        """A worker of FastA2A does one thing after the other: it may hear of it only when it is done."""
        await self._asked("tasks/cancel", {"id": task_id}, SECONDS)

    async def _asked(
        self, method: str, params: dict[str, Any], timeout: float, headers: Mapping[str, str] = {}
    ) -> bytes:
        """The result as JSON. Raises FabricError."""
        body = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        reply = await self._api.post("/", body, timeout=timeout, headers=headers)
        if not is_good(reply.status):
            raise self._api.refusal(reply.status)
        told = decoded(reply.body, RPCReply)
        if told.error is not None:
            raise self._refused(told.error)
        return bytes(told.result)

    def _refused(self, error: RPCError) -> FabricError:
        if error.code == _TASK_NOT_FOUND:
            return UpstreamInterrupted("The agent no longer knows its task", upstream=self._api.upstream)
        kind = BadInput if error.code == _INVALID_PARAMS else UpstreamRefused
        words = error.message[:500] or f"The agent answered with JSON-RPC error {error.code}"
        return kind(words, upstream_code=error.code, upstream=self._api.upstream)

    def _outcome(self, task: Task, call: Call) -> Result:
        state, parts = task.status.state, parts_said(task)
        if state == "completed":
            return with_object(answer_in(parts), self._described, call)
        words = words_in(parts)
        if state == "input-required":
            return asking(asked_in_words(words, {}), f"{task.context_id or ''}/{task.id}")
        if state in ("failed", "rejected", "canceled", "auth-required"):
            told = f": {words[:500]}" if words else " without saying why"
            raise UpstreamRefused(f"The agent's task is {state}{told}", upstream=self._api.upstream)
        raise UpstreamFailed(f"The agent's task is in a state that A2A does not know: {state[:100]!r}")


class _Kind(msgspec.Struct, frozen=True):
    kind: str = "task"


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


def _sent(part: Part) -> dict[str, Any]:
    told = {"name": part.name, "mimeType": part.mime_type}
    about = {name: value for name, value in told.items() if value}
    if part.url is not None:
        return {"kind": "file", "file": {"uri": part.url, **about}}
    if part.blob is not None:
        return {"kind": "file", "file": {"bytes": part.blob, **about}}
    return _text(part_in_words(part) or "")


def _answering(answers: Answers) -> dict[str, Any]:
    """The answer to a task that waits. Raises BadInput."""
    context_id, _, task_id = answers.continuation.partition("/")
    if not task_id or len(answers.continuation) > 2 * _LONGEST_ID:
        raise unknown_continuation()
    answer = the_answer_in(answers)
    content = content_of(answer) if answer.action == "accept" else "I do not want to answer that."
    words = content if isinstance(content, str) else json_in_words(content)
    named = {"contextId": context_id} if context_id else {}
    return {"parts": [_text(words)], "taskId": task_id, **named}
