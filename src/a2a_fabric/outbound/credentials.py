"""HTTP clients that add credentials to requests to one agent: a bearer token, or an identity that the node signs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from a2a_fabric.core.forwarding import IDENTITY_HEADER, CallSigner
from a2a_fabric.core.logins import BearerSource
from a2a_fabric.outbound.guard import read_origin
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, HTTPRequestOptions, StreamedReply

UNAUTHORIZED = 401


class BearerClient:
    """Sends a bearer token with each request, and renews it once if the server rejects it: a reply with status 401 says
    that the request was not carried out, so it may be sent again. Shares the connections of `http`, which it does not
    close.

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


class SignedClient:
    """Signs each request: who calls, on whose behalf, and what the body is. Shares the connections of `http`, which it
    does not close. Requests to another origin than that of `uri` are sent without an identity.
    """

    def __init__(self, http: HTTPClient, signer: CallSigner, uri: str) -> None:
        self._http = http
        self._signer = signer
        self._origin = read_origin(uri)

    async def request(self, method: str, url: str, **options: Unpack[HTTPRequestOptions]) -> HTTPReply:
        return await self._http.request(method, url, **self._sign(url, options))

    def stream(
        self, method: str, url: str, **options: Unpack[HTTPRequestOptions]
    ) -> AbstractAsyncContextManager[StreamedReply]:
        return self._http.stream(method, url, **self._sign(url, options))

    async def aclose(self) -> None:
        """The shared client belongs to the node."""

    def _sign(self, url: str, options: HTTPRequestOptions) -> HTTPRequestOptions:
        if read_origin(url) != self._origin:
            return options
        token = self._signer.sign_request(options.get("body") or b"")
        return {**options, "headers": {**options.get("headers", {}), IDENTITY_HEADER: token}}


def _add_bearer(options: HTTPRequestOptions, token: str | None) -> HTTPRequestOptions:
    """The same request with this token alone; without any if there is none."""
    headers_before: Mapping[str, str] = options.get("headers", {})
    headers = {name: value for name, value in headers_before.items() if name.lower() != "authorization"}
    return {**options, "headers": headers if token is None else {**headers, "authorization": f"Bearer {token}"}}
