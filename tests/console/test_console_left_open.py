"""A console that is left open: thousands of events, an hour of sleep, a restart of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Request, expect

from a2a_fabric.web.server import bind_socket
from tests.console.bench import browsing, make_agents, visiting
from tests.fixtures.node import Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = {"node_id": "test", "store": "memory:", "health": {"interval": 0}}
MOST_ROWS = 2000  # of a list
HOUR = 3_600_000  # milliseconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(*make_agents(), config=CONFIG) as found:
        yield found


async def measure(page: Page) -> dict[str, float]:
    """Of the page alone, without what is garbage."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    await session.send("Performance.enable")
    metrics = {each["name"]: each["value"] for each in (await session.send("Performance.getMetrics"))["metrics"]}
    await session.detach()
    return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}


async def let_time_pass(page: Page, replies: int) -> None:
    """Until the page has been given so many more replies; its clock runs as fast as the node answers."""
    seen, enough = 0, asyncio.Event()

    def note(request: Request) -> None:
        nonlocal seen
        seen += 1
        if seen >= replies:
            enough.set()

    page.on("requestfinished", note)
    async with asyncio.timeout(60):
        while not enough.is_set():
            await page.clock.run_for(1000)
    page.remove_listener("requestfinished", note)


async def live_on(page: Page, node: Node, calls: int) -> None:
    """So many calls are made, and the page hears of them a few at a time."""
    for _ in range(calls // 100):
        await asyncio.gather(*(node.ask("louder", "shout", context={"text": "x"}) for _ in range(100)))
        await let_time_pass(page, 3)


async def count_rows(page: Page, height: int) -> float:
    """All rows of the list, those that are not on the screen included."""
    return float(await page.evaluate("document.querySelector('.rows')?.offsetHeight ?? 0")) / height


@pytest.mark.parametrize(
    ("path", "row_height"),
    [pytest.param("/log", 28, marks=pytest.mark.soak), pytest.param("/calls", 36, marks=pytest.mark.soak), ("", 36)],
)
async def test_a_page_that_is_left_open_does_not_grow(browser: Browser, node: Node, path: str, row_height: int) -> None:
    async with visiting(browser, node, path) as page:
        await expect(page.locator(".frame h1")).to_be_visible()
        await page.clock.install()
        await live_on(page, node, MOST_ROWS + 200 if path else 200)
        full, rows = await measure(page), await count_rows(page, row_height)
        await live_on(page, node, 1000 if path else 200)
        later = await measure(page)
        assert await count_rows(page, row_height) <= MOST_ROWS
    assert not path or rows > MOST_ROWS - 500  # so it was full soon after
    assert later["Nodes"] <= 1.2 * full["Nodes"] + 100, (full, later)
    assert later["JSEventListeners"] <= 1.2 * full["JSEventListeners"] + 20, (full, later)
    assert later["JSHeapUsedSize"] <= full["JSHeapUsedSize"] + 1_000_000, (full, later)


async def test_after_an_hour_of_sleep_the_page_is_fresh_and_does_not_flood_the_node(
    browser: Browser, node: Node
) -> None:
    async with visiting(browser, node, "/calls") as page:
        await expect(page.locator(".frame h1")).to_be_visible()
        await page.clock.install()
        await page.context.set_offline(True)  # the machine sleeps, and its network with it
        await page.clock.fast_forward(HOUR)
        await expect(page.locator(".live")).to_contain_text("lost")
        await node.ask("tailor", "sew", "a scarf")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.context.set_offline(False)
        await page.clock.fast_forward(20_000)  # longer than the longest pause between two tries
        await expect(page.locator(".live")).to_have_text("live")
        await expect(page.locator(".rows .row").first).to_contain_text("tailor.sew")
        assert len(asked) < 20


async def test_after_a_restart_of_the_node_the_page_goes_on_by_itself(browser: Browser) -> None:
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    port = listener.getsockname()[1]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(*make_agents(), config=CONFIG, listener=listener))
        await first.ask("louder", "shout", context={"text": "before"})
        async with visiting(browser, first, "/log") as page:
            await expect(page.locator(".log-line", has_text="louder.shout").first).to_be_visible()
            await stack.aclose()
            await expect(page.locator(".live")).to_contain_text("lost")
            await expect(page.locator(".stale-note")).to_contain_text("ago")
            again = bind_socket("127.0.0.1", port, exact_port=True)
            async with running(*make_agents(), config=CONFIG, listener=again) as second:
                await second.ask("tailor", "sew", "a scarf")
                await page.evaluate("window.dispatchEvent(new Event('online'))")  # or it would wait for some seconds
                await expect(page.locator(".live")).to_have_text("live")
                await expect(page.locator(".log-line", has_text="tailor.sew").first).to_be_visible()
                await expect(page.locator(".stale-note")).to_have_count(0)
                await expect(page.locator(".log-line", has_text="louder.shout")).to_have_count(0)  # of the node before
