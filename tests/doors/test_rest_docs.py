"""What the pages about REST and about messages tell people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.doors.rest_bench import percy, rest
from tests.fixtures.node import PSK
from tests.fixtures.pages import HERE, commands, needs_curl, typed
from tests.marks import requirement

pytestmark = needs_curl


@requirement("004-13", "004-17")
async def test_the_lines_of_the_page_about_rest_work() -> None:
    async with rest(percy()) as node:
        lines = commands("rest.md")
        assert len(lines) == 6
        for line in lines:
            printed = await asyncio.to_thread(typed, line.replace(HERE, node.url), TOKEN=PSK)
            assert '"error":' not in printed, (line, printed)
            if "/events" not in line:
                json.loads(printed)


async def test_the_lines_of_the_page_about_messages_work(tmp_path: Path) -> None:
    async with rest(percy()) as node:
        lines = commands("messages.md")
        assert len(lines) == 5
        environ = {"FABRIC_URL": node.url, "FABRIC_TOKEN": PSK, "FABRIC_HOME": str(tmp_path)}
        printed = [await asyncio.to_thread(typed, line, **environ) for line in lines]
        assert "queued" in printed[0]
        assert "1 waiting" in printed[1]
        assert '{"note":"call me"}' in printed[2]
        assert "subscribed to analytics.insights" in printed[3]
        assert "1 inboxes" in printed[4]
        received = await asyncio.to_thread(typed, "a2a-fabric messages receive --agent percy --json", **environ)
        [message] = json.loads(received)["messages"]
        assert message["payload"] == {"visitors": 12}
        line = f"a2a-fabric messages ack --agent percy {message['_stream_id']}"
        assert "acknowledged" in await asyncio.to_thread(typed, line, **environ)
