"""An HTTP client that sends a bearer token with each request, and renews it once if the server rejects it.

A reply with status 401 says that the request was not carried out, so it may be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from a2a_fabric.outbound.guard import parse_url
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, StreamedReply

UNAUTHORIZED = 401


class BearerSource(Protocol):
    """The token of one principal at one agent. Both methods may raise any FabricError."""

    async def get(self) -> str: ...

    async def renew(self, rejected: str) -> str:
        """Another token than the rejected one."""
        ...

    def reject(self) -> None:
        """A token was rejected although it is new."""
        ...


class BearerClient:
    """Shares the connections of `http`, which it does not close.

    The token is for the agent at `uri` alone. Requests to another origin are sent without it: an agent may name
    addresses of others, such as in a card.
    """

    def __init__(self, http: HTTPClient, bearer: BearerSource, uri: str) -> None:
        self._http = http
        self._bearer = bearer
        self._origin = _read_origin(uri)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> HTTPReply:
        if _read_origin(url) != self._origin:
            return await self._http.request(method, url, headers=headers, body=body, timeout=timeout, limit=limit)
        token = await self._bearer.get()
        for is_last in (False, True):
            reply = await self._http.request(
                method, url, headers=add_bearer(headers, token), body=body, timeout=timeout, limit=limit
            )
            if reply.status != UNAUTHORIZED or is_last:
                break
            token = await self._bearer.renew(token)
        if reply.status == UNAUTHORIZED:
            self._bearer.reject()
        return reply

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> AbstractAsyncContextManager[StreamedReply]:
        if _read_origin(url) != self._origin:
            return self._http.stream(method, url, headers=headers, body=body, timeout=timeout, limit=limit)
        return self._stream(method, url, headers, body, timeout, limit)

    @asynccontextmanager
    async def _stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float, limit: int
    ) -> AsyncIterator[StreamedReply]:
        token = await self._bearer.get()
        async with self._http.stream(
            method, url, headers=add_bearer(headers, token), body=body, timeout=timeout, limit=limit
        ) as reply:
            if reply.status != UNAUTHORIZED:
                yield reply
                return
        token = await self._bearer.renew(token)
        async with self._http.stream(
            method, url, headers=add_bearer(headers, token), body=body, timeout=timeout, limit=limit
        ) as reply:
            if reply.status == UNAUTHORIZED:
                self._bearer.reject()
            yield reply

    async def aclose(self) -> None:
        """The shared client belongs to the node."""


def _read_origin(url: str) -> tuple[str, str, int]:
    parsed = parse_url(url)
    return parsed.scheme, parsed.host, parsed.port


def add_bearer(headers: Mapping[str, str], token: str) -> dict[str, str]:
    others = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    return {**others, "authorization": f"Bearer {token}"}
