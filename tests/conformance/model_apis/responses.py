"""The responses API, which Codex speaks: the tools of each MCP server come in a namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.model_apis.move import Asked, Move, Tool

_SEPARATOR = "__"


class ResponsesAPI:
    path = "/v1/responses"

    def read(self, body: dict[str, Any]) -> Asked:
        said = (item["output"] for item in body["input"] if item.get("type") == "function_call_output")
        results = tuple(each if isinstance(each, str) else json.dumps(each) for each in said)
        return Asked(tuple(_tools(body.get("tools") or [], "")), results)

    def events(self, body: dict[str, Any], move: Move) -> list[dict[str, Any]]:
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": _item(move, len(body["input"]))},
            {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
        ]


def _tools(listed: list[dict[str, Any]], prefix: str) -> Iterator[Tool]:
    for tool in listed:
        if tool["type"] == "namespace":
            yield from _tools(tool["tools"], f"{tool['name']}{_SEPARATOR}")
        elif tool["type"] == "function":
            yield Tool(prefix + tool["name"], tool["parameters"])


def _item(move: Move, turn: int) -> dict[str, Any]:
    if not move.tool:
        words = [{"type": "output_text", "text": move.text}]
        return {"type": "message", "role": "assistant", "id": "msg_1", "content": words}
    namespace, _, name = move.tool.rpartition(_SEPARATOR)
    ids = {"id": f"fc_{turn}", "call_id": f"call_{turn}"}
    call = {"type": "function_call", **ids, "name": name, "arguments": move.arguments}
    return {**call, "namespace": namespace} if namespace else call
