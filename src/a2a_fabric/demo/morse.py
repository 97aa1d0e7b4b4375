"""morse, an agent of the Agent Communication Protocol (ACP): translates text to Morse code and back.

The protocol is a few REST requests. A run completes as soon as it is created, so
there is nothing to resume or cancel. The latest runs can be read."""

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
_MAX_CHARS = 10_000
_MAX_RUNS = 100

AGENT = {
    "name": "morse",
    "description": "Writes words in Morse code, and Morse code in words.",
    "input_content_types": ["text/plain"],
    "output_content_types": ["text/plain"],
    "metadata": {"tags": ["demo", "text"]},
}


class MorseError(ValueError):
    """The text cannot be translated."""


def translate_words(text: str) -> Iterator[str]:
    """Each word in the other alphabet. Text of dots, dashes, spaces and slashes is Morse code. Raises MorseError."""
    if not text.strip() or len(text) > _MAX_CHARS:
        raise MorseError(f"Send between one and {_MAX_CHARS} characters")
    if set(text) <= set(".-/ \n"):
        for word in text.split("/"):
            yield "".join(_look_up(sign, _LETTER_OF) for sign in word.split())
    else:
        for word in text.upper().split():
            yield " ".join(_look_up(letter, _SIGN_OF) for letter in word)


def choose_separator(text: str) -> str:
    return " " if set(text) <= set(".-/ \n") else " / "


def _look_up(sign: str, table: dict[str, str]) -> str:
    if sign not in table:
        raise MorseError(f"Morse code has no '{sign[:20]}'")
    return table[sign]


class MorseRuns:
    """The endpoints of the protocol, and the latest runs."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def ping(self, request: Request) -> Response:
        return JSONResponse({})

    async def list_agents(self, request: Request) -> Response:
        return JSONResponse({"agents": [AGENT] if request.query_params.get("offset", "0") == "0" else []})

    async def get_agent(self, request: Request) -> Response:
        is_morse = request.path_params["name"] == "morse"
        return JSONResponse(AGENT) if is_morse else _error_response("not_found", "no such agent")

    async def get_run(self, request: Request) -> Response:
        run = self._runs.get(request.path_params["run_id"])
        return JSONResponse(run) if run is not None else _error_response("not_found", "no such run")

    async def create_run(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            name, mode, text = body["agent_name"], body.get("mode", "sync"), _text_from_messages(body["input"])
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            return _error_response("invalid_input", f"not a run: {exc}"[:200])
        if name != "morse":
            return _error_response("not_found", "no such agent")
        try:
            translated = list(translate_words(text))
        except MorseError as exc:
            return _error_response("invalid_input", str(exc))
        run = self._store_run(choose_separator(text).join(translated), body.get("session_id"))
        if mode == "stream":
            return StreamingResponse(
                _render_events(run, translated, choose_separator(text)), media_type="text/event-stream"
            )
        return JSONResponse(run, 202 if mode == "async" else 200)

    def _store_run(self, answer: str, session_id: str | None) -> dict[str, Any]:
        run_id = str(uuid.uuid4())
        output = [{"role": "agent/morse", "parts": [_text_part(answer)]}]
        run = {"run_id": run_id, "agent_name": "morse", "status": "completed", "output": output}
        self._runs[run_id] = {**run, "session_id": session_id or str(uuid.uuid4())}
        if len(self._runs) > _MAX_RUNS:
            self._runs.popitem(last=False)
        return self._runs[run_id]


async def _render_events(run: dict[str, Any], words: list[str], gap: str) -> AsyncIterator[bytes]:
    started = {**run, "status": "in-progress", "output": []}
    yield _render_event(type="run.in-progress", run=started)
    yield _render_event(type="message.created", message={"role": "agent/morse", "parts": []})
    for number, word in enumerate(words):
        yield _render_event(type="message.part", part=_text_part(word if number == 0 else gap + word))
    yield _render_event(type="message.completed", message=run["output"][0])
    yield _render_event(type="run.completed", run=run)


def _render_event(**event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _text_part(text: str) -> dict[str, str]:
    return {"content_type": "text/plain", "content": text}


def _text_from_messages(messages: list[dict[str, Any]]) -> str:
    parts = [part for message in messages for part in message["parts"]]
    return "".join(part["content"] for part in parts if part.get("content_type", "text/plain") == "text/plain")


def _error_response(code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, 404 if code == "not_found" else 422)


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    runs = MorseRuns()
    yield Starlette(
        routes=[
            Route("/ping", runs.ping),
            Route("/agents", runs.list_agents),
            Route("/agents/{name}", runs.get_agent),
            Route("/runs", runs.create_run, methods=["POST"]),
            Route("/runs/{run_id}", runs.get_run),
        ]
    )
