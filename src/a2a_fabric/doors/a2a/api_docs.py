"""Describes the paths of the A2A door for `/docs`. What the messages mean is in the specification of A2A."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from a2a_fabric.doors.a2a.cards import GATEWAY_PATH
from a2a_fabric.doors.a2a.http import AGENTS_PREFIX, PATH_TEMPLATES
from a2a_fabric.doors.api_docs import EVENTS, RPC_REQUEST, DoorDescription, PathDescription
from a2a_fabric.protocols.a2a.card import CARD_PATH, CARD_PATHS, OLD_CARD_PATH, OLD_CARD_SUMMARY

_OBJECT: Mapping[str, Any] = {"type": "object"}
_MESSAGE = {
    "message": {"messageId": "message-1", "role": "ROLE_USER", "parts": [{"text": "Percy, what is 6 * 7?"}]},
    "configuration": {"returnImmediately": True},
}
_PUSH = {"url": "https://example.com/news"}
# By operation: what it does, and an example of its body.
_OPERATIONS: Mapping[str, tuple[str, Any]] = {
    "SendMessage": ("Send a message", _MESSAGE),
    "SendStreamingMessage": ("Send a message, and follow what becomes of it", _MESSAGE),
    "ListTasks": ("List your tasks", None),
    "GetTask": ("Tell how far a task is", None),
    "CancelTask": ("Cancel a task", None),
    "SubscribeToTask": ("Follow a task that goes on", None),
    "CreateTaskPushNotificationConfig": ("Have news of a task sent to an address", _PUSH),
    "ListTaskPushNotificationConfigs": ("List where news of a task are sent to", None),
    "GetTaskPushNotificationConfig": ("Show one of these addresses", None),
    "DeleteTaskPushNotificationConfig": ("Send no more news to one of these addresses", None),
    "GetExtendedAgentCard": ("Show the card with all that this caller may use", None),
}
_STREAMS = frozenset({"SendStreamingMessage", "SubscribeToTask"})
_VERSION = "A2A-Version"
_HEADERS = {_VERSION: "The version of A2A that the request follows; 0.3 without it."}
_RPC = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": _MESSAGE}


def describe() -> DoorDescription:
    return DoorDescription(
        name="a2a",
        about="The Agent2Agent protocol over HTTP+JSON and JSON-RPC. A2A 0.3 has its HTTP+JSON paths below `/v1`.",
        page="a2a.md",
        paths=(
            *(
                PathDescription(
                    method="GET",
                    path=path,
                    summary=OLD_CARD_SUMMARY if path == OLD_CARD_PATH else "The card of this node's own agent.",
                    credentials="optional",
                )
                for path in CARD_PATHS
            ),
            *_describe_agent(f"{AGENTS_PREFIX}{{agent_id}}", "one agent", {"agent_id": "percy"}),
            *_describe_agent(GATEWAY_PATH, "the node's own agent", {}),
        ),
    )


def _describe_agent(prefix: str, whose: str, agent: Mapping[str, str]) -> Iterator[PathDescription]:
    values = {**agent, _VERSION: "1.0"}
    for path in CARD_PATHS:
        older = "" if path == CARD_PATH else ", where older clients look for it"
        yield PathDescription(
            method="GET",
            path=prefix + path,
            summary=f"The card of {whose}{older}.",
            values=agent,
            credentials="optional",
        )
    yield PathDescription(
        method="POST",
        path=prefix,
        summary=f"Any method of A2A over JSON-RPC, for {whose}.",
        body=RPC_REQUEST,
        example=_RPC,
        headers=_HEADERS,
        values=values,
    )
    for path, operations in PATH_TEMPLATES.items():
        for method, operation in operations.items():
            summary, example = _OPERATIONS[operation]
            yield PathDescription(
                method=method,
                path=prefix + path,
                summary=f"{summary}, for {whose}.",
                body=None if example is None else _OBJECT,
                example=example,
                headers=_HEADERS,
                values=values,
                reply=EVENTS if operation in _STREAMS else "application/a2a+json",
            )
