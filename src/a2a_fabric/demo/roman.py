"""roman, an agent that takes tasks by JSON-RPC (`a2a/task`): writes numbers in Roman numerals, and reads them."""

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
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32600, -32601, -32602


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def converted(written: str) -> str:
    """The same number in the other way of writing. Raises Refusal."""
    written = written.strip().upper()
    if written.isascii() and written.isdigit() and len(written) <= 4 and 0 < int(written) < 4000:
        return _numeral(int(written))
    number = sum(_VALUES[found] for found in _NUMERAL.findall(written[:20]))
    if not number or _numeral(number) != written:
        raise Refusal(_INVALID_PARAMS, f"'{written[:40]}' is neither a number from 1 to 3999 nor a Roman numeral")
    return str(number)


def _numeral(number: int) -> str:
    said = ""
    for letters, value in _VALUES.items():
        count, number = divmod(number, value)
        said += letters * count
    return said


def answered(asked: Any) -> dict[str, Any]:
    """The result of a request. Raises Refusal."""
    if not isinstance(asked, dict) or not isinstance(params := asked.get("params"), dict):
        raise Refusal(_INVALID_REQUEST, "Not a request")
    if asked.get("method") != "a2a/task":
        raise Refusal(_NO_METHOD, "Only a2a/task is known here")
    if params.get("action") != "numeral":
        raise Refusal(_INVALID_PARAMS, "The only action is 'numeral'")
    given = params.get("input")
    number = given.get("number", given.get("task")) if isinstance(given, dict) else given
    answer = converted(str(number))
    return {"taskId": params.get("taskId"), "status": "completed", "output": {"answer": answer}}


async def entry(request: Request) -> Response:
    return JSONResponse(ENTRY)


async def rpc(request: Request) -> Response:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
    try:
        asked = json.loads(await request.body())
        reply["id"] = asked.get("id") if isinstance(asked, dict) else None
        return JSONResponse({**reply, "result": answered(asked)})
    except ValueError:
        return JSONResponse({**reply, "error": {"code": -32700, "message": "Not JSON"}})
    except Refusal as exc:
        return JSONResponse({**reply, "error": {"code": exc.code, "message": str(exc)}})


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Any]:
    yield Starlette(routes=[Route("/", entry), Route("/", rpc, methods=["POST"])])
