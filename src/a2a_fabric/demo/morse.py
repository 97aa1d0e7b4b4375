"""morse, an agent of the Agent Communication Protocol: writes words in Morse code, and reads it.

The protocol is a few requests of plain REST. A run here is over as soon as it is begun, so there is nothing to
resume and nothing to cancel; the last runs can be looked at.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_SIGN_OF = {
    "A": ".-", "B": "-...", "C": "-.-.", "D": "-..", "E": ".", "F": "..-.", "G": "--.", "H": "....", "I": "..",
    "J": ".---", "K": "-.-", "L": ".-..", "M": "--", "N": "-.", "O": "---", "P": ".--.", "Q": "--.-", "R": ".-.",
    "S": "...", "T": "-", "U": "..-", "V": "...-", "W": ".--", "X": "-..-", "Y": "-.--", "Z": "--..", "0": "-----",
    "1": ".----", "2": "..---", "3": "...--", "4": "....-", "5": ".....", "6": "-....", "7": "--...", "8": "---..",
    "9": "----.", ".": ".-.-.-", ",": "--..--", "?": "..--..", "'": ".----.", "!": "-.-.--", "/": "-..-.",
    "(": "-.--.", ")": "-.--.-", "&": ".-...", ":": "---...", ";": "-.-.-.", "=": "-...-", "+": ".-.-.",
    "-": "-....-", "_": "..--.-", '"': ".-..-.", "$": "...-..-", "@": ".--.-.",
}  # fmt: skip
_LETTER_OF = {sign: letter for letter, sign in _SIGN_OF.items()}
_LONGEST = 10_000  # characters
_KEPT = 100  # runs

AGENT = {
    "name": "morse",
    "description": "Writes words in Morse code, and Morse code in words.",
    "input_content_types": ["text/plain"],
    "output_content_types": ["text/plain"],
    "metadata": {"tags": ["demo", "text"]},
}


class Refusal(ValueError):
    """Nothing that could be written in the other way."""


def words(text: str) -> Iterator[str]:
    """Each word in the other alphabet: Morse code is dots, dashes, spaces and slashes alone. Raises Refusal."""
    if not text.strip() or len(text) > _LONGEST:
        raise Refusal(f"Send between one and {_LONGEST} characters")
    if set(text) <= set(".-/ \n"):
        for word in text.split("/"):
            yield "".join(_found(sign, _LETTER_OF) for sign in word.split())
    else:
        for word in text.upper().split():
            yield " ".join(_found(letter, _SIGN_OF) for letter in word)


def between(text: str) -> str:
    return " " if set(text) <= set(".-/ \n") else " / "


def _found(sign: str, table: dict[str, str]) -> str:
    if sign not in table:
        raise Refusal(f"Morse code has no '{sign[:20]}'")
    return table[sign]


class Runs:
    """The requests of the protocol."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def ping(self, request: Request) -> Response:
        return JSONResponse({})

    async def agents(self, request: Request) -> Response:
        return JSONResponse({"agents": [AGENT] if request.query_params.get("offset", "0") == "0" else []})

    async def agent(self, request: Request) -> Response:
        return JSONResponse(AGENT) if request.path_params["name"] == "morse" else _error("not_found", "no such agent")

    async def run(self, request: Request) -> Response:
        known = self._last.get(request.path_params["run_id"])
        return JSONResponse(known) if known is not None else _error("not_found", "no such run")

    async def begin(self, request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            name, mode, text = asked["agent_name"], asked.get("mode", "sync"), _text_of(asked["input"])
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            return _error("invalid_input", f"not a run: {exc}"[:200])
        if name != "morse":
            return _error("not_found", "no such agent")
        try:
            said = list(words(text))
        except Refusal as exc:
            return _error("invalid_input", str(exc))
        run = self._kept(between(text).join(said), asked.get("session_id"))
        if mode == "stream":
            return StreamingResponse(_events(run, said, between(text)), media_type="text/event-stream")
        return JSONResponse(run, 202 if mode == "async" else 200)

    def _kept(self, answer: str, session_id: str | None) -> dict[str, Any]:
        run_id = str(uuid.uuid4())
        output = [{"role": "agent/morse", "parts": [_part(answer)]}]
        run = {"run_id": run_id, "agent_name": "morse", "status": "completed", "output": output}
        self._last[run_id] = {**run, "session_id": session_id or str(uuid.uuid4())}
        if len(self._last) > _KEPT:
            self._last.popitem(last=False)
        return self._last[run_id]


async def _events(run: dict[str, Any], said: list[str], gap: str) -> AsyncIterator[bytes]:
    begun = {**run, "status": "in-progress", "output": []}
    yield _event(type="run.in-progress", run=begun)
    yield _event(type="message.created", message={"role": "agent/morse", "parts": []})
    for number, word in enumerate(said):
        yield _event(type="message.part", part=_part(word if number == 0 else gap + word))
    yield _event(type="message.completed", message=run["output"][0])
    yield _event(type="run.completed", run=run)


def _event(**event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _part(text: str) -> dict[str, str]:
    return {"content_type": "text/plain", "content": text}


def _text_of(messages: list[dict[str, Any]]) -> str:
    parts = [part for message in messages for part in message["parts"]]
    return "".join(part["content"] for part in parts if part.get("content_type", "text/plain") == "text/plain")


def _error(code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, 404 if code == "not_found" else 422)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Any]:
    runs = Runs()
    yield Starlette(
        routes=[
            Route("/ping", runs.ping),
            Route("/agents", runs.agents),
            Route("/agents/{name}", runs.agent),
            Route("/runs", runs.begin, methods=["POST"]),
            Route("/runs/{run_id}", runs.run),
        ]
    )
