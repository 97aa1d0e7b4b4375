"""Describes the paths of the directory door for `/docs`, from the structs that its parameters are decoded into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from a2a_fabric.doors.api_docs import EVENTS, RPC_REQUEST, DoorDescription, PathDescription
from a2a_fabric.doors.directory.http import AGENTS_PATH, DirectoryMethod

_TASK = {"taskId": "task-1", "agentId": "percy", "action": "reason", "sender": "me", "input": {"task": "6 * 7"}}
_REGISTRATION = {
    "agentId": "agent://greeter",
    "name": "Greeter",
    "capabilities": ["greet"],
    "endpoint": "http://127.0.0.1:9000/rpc",
}
# By method: what it does, and an example of its parameters.
_METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a2a/register": ("Register an agent.", _REGISTRATION),
    "a2a/heartbeat": ("Tell that a registered agent is alive.", {"agentId": "agent://greeter"}),
    "a2a/unregister": ("Remove a registered agent.", {"agentId": "agent://greeter"}),
    "a2a/discover": ("List agents, all or those with some capabilities.", {}),
    "a2a/agent": ("Tell about one agent.", {"agentId": "percy"}),
    "a2a/task": ("Give an agent a task, and wait for its result.", _TASK),
    "a2a/stream": ("Give an agent a task, and follow it as a stream.", {**_TASK, "taskId": "task-2"}),
    "a2a/status": ("Tell how far a task is.", {"taskId": "task-1"}),
    "a2a/answer": ("Answer the questions that a task waits for.", {"taskId": "task-1", "answers": {}}),
    "a2a/cancel": ("Cancel a task.", {"taskId": "task-1"}),
    "a2a/events": ("Follow what happens to agents and tasks, as a stream.", {"types": ["agent"]}),
}
_VALUES = {"agent_id": "percy"}


def describe(methods: Mapping[str, DirectoryMethod[Any]]) -> DoorDescription:
    return DoorDescription(
        name="directory",
        about="A directory of agents over JSON-RPC 2.0. The body is a JSON-RPC request, or the parameters alone.",
        page="directory.md",
        paths=(
            PathDescription(
                method="POST",
                path="/a2a",
                summary=f"Any method, or a batch of them: {', '.join(f'`{name}`' for name in methods)}.",
                body=RPC_REQUEST,
                example={"jsonrpc": "2.0", "id": 1, "method": "a2a/discover", "params": {}},
            ),
            PathDescription(method="GET", path=AGENTS_PATH, summary="List agents, as `a2a/discover`."),
            *(
                PathDescription(
                    method="GET", path=path, summary="Tell about one agent, as `a2a/agent`.", values=_VALUES
                )
                for path in (f"{AGENTS_PATH}/{{agent_id}}", f"{AGENTS_PATH}/{{agent_id}}/rpc")
            ),
            PathDescription(
                method="POST",
                path=f"{AGENTS_PATH}/{{agent_id}}/rpc",
                summary="Give this agent a task, follow it, answer its questions or cancel it.",
                body=RPC_REQUEST,
                example={"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": {**_TASK, "taskId": "task-3"}},
                values=_VALUES,
            ),
            *(path for name, method in methods.items() for path in _describe_method(name, method)),
        ),
    )


def _describe_method(name: str, method: DirectoryMethod[Any]) -> Iterator[PathDescription]:
    summary, example = _METHODS[name]
    reply = EVENTS if method.is_streaming else "application/json"
    yield PathDescription(
        method="POST", path=f"/{name}", summary=summary, body=method.params, example=example, reply=reply
    )
    if method.is_streaming:
        yield PathDescription(
            method="GET",
            path=f"/{name}",
            summary=f"{summary.removesuffix('.')}, for browsers.",
            query=method.params,
            required=("taskId",) if name == "a2a/stream" else (),
            values={name: example[name] for name in ("taskId",) if name in example},
            reply=EVENTS,
        )
