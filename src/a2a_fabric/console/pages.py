"""Serves the console: one small page, its modules and its style, from memory, under a strict Content-Security-Policy.

Every address below `/console` is a view of the one page. The address of the files has their hash, so browsers may keep
them for good, and ask a node of another version for its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from a2a_fabric.doors.api_docs import DoorDescription

CONSOLE_PATH = "/console"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_KEEP = "public, max-age=31536000, immutable"


class ConsolePages:
    """All files are read when the node starts: they are few and small. `more_routes` come before the views, and
    `describe` tells of them.
    """

    def __init__(self, more_routes: Sequence[BaseRoute], describe: Callable[[], DoorDescription]) -> None:
        self._more_routes = more_routes
        self.describe = describe
        folder = files("a2a_fabric.console") / "static"
        contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self._version = _hash(contents)
        base = f"{CONSOLE_PATH}/files/{self._version}"
        self._shell = contents.pop("index.html").replace(b"{files}", base.encode())
        self._greeting = contents.pop("greeting.html").replace(b"{files}", base.encode())
        self._files = contents

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            *self._more_routes,
            Route(f"{CONSOLE_PATH}/files/{{version}}/{{name}}", self._serve_file, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/", self._redirect, methods=["GET"]),
            Route(CONSOLE_PATH, self._serve_shell, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/{{view:path}}", self._serve_shell, methods=["GET"]),
        ]

    def render_greeting(self) -> Response:
        """For a browser that opens `/`."""
        return _page(self._greeting)

    async def _serve_shell(self, request: Request) -> Response:
        return _page(self._shell)

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse(CONSOLE_PATH, 308)

    async def _serve_file(self, request: Request) -> Response:
        """A browser that still has the page of another version gets the files of this one, which it must not keep."""
        name = request.path_params["name"]
        body = self._files.get(name)
        if body is None:
            raise HTTPException(404)
        keep = _KEEP if request.path_params["version"] == self._version else "no-store"
        media_type = _MEDIA_TYPES.get(PurePosixPath(name).suffix, "application/octet-stream")
        return Response(body, headers={**SECURITY_HEADERS, "cache-control": keep, "content-type": media_type})


def _page(body: bytes) -> Response:
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "content-type": _MEDIA_TYPES[".html"]}
    return Response(body, headers=headers)


def _hash(contents: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, body in sorted(contents.items()):
        digest.update(name.encode() + b"\0" + body)
    return digest.hexdigest()[:12]
