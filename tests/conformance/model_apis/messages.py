"""The messages API, which Claude Code speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from tests.conformance.model_apis.move import Asked, Move, Tool


class MessagesAPI:
    path = "/v1/messages"

    def read(self, body: dict[str, Any]) -> Asked:
        own = (tool for tool in body.get("tools") or () if "input_schema" in tool)  # others run at the provider
        return Asked(tuple(Tool(tool["name"], tool["input_schema"]) for tool in own), tuple(_results(body)))

    def events(self, body: dict[str, Any], move: Move) -> list[dict[str, Any]]:
        """One block: first empty, then its content in one piece."""
        if move.tool:
            call_id = f"toolu_{uuid4().hex}"
            block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": move.tool, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": move.arguments}
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": move.text}
        end = {"stop_reason": "tool_use" if move.tool else "end_turn", "stop_sequence": None}
        return [
            {"type": "message_start", "message": _empty(body)},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]


def _results(body: dict[str, Any]) -> Iterator[str]:
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        for block in blocks:
            if block["type"] == "tool_result":
                content = block.get("content", "")
                yield content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _empty(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex}",  # Claude Code takes messages with one id for parts of one message
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "stub"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
