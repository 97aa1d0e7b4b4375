"""Strangers may begin to sign in to the console: those of one address leave room for the others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from starlette.routing import Router

from a2a_fabric.console.sign_in import PATH, IssuerClient, SignInPages
from a2a_fabric.core.keys import KeyStore
from tests.fixtures.node import WAIT_TIMEOUT


class SlowIssuer:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.may_answer = asyncio.Event()

    async def build_url(self, verifier: str, redirect_uri: str) -> str:
        self.asked.put_nowait(verifier)
        await self.may_answer.wait()
        return "https://issuer.example/authorize"


async def refresh_keys() -> None:
    """There are none."""


async def start(pages: SignInPages, address: str) -> int:
    sent: list[Any] = []
    body = msgspec.json.encode({"verifier": "v" * 43})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": f"{PATH}/start", "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"node.example")], "client": (address, 1), "server": ("node.example", 80),
    }  # fmt: skip
    await Router(pages.routes)(scope, receive, send)
    return int(sent[0]["status"])


async def test_one_address_cannot_hold_all_sign_ins_that_wait_for_the_issuer() -> None:
    issuer = SlowIssuer()
    pages = SignInPages("corp", lambda: cast(IssuerClient, issuer), cast(KeyStore, None), refresh_keys, None, 3600.0)
    async with asyncio.timeout(WAIT_TIMEOUT):
        hogs = [asyncio.ensure_future(start(pages, "192.0.2.1")) for _ in range(40)]
        ends = asyncio.as_completed(hogs)
        assert [await next(ends) for _ in range(28)] == [429] * 28
        for _ in range(12):
            await issuer.asked.get()
        person = asyncio.ensure_future(start(pages, "192.0.2.2"))
        await issuer.asked.get()
        issuer.may_answer.set()
        assert await person == 200
        assert [await each for each in hogs].count(200) == 12
