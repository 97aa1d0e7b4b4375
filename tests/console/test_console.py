"""The console in a real browser: every page, by mouse and by keys, in the dark, on a phone, and under attack."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from a2a_fabric.core.propagation import new_id
from tests.console.bench import ATTACK, VIEWER, administer, browsing, serving, visiting
from tests.fixtures.node import PSK, Node, eventually, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with serving(tmp_path_factory.mktemp("node")) as found:
        for _ in range(3):
            await found.ask("louder", "shout", context={"text": "hello"})
        await found.ask("mean", "refuse", context={"text": "x"})
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as found:
        yield found


async def test_a_visitor_signs_in_with_a_key_and_a_wrong_one_is_told_with_its_trace(
    browser: Browser, node: Node
) -> None:
    async with visiting(browser, node, token=None) as page:
        await page.fill("#token", "wrong-key")
        await page.click("text=Sign in >> nth=-1")
        await expect(page.get_by_role("alert")).to_contain_text("trace")
        await page.fill("#token", PSK)
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("test")
        assert await page.evaluate("document.cookie") == ""
        await page.click("[aria-label='Sign out']")
        await expect(page.locator("h1")).to_have_text("Sign in to this node")
        assert await page.evaluate("sessionStorage.getItem('fabric.token')") is None


async def test_a_key_that_may_only_call_is_told_that_it_may_not_open_the_console(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, token="the-key-of-caller") as page:
        await expect(page.get_by_role("alert")).to_contain_text("console:view")


PAGES = {
    "": "test", "/agents": "Agents", "/calls": "Calls", "/jobs": "Jobs", "/messages": "Messages", "/route": "Route",
    "/keys": "Keys", "/settings": "Settings", "/log": "Log",
}  # fmt: skip


async def test_every_view_is_an_address_and_back_works(browser: Browser, node: Node) -> None:
    async with visiting(browser, node) as page:
        for path, title in PAGES.items():
            await page.click(f".side a[href='/console{path}']")
            await expect(page.locator("h1")).to_have_text(title)
            assert page.url == f"{node.url}/console{path}"
        await page.go_back()
        await expect(page.locator("h1")).to_have_text("Settings")
        await page.goto(f"{node.url}/console/agents?status=online&q=lou")
        await expect(page.locator(".rows .row")).to_have_count(1)
        await expect(page.locator("[data-search]")).to_have_value("lou")
        await page.reload()
        await expect(page.locator(".rows .row b")).to_have_text("louder")


async def test_a_call_from_the_form_streams_and_is_found_in_the_list_of_calls(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents/louder?do=count") as page:
        await page.fill("#in-count-to", "40")
        await page.click(".playground .button.primary")
        await expect(page.locator(".output .stream")).to_contain_text("39 40")
        await expect(page.locator(".run-facts .badge")).to_have_text("ok")
        await page.click(".run-facts a")
        await expect(page.locator("h1")).to_contain_text("louder.count")
        await expect(page.locator(".fall-item")).to_have_count(3)
        await page.click(".fall-row >> nth=0")
        await expect(page.locator(".fall-more")).to_contain_text("fabric.door")
        assert "span=" in page.url
        await page.goto(f"{node.url}/console/calls")
        await expect(page.locator(".rows .row >> nth=0")).to_contain_text("louder.count")
        await node.ask("louder", "shout", context={"text": "live"})
        await expect(page.locator(".rows .row >> nth=0")).to_contain_text("louder.shout")


async def test_a_failed_call_shows_the_error_and_its_trace_to_copy(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents/louder?do=fail") as page:
        await page.fill("#in-fail-text", "it broke")
        await page.click(".playground .button.primary")
        await expect(page.get_by_role("alert")).to_contain_text("it broke")
        await expect(page.get_by_role("alert").locator(".trace")).to_be_visible()


async def test_a_call_of_which_nothing_is_known_is_not_shown_as_one_that_succeeded(
    browser: Browser, node: Node
) -> None:
    async with visiting(browser, node, f"/calls/{new_id()}") as page:
        await expect(page.get_by_text("Nothing of this call is kept")).to_be_visible()
        await expect(page.locator("h1")).to_have_text("Call")
        await expect(page.locator(".call-state")).to_have_count(0)
        await expect(page.get_by_text("Copy as JSON")).to_have_count(0)


async def test_a_question_of_the_agent_is_answered_in_place(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents/tailor?do=sew") as page:
        await page.fill("#in-sew-task", "coat")
        await page.click(".playground .button.primary")
        await expect(page.locator(".questions legend")).to_have_text("Which colour?")
        await page.click(".questions .choices >> text=blue")
        await page.click(".questions .button.primary")
        await expect(page.locator(".output .stream")).to_have_text("a blue coat")


async def start_job(node: Node, agent_id: str, capability: str, **arguments: Any) -> str:
    given = {"agent_id": agent_id, "capability": capability, "task": "go", "async": True, **arguments}
    told = await node.operation("fabric.call", given)
    return str(told["result"]["job_id"])


async def test_a_job_is_followed_cancelled_and_run_again(browser: Browser, node: Node) -> None:
    job_id = await start_job(node, "louder", "sleep", context={"text": "long"})
    async with visiting(browser, node, "/jobs") as page:
        await page.click(f".rows a[href='/console/jobs/{job_id}']")
        await expect(page.locator("h1 .badge")).to_have_text("running")
        await page.click("text=Cancel")
        await page.click("text=Really cancel?")
        await expect(page.locator("h1 .badge")).to_have_text("cancelled")
        await page.click("text=Run again")
        await expect(page.locator("h1 .badge")).to_have_text("running")
        again = page.url.rpartition("/")[2]
        assert again != job_id
    await administer(node, "job.cancel", {"job_id": again})


async def test_a_job_that_asks_is_answered(browser: Browser, node: Node) -> None:
    job_id = await start_job(node, "tailor", "sew", task="hat")
    async with visiting(browser, node, f"/jobs/{job_id}") as page:
        await page.click(".questions .choices >> text=red")
        await page.click(".questions .button.primary")
        await expect(page.locator("h1 .badge")).to_have_text("completed")
        await expect(page.locator(".json")).to_contain_text("a red hat")


async def test_what_agents_say_is_text_on_every_page(browser: Browser, node: Node) -> None:
    job_id = await start_job(node, "mean", "inject", context={"text": ATTACK})
    failed = (await node.ask("mean", "refuse", context={"text": "x"}))["trace"]["trace_id"]
    paths = [*PAGES, "/agents/mean", f"/jobs/{job_id}", f"/calls/{failed}", f"/agents?q={ATTACK[:12]}",
             f"/route?text={ATTACK[:20]}", "/agents/%3Cscript%3E", "/jobs/%3Cscript%3E", "/%3Cscript%3E"]  # fmt: skip
    async with visiting(browser, node) as page:
        for path in paths:
            await page.goto(f"{node.url}/console{path}")
            await expect(page.locator("h1")).to_be_visible()
            await expect(page.locator(".rows-skeleton, .home-skeleton")).to_have_count(0)
            assert "broken" not in await page.title()
            assert await page.locator("#app img, #app script, #app iframe").count() == 0
        await page.goto(f"{node.url}/console/agents/mean?do=inject")
        await page.fill("#in-inject-text", "x")
        await page.click(".playground .button.primary")
        await expect(page.locator(".output .stream >> nth=0")).to_have_text(ATTACK)
        await expect(page.locator(".lead >> nth=0")).to_have_text(ATTACK)
        assert "broken" not in await page.title()


async def test_it_is_dark_where_the_system_is_dark_and_the_choice_stays(browser: Browser, node: Node) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    async with visiting(browser, node, "/agents", color_scheme="dark") as page:
        await expect(page.locator(".rows .row >> nth=0")).to_be_visible()
        assert await page.evaluate(colour) == "rgb(15, 16, 19)"
        await page.keyboard.press("t")
        assert await page.evaluate(colour) == "rgb(255, 255, 255)"
        await page.reload()
        assert await page.evaluate(colour) == "rgb(255, 255, 255)"


async def test_on_a_phone_nothing_is_wider_than_the_screen_and_the_bar_is_below(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, phone=True, has_touch=True, is_mobile=True) as page:
        for path in [*PAGES, "/agents/louder?do=shout"]:
            await page.goto(f"{node.url}/console{path}")
            await expect(page.locator("h1")).to_be_visible()
            await expect(page.locator(".rows-skeleton, .home-skeleton")).to_have_count(0)
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path
        task = {"agentId": "louder", "capability": "shout", "input": {"text": "x" * 200}}
        created = await node.send("POST", "/v1/tasks", json=task)
        await page.goto(f"{node.url}/console/jobs/{created.json['id']}")  # it has a long id and a long key
        await expect(page.get_by_text("Attempts")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        await page.tap(".bottom >> text=Agents")
        await page.tap(".rows .row >> nth=0")
        await expect(page.locator(".capabilities, .fault").first).to_be_visible()


async def test_everything_can_be_done_with_keys_alone(browser: Browser, node: Node) -> None:
    async with visiting(browser, node) as page:
        await expect(page.locator("h1")).to_have_text("test")
        await page.keyboard.press("g")
        await page.keyboard.press("a")
        await expect(page.locator(".rows .row >> nth=0")).to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.type("lou")
        await page.keyboard.press("Enter")
        await page.keyboard.press("j")
        await expect(page.locator(".row.selected b")).to_have_text("louder")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("louder")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Palette")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("Control+k")
        await page.keyboard.type("tailor")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("tailor")
        await page.focus("#in-sew-task")
        await page.keyboard.type("scarf")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator(".questions legend")).to_be_visible()


async def test_a_lost_connection_greys_what_is_shown_and_it_comes_back(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents") as page:
        await expect(page.locator(".rows .row >> nth=0")).to_be_visible()
        await page.context.set_offline(True)
        await expect(page.locator(".live.lost")).to_be_visible()
        await expect(page.locator(".stale-note")).to_contain_text("ago")
        assert await page.locator(".stale-body .row").count() >= 4
        await page.context.set_offline(False)
        await expect(page.locator(".stale-note")).to_have_count(0)
        await expect(page.locator(".live")).to_have_text("live")


async def test_a_viewer_sees_everything_and_its_buttons_are_off(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents", token=VIEWER) as page:
        await expect(page.locator(".side-foot")).to_contain_text("viewer")
        await expect(page.get_by_role("button", name="Add agent")).to_be_disabled()
        await page.click(".rows .row >> text=filed")
        await expect(page.get_by_role("button", name="Switch off")).to_be_disabled()
        await page.goto(f"{node.url}/console/keys")
        await expect(page.get_by_role("button", name="Create key")).to_be_disabled()


async def test_an_operator_switches_an_agent_off_and_on(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents/filed") as page:
        await page.click("text=Switch off >> nth=0")
        await page.click("text=Really switch off?")
        await page.click("text=Switch on")
        await expect(page.get_by_role("button", name="Switch off").first).to_be_visible()


async def test_an_mcp_json_is_looked_at_and_added(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/agents?add=1") as page:
        await page.fill("#add-source", '{"mcpServers": {"near": {"url": "http://127.0.0.1:1/mcp"}}}')
        await page.click("text=Look")
        await expect(page.locator(".plan")).to_contain_text("near")
        await page.click("text=Add 1 agent")
        await expect(page.locator("h1")).to_contain_text("near")


async def test_a_key_is_made_shown_once_and_revoked(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/keys") as page:
        await page.click("text=Create key")
        await page.fill("#key-name", "lee")
        await page.fill("#key-scopes", "agent:louder")
        await page.click(".dialog .button.primary")
        await expect(page.locator(".dialog pre")).to_have_text(re.compile("^fabric_"))
        await page.click("text=Done")
        await expect(page.locator("tbody")).to_contain_text("lee")
        await expect(page.locator("body")).not_to_contain_text("fabric_")
        await page.click("tr:has-text('lee') >> text=Revoke")
        await page.click("text=Really revoke?")
        await expect(page.locator("tr:has-text('lee')")).to_contain_text("revoked")


async def test_words_lead_to_an_agent_with_scores_and_reasons(browser: Browser, node: Node) -> None:
    async with visiting(browser, node, "/route") as page:
        await page.fill("#route-text", "say a text in capitals, louder")
        await expect(page.locator(".candidates li >> nth=0")).to_contain_text("louder")
        await expect(page.locator(".verdict")).to_contain_text("louder")
        assert "text=say" in page.url


@requirement("001-47")
async def test_an_agent_that_is_offline_says_why(browser: Browser, node: Node) -> None:
    await node.ask("filed", "say")

    async def is_offline() -> bool:
        rows = (await administer(node, "agents")).json["result"]["agents"]
        return bool({row["agent_id"]: row["status"] for row in rows}["filed"] == "offline")

    await eventually(is_offline)
    async with visiting(browser, node, "/agents/filed") as page:
        await expect(page.locator(".fault")).to_contain_text("No connection to 127.0.0.1")


async def test_home_counts_all_agents_that_fail_and_names_the_first(browser: Browser) -> None:
    dead = [
        {"agent_id": f"dead-{number:03}", "runtime": "http", "endpoint": {"uri": "http://127.0.0.1:1/"},
         "capabilities": [{"name": "say"}]}
        for number in range(105)
    ]  # fmt: skip
    async with running(manifests=dead, config={"store": "memory:", "health": {"interval": 0}}) as node:
        for manifest in dead:
            await node.ask(str(manifest["agent_id"]), "say")

        async def have_all_failed() -> bool:
            return bool((await administer(node, "overview")).json["result"]["agents"]["offline"] == len(dead))

        await eventually(have_all_failed)
        async with visiting(browser, node) as page:
            await expect(page.get_by_text("and 99 more agents")).to_be_visible()
