"""Signing in to the console at an issuer: a real OpenID provider, a real browser, and answers that do not belong."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from a2a_fabric.core.errors import ConfigError
from tests.console.bench import TIMEOUT, administer, browsing, serving
from tests.fixtures.node import Node
from tests.fixtures.openid_provider import CLIENT, SECRET, OpenIDProvider, openid_provider

pytestmark = pytest.mark.asyncio(loop_scope="module")

VERIFIER, OTHER_VERIFIER = "v" * 43, "w" * 43
SIGN_IN = {
    "issuer": "corp",
    "client_id": CLIENT,
    "client_secret": SECRET,
    "operators": ["platform"],
    "viewers": ["staff"],
}


def settings(provider: OpenIDProvider, **sign_in: Any) -> dict[str, Any]:
    issuer = {"id": "corp", "issuer": provider.url, "audience": ["https://node.example"]}
    return {
        "auth": {"keys": [], "issuers": [issuer]},
        "console": {"sign_in": {**SIGN_IN, **sign_in}},
        "public_url": None,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[OpenIDProvider]:
    async with openid_provider() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(provider: OpenIDProvider, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with serving(tmp_path_factory.mktemp("node"), **settings(provider)) as found:
        provider.client.redirect_uris = [f"{found.url}/console/signed-in"]
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as found:
        yield found


@asynccontextmanager
async def open_page(browser: Browser, node: Node, path: str = "") -> AsyncIterator[Page]:
    """A visitor who goes to the provider and back, so other hosts than the node are asked."""
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(TIMEOUT)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(f"{node.url}/console{path}")
    yield page
    assert await context.cookies() == []
    await context.close()
    assert not complaints


async def sign_in(page: Page, person: str) -> None:
    await page.click("text=Sign in with corp")
    await page.click(f"text={person}")


async def post(node: Node, name: str, token: str | None = None, **body: Any) -> Any:
    return await node.send("POST", f"/console/sign-in/{name}", token=token, json=body)


async def obtain_code(node: Node, person: str, verifier: str = VERIFIER) -> dict[str, str]:
    """What the provider sends the browser back with."""
    started = await post(node, "start", verifier=verifier)
    assert started.status == 200, started.body
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{started.json['url']}&person={person}", allow_redirects=False) as reply,
    ):
        assert reply.status == 302, await reply.text()
        query = parse_qs(urlsplit(reply.headers["location"]).query)
    return {name: values[0] for name, values in query.items()}


async def open_session(node: Node, person: str) -> dict[str, Any]:
    verifier = secrets.token_urlsafe(32)
    finished = await post(node, "finish", **await obtain_code(node, person, verifier), verifier=verifier)
    assert finished.status == 200, finished.body
    return dict(finished.json)


async def test_a_person_signs_in_at_the_issuer_and_comes_back_to_the_same_view(browser: Browser, node: Node) -> None:
    async with open_page(browser, node, "/agents") as page:
        await sign_in(page, "olga")
        await expect(page.locator("h1")).to_have_text("Agents")
        await expect(page.locator(".side-foot")).to_contain_text("corp:olga")
        await expect(page.locator(".side-foot")).to_contain_text("operator")
        assert "code=" not in page.url
        await page.goto(f"{node.url}/console/keys")
        await expect(page.locator(".lines li").first).to_contain_text("corp:olga")
        await page.goto(f"{node.url}/console/agents/louder?do=shout")  # an operator may run what it sees
        await page.fill("#in-shout-text", "hello")
        await page.click(".playground .button.primary")
        await expect(page.locator(".output")).to_contain_text("HELLO")


async def test_signing_out_ends_the_session_at_the_node_and_leads_to_the_issuer(browser: Browser, node: Node) -> None:
    async with open_page(browser, node) as page:
        await sign_in(page, "olga")
        await expect(page.locator("h1")).to_have_text("test")
        token = await page.evaluate("sessionStorage.getItem('fabric.token')")
        assert (await administer(node, "overview", token=token)).status == 200
        await page.click("[aria-label='Sign out']")
        await expect(page.locator("h1")).to_have_text("Sign in to this node")
        assert (await administer(node, "overview", token=token)).status == 401
        await page.click("text=sign out there, too")
        await expect(page.locator("h1")).to_have_text("Goodbye")


async def test_a_viewer_looks_and_its_changes_are_refused_also_by_hand(browser: Browser, node: Node) -> None:
    async with open_page(browser, node, "/agents/filed") as page:
        await sign_in(page, "vera")
        await expect(page.locator(".side-foot")).to_contain_text("viewer")
        await expect(page.get_by_role("button", name="Switch off")).to_be_disabled()
        token = await page.evaluate("sessionStorage.getItem('fabric.token')")
    refused = await administer(node, "agent.switch", {"agent_id": "filed", "on": False}, token=token)
    assert (refused.status, refused.json["error_code"]) == (403, "AUTH_DENIED")
    assert (await node.send("POST", "/mcp/call", token=token, json={"name": "fabric.call", "arguments": {
        "agent_id": "louder", "capability": "shout", "context": {"text": "x"}}})).json["ok"] is False  # fmt: skip


async def test_a_person_without_a_role_is_told_whom_to_ask(browser: Browser, node: Node) -> None:
    async with open_page(browser, node) as page:
        await sign_in(page, "eve")
        await expect(page.locator("h1")).to_have_text("You are not signed in")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("corp:eve")
        await expect(alert).to_contain_text("Ask its operator")
        await expect(alert).to_contain_text("trace")
        assert await page.evaluate("sessionStorage.getItem('fabric.token')") is None


async def test_a_person_who_declines_can_try_again_or_use_a_key(browser: Browser, node: Node) -> None:
    async with open_page(browser, node) as page:
        await sign_in(page, "decline")
        await expect(page.get_by_role("alert")).to_contain_text("access_denied")
        await page.click("text=Try again")
        await page.click("text=olga")
        await expect(page.locator("h1")).to_have_text("test")


async def test_an_answer_that_this_tab_did_not_ask_for_signs_no_person_in(browser: Browser, node: Node) -> None:
    stolen = await obtain_code(node, "olga", OTHER_VERIFIER)
    async with open_page(browser, node, f"/signed-in?{urlencode(stolen)}") as page:
        await expect(page.get_by_role("alert")).to_contain_text("did not begin a sign-in")
        assert "code=" not in page.url
        await page.click("text=Try again")
        await page.wait_for_url("**/authorize**")
        await page.goto(f"{node.url}/console/signed-in?{urlencode(stolen)}")
        await expect(page.get_by_role("alert")).to_contain_text("another sign-in")
        await expect(page.get_by_role("alert")).to_contain_text("trace")


async def test_a_session_that_has_ended_leads_back_to_the_sign_in(browser: Browser, node: Node) -> None:
    async with open_page(browser, node) as page:
        await sign_in(page, "olga")
        await expect(page.locator("h1")).to_have_text("test")
        await page.clock.install()
        keys = (await administer(node, "keys")).json["result"]["keys"]
        for key in keys:
            if key["name"] == "corp:olga" and key["state"] != "revoked":
                await administer(node, "key.revoke", {"name": key["key_id"]})
        await page.clock.run_for(20_000)  # a worker that has not heard of a new session is asked again for a while
        await expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
        await expect(page.get_by_text("Sign in with corp")).to_be_visible()


async def test_a_code_counts_once_and_only_with_its_verifier(node: Node, provider: OpenIDProvider) -> None:
    answer = await obtain_code(node, "olga")
    wrong = await post(node, "finish", **answer, verifier=OTHER_VERIFIER)
    assert (wrong.status, wrong.json["error_code"]) == (400, "BAD_INPUT")
    assert "state" in wrong.json["error"]
    assert wrong.json["trace"]["trace_id"]
    assert (await post(node, "finish", **answer, verifier=VERIFIER)).status == 200
    again = await post(node, "finish", **answer, verifier=VERIFIER)
    assert (again.status, again.json["error_code"]) == (401, "AUTH_EXPIRED")
    provider.codes.clear()  # as if the time of the code were over
    late = await obtain_code(node, "olga")
    provider.codes.clear()
    expired = await post(node, "finish", **late, verifier=VERIFIER)
    assert (expired.status, expired.json["error_code"]) == (401, "AUTH_EXPIRED")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"audience": "another-client"}, "aud"),
        ({"iss": "https://evil.example"}, "iss"),
    ],
)
async def test_an_id_token_or_answer_that_is_not_for_this_sign_in_is_refused(
    node: Node, provider: OpenIDProvider, change: dict[str, str], reason: str
) -> None:
    answer = await obtain_code(node, "olga")
    if "iss" in change:
        answer |= change
    before = {name: getattr(provider, name) for name in change if name != "iss"}
    try:
        for name, value in change.items():
            setattr(provider, name, value)
        refused = await post(node, "finish", **answer, verifier=VERIFIER)
    finally:
        for name, value in before.items():
            setattr(provider, name, value)
    assert refused.status in (400, 401)
    assert f"`{reason}`" in refused.json["error"]


async def test_a_session_is_a_key_with_the_persons_name_that_ends_by_itself(node: Node) -> None:
    sessions = [await open_session(node, "olga") for _ in range(12)]
    assert {each["name"] for each in sessions} == {"corp:olga"}
    rows = [key for key in (await administer(node, "keys")).json["result"]["keys"] if key["name"] == "corp:olga"]
    usable = [key for key in rows if key["state"] in ("active", "ending")]
    assert len(usable) == 10  # the oldest ended
    assert all(key["expires_at"] for key in usable)
    assert (await administer(node, "overview", token=sessions[0]["token"])).status == 401
    assert (await administer(node, "overview", token=sessions[-1]["token"])).status == 200
    ended = await post(node, "end", token=sessions[-1]["token"])
    assert ended.json["ended"] is True
    assert (await administer(node, "overview", token=sessions[-1]["token"])).status == 401
    assert (await administer(node, "overview", token=sessions[-2]["token"])).status == 200
    assert (await post(node, "end", token=sessions[-1]["token"])).status == 200
    assert (await post(node, "end", token="of-nobody")).json["ended"] is False


async def test_bad_input_changes_nothing_and_says_what_is_wrong(node: Node) -> None:
    for name, body in {"start": {"verifier": "short"}, "finish": {"code": "x"}, "end": {}}.items():
        reply = await post(node, name, **body)
        assert (reply.status, reply.json["error_code"]) == (400, "BAD_INPUT"), name
    large = await post(node, "start", verifier="v" * 20_000)
    assert large.status == 413


async def test_an_issuer_that_is_away_is_told_to_the_person(tmp_path: Path) -> None:
    async with openid_provider() as away, serving(tmp_path, **settings(away)) as node:
        away.is_away = True
        refused = await post(node, "start", verifier=VERIFIER)
        assert (refused.status, refused.json["error_code"]) == (502, "UPSTREAM_ERROR")
        assert "Try again later" in refused.json["error"]
        away.is_away = False
        assert (await post(node, "start", verifier=VERIFIER)).status == 200


async def test_a_client_without_a_secret_is_protected_by_pkce(tmp_path: Path) -> None:
    async with (
        openid_provider(secret=None) as public,
        serving(tmp_path, **settings(public, client_secret=None, viewers=["*"])) as node,
    ):
        public.client.redirect_uris = [f"{node.url}/console/signed-in"]
        assert (await open_session(node, "eve"))["role"] == "viewer"  # `*`: all persons of the issuer


@pytest.mark.parametrize(
    ("sign_in", "words"),
    [
        ({"issuer": "other"}, "auth.issuers"),
        ({"operators": [], "viewers": []}, "set `operators` or `viewers`"),
        ({"operators": ["*"]}, "only be among the `viewers`"),
    ],
)
async def test_settings_that_let_no_person_or_every_person_in_stop_the_start(
    provider: OpenIDProvider, tmp_path: Path, sign_in: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        async with serving(tmp_path, **settings(provider, **sign_in)):
            pass


async def test_a_node_without_a_sign_in_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        assert (await node.send("GET", "/console/sign-in/about", token=None)).json == {"issuer": None}
        assert (await post(node, "start", verifier=VERIFIER)).status in (404, 405)
