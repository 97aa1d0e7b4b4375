"""Callers with logins of their own at an agent that wants OAuth, through real doors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_fabric.doors.a2a.skill_choice import ACTION_KEY
from a2a_fabric.logins.logins import MAX_STARTS
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.app_server import bind_port, serve_app
from tests.fixtures.login_node import KEYS, RETURN, ask, node_for, operate, sign_in
from tests.fixtures.login_server import LoginServer, login_server
from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node, eventually, running


@pytest_asyncio.fixture
async def login() -> AsyncIterator[LoginServer]:
    async with login_server() as found:
        yield found


async def is_listed(node: Node, who: str = "ann") -> bool:
    reply = await node.operation("fabric.tool.list", {"provider": "agent"}, token=f"the-key-of-{who}")
    return "whoami" in str(reply["result"])


async def wait_until_listed(node: Node) -> None:
    await eventually(lambda: is_listed(node))


async def test_each_caller_uses_its_own_login_and_is_told_how_to_get_one(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        assert not await is_listed(node)
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        assert await ask(node, "ann") == "alice"
        code, message = await ask(node, "ben")
        assert code == "AUTH_DENIED"
        assert "Run: a2a-fabric login files" in message
        await sign_in(node, login, "ben", "bob")
        assert [await ask(node, who) for who in ("ann", "ben", "ann")] == ["alice", "bob", "alice"]
        listed = await operate(node, "ann", "list")
        assert [each["agent_id"] for each in listed["result"]["logins"]] == ["files"]
        removed = await operate(node, "ann", "remove", agent_id="files")
        assert removed["result"] == {"agent_id": "files", "removed": True, "revoked": True}
        runtime: Any = node.fabric.runtime_pool.find_runtime("files")
        assert runtime.session_count == 1  # hers is closed
        assert (await ask(node, "ann"))[0] == "AUTH_DENIED"
        assert await ask(node, "ben") == "bob"


async def test_tokens_are_encrypted_at_rest_survive_a_restart_and_are_in_no_log(
    login: LoginServer, tmp_path: Path
) -> None:
    async with node_for(login, tmp_path) as node:
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        assert await ask(node, "ann") == "alice"
        log = node.log.getvalue()
    tokens = [token for token, user in login.users.items() if user == "alice"]
    kept = (tmp_path / "fabric.db").read_bytes()  # closing the store has put everything into this file
    assert tokens
    assert not [token for token in tokens if token.encode() in kept or token in log]
    key = tmp_path / "state" / "login.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    async with node_for(login, tmp_path) as node:
        await wait_until_listed(node)  # as she was shown it last, before she calls
        assert await ask(node, "ann") == "alice"
        assert not login.refreshes
    key.write_text("another-key-of-the-same-length-as-before")
    async with node_for(login, tmp_path) as node:
        code, message = await ask(node, "ann")
        assert code == "BAD_CONFIG"
        assert "FABRIC_LOGIN_KEY" in message


async def test_an_expired_token_is_renewed_once_for_all_calls_at_a_time(login: LoginServer, tmp_path: Path) -> None:
    login.refresh_pause = 0.2
    async with node_for(login, tmp_path) as node:
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        login.expire_access()
        assert await asyncio.gather(*(ask(node, "ann") for _ in range(5))) == ["alice"] * 5
        assert login.refreshes == 1


async def test_of_two_nodes_with_one_store_only_one_renews_a_token(login: LoginServer, tmp_path: Path) -> None:
    login.refresh_pause = 0.3
    async with node_for(login, tmp_path) as node:
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        async with node_for(login, tmp_path) as other:
            await wait_until_listed(other)
            assert [await ask(each, "ann") for each in (node, other)] == ["alice", "alice"]
            login.expire_access()
            calls = [ask(each, "ann") for each in (node, other) for _ in range(3)]
            assert await asyncio.gather(*calls) == ["alice"] * 6
            assert login.refreshes == 1


async def test_a_token_is_renewed_before_it_expires(login: LoginServer, tmp_path: Path) -> None:
    login.lifetime = 1
    async with node_for(login, tmp_path) as node:
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        login.lifetime = 3600
        await asyncio.sleep(1.0)
        before = login.refreshes
        assert await ask(node, "ann") == "alice"
        assert login.refreshes == before + 1
        assert await ask(node, "ann") == "alice"
        assert login.refreshes == before + 1


async def test_a_revoked_login_ends_and_says_so(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        assert await ask(node, "ann") == "alice"
        login.revoke_all()
        code, message = await ask(node, "ann")
        assert code == "AUTH_DENIED"
        assert "has ended: sign in again. Run: a2a-fabric login files" in message
        assert (await operate(node, "ann", "list"))["result"]["count"] == 0
        await sign_in(node, login, "ann", "alice")
        assert await ask(node, "ann") == "alice"


async def test_while_the_authorization_server_is_away_logins_are_kept(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        login.is_away = True
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        assert started["error_code"] == "AGENT_OFFLINE"
        assert "try again later" in started["error"]
        login.is_away = False
        await sign_in(node, login, "ann", "alice")
        await wait_until_listed(node)
        login.expire_access()
        login.is_away = True
        code, message = await ask(node, "ann")
        assert code == "AGENT_OFFLINE", message
        login.is_away = False
        assert await ask(node, "ann") == "alice"


async def test_a_state_is_bound_to_its_caller_and_is_used_once(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        answer = await login.sign_in(started["result"]["url"])
        stolen = await operate(node, "ben", "finish", **answer)
        assert stolen["error_code"] == "BAD_INPUT"
        assert "not known" in stolen["error"]
        assert answer["state"] not in stolen["error"]
        assert (await operate(node, "ann", "finish", **answer))["ok"]  # the theft did not use it up
        replayed = await operate(node, "ann", "finish", **answer)
        assert replayed["error_code"] == "BAD_INPUT"
        assert (await operate(node, "ben", "list"))["result"]["count"] == 0


async def test_an_answer_of_another_issuer_is_refused(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        login.claimed_issuer = "https://evil.example"
        answer = await login.sign_in(started["result"]["url"])
        refused = await operate(node, "ann", "finish", **answer)
        assert refused["error_code"] == "UPSTREAM_ERROR"
        assert "another authorization server" in refused["error"]
        refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        assert "says that it is another one" in refused["error"]
        assert (await operate(node, "ann", "list"))["result"]["count"] == 0


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/callback", "http://192.0.2.1/x", "http://127.0.0.1@evil.example/", "javascript:alert(1)"],
)
async def test_a_login_returns_to_loopback_only(login: LoginServer, tmp_path: Path, address: str) -> None:
    async with node_for(login, tmp_path) as node:
        refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=address)
        assert refused["error_code"] == "BAD_INPUT"
        assert "loopback" in refused["error"]
        assert "/authorize" not in login.paths


async def test_a_person_who_refuses_is_reported(login: LoginServer, tmp_path: Path) -> None:
    login.refuses = True
    async with node_for(login, tmp_path) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        refused = await operate(node, "ann", "finish", **await login.sign_in(started["result"]["url"]))
        assert refused["error_code"] == "UPSTREAM_ERROR"
        assert "access_denied" in refused["error"]


async def test_a_server_without_registration_needs_a_client_id(login: LoginServer, tmp_path: Path) -> None:
    login.offers_registration = False
    async with node_for(login, tmp_path) as node:
        refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        assert "set `client_id`" in refused["error"]
    login.offers_registration = True
    async with node_for(login, tmp_path) as node:
        await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        known = next(iter(login.clients))
    login.offers_registration = False
    async with node_for(login, tmp_path, auth={"kind": "oauth", "client_id": known, "issuer": login.url}) as node:
        await sign_in(node, login, "ann", "alice")
        assert list(login.clients) == [known]


async def test_a_device_without_a_browser_shows_a_code(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = (await operate(node, "ann", "start", agent_id="files"))["result"]
        assert started["user_code"] == "ABCD-EFGH"
        waiting = await operate(node, "ann", "finish", state=started["state"])
        assert waiting["result"]["status"] == "pending"
        login.approve_device()
        finished = await operate(node, "ann", "finish", state=started["state"])
        assert finished["result"]["status"] == "complete"
        await wait_until_listed(node)
        assert await ask(node, "ann") == "alice"


async def test_a_service_token_lists_tools_and_is_never_used_for_calls(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path, auth={"kind": "oauth", "service_token": "env:SERVICE"}) as node:
        await wait_until_listed(node)
        code, message = await ask(node, "ann")
        assert (code, "a2a-fabric login files" in message) == ("AUTH_DENIED", True)
        await sign_in(node, login, "ann", "alice")
        assert await ask(node, "ann") == "alice"


async def test_the_command_signs_in_and_out(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:

        async def run(*words: str) -> asyncio.subprocess.Process:
            options = ("--url", node.url, "--token", "the-key-of-ann")
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "a2a_fabric", *words, *options),
                env={**os.environ, "FABRIC_HOME": str(tmp_path / "home")},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )

        process = await run("login", "files", "--no-browser")
        assert process.stderr is not None
        lines = [(await process.stderr.readline()).decode() for _ in range(2)]
        assert "Open this page" in lines[0]
        _, back = await login.browse(lines[1].strip())
        foreign = back.partition("?")[0] + "?state=another&code=x"
        assert [(await login.browse(url))[0] for url in (foreign, back)] == [200, 200]
        printed, _ = await process.communicate()
        assert process.returncode == 0
        assert printed.decode().startswith(f"Signed in to files at {login.url}")
        await wait_until_listed(node)
        assert await ask(node, "ann") == "alice"
        printed, _ = await (await run("logins", "--json")).communicate()
        assert [each["agent_id"] for each in json.loads(printed)["logins"]] == ["files"]
        printed, _ = await (await run("logout", "files")).communicate()
        assert b"Signed out of files" in printed
        assert (await ask(node, "ann"))[0] == "AUTH_DENIED"
        process = await run("login", "files", "--device", "--timeout", "20")
        assert process.stderr is not None
        assert b"ABCD-EFGH" in await process.stderr.readline()
        login.user = "bob"
        login.approve_device()
        await process.communicate()
        assert process.returncode == 0
        assert await ask(node, "ann") == "bob"


@asynccontextmanager
async def http_agent(login: LoginServer, issuer: str | None = None) -> AsyncIterator[str]:
    """A plain HTTP agent behind the same authorization server; its address."""
    listener, url = bind_port()

    async def show_metadata(request: Request) -> Response:
        return JSONResponse({"resource": f"{url}/run", "authorization_servers": [issuer or login.url]})

    async def answer(request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in login.access:
            return Response(status_code=401)
        return JSONResponse({"ok": True, "result": {"answer": login.users[token]}})

    routes = [
        Route("/.well-known/oauth-protected-resource/run", show_metadata),
        Route("/run", answer, methods=["POST"]),
    ]
    async with serve_app(Starlette(routes=routes), listener, lifespan="off"):
        yield f"{url}/run"


async def test_a_plain_http_agent_can_want_logins_too(login: LoginServer, tmp_path: Path) -> None:
    async with http_agent(login) as uri:
        login.resource = uri
        manifest = {
            "agent_id": "files",
            "runtime": "http",
            "trust_tier": "public",
            "endpoint": {"uri": uri, "auth": "oauth"},
            "capabilities": [{"name": "whoami"}],
        }
        environ = {"FABRIC_HOME": str(tmp_path / "state")}
        async with running(manifests=[manifest], config=KEYS, base=tmp_path, environ=environ) as node:
            assert (await ask(node, "ann"))[0] == "AUTH_DENIED"
            for who, user in (("ann", "alice"), ("ben", "bob")):
                await sign_in(node, login, who, user)
            login.expire_access()
            assert [await ask(node, who) for who in ("ann", "ben")] == ["alice", "bob"]
            assert login.refreshes == 2


async def test_a_server_that_wants_a_login_without_auth_in_its_manifest_says_what_to_set(
    login: LoginServer, tmp_path: Path
) -> None:
    manifest = {"agent_id": "files", "runtime": "mcp", "trust_tier": "public", "endpoint": {"uri": login.resource}}
    async with running(manifests=[manifest], config=KEYS, base=tmp_path) as node:
        _, message = await ask(node, "ann")
        assert "HTTP 401" in message
        assert "`auth: oauth`" in message


@pytest.mark.parametrize(
    ("issuer", "reason"),
    [
        ("http://169.254.169.254", "neither HTTPS nor on this machine"),
        ("https://10.1.2.3", "which is not public"),
        ("http://127.0.0.1:9", "cannot be reached"),
    ],
)
async def test_an_agent_cannot_lead_the_node_to_addresses_that_are_not_public(
    login: LoginServer, tmp_path: Path, issuer: str, reason: str
) -> None:
    async with http_agent(login, issuer) as uri:
        manifest = {"agent_id": "files", "runtime": "http", "endpoint": {"uri": uri, "auth": "oauth"}}
        async with running(manifests=[manifest], config=KEYS, base=tmp_path) as node:
            refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
            assert reason in refused["error"]


async def test_a_server_without_pkce_is_not_used(login: LoginServer, tmp_path: Path) -> None:
    login.more_metadata = {"code_challenge_methods_supported": ["plain"]}
    async with node_for(login, tmp_path) as node:
        refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        assert "PKCE" in refused["error"]
        login.more_metadata = {"authorization_endpoint": "javascript:alert(1)"}
        refused = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        assert "neither HTTPS" in refused["error"]


async def test_one_caller_cannot_start_logins_without_end(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = [
            await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN) for _ in range(MAX_STARTS + 1)
        ]
        assert [each["ok"] for each in started] == [True] * MAX_STARTS + [False]
        assert started[-1]["error_code"] == "RATE_LIMITED"
        assert len(login.clients) == MAX_STARTS
        await sign_in(node, login, "ben", "bob")


async def test_idle_sessions_are_closed_and_their_number_is_bounded(login: LoginServer, tmp_path: Path) -> None:
    auth = {"kind": "oauth", "max_sessions": 1, "idle_seconds": 0.2}
    async with node_for(login, tmp_path, auth=auth) as node:
        for who, user in (("ann", "alice"), ("ben", "bob")):
            await sign_in(node, login, who, user)
        await wait_until_listed(node)
        assert [await ask(node, who) for who in ("ann", "ben", "ann")] == ["alice", "bob", "alice"]
        runtime: Any = node.fabric.runtime_pool.find_runtime("files")
        assert runtime.session_count <= 1

        async def all_closed() -> bool:
            return bool(runtime.session_count == 0)

        await eventually(all_closed)
        assert await ask(node, "ben") == "bob"


async def test_a_caller_without_a_name_cannot_sign_in_on_a_node_with_keys(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        reply = await node.operation("fabric.login.start", {"agent_id": "files", "redirect_uri": RETURN}, token=None)
        assert not reply["ok"]
        assert login.paths == [] or "/register" not in login.paths


async def open_page(login: LoginServer, page: str, browser: aiohttp.ClientSession) -> str:
    """What a person does with the page of the node; the text of the last page."""
    async with browser.get(page) as reply:
        text = await reply.text()
        assert reply.status == 200, text
        assert "psk:ann" in text
    origin = re.match(r"https?://[^/]+", page)
    assert origin is not None
    async with browser.post(page, headers={"origin": "https://evil.example"}, allow_redirects=False) as reply:
        assert reply.status == 403
    async with browser.post(page, headers={"origin": origin[0]}, allow_redirects=False) as reply:
        assert reply.status == 303
        _, back = await login.browse(reply.headers["location"])
    status, _ = await login.browse(back)
    assert status == 400  # another browser, which has the state and nothing else
    async with browser.get(back) as reply:
        return await reply.text()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_can_open_pages_lets_its_user_sign_in_and_the_call_goes_on(
    login: LoginServer, tmp_path: Path, mode: str
) -> None:
    pages: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        assert params.mode == "url"
        assert "files" in params.message
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            pages.append(await open_page(login, params.url, browser))
        return types.ElicitResult(action="accept")

    auth = {"kind": "oauth", "service_token": "env:SERVICE"}
    async with node_for(login, tmp_path, auth=auth) as node:
        await wait_until_listed(node)
        async with client(node, mode, token="the-key-of-ann", elicitation_callback=elicit) as connected:
            tools = [tool.name for tool in (await connected.list_tools()).tools if "whoami" in tool.name]
            result = await connected.call_tool(tools[0], {})
        assert not result.is_error, str(result.content)
        assert "alice" in str(result.content)
        assert ["You are signed in" in page for page in pages] == [True]


async def test_a_client_that_cannot_open_pages_is_told_the_command(login: LoginServer, tmp_path: Path) -> None:
    auth = {"kind": "oauth", "service_token": "env:SERVICE"}
    async with node_for(login, tmp_path, auth=auth) as node:
        await wait_until_listed(node)
        async with client(node, "2026-07-28", token="the-key-of-ann") as connected:
            tools = [tool.name for tool in (await connected.list_tools()).tools if "whoami" in tool.name]
            result = await connected.call_tool(tools[0], {})
        assert result.is_error
        assert "a2a-fabric login files" in str(result.content)


async def test_an_a2a_task_without_a_login_waits_for_it_and_goes_on(login: LoginServer, tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer the-key-of-ann"}
    auth = {"kind": "oauth", "service_token": "env:SERVICE"}
    async with node_for(login, tmp_path, auth=auth) as node:
        await wait_until_listed(node)
        params = {"message": message({"data": {}}, skill="whoami")}
        first = (await rpc(node, "SendMessage", params, agent="files", headers=headers))["result"]["task"]
        assert first["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        text, form = first["status"]["message"]["parts"]
        assert "Sign in to 'files'" in text["text"]
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            assert "You are signed in" in await open_page(login, form["data"]["url"], browser)
        tasks: list[Any] = []

        async def has_ended() -> bool:
            tasks.append((await rpc(node, "GetTask", {"id": first["id"]}, agent="files", headers=headers))["result"])
            return bool(tasks[-1]["status"]["state"] == "TASK_STATE_COMPLETED")

        await eventually(has_ended)
        assert "alice" in str(tasks[-1]["artifacts"])


async def test_an_a2a_task_whose_caller_declines_the_login_is_rejected(login: LoginServer, tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer the-key-of-ann"}
    auth = {"kind": "oauth", "service_token": "env:SERVICE"}
    async with node_for(login, tmp_path, auth=auth) as node:
        await wait_until_listed(node)
        params = {"message": message({"data": {}}, skill="whoami")}
        first = (await rpc(node, "SendMessage", params, agent="files", headers=headers))["result"]["task"]
        answer = {"message": message("no", taskId=first["id"])}
        answer["message"]["metadata"] = {ACTION_KEY: "decline"}
        second = (await rpc(node, "SendMessage", answer, agent="files", headers=headers))["result"]["task"]
        assert second["status"]["state"] == "TASK_STATE_REJECTED", second
        assert "declined" in str(second["status"])
