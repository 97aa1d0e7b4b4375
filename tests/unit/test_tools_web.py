"""web.*: against real servers on this machine, with a guard that would forbid them and without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.tools.fetch import WebToolRequest, build_redirect, read_page
from a2a_fabric.tools.toolkit import TimeLimit
from tests.unit.tool_bench import bench

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[str]:
    """A real server whose every path is answered by `handle`; gives its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(request: web.Request) -> web.Response:
    said = {"method": request.method, "path": request.path_qs, "body": await request.text()}
    return web.json_response({**said, "headers": {name.lower(): value for name, value in request.headers.items()}})


async def test_a_request_is_sent_as_asked(tmp_path: Path) -> None:
    async with serving(echo) as url, bench(tmp_path) as tools:
        headers = {"X-Test": "1"}
        answer = await tools("web.http_request", url=f"{url}/a?b=c", method="POST", headers=headers, body="grün")
    assert answer["status_code"] == 200
    assert answer["headers"]["content-type"].startswith("application/json")
    assert '"method": "POST", "path": "/a?b=c", "body": "gr\\u00fcn"' in answer["body"]
    assert '"x-test": "1"' in answer["body"]
    assert answer["url"] == f"{url}/a?b=c"
    assert isinstance(answer["elapsed_ms"], int)


async def test_an_error_status_is_an_answer(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=404, text="nothing here")

    async with serving(refuse) as url, bench(tmp_path) as tools:
        answer = await tools("web.http_request", url=url)
        assert (answer["status_code"], answer["body"]) == (404, "nothing here")
        await tools.fails("web.fetch_page", "UPSTREAM_ERROR", "FETCH_ERROR", url=url)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://169.254.169.254/latest",
     "http://0.0.0.0:{port}/", "http://2130706433:{port}/"],
)  # fmt: skip
async def test_local_addresses_are_refused_by_the_guard(tmp_path: Path, url: str) -> None:
    reached = []

    async def note(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response()

    async with serving(note) as server, bench(tmp_path, guard=Guard()) as tools:
        target = url.format(port=server.rpartition(":")[2])
        error = await tools.fails("web.http_request", "AUTH_DENIED", "ACCESS_DENIED", url=target)
        await tools.fails("web.fetch_page", "AUTH_DENIED", "ACCESS_DENIED", url=target)
    assert "tools.web_allow" in error.message
    assert reached == []


async def test_a_redirect_passes_the_guard_again(tmp_path: Path) -> None:
    async def lead_astray(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    async with serving(lead_astray) as url, bench(tmp_path, guard=Guard(allow=["127.0.0.1"])) as tools:
        await tools.fails("web.http_request", "AUTH_DENIED", "ACCESS_DENIED", url=url)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://a/b", "gopher://a", "a", "", "http://", "http:///x", "http://a b/", "http://a\r\nb/",
     "http://a\\@b/", "http://u:p@a/", "http://[::1", "http://a:99999/", "javascript:alert(1)"],
)  # fmt: skip
async def test_other_schemes_and_broken_addresses_are_parse_errors(tmp_path: Path, url: str) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("web.http_request", "BAD_INPUT", "PARSE_ERROR", url=url)
        await tools.fails("web.fetch_page", "BAD_INPUT", "PARSE_ERROR", url=url)


@pytest.mark.parametrize(
    "headers", [{"a b": "c"}, {"a": "b\r\nX: y"}, {"": "x"}, {"Host": "x"}, {"Content-Length": "9"}]
)
async def test_headers_cannot_smuggle_a_second_request(tmp_path: Path, headers: dict[str, str]) -> None:
    async with serving(echo) as url, bench(tmp_path) as tools:
        await tools.fails("web.http_request", "BAD_INPUT", "PARSE_ERROR", url=url, headers=headers)


async def test_redirects_are_followed_and_secrets_stay_at_their_origin(tmp_path: Path) -> None:
    async with serving(echo) as other:

        async def redirect(request: web.Request) -> web.StreamResponse:
            if request.path == "/here":
                return await echo(request)
            target = {"/same": "/here", "/away": f"{other}/there"}[request.path]
            return web.Response(status=int(request.query["status"]), headers={"Location": target})

        headers = {"Authorization": "Bearer s3cret", "Cookie": "s3cret", "X-Api-Key": "s3cret", "Accept": "text/x"}
        async with serving(redirect) as url, bench(tmp_path) as tools:
            same = await tools(
                "web.http_request", url=f"{url}/same?status=307", method="PUT", body="b", headers=headers
            )
            away = await tools(
                "web.http_request", url=f"{url}/away?status=302", method="POST", body="b", headers=headers
            )
    assert same["url"] == f"{url}/here"
    assert same["body"].count("s3cret") == 3
    assert '"method": "PUT"' in same["body"]
    assert away["url"] == f"{other}/there"
    assert "s3cret" not in away["body"]
    assert '"method": "GET", "path": "/there", "body": ""' in away["body"]
    assert '"accept": "text/x"' in away["body"]


