"""Sessions of MCP go on after their node was stopped and started again, with what their clients subscribed to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.mcp_raw import Session, initialize
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy

OTHER = "another-key-of-the-node"
CONFIG = {"auth": {"keys": [{"id": "other", "key": OTHER}]}}
URI = "fabric://agents/percy"


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": f"of-{method}", "method": method, "params": params}


def continue_at(node: Node, session: Session, path: str = "/mcp") -> Session:
    """The same session, as its client goes on with it after the restart."""
    again = Session(node, path=path)
    again.headers = dict(session.headers)
    return again


@pytest.mark.parametrize("path", ["/mcp", "/agents/percy/mcp"])
@pytest.mark.parametrize("needs_sdk", [False, True])
async def test_a_session_goes_on_after_a_restart(tmp_path: Path, path: str, needs_sdk: bool) -> None:
    file = tmp_path / "state" / "sessions"
    opening = initialize()
    if needs_sdk:
        opening["params"]["clientInfo"]["icons"] = []
    async with running(Percy().agent, config=CONFIG, session_file=file) as node:
        session = await Session(node, path=path, opening=opening).__aenter__()
    assert file.stat().st_mode & 0o777 == 0o600
    assert PSK.encode() not in file.read_bytes()
    call = request("tools/call", name="percy_reason" if path == "/mcp" else "reason", arguments={"task": "hi"})
    async with running(Percy().agent, config=CONFIG, session_file=file) as node:
        assert not file.exists()
        again = continue_at(node, session, path)
        async with again.post(call, Authorization=f"Bearer {OTHER}") as stranger:
            assert stranger.status == 404  # a session belongs to its opener
        for _ in range(2):
            assert "result" in await again.answer(call)
        async with node.client.delete(node.url + path, headers=again.headers) as ended:
            assert ended.status in (200, 202, 204)
    async with (
        running(Percy().agent, config=CONFIG, session_file=file) as node,
        continue_at(node, session, path).post(call) as reply,
    ):
        assert reply.status == 404


async def test_subscriptions_are_made_again_for_a_session_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    percy = Percy()
    async with running(percy.agent, session_file=file) as node:
        session = await Session(node).__aenter__()
        assert "result" in await session.answer(request("resources/subscribe", uri=URI))
    async with running(percy.agent, session_file=file) as node, asyncio.timeout(WAIT_TIMEOUT):
        again = continue_at(node, session)
        async with again.get() as stream:
            assert stream.status == 200
            node.fabric.registry.health.set_status("percy", "degraded", "a test")
            async for line in stream.content:
                if b"notifications/resources/updated" in line:
                    break
            assert URI.encode() in line


@pytest.mark.parametrize("content", [b"", b"no msgpack", msgspec.msgpack.encode({"saved_at": "never"})])
async def test_a_file_of_sessions_that_cannot_be_read_is_removed_and_reported(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "sessions"
    file.write_bytes(content)
    async with running(Percy().agent, session_file=file) as node:
        assert not file.exists()
        assert "cannot be read" in caplog.text
        async with Session(node) as session:
            assert "result" in await session.answer(request("ping"))
