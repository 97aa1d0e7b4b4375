"""Describes for `/docs` what the REST door serves beside REST: JSON-RPC for clients of agent platforms."""

from __future__ import annotations

from collections.abc import Iterable

from a2a_fabric.doors.api_docs import EVENTS, RPC_REQUEST, DoorDescription, PathDescription
from a2a_fabric.doors.rest.rpc.models import RpcStreamQuery
from a2a_fabric.protocols.a2a.card import OLD_CARD_PATH, OLD_CARD_SUMMARY

_MESSAGE = {"agentId": "percy", "parts": [{"type": "text", "content": "What is 6 * 7?"}]}


def describe(methods: Iterable[str]) -> DoorDescription:
    return DoorDescription(
        name="rpc",
        about="JSON-RPC 2.0 for clients of agent platforms, served by the door `rest`.",
        page="rest.md",
        paths=(
            PathDescription(
                method="POST",
                path="/",
                summary=f"One of the methods {', '.join(f'`{name}`' for name in methods)}.",
                body=RPC_REQUEST,
                example={"jsonrpc": "2.0", "id": 1, "method": "sendMessage", "params": _MESSAGE},
            ),
            PathDescription(
                method="GET",
                path="/stream",
                summary="Follow a task, or your latest message to an agent.",
                query=RpcStreamQuery,
                values={"agentId": "percy"},
                reply=EVENTS,
            ),
            PathDescription(method="GET", path=OLD_CARD_PATH, summary=OLD_CARD_SUMMARY, credentials="optional"),
        ),
    )
