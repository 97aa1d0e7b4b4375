"""Workers that ask each other, while one of them is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import UpstreamInterrupted
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.testing.values import make_call
from a2a_fabric.web.private_listener import open_private_listener


async def test_a_call_at_work_in_a_worker_that_is_stopped_may_have_run(tmp_path: Path) -> None:
    """The worker answers 503, after it has worked on the call: no other agent may be asked instead."""
    started = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await asyncio.sleep(600)

    http = OutboundClient(unix_socket=tmp_path / "w.sock", connect_timeout=10)
    peer = PeerClient("worker 1", "http://worker", http, 10_000)
    try:
        async with asyncio.timeout(60):
            async with open_private_listener(work, tmp_path / "w.sock", 0.0):
                call = asyncio.ensure_future(peer.call(make_call(timeout_ms=60_000), ignore_event, "agent"))
                await started.wait()
            with pytest.raises(UpstreamInterrupted):
                await call
    finally:
        await http.aclose()
