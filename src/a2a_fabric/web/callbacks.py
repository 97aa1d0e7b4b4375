"""Where agents leave word for the calls that wait for them: one route, beside all doors.

The token is all that is asked for. Without the right one there is nothing here, as at any
other address that does not exist; with it, a call is woken, and the agent learns nothing.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.core.callbacks import PATH, Callbacks
from a2a_fabric.core.errors import PayloadTooLarge
from a2a_fabric.doors.http import ClientGone, head_of, read_body

_TOKEN = "x-a2a-notification-token"  # noqa: S105  # where it stands
_BEARER = "bearer "


def callback_route(callbacks: Callbacks, body_bytes: int) -> Route:
    async def leave(request: Request) -> Response:
        callback = callbacks.find(request.path_params["key"], _token(request))
        if callback is None:
            raise HTTPException(404)
        try:
            note = await read_body(request.receive, head_of(request.scope), body_bytes)
        except PayloadTooLarge:
            callback.leave(b"")  # that there is news is all that one has to know
            return Response(status_code=413)
        except (ClientGone, TimeoutError):
            return Response(status_code=408)
        callback.leave(note)
        return Response(status_code=204)

    return Route(f"{PATH}{{key}}", leave, methods=["POST"])


def _token(request: Request) -> str:
    given = request.headers.get("authorization", "")
    as_bearer = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
    return request.headers.get(_TOKEN) or as_bearer
