"""`/openapi.json`, and a page at `/docs` that shows it. The page is self-contained: it works offline and under a strict CSP."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.edge import RequestHead, send_reply
from a2a_fabric.doors.rest.http import RestDoorState
from a2a_fabric.doors.rest.openapi import build_document
from a2a_fabric.doors.rest.request_context import RestEndpointSpec

_FILES_DIRECTORY = Path(__file__).with_name("docs")


class OpenApiEndpoint:
    """ASGI: the document. It tells nothing that is secret, so everybody may read it."""

    def __init__(self, state: RestDoorState, endpoints: Sequence[RestEndpointSpec]) -> None:
        self._state = state
        self._endpoints = endpoints

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        base_url = self._state.get_base_url(scope, RequestHead(scope["headers"]))
        openapi = build_document(self._endpoints, base_url, self._state.context.issuers)
        await send_reply(send, 200, msgspec.json.encode(openapi), [(b"cache-control", b"no-cache")])


class DocsPageEndpoint:
    """ASGI: the page, in one piece. Nothing but its own style and script may run in it, and it may ask only us."""

    def __init__(self) -> None:
        style, script = ((_FILES_DIRECTORY / name).read_text("utf-8") for name in ("page.css", "page.js"))
        page = (_FILES_DIRECTORY / "page.html").read_text("utf-8")
        self._page = page.replace("{style}", style).replace("{script}", script).encode()
        policy = (
            f"default-src 'none'; script-src {_build_csp_hash(script)}; style-src {_build_csp_hash(style)}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, self._page, self._headers, b"text/html; charset=utf-8")


def _build_csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class RedirectEndpoint:
    """ASGI: where an older platform had it."""

    def __init__(self, path: str) -> None:
        self._path = path.encode()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send_reply(send, 301, b"{}", [(b"location", self._path)])
