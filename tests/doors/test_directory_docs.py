"""What the page about the directory tells people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.node import PSK, WAIT_TIMEOUT, running
from tests.fixtures.pages import HERE, ROOT, dialogue, needs_curl, page, typed
from tests.marks import requirement

pytestmark = needs_curl

AGENT = "http://127.0.0.1:9001"  # as the page says


@asynccontextmanager
async def parrot() -> AsyncIterator[str]:
    """The agent that the page starts; yields its address."""
    assert "python3 examples/parrot_agent.py &" in page("directory.md")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "parrot_agent.py"), "0", stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_TIMEOUT):
            said = (await process.stdout.readline()).decode()
        yield said.strip().removeprefix("parrot listens on ")
    finally:
        process.terminate()
        await process.wait()


@requirement("002-11")
async def test_the_commands_print_what_the_page_says() -> None:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "directory"}]
    lines = dialogue("directory.md")
    assert len(lines) == 6
    async with parrot() as agent, running(config={"doors": doors}) as node:
        for command, expected in lines:
            line = command.replace(HERE, node.url).replace(AGENT, agent)
            printed = await asyncio.to_thread(typed, line, TOKEN=PSK)
            assert printed.strip()
            assert '"error"' not in printed, (command, printed)
            if expected:
                assert json.loads(printed) == json.loads(expected)
