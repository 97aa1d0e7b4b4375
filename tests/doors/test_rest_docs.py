"""What the pages about REST and about messages tell people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.doors.rest_bench import percy, rest
from tests.fixtures.node import PSK
from tests.marks import requirement

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [each.strip() for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each.strip()]


def typed(command: str, **environ: str) -> str:
    given = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nonexistent", **environ}
    done = subprocess.run(["bash", "-c", command], env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@requirement("004-13", "004-17")
async def test_the_lines_of_the_page_about_rest_work() -> None:
    async with rest(percy()) as node:
        lines = commands("rest.md")
        assert len(lines) == 6
        for line in lines:
            printed = await asyncio.to_thread(typed, line.replace("http://127.0.0.1:8000", node.url), TOKEN=PSK)
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
        assert "done" in await asyncio.to_thread(typed, line, **environ)
