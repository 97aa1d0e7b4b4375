"""WebSocket clients that cannot send headers, as in browsers, offer their token as a subprotocol."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
import websockets
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.fixtures.node import PSK, WAIT_TIMEOUT, running
from tests.fixtures.percy import Percy


def offer(token: str) -> list[Subprotocol]:
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return [Subprotocol("mcp"), Subprotocol(f"fabric.bearer.{encoded}")]


INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}},
}  # fmt: skip


async def test_a_token_in_a_subprotocol_opens_the_connection_and_is_never_sent_back() -> None:
    async with running(Percy().agent) as node, asyncio.timeout(WAIT_TIMEOUT):
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        async with websockets.connect(url, subprotocols=offer(PSK)) as socket:
            assert socket.subprotocol == "mcp"
            assert socket.response is not None
            assert "fabric.bearer" not in str(socket.response.headers)
            await socket.send(json.dumps(INITIALIZE))
            assert json.loads(await socket.recv())["result"]["serverInfo"]["name"] == "a2a-fabric"
        assert PSK not in node.log.getvalue()
        assert base64.urlsafe_b64encode(PSK.encode()).decode().rstrip("=") not in node.log.getvalue()


@pytest.mark.parametrize(
    "protocols", [["mcp"], ["mcp", "fabric.bearer."], ["mcp", "fabric.bearer.AAAA"], offer("wrong"), offer("ä")]
)
async def test_without_the_right_token_the_connection_is_refused(protocols: list[Subprotocol]) -> None:
    async with running(Percy().agent) as node, asyncio.timeout(WAIT_TIMEOUT):
        url = node.url.replace("http", "ws", 1) + "/mcp/ws"
        with pytest.raises(InvalidStatus) as refused:
            await websockets.connect(url, subprotocols=protocols)
        assert refused.value.response.status_code == 401


async def test_a_token_in_the_url_opens_nothing() -> None:
    async with running(Percy().agent) as node, asyncio.timeout(WAIT_TIMEOUT):
        url = f"{node.url.replace('http', 'ws', 1)}/mcp/ws?token={PSK}&access_token={PSK}"
        with pytest.raises(InvalidStatus) as refused:
            await websockets.connect(url)
        assert refused.value.response.status_code == 401
