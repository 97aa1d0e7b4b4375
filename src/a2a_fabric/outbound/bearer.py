"""An HTTP client that sends a bearer token with each request, and renews it once if the server rejects it.

A reply with status 401 says that the request was not carried out, so it may be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Unpack

from a2a_fabric.core.logins import BearerSource
from a2a_fabric.outbound.guard import read_origin
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, HTTPRequestOptions, StreamedReply

UNAUTHORIZED = 401


class BearerClient:
    """Shares the connections of `http`, which it does not close.

    The token is for the agent at `uri` alone. Requests to another origin are sent without it: an agent may name
    addresses of others, such as in a card.
    """

    def __init__(self, http: HTTPClient, bearer: BearerSource, uri: str) -> None:
        self._http = http
        self._bearer = bearer
        self._origin = read_origin(uri)

    async def request(self, method: str, url: str, **options: Unpack[HTTPRequestOptions]) -> HTTPReply:
        async with self.stream(method, url, **options) as reply:
            return HTTPReply(reply.status, reply.headers, await reply.read())

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, **options: Unpack[HTTPRequestOptions]
    ) -> AsyncIterator[StreamedReply]:
        if read_origin(url) != self._origin:
            async with self._http.stream(method, url, **options) as reply:
                yield reply
            return
        token = await self._bearer.get()
        async with self._http.stream(method, url, **_add_bearer(options, token)) as reply:
            if reply.status != UNAUTHORIZED:
                yield reply
                return
        token = await self._bearer.renew(token)
        async with self._http.stream(method, url, **_add_bearer(options, token)) as reply:
            if reply.status == UNAUTHORIZED:
                self._bearer.reject()
            yield reply

    async def aclose(self) -> None:
        """The shared client belongs to the node."""


def _add_bearer(options: HTTPRequestOptions, token: str | None) -> HTTPRequestOptions:
    """The same request with this token alone; without any if there is none."""
    given: Mapping[str, str] = options.get("headers", {})
    headers = {name: value for name, value in given.items() if name.lower() != "authorization"}
    return {**options, "headers": headers if token is None else {**headers, "authorization": f"Bearer {token}"}}
