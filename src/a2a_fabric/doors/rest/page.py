"""`/openapi.json`, and a page at `/docs` that shows it: our own, so that it works offline and under a strict policy."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.replying import whole
from a2a_fabric.doors.rest.openapi import document
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.visit import Endpoint

_FILES = Path(__file__).with_name("docs")


class Described:
    """ASGI: the document. It tells nothing that is secret, so everybody may read it."""

    def __init__(self, place: Place, endpoints: Sequence[Endpoint]) -> None:
        self._place = place
        self._endpoints = endpoints

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        base = self._place.base_of(scope, Head(scope["headers"]))
        told = document(self._endpoints, base, self._place.context.issuers)
        await whole(send, 200, msgspec.json.encode(told), [(b"cache-control", b"no-cache")])


class Page:
    """ASGI: the page, in one piece. Nothing but its own style and script may run in it, and it may ask only us."""

    def __init__(self) -> None:
        style, script = ((_FILES / name).read_text("utf-8") for name in ("page.css", "page.js"))
        page = (_FILES / "page.html").read_text("utf-8")
        self._page = page.replace("{style}", style).replace("{script}", script).encode()
        policy = (
            f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await whole(send, 200, self._page, self._headers, b"text/html; charset=utf-8")


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class MovedTo:
    """ASGI: where an older platform had it."""

    def __init__(self, path: str) -> None:
        self._path = path.encode()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await whole(send, 301, b"{}", [(b"location", self._path)])
