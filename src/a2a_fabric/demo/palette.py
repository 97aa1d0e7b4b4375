"""palette, an agent that receives tasks over REST: converts a colour between hex, RGB and HSL.

A task completes as soon as it is created. The latest tasks can be read."""

from __future__ import annotations

import colorsys
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CARD = {
    "id": "palette",
    "name": "palette",
    "description": "Writes a colour as hex, RGB and HSL.",
    "version": "1.0.0",
    "capabilities": ["colour"],
}
_MAX_TASKS = 100
_HEX = re.compile(r"#?([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})")
_RGB = re.compile(r"(?:rgb)?\s*\(?\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)?")


class NotAColour(ValueError):
    """The text is not a colour."""


def describe_colour(text: str) -> dict[str, Any]:
    """Raises NotAColour."""
    text = text.strip()[:40]
    if match := _HEX.fullmatch(text):
        red, green, blue = (int(each, 16) for each in match.groups())
    elif (match := _RGB.fullmatch(text)) and all(int(each) < 256 for each in match.groups()):
        red, green, blue = (int(each) for each in match.groups())
    else:
        raise NotAColour(f"'{text}' is not a colour. Write it like #ff8800 or 255,136,0")
    hue, lightness, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    notations = [
        f"#{red:02x}{green:02x}{blue:02x}",
        f"rgb({red}, {green}, {blue})",
        f"hsl({hue * 360:.0f}, {saturation:.0%}, {lightness:.0%})",
    ]
    return {"answer": ", ".join(notations), "is_dark": 0.299 * red + 0.587 * green + 0.114 * blue < 128}


class ColourTasks:
    """The endpoints, and the latest tasks."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def get_card(self, request: Request) -> Response:
        is_palette = request.path_params["agent"] == "palette"
        return JSONResponse(CARD) if is_palette else _error_response(404, "no such agent")

    async def get_task(self, request: Request) -> Response:
        task = self._tasks.get(request.path_params["task"])
        return JSONResponse(task) if task is not None else _error_response(404, "no such task")

    async def create_task(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            task_id, task_input = str(body["id"])[:128], body["input"]
            text = task_input if isinstance(task_input, str) else task_input.get("colour", task_input.get("task"))
            output = describe_colour(str(text))
        except NotAColour as exc:
            return _error_response(400, str(exc))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error_response(400, "not a task")
        if body.get("capability") != "colour":
            return _error_response(400, "the only capability is 'colour'")
        task = self._tasks[task_id] = {"id": task_id, "status": "completed", "output": output}
        if len(self._tasks) > _MAX_TASKS:
            self._tasks.popitem(last=False)
        return JSONResponse(task, 201)


def _error_response(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    tasks = ColourTasks()
    yield Starlette(
        routes=[
            Route("/agents/{agent}", tasks.get_card),
            Route("/tasks", tasks.create_task, methods=["POST"]),
            Route("/tasks/{task}", tasks.get_task),
        ]
    )
