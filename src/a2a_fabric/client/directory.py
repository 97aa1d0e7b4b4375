"""`FabricClient.directory`: the JSON-RPC directory of a node. Agents register, find each other and exchange tasks.

    await fabric.directory.register("parrot", ["echo"], "http://127.0.0.1:9001")
    task = await fabric.directory.task("echo", {"say": "hello"})

A task has an id that the caller chooses, or gets from this client; sending it again joins it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from a2a_fabric.client.http import NodeHttp
from a2a_fabric.core.errors import FabricError, UpstreamFailed, error_from_code
from a2a_fabric.core.propagation import new_id

_PATH = "/a2a"
_FINAL_ID = 1


class DirectoryClient:
    """`about` takes further parameters of the method, in this style: `lease_seconds`, `trust_tier`."""

    def __init__(self, node: NodeHttp) -> None:
        self._node = node

    async def register(
        self, /, agent_id: str, capabilities: Sequence[str], endpoint: str, *, name: str | None = None, **about: Any
    ) -> dict[str, Any]:
        """Register an agent that answers `a2a/task` at its endpoint; registering again renews it."""
        entry = {"agent_id": agent_id, "name": name or agent_id, "capabilities": capabilities, "endpoint": endpoint}
        return await self._call("register", {**entry, **about})

    async def heartbeat(self, /, agent_id: str, **about: Any) -> dict[str, Any]:
        return await self._call("heartbeat", {"agent_id": agent_id, **about})

    async def unregister(self, agent_id: str) -> dict[str, Any]:
        return await self._call("unregister", {"agent_id": agent_id})

    async def discover(
        self, capabilities: Sequence[str] | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Agents with any of these capabilities, or all agents; the best first."""
        params = {"capabilities": capabilities, "limit": limit}
        page = await self._call("discover", params)
        agents = {agent["agentId"]: agent for agent in page["agents"]}
        while limit is None and (cursor := page.get("nextCursor")):
            page = await self._call("discover", {**params, "cursor": cursor})
            for agent in page["agents"]:
                agents.setdefault(agent["agentId"], agent)
        return list(agents.values())

    async def agent(self, agent_id: str) -> dict[str, Any]:
        return await self._call("agent", {"agent_id": agent_id})

    async def task(
        self,
        /,
        action: str,
        input: Any = None,  # the protocol's word
        *,
        agent_id: str | None = None,
        task_id: str | None = None,
        timeout: float | None = None,
        **about: Any,
    ) -> dict[str, Any]:
        """Give a task to the best agent, or to this one, and wait for its end. A failed task raises its error."""
        params = {"task_id": task_id or new_id(), "action": action, "input": input, "agent_id": agent_id, **about}
        if timeout is not None:
            params["timeout_ms"] = max(1, round(timeout * 1000))
        return await self._call("task", params, timeout)

    async def status(self, task_id: str) -> dict[str, Any]:
        return await self._call("status", {"task_id": task_id})

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return await self._call("cancel", {"task_id": task_id})

    async def answer(self, task_id: str, answers: dict[str, Any]) -> dict[str, Any]:
        """Answer the agent's questions by their keys: `{"name": {"content": ...}}`."""
        return await self._call("answer", {"task_id": task_id, "answers": answers})

    async def stream(
        self,
        /,
        action: str | None = None,
        input: Any = None,  # the protocol's word
        *,
        agent_id: str | None = None,
        task_id: str | None = None,
        after: int = 0,
        **about: Any,
    ) -> AsyncGenerator[dict[str, Any]]:
        """The events of a new task, or of a running one by its id alone; the last one, `final`, has the outcome.

        A broken connection is continued where it broke. Leaving early does not cancel the task.
        """
        own_id = task_id or new_id()
        params = {"task_id": own_id, "action": action, "input": input, "agent_id": agent_id, **about}

        def open_stream(number: int) -> tuple[str, str, Any]:
            fields = {**params, "after": number or None}
            return "POST", _PATH, _build_request("stream", fields)

        async for event in self._node.follow(open_stream, _read_stream_event, after):
            yield event

    async def events(self, /, types: Sequence[str] | None = None, **about: Any) -> AsyncGenerator[dict[str, Any]]:
        """Changes of agents and of your tasks, until you leave; `types` selects names or their beginnings."""
        request = _build_request("events", {"types": types, **about})
        async for event in self._node.follow(lambda number: ("POST", _PATH, request), _read_change):
            yield event

    async def _call(self, method: str, params: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Every method may be repeated: tasks have ids, and the others lead to the same state."""
        seconds = None if timeout is None else timeout + 5.0  # so that the node's own error arrives
        request = _build_request(method, params)
        result: dict[str, Any] = await self._node.request(
            "POST", _PATH, request, read=_read_result, repeatable=True, timeout=seconds
        )
        return result


def _build_request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    present = {_to_camel(name): value for name, value in params.items() if value is not None}
    return {"jsonrpc": "2.0", "id": _FINAL_ID, "method": f"a2a/{method}", "params": present}


def _to_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read_result(status: int, message: Any) -> Any:
    """The result of a reply. Raises the error that it reports."""
    error = message.get("error") if isinstance(message, dict) else None
    if isinstance(error, dict):
        raise _error_from_rpc(error)
    if not isinstance(message, dict) or "result" not in message:
        raise UpstreamFailed(f"The reply (HTTP {status}) is not one of a directory. Is its door open on this node?")
    return message["result"]


def _error_from_rpc(error: dict[str, Any]) -> FabricError:
    details = error.get("data") if isinstance(error.get("data"), dict) else {}
    data: dict[str, Any] = dict(details or {})
    code, message, trace_id = data.pop("code", None), data.pop("detail", None), data.pop("traceId", None)
    typed = error_from_code(str(code or "BAD_INPUT"), str(message or error.get("message")), data)
    typed.trace_id = trace_id
    return typed


def _read_stream_event(status: int, message: Any) -> Any:
    if isinstance(message, dict) and "method" in message:
        return message.get("params")
    return {"event": "final", "data": _read_result(status, message)}


def _read_change(status: int, message: Any) -> Any:
    if isinstance(message, dict) and "method" in message:
        return message.get("params")
    _read_result(status, message)
    return None  # the reply that says that the subscription has begun
