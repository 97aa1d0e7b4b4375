"""Logins under attack: by a caller with a valid key, by the agent, and by its authorization server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.app_server import serve_app
from tests.fixtures.login_node import RETURN, ask, node_for, operate, sign_in
from tests.fixtures.login_server import LoginServer, login_server

Serve = Callable[[Any, Any, Any], Awaitable[None]]


@pytest_asyncio.fixture
async def login() -> AsyncIterator[LoginServer]:
    async with login_server() as found:
        yield found


def answer_with(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[Serve, list[bytes]]:
    """A server that always answers so, and what was sent to it."""
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append((await receive())["body"])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app, received


async def finish_with_token_endpoint(login: LoginServer, base: Path, endpoint: str) -> Any:
    """What a login ends with, at a server whose metadata name this token endpoint."""
    login.more_metadata = {"token_endpoint": endpoint}
    async with node_for(login, base) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        if not started["ok"]:
            return started
        reply = await operate(node, "ann", "finish", **await login.sign_in(started["result"]["url"]))
        assert (await operate(node, "ann", "list"))["result"]["count"] == 0
        return reply


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://169.254.169.254/token", "neither HTTPS nor on this machine"),
        ("https://10.0.0.1/token", "not public"),
        ("https://[fd00::1]/token", "not public"),
    ],
)
async def test_a_code_is_not_sent_to_a_private_address(
    login: LoginServer, tmp_path: Path, endpoint: str, reason: str
) -> None:
    refused = await finish_with_token_endpoint(login, tmp_path, endpoint)
    assert not refused["ok"]
    assert reason in refused["error"]


async def test_a_token_endpoint_that_redirects_is_not_followed(login: LoginServer, tmp_path: Path) -> None:
    thief, stolen = answer_with(200, [], b"{}")
    async with serve_app(thief, lifespan="off") as elsewhere:
        redirecting, _ = answer_with(307, [(b"location", f"{elsewhere}/token".encode())], b"")
        async with serve_app(redirecting, lifespan="off") as url:
            refused = await finish_with_token_endpoint(login, tmp_path, f"{url}/token")
            assert refused["error_code"] == "UPSTREAM_ERROR"
            assert "HTTP 307" in refused["error"]
            assert stolen == []


@pytest.mark.parametrize(
    "body",
    [
        b"x" * (1 << 20),
        b"[" * 100_000,
        b'{"access_token": "a\\r\\nx-evil: 1", "token_type": "bearer"}',
        b'{"access_token": 7, "token_type": "bearer"}',
        b'{"access_token": "secret-token", "token_type": "mac"}',
        b'{"error": "invalid_grant", "error_description": "the code secret-code is unknown"}',
        b"\xff\xfe",
    ],
)
async def test_bad_answers_of_a_token_endpoint_are_refused_and_not_repeated(
    login: LoginServer, tmp_path: Path, body: bytes
) -> None:
    app, _ = answer_with(200, [(b"content-type", b"application/json")], body)
    async with serve_app(app, lifespan="off") as url:
        refused = await finish_with_token_endpoint(login, tmp_path, f"{url}/token")
        assert not refused["ok"]
        assert refused["error_code"] in ("UPSTREAM_ERROR", "AGENT_OFFLINE"), refused
        assert "secret" not in json.dumps(refused)
        assert "evil" not in json.dumps(refused)


async def test_two_states_cannot_be_mixed_up(login: LoginServer, tmp_path: Path) -> None:
    """The code of one login does not finish another one: its verifier and its client are others."""
    async with node_for(login, tmp_path) as node:
        started = {
            who: await operate(node, who, "start", agent_id="files", redirect_uri=RETURN) for who in ("ann", "ben")
        }
        login.user = "bob"
        bens = await login.sign_in(started["ben"]["result"]["url"])
        login.user = "alice"
        anns = await login.sign_in(started["ann"]["result"]["url"])
        mixed = await operate(node, "ann", "finish", **{**anns, "code": bens["code"]})
        assert not mixed["ok"]
        assert bens["code"] not in json.dumps(mixed)
        assert (await operate(node, "ann", "list"))["result"]["count"] == 0
        assert (await operate(node, "ben", "finish", **bens))["ok"]
        assert await ask(node, "ben") == "bob"


async def test_a_login_goes_on_after_a_restart_between_start_and_finish(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        answer = await login.sign_in(started["result"]["url"])
    async with node_for(login, tmp_path) as node:
        assert (await operate(node, "ben", "finish", **answer))["error_code"] == "BAD_INPUT"
        assert (await operate(node, "ann", "finish", **answer))["ok"]
        assert await ask(node, "ann") == "alice"
    (tmp_path / "state" / "login.key").unlink()
    async with node_for(login, tmp_path) as node:
        assert (await ask(node, "ann"))[0] == "BAD_CONFIG"
        await sign_in(node, login, "ann", "alice")  # as the error says
        assert await ask(node, "ann") == "alice"


async def test_a_page_of_the_node_finishes_no_login_that_a_caller_started(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        answer = await login.sign_in(started["result"]["url"])
        query = "&".join(f"{name}={value}" for name, value in answer.items())
        for cookie in ("", "a2a-fabric-login=psk:ann", "a2a-fabric-login=owner:psk:ann"):
            reply = await node.send("GET", f"/logins/callback?{query}", token=None, headers={"cookie": cookie})
            assert reply.status == 400
        forged = await node.send("GET", "/logins/start?ticket=AQAAAAAAAAAAAAAAAAAAAAAA", token=None)
        assert forged.status == 400
        assert (await operate(node, "ann", "finish", **answer))["ok"]


async def test_a_job_runs_with_the_login_of_the_caller_that_asked(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        for who, user in (("ann", "alice"), ("ben", "bob")):
            await sign_in(node, login, who, user)

        async def run_job(who: str) -> Any:
            token = f"the-key-of-{who}"
            call = {"agent_id": "files", "capability": "whoami", "task": "", "async": True}
            accepted = await node.operation("fabric.call", call, token=token)
            job_id = accepted["result"]["job_id"]
            other = "the-key-of-ben" if who == "ann" else "the-key-of-ann"
            assert not (await node.operation("fabric.job.status", {"job_id": job_id}, token=other))["ok"]
            return await node.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000}, token=token)

        assert "alice" in json.dumps(await run_job("ann"))
        assert "bob" in json.dumps(await run_job("ben"))
        await operate(node, "ann", "remove", agent_id="files")
        after = json.dumps(await run_job("ann"))
        assert "a2a-fabric login files" in after
        assert "alice" not in after


async def test_no_secret_is_in_the_log_the_metrics_the_lists_or_an_export(login: LoginServer, tmp_path: Path) -> None:
    async with node_for(login, tmp_path) as node:
        login.lifetime = 3600
        started = await operate(node, "ann", "start", agent_id="files", redirect_uri=RETURN)
        answer = await login.sign_in(started["result"]["url"])
        finished = await operate(node, "ann", "finish", **answer)
        assert await ask(node, "ann") == "alice"
        login.expire_access()
        assert await ask(node, "ann") == "alice"
        login.revoke_all()
        ended = await ask(node, "ann")
        shown = [
            node.log.getvalue(),
            json.dumps([finished, ended, await operate(node, "ann", "list")]),
            (await node.send("GET", "/metrics")).body.decode(),
            (await node.send("GET", "/mcp/agent/files")).body.decode(),
        ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "a2a_fabric", "store", "export", "--store", f"sqlite:{tmp_path / 'fabric.db'}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    shown += [text.decode() for text in await process.communicate()]
    assert process.returncode == 0, shown[-1]
    assert len(shown[-2].splitlines()) > 1
    secrets = [*login.users, answer["code"], answer["state"]]
    assert len(secrets) >= 4
    assert [secret for secret in secrets for text in shown if secret in text] == []
