"""The page at `/docs` in a real browser: it reads well, its forms work, and it asks only this node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.rest_bench import UNLIMITED, percy, rest
from tests.fixtures.browser import Page, browsing
from tests.fixtures.node import PSK, Node
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

DESKTOP, PHONE = 1280, 390
ALL_DRAWN = "document.querySelector('#part-bodies')"  # the last part: the bodies of the other doors
VISIBLE_ENTRIES = "[...document.querySelectorAll('.entry:not([hidden])')].map((each) => each.id)"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with rest(percy(), doors=[{"kind": "fabric"}, UNLIMITED, {"kind": "mcp"}]) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with browsing(Path(tmp_path_factory.mktemp("browser"))) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page, node: Node) -> Page:
    browser.asked.clear()
    browser.complaints.clear()
    await browser.look(width=DESKTOP)
    await browser.go(f"{node.url}/docs")
    await browser.until(ALL_DRAWN)
    return browser


async def tried(page: Page, operation: str, token: str = "", **fields: Any) -> str:
    """What stands below the form once it was sent and answered."""
    form = f"document.querySelector('#{operation} form')"
    await page.run(f"document.querySelector('#token').value = {json.dumps(token)}")
    await page.run(f"document.querySelector('#{operation}').open = true")
    await page.until(form)
    for name, value in fields.items():
        await page.run(f"{form}.elements[{json.dumps(name)}].value = {json.dumps(value)}")
    await page.run(f"{form}.querySelector('[aria-live]').textContent = ''")
    await page.run(f"{form}.requestSubmit()")
    await page.until(
        f"{form}.querySelector('[aria-live]').textContent && {form}.querySelector('.send').lastChild.hidden"
    )
    return str(await page.run(f"{form}.querySelector('[aria-live]').innerText"))


@requirement("004-22", "004-25")
async def test_its_forms_send_real_requests_with_the_token(page: Page) -> None:
    assert (await tried(page, "agents_list")).startswith("401")
    listed = await tried(page, "agents_list", PSK)
    assert listed.startswith("200")
    assert '"id": "percy"' in listed
    assert (await tried(page, "agents_show", PSK, agent_id="percy")).startswith("200")
    assert (await tried(page, "agents_show", PSK, agent_id="nobody/at all")).startswith("404")
    assert (await tried(page, "messages_send", PSK)).startswith("201")  # what stands in the form already
    refused = await tried(page, "tasks_create", PSK, body='{"agentId": 7}')
    assert refused.startswith("400")
    assert "INVALID_REQUEST" in refused
    assert not [each for each in page.complaints if "status of 40" not in each]  # the browser counts refusals too


async def test_a_stream_is_shown_as_it_comes(page: Page) -> None:
    body = {"id": "seen", "agentId": "percy", "input": {"text": "hi"}}
    assert (await tried(page, "tasks_create", PSK, body=json.dumps(body))).startswith("201")
    told = await tried(page, "tasks_events", PSK, task_id="seen")
    assert "event: final" in told
    assert '"answer":"HI"' in told


async def test_it_shows_the_same_as_a_curl_line_without_the_token(page: Page) -> None:
    await tried(page, "agents_show", PSK, agent_id="percy")
    await page.run("document.querySelector('#agents_show .send .quiet').click()")
    line = await page.run("document.querySelector('#agents_show form pre').innerText")
    assert "/v1/agents/percy" in line
    assert '-H "Authorization: Bearer $TOKEN"' in line
    assert PSK not in line


async def test_it_asks_only_this_node_and_complains_of_nothing(page: Page, node: Node) -> None:
    documents = ("/openapi.json", "/admin/openapi.json", "/doors/openapi.json")
    assert page.asked == [f"{node.url}{path}" for path in ("/docs", *documents)]
    assert page.complaints == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
async def test_nothing_is_wider_than_the_window_whatever_is_open(page: Page, width: int) -> None:
    await page.look(width=width)
    await page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    await page.until("document.querySelectorAll('form').length > 10")
    assert await page.run("document.documentElement.scrollWidth") == width


async def test_it_is_dark_for_those_who_like_it_dark_and_can_be_switched(page: Page) -> None:
    brightness = (
        "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => +a + +b)"
    )
    assert await page.run(brightness) > 600
    await page.look(width=DESKTOP, dark=True)
    await page.until(f"{brightness} < 120")
    await page.run("document.querySelector('#theme').click()")
    assert await page.run(brightness) > 600


async def type_words(page: Page, words: str) -> None:
    await page.run("document.querySelector('#find').focus()")
    await page.tell("Input.insertText", text=words)


async def test_words_narrow_what_is_listed(page: Page) -> None:
    await type_words(page, "delete task")
    assert await page.run(VISIBLE_ENTRIES) == ["tasks_cancel"]


async def test_the_paths_of_the_other_doors_are_found_and_their_examples_are_sent(page: Page) -> None:
    await type_words(page, "get websocket")
    assert await page.run(VISIBLE_ENTRIES) == ["fabric_get_mcp_call", "mcp_get_mcp_ws"]
    assert "docs/mcp.md" in await page.run("document.querySelector('#part-mcp .note').innerText")
    await page.run("document.querySelector('#mcp_get_mcp_ws').open = true")
    await page.until("document.querySelector('#mcp_get_mcp_ws .inside')")
    assert not await page.run("document.querySelector('#mcp_get_mcp_ws form')")  # a page cannot try it
    assert "42" in await tried(page, "fabric_post_mcp_call", PSK)
    for operation in (
        "mcp_post_mcp",
        "mcp_post_agents_agent_id_mcp",
        "fabric_get_mcp_agent_agent_id",
        "node_get_readyz",
    ):
        assert (await tried(page, operation, PSK)).startswith("200"), operation
    assert not await page.run("document.querySelector('#part-a2a, #part-directory')")  # these doors are closed
    assert page.complaints == []


async def test_words_typed_while_the_page_loads_narrow_what_arrives_later_too(browser: Page, node: Node) -> None:
    held = (
        "{ const ask = window.fetch; const released = new Promise((done) => { window.release = done; });"
        "window.fetch = (url, ...more) => "
        "String(url).startsWith('/admin/') ? released.then(() => ask(url, ...more)) : ask(url, ...more); }"
    )
    script = await browser.tell("Page.addScriptToEvaluateOnNewDocument", source=held)
    try:
        await browser.go(f"{node.url}/docs")
        await browser.until("document.querySelectorAll('.entry').length > 20")
        await type_words(browser, "post job")
        assert await browser.run(VISIBLE_ENTRIES) == []
        await browser.run("release()")
        await browser.until(ALL_DRAWN)
        narrowed = await browser.run(VISIBLE_ENTRIES)
        assert "admin_job_cancel" in narrowed
        assert all(each.startswith("admin_job") for each in narrowed), narrowed
    finally:
        await browser.tell("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


async def press(page: Page, key: str) -> None:
    code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
    await page.tell("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
    await page.tell("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


async def tab_to(page: Page, wanted: str) -> None:
    """Presses Tab until the element in focus is this one, and that can be seen."""
    for _ in range(60):
        await press(page, "Tab")
        if await page.run(f"document.activeElement.matches({json.dumps(wanted)})"):
            assert await page.run("getComputedStyle(document.activeElement).outlineStyle") != "none", wanted
            return
    raise AssertionError(f"{wanted} is not reached with Tab")


async def test_an_operation_of_the_admin_api_is_found_and_sent_with_keys_alone(page: Page) -> None:
    await tab_to(page, "#token")
    await page.tell("Input.insertText", text=PSK)
    await tab_to(page, "#find")
    await page.tell("Input.insertText", text="overview")
    await tab_to(page, "#admin_overview > summary")
    await press(page, "Enter")
    await page.until("document.querySelector('#admin_overview form')")
    await tab_to(page, "#admin_overview form .send button")
    await press(page, "Enter")
    await page.until("document.querySelector('#admin_overview [aria-live]').textContent.startsWith('200')")
