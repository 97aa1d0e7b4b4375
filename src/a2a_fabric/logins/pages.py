"""The node's own login pages, for clients that can open an address for their user.

`/logins/start` names the caller that the login is for and asks the person to go on; `/logins/callback` is where the
authorization server sends the browser back to. A cookie ties both together, so only the browser in which a person
agreed can finish the login. The form is accepted from the page itself alone, because another site could otherwise
start a login for its own caller in the browser of a person who never saw the page."""

from __future__ import annotations

import logging
import secrets
from html import escape
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from a2a_fabric.core.errors import FabricError
from a2a_fabric.logins.logins import CALLBACK_PATH, START_PATH, Logins

_COOKIE = "a2a-fabric-login"
_COOKIE_SECONDS = 600
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:4rem auto;padding:0 1rem}}
button{{font:inherit;padding:.5rem 1rem}}code{{overflow-wrap:anywhere}}</style>
<h1>{title}</h1>{body}
</html>
"""
_log = logging.getLogger(__name__)


class LoginPages:
    def __init__(self, logins: Logins, node_id: str) -> None:
        self._logins = logins
        self._node_id = node_id

    @property
    def routes(self) -> list[Route]:
        return [
            Route(START_PATH, self._show_start, methods=["GET"]),
            Route(START_PATH, self._start, methods=["POST"]),
            Route(CALLBACK_PATH, self._finish, methods=["GET"]),
        ]

    async def _show_start(self, request: Request) -> Response:
        try:
            ticket = self._logins.open_ticket(request.query_params.get("ticket", ""))
        except FabricError as error:
            return _render_error(error)
        agent, owner, node = escape(ticket.agent_id), escape(ticket.owner), escape(self._node_id)
        return _render(
            f"Sign in to {ticket.agent_id}",
            f"<p>The caller <code>{owner}</code> of the node <code>{node}</code> wants to use the agent "
            f"<code>{agent}</code> with <strong>your</strong> account.</p>"
            "<p>Go on only if you are this caller and have just made this request.</p>"
            '<form method="post"><button>Go on and sign in</button></form>',
        )

    async def _start(self, request: Request) -> Response:
        if urlsplit(request.headers.get("origin", "")).netloc != request.headers.get("host", ""):
            return _render("This login cannot be started", "<p>The request came from another site.</p>", 403)
        browser = secrets.token_urlsafe(32)
        try:
            started = await self._logins.start_in_browser(request.query_params.get("ticket", ""), browser)
        except FabricError as error:
            return _render_error(error)
        response = RedirectResponse(started.url, 303, _HEADERS)
        response.set_cookie(
            _COOKIE,
            browser,
            max_age=_COOKIE_SECONDS,
            path=CALLBACK_PATH,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response

    async def _finish(self, request: Request) -> Response:
        query = request.query_params
        try:
            record = await self._logins.finish_in_browser(
                request.cookies.get(_COOKIE, ""),
                query.get("state", ""),
                query.get("code"),
                query.get("iss"),
                query.get("error"),
            )
        except FabricError as error:
            return _render_error(error)
        response = _render(
            "You are signed in",
            f"<p>The caller <code>{escape(record.owner)}</code> can use <code>{escape(record.agent_id)}</code> now. "
            "You can close this page.</p>",
        )
        response.delete_cookie(_COOKIE, path=CALLBACK_PATH)
        return response


def _render_error(error: FabricError) -> Response:
    _log.info("a login in a browser failed: %s", error.message)
    return _render("You are not signed in", f"<p>{escape(error.message)}</p>", 400)


def _render(title: str, body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(_PAGE.format(title=escape(title), body=body), status, _HEADERS)
