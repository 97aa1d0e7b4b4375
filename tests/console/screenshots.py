"""Makes the pictures of the console in docs/images, from the demo agents: `scripts/screenshots`."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from playwright.async_api import Page, ViewportSize

from a2a_fabric.web.server import bind_socket
from tests.console.bench import browsing

KEY = "the-key-of-the-pictures"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SECONDS = float(os.environ.get("SECONDS_OF_TRAFFIC", "45"))

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("percy", "reason", {"task": "What is 12 * 7 + 16?"}),
    ("percy", "plan", {"task": "Buy milk, then cook soup, then call Ada."}),
    ("counter", "count", {"text": "How many words are these?"}),
    ("sorter", "sort", {"text": "pear\napple\nfig"}),
    ("units", "convert", {"value": 3, "unit": "mi", "to": "km"}),
    ("scribe", "summarize", {"text": "Cats sleep. Dogs bark at night. Birds sing in the morning."}),
    ("primes", "factor", {"number": 360360}),
    ("lab/dice", "roll", {"dice": "2d6"}),
    ("archive", "summarize", {"text": "Cats sleep. Dogs bark at night. Birds sing in the morning."}),
]
MCP_VERSION = "2026-07-28"
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "claude-code", "version": "2.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
BAD = ("units", "convert", {"value": 3, "unit": "mi", "to": "kg"})


class Client:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session
        self.keys: list[str] = [KEY]

    async def post(self, path: str, body: dict[str, Any], token: str = KEY, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {token}", **headers}
        async with self._session.post(self.url + path, json=body, headers=sent) as reply:
            return await reply.json(content_type=None)

    async def operate(self, name: str, **arguments: Any) -> Any:
        return (await self.post("/mcp/call", {"name": name, "arguments": arguments})).get("result")

    async def ask(self, agent_id: str, capability: str, context: dict[str, Any]) -> None:
        """By one of several doors, for one of several callers."""
        token, door = random.choice(self.keys), random.random()
        if door < 0.3:
            message = {"messageId": f"m-{random.random()}", "role": "ROLE_USER",
                       "parts": [{"data": {"skill": capability, "arguments": context}}]}  # fmt: skip
            await self.post(f"/agents/{agent_id}/message:send", {"message": message}, token, **{"A2A-Version": "1.0"})
        elif door < 0.6:
            call = {"name": capability, "arguments": context, "_meta": MCP_META}
            headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MCP_VERSION,
                       "Mcp-Method": "tools/call", "Mcp-Name": capability}  # fmt: skip
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            await self.post(f"/agents/{agent_id}/mcp", body, token, **headers)
        else:
            given = {"agent_id": agent_id, "capability": capability, "task": "", "context": context}
            await self.post("/mcp/call", {"name": "fabric.call", "arguments": given}, token)


async def answer_badly(request: web.Request) -> web.Response:
    """An agent that can be reached, and breaks every third call."""
    if request.method == "GET" or random.random() < 0.6:
        return web.json_response({"answer": "Dogs bark at night."})
    return web.json_response({"error": "the index is being rebuilt"}, status=503)


async def prepare(client: Client, archive: str) -> None:
    """An agent that breaks now and then, with one that stands in for it; one that is dead; a few keys; messages."""
    scribe = (await client.operate("fabric.agent.describe", agent_id="scribe"))["agent"]
    schema = next(each for each in scribe["capabilities"] if each["name"] == "summarize")["input_schema"]
    offer = {"name": "summarize", "description": "Summarize a text.", "input_schema": schema, "idempotent": True}
    address = scribe["endpoint"]["uri"]
    await client.operate("fabric.agent.register", agent_id="archive-b", runtime="http", endpoint=address,
                         capabilities=[offer], description="Stands in for archive.", tags=["text"])  # fmt: skip
    await client.operate("fabric.agent.register", agent_id="archive", runtime="http", endpoint=archive,
                         capabilities=[offer], description="Summarizes what is filed.", fallbacks=["archive-b"],
                         tags=["text"])  # fmt: skip
    await client.operate("fabric.agent.register", agent_id="prod-files", runtime="http",
                         endpoint="http://127.0.0.1:9/files", capabilities=[{"name": "read"}],
                         description="Files of production.", tags=["files"])  # fmt: skip
    for name, scopes in (("claude-code", ["agent:*", "tool:*"]), ("nightly", ["capability:summarize"]),
                         ("dashboards", ["console:view"])):  # fmt: skip
        made = await client.post("/admin/v1/key.create", {"name": name, "scopes": scopes, "days": 90})
        if name == "claude-code":
            client.keys += [made["result"]["key"]]
    for text in ("What is 6 * 7?", "Plan a party: invite guests, bake a cake, choose music."):
        await client.post("/v1/agents/percy/messages", {"parts": [{"type": "text", "content": text}]})


async def drive(client: Client, seconds: float) -> None:
    ends_at = asyncio.get_running_loop().time() + seconds

    async def work() -> None:
        while asyncio.get_running_loop().time() < ends_at:
            await client.ask(*(BAD if random.random() < 0.03 else random.choice(CALLS)))
            await asyncio.sleep(random.random() * 0.25)

    await asyncio.gather(*(work() for _ in range(3)))


async def wait_until_up(client: Client) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                told = await client.post("/admin/v1/overview", {})
                if told["result"]["agents"]["online"] >= 12:
                    return
            except (aiohttp.ClientError, KeyError):
                pass
            await asyncio.sleep(0.3)


async def take(browser: Any, client: Client) -> None:
    traces = (await client.post("/admin/v1/calls", {"agent": "archive", "limit": 200}))["result"]["calls"]
    chosen = next((each for each in traces if each["attempts"] > 1), traces[0])
    await asyncio.gather(drive(client, 30), take_all(browser, client, chosen["trace_id"]))


async def take_all(browser: Any, client: Client, trace_id: str) -> None:
    async def shot(name: str, path: str, *, dark: bool = False, phone: bool = False, act: Any = None) -> None:
        size = ViewportSize(width=390, height=844) if phone else ViewportSize(width=1440, height=900)
        context = await browser.new_context(
            viewport=size, color_scheme="dark" if dark else "light", device_scale_factor=2 if phone else 1.25,
            reduced_motion="reduce",
        )  # fmt: skip
        await context.add_init_script(f"sessionStorage.setItem('fabric.token', '{KEY}')")
        page = await context.new_page()
        await page.goto(f"{client.url}/console{path}")
        await page.locator("h1").wait_for()
        await page.wait_for_timeout(1800)
        if act is not None:
            await act(page)
        await page.screenshot(path=IMAGES / f"console-{name}.png")
        await context.close()

    async def run(page: Page) -> None:
        await page.fill("#in-reason-task", "What is 12 * 7 + 16?")
        await page.click(".playground .button.primary")
        await page.locator(".run-facts").wait_for()

    async def search(page: Page) -> None:
        await page.keyboard.press("Control+k")
        await page.keyboard.type("ar")
        await page.wait_for_timeout(500)

    await shot("home", "")
    await shot("home-dark", "", dark=True)
    await shot("agents", "/agents")
    await shot("agent", "/agents/percy?do=reason", act=run)
    await shot("agent-dark", "/agents/percy?do=reason", dark=True, act=run)
    await shot("calls", "/calls")
    await shot("call", f"/calls/{trace_id}")
    await shot("call-dark", f"/calls/{trace_id}", dark=True)
    await shot("jobs", "/jobs")
    await shot("route", "/route?text=convert 3 miles to kilometres")
    await shot("keys", "/keys")
    await shot("settings", "/settings")
    await shot("palette", "/agents", act=search)
    await shot("phone-home", "", phone=True)
    await shot("phone-agents", "/agents", phone=True, dark=True)


async def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, bind_socket("127.0.0.1", 0, exact_port=True) as taken:
        port = taken.getsockname()[1]
        taken.close()
        environ = {**os.environ, "FABRIC_PSK": KEY, "FABRIC_HOME": f"{folder}/home"}
        program = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("a2a-fabric")), "up", "--listen", f"127.0.0.1:{port}", "--quiet",
            "--store", f"sqlite:{folder}/fabric.db", cwd=folder, env=environ,
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session, browsing() as browser:
                client = Client(f"http://127.0.0.1:{port}", session)
                await wait_until_up(client)
                bad = web.AppRunner(web.Application())
                bad.app.router.add_route("*", "/{path:.*}", answer_badly)
                await bad.setup()
                await web.TCPSite(bad, "127.0.0.1", 0).start()
                await prepare(client, f"http://127.0.0.1:{bad.addresses[0][1]}/archive")
                await drive(client, SECONDS)
                await take(browser, client)
                await bad.cleanup()
        finally:
            program.terminate()
            await program.wait()


if __name__ == "__main__":
    asyncio.run(main())
