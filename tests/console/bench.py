"""What the tests of the console share: a node with a few agents, keys of all roles, and a browser."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.result import Event, Question, Questions, Result
from tests.fixtures.node import PSK, Node, Reply, running

VIEWER, OPERATOR, SECRET = "the-key-of-viewer", "the-key-of-operator", "the-secret-of-webhooks-0123456789"
ATTACK = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
FLAGS = [
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
TIMEOUT = 20_000
expect.set_options(timeout=TIMEOUT)
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
async def serving(folder: Path, key: str | None = PSK, **more: Any) -> AsyncIterator[Node]:
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
    async with running(*make_agents(), config=config, base=folder, from_files=True, psk=key) as node:
        yield node


async def administer(
    node: Node, name: str, body: dict[str, Any] | None = None, token: str | None = PSK, **more: Any
) -> Reply:
    return await node.send("POST", f"/admin/v1/{name}", token=token, json=body or {}, **more)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Skips if there is no browser."""
    program = find_browser()
    own = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=[*FLAGS, *own])
        yield browser
        await browser.close()


@asynccontextmanager
async def visiting(
    browser: Browser, node: Node, path: str = "", *, token: str | None = PSK, phone: bool = False, **more: Any
) -> AsyncIterator[Page]:
    """A page of a visitor of its own, which must complain of nothing and ask no other host."""
    size = ViewportSize(width=390, height=844) if phone else ViewportSize(width=1280, height=800)
    context = await browser.new_context(viewport=size, reduced_motion="reduce", **more)
    context.set_default_timeout(TIMEOUT)
    if token is not None:
        await context.add_init_script(f"sessionStorage.setItem('fabric.token', '{token}')")
    page = await context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if "Content Security" in line.text else None)
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{node.url}/console{path}")
    yield page
    await context.close()
    assert not complaints
    assert all(url.startswith(node.url) for url in asked)
