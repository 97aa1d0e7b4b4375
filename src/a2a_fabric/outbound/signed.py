"""An HTTP client that signs each request to one agent: who calls, on whose behalf, and what the body is."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Unpack

from a2a_fabric.core.forwarding import IDENTITY_HEADER, CallSigner
from a2a_fabric.outbound.guard import read_origin
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, HTTPRequestOptions, StreamedReply


class SignedClient:
    """Shares the connections of `http`, which it does not close. Requests to another origin than that of `uri` are sent
    without an identity.
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
