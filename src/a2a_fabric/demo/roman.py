"""roman, an agent that receives tasks over JSON-RPC (`a2a/task`): converts numbers to Roman numerals and back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ENTRY = {"id": "roman", "name": "roman", "capabilities": ["numeral"]}
_VALUES = {
    "M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5,
    "IV": 4, "I": 1,
}  # fmt: skip
_NUMERAL = re.compile("|".join(_VALUES))
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32600, -32601, -32602


class RomanError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def convert_numeral(text: str) -> str:
    """A number as a Roman numeral, or a Roman numeral as a number. Raises RomanError."""
    text = text.strip().upper()
    if text.isascii() and text.isdigit() and len(text) <= 4 and 0 < int(text) < 4000:
        return _to_numeral(int(text))
    number = sum(_VALUES[symbol] for symbol in _NUMERAL.findall(text[:20]))
    if not number or _to_numeral(number) != text:
        raise RomanError(_INVALID_PARAMS, f"'{text[:40]}' is neither a number from 1 to 3999 nor a Roman numeral")
    return str(number)


def _to_numeral(number: int) -> str:
    numeral = ""
    for letters, value in _VALUES.items():
        count, number = divmod(number, value)
        numeral += letters * count
    return numeral


def handle_task(message: Any) -> dict[str, Any]:
    """The result of a request. Raises RomanError."""
    if not isinstance(message, dict) or not isinstance(params := message.get("params"), dict):
        raise RomanError(_INVALID_REQUEST, "Not a request")
    if message.get("method") != "a2a/task":
        raise RomanError(_METHOD_NOT_FOUND, "The only method is a2a/task")
    if params.get("action") != "numeral":
        raise RomanError(_INVALID_PARAMS, "The only action is 'numeral'")
    task_input = params.get("input")
    number = task_input.get("number", task_input.get("task")) if isinstance(task_input, dict) else task_input
    answer = convert_numeral(str(number))
    return {"taskId": params.get("taskId"), "status": "completed", "output": {"answer": answer}}


async def get_entry(request: Request) -> Response:
    return JSONResponse(ENTRY)


async def handle_rpc(request: Request) -> Response:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
    try:
        message = json.loads(await request.body())
        reply["id"] = message.get("id") if isinstance(message, dict) else None
        return JSONResponse({**reply, "result": handle_task(message)})
    except ValueError:
        return JSONResponse({**reply, "error": {"code": -32700, "message": "Not JSON"}})
    except RomanError as exc:
        return JSONResponse({**reply, "error": {"code": exc.code, "message": str(exc)}})


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    yield Starlette(routes=[Route("/", get_entry), Route("/", handle_rpc, methods=["POST"])])
