"""palette, an agent that takes tasks by REST: says a colour in every way of writing it.

A task is done as soon as it is there, so there is nothing to follow and nothing to end; the last ones can be looked at.
"""

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
    "description": "Says a colour in every way of writing it.",
    "version": "1.0.0",
    "capabilities": ["colour"],
}
_KEPT = 100  # tasks
_HEX = re.compile(r"#?([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})")
_RGB = re.compile(r"(?:rgb)?\s*\(?\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)?")


class NotAColour(ValueError):
    pass


def colour(written: str) -> dict[str, Any]:
    """Raises NotAColour."""
    written = written.strip()[:40]
    if found := _HEX.fullmatch(written):
        red, green, blue = (int(each, 16) for each in found.groups())
    elif (found := _RGB.fullmatch(written)) and all(int(each) < 256 for each in found.groups()):
        red, green, blue = (int(each) for each in found.groups())
    else:
        raise NotAColour(f"'{written}' is no colour; write it like #ff8800 or 255,136,0")
    hue, light, full = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    ways = [
        f"#{red:02x}{green:02x}{blue:02x}",
        f"rgb({red}, {green}, {blue})",
        f"hsl({hue * 360:.0f}, {full:.0%}, {light:.0%})",
    ]
    return {"answer": ", ".join(ways), "is_dark": 0.299 * red + 0.587 * green + 0.114 * blue < 128}


class Tasks:
    """The requests."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def card(self, request: Request) -> Response:
        return JSONResponse(CARD) if request.path_params["agent"] == "palette" else _refused(404, "no such agent")

    async def task(self, request: Request) -> Response:
        known = self._last.get(request.path_params["task"])
        return JSONResponse(known) if known is not None else _refused(404, "no such task")

    async def create(self, request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            task_id, given = str(asked["id"])[:128], asked["input"]
            written = given if isinstance(given, str) else given.get("colour", given.get("task"))
            output = colour(str(written))
        except NotAColour as exc:
            return _refused(400, str(exc))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _refused(400, "not a task")
        if asked.get("capability") != "colour":
            return _refused(400, "the only capability is 'colour'")
        task = self._last[task_id] = {"id": task_id, "status": "completed", "output": output}
        if len(self._last) > _KEPT:
            self._last.popitem(last=False)
        return JSONResponse(task, 201)


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Any]:
    tasks = Tasks()
    yield Starlette(
        routes=[
            Route("/agents/{agent}", tasks.card),
            Route("/tasks", tasks.create, methods=["POST"]),
            Route("/tasks/{task}", tasks.task),
        ]
    )
