"""What the page about the directory tells people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json

from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, running
from tests.fixtures.pages import HERE, dialogue, needs_curl, typed
from tests.marks import requirement
from tests.matrix.agents.listening import listening

pytestmark = needs_curl

AGENT = "http://127.0.0.1:9001"  # as the page says


@requirement("002-11")
async def test_the_commands_print_what_the_page_says() -> None:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "directory"}]
    lines = dialogue("directory.md")
    assert len(lines) == 6
    async with listening(RPCAgent()) as agent, running(config={"doors": doors}) as node:
        for command, expected in lines:
            line = command.replace(HERE, node.url).replace(AGENT, agent)
            printed = await asyncio.to_thread(typed, line, TOKEN=PSK)
            assert printed.strip()
            assert '"error"' not in printed, (command, printed)
            if expected:
                assert json.loads(printed) == json.loads(expected)
