"""`FabricClient.messages` and `FabricClient.tasks`: messages, conversations and tasks over REST.

sent = await fabric.messages.send("percy", "What is 12 * 7?")
reply = await fabric.messages.reply(sent["id"])
task = await fabric.tasks.create("percy", {"task": "What is 12 * 7?"})
ended = await fabric.tasks.result(task["id"])"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote, urlencode

from a2a_fabric.client.http import NodeHttp
from a2a_fabric.core.errors import CallTimeout, FabricError, UpstreamFailed, UpstreamInterrupted, error_from_code
from a2a_fabric.core.propagation import new_id

_PAGE = 100
_CODES = {"INVALID_REQUEST": "BAD_INPUT", "UNAUTHORIZED": "AUTH_DENIED", "FORBIDDEN": "AUTH_DENIED"}
_REASONS = {"offline": "AGENT_OFFLINE", "failed": "UPSTREAM_ERROR"}  # others are codes in lower case


class _RestClient:
    def __init__(self, node: NodeHttp) -> None:
        self._node = node

    async def _get(self, path: str, timeout: float | None = None, **query: Any) -> Any:
        return await self._request("GET", path + _build_query(query), timeout=timeout)

    async def _request(self, method: str, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """Every request may be repeated: what is created has an id of its own."""
        return await self._node.request(method, path, body, read=_read_reply, repeatable=True, timeout=timeout)

    async def _list(self, path: str, key: str, limit: int, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(items) < limit:
            page = await self._get(path, limit=min(_PAGE, limit - len(items)), cursor=cursor, **query)
            items += page.get(key, [])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return items

    async def _follow(self, path: str, after: int, final: str) -> AsyncGenerator[dict[str, Any]]:
        def open_stream(number: int) -> tuple[str, str, Any]:
            return "GET", path + _build_query({"after": number or None}), None

        def read(status: int, event: Any) -> Any:
            value = _read_reply(status, event)
            return value if "event" in value else {"event": final, "data": value}

        async for event in self._node.follow(open_stream, read, after):
            yield event


class MessagesClient(_RestClient):
    async def send(
        self,
        /,
        agent_id: str,
        content: str | Sequence[Mapping[str, Any]],
        *,
        conversation_id: str | None = None,
        message_id: str | None = None,
        **metadata: Any,
    ) -> dict[str, Any]:
        """Send text, or parts such as `{"type": "json", "content": {...}}`, to an agent.

        `metadata` may hold `capability` and `ttl_seconds`. The agent's reply is a message too: see `reply`.
        """
        parts = [{"type": "text", "content": content}] if isinstance(content, str) else list(content)
        about = {**({"conversation_id": conversation_id} if conversation_id else {}), **metadata}
        body = {"id": message_id or f"msg_{new_id()}", "parts": parts, **({"metadata": about} if about else {})}
        sent: dict[str, Any] = await self._request("POST", f"/v1/agents/{_quote(agent_id)}/messages", body)
        return sent

    async def get(self, message_id: str) -> dict[str, Any]:
        """A message; `metadata.delivery` says how far it has come."""
        return dict(await self._get(f"/v1/messages/{_quote(message_id)}"))

    async def reply(self, message_id: str, wait: float = 30.0) -> dict[str, Any]:
        """The agent's reply, for which the node waits so many seconds."""
        path = f"/v1/messages/{_quote(message_id)}/reply"
        return dict(await self._get(path, timeout=wait + self._node.timeout, wait=wait))

    async def conversation(self, conversation_id: str, limit: int = 1000) -> list[dict[str, Any]]:
        """The messages of a conversation, in order."""
        return await self._list(f"/v1/conversations/{_quote(conversation_id)}/messages", "messages", limit)

    async def follow(self, conversation_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """The messages of a conversation and every further one, until you leave."""
        path = f"/v1/conversations/{_quote(conversation_id)}/events"
        async for event in self._follow(path, after, "message"):
            yield event


class TasksClient(_RestClient):
    async def create(
        self,
        agent_id: str,
        input: Mapping[str, Any],  # the protocol's word
        *,
        capability: str | None = None,
        task_id: str | None = None,
    ) -> dict[str, Any]:
        """Create a task: a job of the node, which survives this connection and a restart."""
        body = {"id": task_id or f"task_{new_id()}", "agentId": agent_id, "input": input, "capability": capability}
        present = {name: value for name, value in body.items() if value is not None}
        return dict(await self._request("POST", "/v1/tasks", present))

    async def get(self, task_id: str) -> dict[str, Any]:
        return dict(await self._get(f"/v1/tasks/{_quote(task_id)}"))

    async def list(
        self, *, status: str | None = None, agent_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Your tasks, newest first."""
        return await self._list("/v1/tasks", "tasks", limit, status=status, agentId=agent_id)

    async def events(self, task_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """The events of a task after a number; the last one is `final`, and its data is the task."""
        async for event in self._follow(f"/v1/tasks/{_quote(task_id)}/events", after, "final"):
            yield event

    async def result(self, task_id: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait until a task ends, or until its agent asks a question, which is in `metadata.input_required`.

        Raises CallTimeout after `timeout` seconds; the task goes on.
        """
        try:
            async with asyncio.timeout(timeout), aclosing(self.events(task_id)) as events:
                async for event in events:
                    if event["event"] == "final":
                        return dict(event["data"])
                    if event["data"].get("state") == "input_required" or event["event"] == "input_required":
                        task = await self.get(task_id)
                        if "input_required" in (task.get("metadata") or {}):  # else it was answered meanwhile
                            return task
        except TimeoutError as exc:
            raise CallTimeout(timeout or 0.0, task_id=task_id) from exc
        raise UpstreamInterrupted("The events ended before the task did. Ask for the result again")

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the questions in `metadata.input_required` by their keys: `{"name": {"content": ...}}`."""
        return dict(await self._request("POST", f"/v1/tasks/{_quote(task_id)}/answers", {"answers": answers}))

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return dict(await self._request("DELETE", f"/v1/tasks/{_quote(task_id)}") or {})


def _read_reply(status: int, body: Any) -> Any:
    """The body of a reply. Raises the error that it reports."""
    error = body.get("error") if isinstance(body, dict) and status >= 400 else None
    if isinstance(error, dict):
        raise _error_from_rest(error)
    if status >= 400:
        raise UpstreamFailed(f"The reply (HTTP {status}) is not one of the REST door. Is it open on this node?")
    return body


def _error_from_rest(error: Mapping[str, Any]) -> FabricError:
    details: dict[str, Any] = dict(error.get("details") or {})
    reason, code = str(details.get("reason", "")), str(error.get("code"))
    typed_code = _REASONS.get(reason) or reason.upper() or _CODES.get(code, code)
    return error_from_code(typed_code, str(error.get("message")), details)


def _quote(name: str) -> str:
    return quote(name, safe="")


def _build_query(values: Mapping[str, Any]) -> str:
    present = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(present)}" if present else ""