def test_a_redirect_from_https_to_http_of_the_same_host_takes_no_secrets_along() -> None:
    secret = WebToolRequest(method="GET", url="https://a.example/x", headers={"Cookie": "c", "Authorization": "b"})
    assert build_redirect(secret, 301, "http://a.example/x").headers == {}
    assert build_redirect(secret, 301, "https://a.example:443/y").headers == secret.headers


async def test_endless_redirects_end(tmp_path: Path) -> None:
    seen = []

    async def again(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=302, headers={"Location": "/again"})

    async with serving(again) as url, bench(tmp_path) as tools:
        await tools.fails("web.http_request", "UPSTREAM_ERROR", "REQUEST_ERROR", url=url)
    assert len(seen) == 6


async def test_a_redirect_to_a_file_is_refused(tmp_path: Path) -> None:
    async def astray(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "file:///etc/passwd"})

    async with serving(astray) as url, bench(tmp_path) as tools:
        await tools.fails("web.http_request", "BAD_INPUT", "PARSE_ERROR", url=url)


async def test_a_slow_server_is_a_timeout_and_a_missing_one_a_request_error(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def dawdle(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    async with serving(dawdle) as url, bench(tmp_path) as tools:
        await tools.fails("web.http_request", "TIMEOUT", "TIMEOUT", url=url, timeout=200)
        release.set()
    async with bench(tmp_path) as tools:
        await tools.fails("web.http_request", "UPSTREAM_ERROR", "REQUEST_ERROR", url=url)
        await tools.fails("web.fetch_page", "UPSTREAM_ERROR", "FETCH_ERROR", url=url)


async def test_endless_replies_are_cut(tmp_path: Path) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65_536)
        except ConnectionError:
            return response

    async with serving(flood) as url, bench(tmp_path, web_max_bytes=300_000) as tools, asyncio.timeout(30):
        answer = await tools("web.http_request", url=url)
        page = await tools("web.fetch_page", url=url, max_length=1000)
    assert answer["body"] == "x" * 100_000
    assert page["text"] == "x" * 1000
    assert page["metadata"]["length"] == 300_000


PAGE = """<!doctype html><html><head><title> A &amp; B </title><base href="/base/"><style>p{}</style>
<script>var a = "<p>hidden</p>";</script></head><body><!-- <p>hidden</p> --><h1>Head</h1>
<p class='a>b'>One <b>two</b>&nbsp;three &lt;four&gt;</p><ul><li>x<li>y</ul>1 < 2
<a href="one">1</a><a href='/two#part'>2</a><a href=http://other.example/?a=b&amp;c=d>3</a><a href="one">again</a>
<a href="javascript:alert(1)">no</a><a href="mailto:a@b">no</a><a>no</a><a href="http://[bad">no</a></body></html>"""


async def test_a_page_is_read_for_title_words_and_links(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async with serving(page) as url, bench(tmp_path) as tools:
        answer = await tools("web.fetch_page", url=url)
        without = await tools("web.fetch_page", url=url, extract_text=False)
        short = await tools("web.fetch_page", url=url, max_length=4)
    assert answer["title"] == "A & B"
    assert answer["text"] == "Head\nOne two three <four>\nx\ny\n1 < 2\n123again\nnonononono"[: len(answer["text"])]
    assert answer["links"] == [f"{url}/base/one", f"{url}/two", "http://other.example/?a=b&c=d"]
    assert answer["metadata"] == {"content_type": "text/html; charset=utf-8", "length": len(PAGE)}
    assert answer["url"] == url
    assert "hidden" not in answer["text"]
    assert (without["text"], without["title"], short["text"]) == ("", "A & B", "Head")


async def test_a_page_has_at_most_fifty_links_and_the_charset_it_says(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.Response:
        links = "".join(f'<a href="/{n}">l</a>' for n in range(80))
        body = f"<meta charset='iso-8859-1'><title>grün</title>{links}".encode("latin-1")
        return web.Response(body=body, headers={"Content-Type": "text/html"})

    async with serving(page) as url, bench(tmp_path) as tools:
        answer = await tools("web.fetch_page", url=url)
    assert (answer["title"], len(answer["links"])) == ("grün", 50)


async def test_what_is_not_text_is_not_a_page(tmp_path: Path) -> None:
    async def picture(_: web.Request) -> web.Response:
        return web.Response(body=b"\x89PNG", content_type="image/png")

    async with serving(picture) as url, bench(tmp_path) as tools:
        error = await tools.fails("web.fetch_page", "UPSTREAM_ERROR", "FETCH_ERROR", url=url)
    assert "image/png" in error.message


EVIL = [
    "<",
    "<!--",
    "<a ",
    "</",
    "<!",
    "<?",
    "<script>",
    "<![CDATA[",
    "<a href='",
    '<a x="',
    "&",
    "&#",
    "<title>",
    "a\n ",
]


@pytest.mark.parametrize("piece", EVIL)
def test_pages_made_to_be_slow_are_read_in_no_time(piece: str) -> None:
    started = time.process_time()
    read_page(TimeLimit(60), piece * (400_000 // len(piece)), "http://a/")
    assert time.process_time() - started < 5


async def test_an_address_is_taken_apart(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("web.parse_url", url="https://u@Example.com:8443/a/b;p?x=1&y=2&y=3&z=#frag")
        bare = await tools("web.parse_url", url="a/b")
    assert answer == {
        "scheme": "https",
        "netloc": "u@Example.com:8443",
        "path": "/a/b",
        "params": "p",
        "query": {"x": "1", "y": ["2", "3"], "z": ""},
        "fragment": "frag",
        "hostname": "example.com",
        "port": 8443,
    }
    assert (bare["path"], bare["hostname"], bare["port"]) == ("a/b", None, None)


@pytest.mark.parametrize(
    "url", ["http://a:b/", "http://[::1", "http://a:99999/", "?" + "&".join("a=1" for _ in range(2000))]
)
async def test_an_address_that_is_none_is_a_parse_error(tmp_path: Path, url: str) -> None:
    async with bench(tmp_path) as tools:
        with pytest.raises(BadInput):
            await tools("web.parse_url", url=url)


async def test_a_search_asks_the_service_and_returns_hits(tmp_path: Path) -> None:
    asked: dict[str, Any] = {}
    two_days_ago = (datetime.now(UTC) - timedelta(days=2, hours=1)).isoformat()

    async def search(request: web.Request) -> web.Response:
        asked.update(request.query, key=request.headers["X-Subscription-Token"])
        hits = [
            {"title": f"t{n}", "url": f"http://{n}", "description": "d", "page_age": two_days_ago} for n in range(9)
        ]
        return web.json_response({"type": "search", "web": {"results": [{"title": "t", "url": "u"}, *hits]}})

    async with serving(search) as url, bench(tmp_path, brave_api_key="k3y", brave_url=f"{url}/search") as tools:
        answer = await tools("web.brave_search", task="agents & more", max_results=2)
    assert (asked["q"], asked["count"], asked["key"]) == ("agents & more", "2", "k3y")
    assert len(asked["freshness"].split("to")) == 2
    assert answer == {
        "provider": "brave",
        "query": "agents & more",
        "results": [
            {"title": "t", "url": "u", "snippet": "", "age_days": None},
            {"title": "t0", "url": "http://0", "snippet": "d", "age_days": 2},
        ],
    }


@pytest.mark.parametrize(("status", "body"), [(401, "{}"), (429, ""), (200, "<html>"), (302, "{}")])
async def test_a_search_service_that_fails_is_a_search_error_and_the_key_stays(
    tmp_path: Path, status: int, body: str
) -> None:
    paths = []

    async def refuse(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"})

    async with serving(refuse) as url, bench(tmp_path, brave_api_key="k3y", brave_url=f"{url}/search") as tools:
        error = await tools.fails("web.brave_search", "UPSTREAM_ERROR", "SEARCH_ERROR", query="q")
    assert "k3y" not in error.message
    assert paths == ["/search"]


async def test_without_a_key_the_search_says_which_setting_is_missing(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        with pytest.raises(FabricError, match=r"tools\.brave_api_key") as caught:
            await tools("web.brave_search", query="q")
    assert caught.value.code == "AUTH_DENIED"
