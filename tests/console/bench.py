"""What the tests of the console share: a node with a few agents, keys of all roles, and a browser."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.result import Event, Question, Questions, Result
from tests.fixtures.node import PSK, Node, Reply, running

VIEWER, OPERATOR, SECRET = "the-key-of-viewer", "the-key-of-operator", "the-secret-of-webhooks-0123456789"
ATTACK = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

AGENTS_FILE = """# a remark that stays
- agent_id: filed
  description: An agent in a file.
  runtime: http
  endpoint: {uri: "http://127.0.0.1:1/filed"}
  capabilities:
    - {name: say, description: Say it.}
    - {name: sing, description: Sing it.}
"""


def find_browser() -> str:
    """Skips if there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs a browser: scripts/browser installs Debian's Chromium")
    return found


def make_agents() -> list[Agent]:
    louder = Agent("louder", description="Says it louder.", version="1.2.0", tags=["demo"])

    @louder.capability
    async def shout(text: str, tone: str = "loud") -> dict[str, str]:
        """Say a text in capitals."""
        return {"answer": text.upper()}

    @louder.capability
    async def count(to: int, emit: Emit) -> Result:
        """Count, and stream each number."""
        for number in range(1, to + 1):
            await emit(Event("progress", {"percent": 100 * number / to, "message": f"at {number}"}))
            await emit(Event("token", {"text": f"{number} "}))
            await asyncio.sleep(0)
        return Result(data={"answer": "".join(f"{number} " for number in range(1, to + 1))})

    @louder.capability
    async def fail(text: str) -> dict[str, str]:
        """Fail with the text."""
        raise ValueError(text)

    @louder.capability
    async def sleep(text: str) -> dict[str, str]:
        """Sleep until it is cancelled."""
        await asyncio.Event().wait()
        return {}

    tailor = Agent("tailor", description="Asks before it sews.")

    @tailor.capability
    async def sew(task: str, call: Call) -> Result:
        """Sew something."""
        if call.answers:
            return Result(data={"answer": f"a {call.answers.answers['colour'].content['colour']} {task}"})
        schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
        question = Question(kind="form", message="Which colour?", schema=schema)
        return Result(data={}, asked=Questions(questions={"colour": question}, continuation="colour"))

    mean = Agent("mean", description=ATTACK, tags=[ATTACK])

    @mean.capability
    async def inject(text: str, emit: Emit) -> dict[str, Any]:
        await emit(Event("status", {"status": "running", "message": ATTACK}))
        await emit(Event("token", {"text": ATTACK}))
        return {"answer": ATTACK, "more": {ATTACK: ATTACK}}

    @mean.capability
    async def refuse(text: str) -> dict[str, Any]:
        raise ValueError(ATTACK)

    return [louder, tailor, mean]


@asynccontextmanager
async def serving(folder: Path, **more: Any) -> AsyncIterator[Node]:
    file = folder / "agents.yaml"
    file.write_text(AGENTS_FILE)
    keys = [
        {"id": "viewer", "key": VIEWER, "scopes": ["console:view"]},
        {"id": "operator", "key": OPERATOR, "scopes": ["console:operate", "agent:*"]},
        {"id": "caller", "key": "the-key-of-caller", "scopes": ["agent:*"]},
        {"id": "unlimited", "key": "the-key-of-unlimited"},
    ]
    config = {
        "node_id": "test",
        "agents": [str(file)],
        "auth": {"keys": keys},
        "jobs": {"webhook_secret": SECRET},
        "public_url": "http://node.example",
        "store": "memory:",
        "health": {"interval": 0},
        **more,
    }
    async with running(*make_agents(), config=config, base=folder, from_files=True) as node:
        yield node


async def administer(node: Node, name: str, body: dict[str, Any] | None = None, token: str | None = PSK) -> Reply:
    return await node.send("POST", f"/admin/v1/{name}", token=token, json=body or {})
