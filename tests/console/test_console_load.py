"""The console with 2,000 agents and a flood of calls: only what is on the screen exists, and the page stays smooth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.console.bench import browsing, make_agents, visiting
from tests.fixtures.node import Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENTS, ROW = 2000, 56
MOST_ROWS = 60  # on a screen of 800 pixels, with a few above and below
SECONDS, RATE = 15, 200
MOST_MS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    manifests = [
        {"agent_id": f"agent-{number:04}", "runtime": "http", "description": f"Agent number {number}.",
         "endpoint": {"uri": f"http://127.0.0.1:1/{number}"}, "capabilities": [{"name": "answer"}],
         "tags": [f"team-{number % 20}"]}
        for number in range(AGENTS)
    ]  # fmt: skip
    config = {"store": "memory:", "health": {"interval": 0}}
    async with running(*make_agents(), manifests=manifests, config=config) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as found:
        yield found


async def test_of_2000_agents_only_those_on_the_screen_are_in_the_page(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents") as page:
        rows = page.locator(".rows .row")
        await expect(rows.first).to_be_visible()
        height = await page.evaluate("document.querySelector('.rows').offsetHeight")
        assert height == (AGENTS + len(make_agents())) * ROW
        assert await rows.count() <= MOST_ROWS
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        await expect(page.locator(".rows .row b").last).to_have_text("tailor")
        assert await rows.count() <= MOST_ROWS
        await page.fill("[data-search]", "agent-1999")
        await expect(rows).to_have_count(1)
        assert await page.evaluate("document.querySelectorAll('*').length") < 1500


async def test_of_many_calls_only_those_on_the_screen_are_in_the_page(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/calls") as page:
        await expect(page.locator("h1")).to_have_text("Calls")
        for _ in range(5):
            await asyncio.gather(*(node.ask("louder", "shout", context={"text": "x"}) for _ in range(100)))
        await expect(page.locator(".rows .row").first).to_be_visible()
        # The last reply may still be on its way; each row is 36 pixels high.
        await expect(page.locator(".rows")).to_have_css("height", f"{500 * 36}px")
        assert await page.locator(".rows .row").count() <= MOST_ROWS


@pytest.mark.soak
@pytest.mark.parametrize("path", ["/calls", "/agents", ""])
async def test_the_page_stays_smooth_with_2000_agents_and_200_calls_a_second(
    browser: Browser, node: Node, path: str
) -> None:
    async def flood() -> int:
        loop, made = asyncio.get_running_loop(), 0
        ends_at, pending = loop.time() + SECONDS, set[asyncio.Task[object]]()
        while loop.time() < ends_at:
            for _ in range(RATE // 20):
                task: asyncio.Task[object] = asyncio.ensure_future(node.ask("louder", "shout", context={"text": "x"}))
                pending.add(task)
                task.add_done_callback(pending.discard)
                made += 1
            await asyncio.sleep(0.05)
        await asyncio.gather(*pending)
        return made

    async with visiting(browser, node, path) as page:
        await expect(page.locator("h1")).to_be_visible()
        await page.wait_for_timeout(1500)  # the first paint is not what is measured
        await page.evaluate(
            "() => { window.tasks = []; new PerformanceObserver((list) => "
            "window.tasks.push(...list.getEntries().map((each) => each.duration))).observe({type: 'longtask'}); }"
        )
        busy = "setTimeout(() => { const ends = performance.now() + 80; while (performance.now() < ends); })"
        await page.evaluate(busy)
        await page.wait_for_function("window.tasks.length")  # a long task is seen here
        await page.evaluate("window.tasks.length = 0")
        flooding = asyncio.ensure_future(flood())
        for step in range(SECONDS * 2):  # scrolling meanwhile
            await page.mouse.wheel(0, 900 if step % 4 else -1800)
            await page.wait_for_timeout(400)
        made = await flooding
        tasks = await page.evaluate("window.tasks")
        longest = max(tasks, default=0)
        print(f"\n{path or '/'}: {made} calls, {len(tasks)} tasks over 50 ms, the longest {longest:.0f} ms")
        assert made > 0.7 * RATE * SECONDS
        assert longest <= MOST_MS
