"""`/openapi.json`, and a page at `/docs` that shows it. The page works offline and under a strict CSP."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from a2a_fabric.doors.edge import CycleEndpoint, HttpReply
from a2a_fabric.doors.rest.http import RestDoorState, RestPageCycle, page_endpoint
from a2a_fabric.doors.rest.openapi import build_document
from a2a_fabric.doors.rest.request_context import RestRoute

_FILES_DIRECTORY = Path(__file__).with_name("docs")
_NO_CACHE = (b"cache-control", b"no-cache")


def openapi_endpoint(state: RestDoorState, endpoints: Sequence[RestRoute]) -> CycleEndpoint:
    """The OpenAPI document. It holds no secrets, so every caller may read it."""

    def build_page(cycle: RestPageCycle) -> HttpReply:
        openapi = build_document(endpoints, cycle.base_url, state.context.issuers)
        return HttpReply(body=msgspec.json.encode(openapi), headers=[_NO_CACHE])

    return page_endpoint(state, build_page)


def docs_endpoint(state: RestDoorState) -> CycleEndpoint:
    """The page, in one piece. Only its own style and script may run in it, and it may request only this node."""
    style, script = ((_FILES_DIRECTORY / name).read_text("utf-8") for name in ("page.css", "page.js"))
    page = (_FILES_DIRECTORY / "page.html").read_text("utf-8")
    body = page.replace("{style}", style).replace("{script}", script).encode()
    policy = (
        f"default-src 'none'; script-src {_build_csp_hash(script)}; style-src {_build_csp_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        _NO_CACHE,
    ]
    return page_endpoint(
        state, lambda cycle: HttpReply(body=body, headers=headers, media_type=b"text/html; charset=utf-8")
    )


def _build_csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def redirect_endpoint(state: RestDoorState, path: str) -> CycleEndpoint:
    """From the path that an older platform used."""
    return page_endpoint(state, lambda cycle: HttpReply(status=301, body=b"{}", headers=[(b"location", path.encode())]))
