"""Webhooks: a real receiver on a real socket hears of a job's end, signed, however often it takes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from a2a_fabric.agent import Agent
from a2a_fabric.core.stores import Store
from tests.fixtures.node import Node, eventually, running

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes ....").decode()


class Receiver:
    """Answers as it is told to, at last with 200; unless it is `silent` for now."""

    def __init__(self, *answers: int, silent: bool = False) -> None:
        self._answers = list(answers)
        self.may_answer = asyncio.Event()
        if not silent:
            self.may_answer.set()
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.is_done = asyncio.Event()

    def has_heard(self, count: int) -> Callable[[], Awaitable[bool]]:
        async def has() -> bool:
            return len(self.heard) >= count

        return has

    async def hear(self, request: web.Request) -> web.Response:
        status = self._answers.pop(0) if self._answers else 200
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.heard.append((headers, await request.read()))
        await self.may_answer.wait()
        if status == 200:
            self.is_done.set()
        return web.Response(status=status)


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/hook", receiver.hear)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


def echo() -> Agent:
    agent = Agent("echo")

    @agent.capability
    async def say(task: str) -> dict[str, Any]:
        return {"answer": task}

    return agent


async def submit(node: Node, url: str, **more: Any) -> Any:
    webhook = {"url": url, "secret": SECRET}
    return await node.ask("echo", "say", "hello", **{"async": True, "webhook": webhook, **more})


def verify(headers: dict[str, str], body: bytes, key: bytes) -> None:
    """As any receiver with a library for Standard Webhooks does."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_the_end_of_a_job_is_told_and_signed_and_told_again_until_it_is_heard(tmp_path: Path) -> None:
    receiver = Receiver(500, 503)
    config = {"store": f"sqlite:{tmp_path / 'fabric.db'}", "jobs": {"webhook_allow": ["127.0.0.1"]}}
    async with listening(receiver) as url, running(echo(), config=config) as node:
        job = (await submit(node, url))["result"]
        assert job["webhook"] == {"url": url}
        async with asyncio.timeout(30):
            await receiver.is_done.wait()
        assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1
        headers, body = receiver.heard[-1]
        verify(headers, body, base64.b64decode(SECRET.removeprefix("whsec_")))
        told = msgspec.json.decode(body)
        assert told["type"] == "job.completed"
        assert told["data"]["job_id"] == job["job_id"]
        assert told["data"]["result"] == {"answer": "hello"}
        assert b"secret" not in body
        assert SECRET not in str(await node.operation("fabric.job.status", {"job_id": job["job_id"]}))
        assert (await node.operation("fabric.job.list", {}))["result"]["count"] == 1


async def test_a_cancelled_job_is_told_of_too_and_the_nodes_own_secret_signs_where_the_caller_has_none() -> None:
    receiver = Receiver()
    config = {"jobs": {"webhook_allow": ["127.0.0.1"], "webhook_secret": "the node's own"}}
    async with listening(receiver) as url, running(echo(), config=config) as node:
        job = (await submit(node, url, webhook={"url": url}, run_at=9e10))["result"]
        await node.operation("fabric.job.cancel", {"job_id": job["job_id"]})
        async with asyncio.timeout(30):
            await receiver.is_done.wait()
        headers, body = receiver.heard[0]
        verify(headers, body, b"the node's own")
        assert msgspec.json.decode(body)["type"] == "job.cancelled"


async def test_receivers_that_do_not_answer_hold_up_nobodys_jobs() -> None:
    tarpit = Receiver(silent=True)
    config = {"jobs": {"webhook_allow": ["127.0.0.1"], "concurrent": 2}}
    async with listening(tarpit) as url, running(echo(), config=config) as node:
        try:
            for count in (1, 2):
                assert (await submit(node, url))["ok"]
                await eventually(tarpit.has_heard(count))
            job = (await submit(node, url))["result"]
            async with asyncio.timeout(10):  # less than a receiver has to answer
                reply = await node.operation("fabric.job.result", {"job_id": job["job_id"], "wait_ms": 20_000})
            assert reply["result"] == {"answer": "hello"}
            assert len(tarpit.heard) == 2, "they are bounded too"
        finally:
            tarpit.may_answer.set()
        await eventually(tarpit.has_heard(3))


async def test_a_limit_for_each_agent_is_none_for_webhooks() -> None:
    tarpit, receiver = Receiver(silent=True), Receiver()
    config = {"jobs": {"webhook_allow": ["127.0.0.1"], "concurrent": 2, "concurrent_per_agent": 1}}
    async with listening(tarpit) as bad, listening(receiver) as good, running(echo(), config=config) as node:
        try:
            assert (await submit(node, bad))["ok"]
            await eventually(tarpit.has_heard(1))
            assert (await submit(node, good))["ok"]
            async with asyncio.timeout(10):
                await receiver.is_done.wait()
        finally:
            tarpit.may_answer.set()


async def test_a_receiver_that_wants_no_more_is_not_asked_again() -> None:
    receiver = Receiver(410)
    config = {"jobs": {"webhook_allow": ["127.0.0.1"]}}
    async with listening(receiver) as url, running(echo(), config=config) as node:
        job = (await submit(node, url))["result"]

        async def is_over() -> bool:
            return await _state(node.fabric.store, f"hook_{job['job_id'].removeprefix('job_')}") == "rejected"

        await eventually(is_over)
        assert len(receiver.heard) == 1


async def test_a_webhook_to_a_private_address_is_refused_when_it_is_asked_for() -> None:
    receiver = Receiver()
    async with listening(receiver) as url, running(echo()) as node:
        refused = await submit(node, url)
        assert refused["error_code"] == "BAD_INPUT"
        assert refused["error_details"]["field"] == "webhook.url"
        assert "jobs.webhook_allow" in refused["error"]
        assert receiver.heard == []


async def test_a_webhook_is_judged_again_when_it_is_sent(tmp_path: Path) -> None:
    """What was allowed when it was asked for is not sent once it is not any more."""
    receiver, kept = Receiver(), {"store": f"sqlite:{tmp_path / 'fabric.db'}"}
    allowing = {**kept, "jobs": {"webhook_allow": ["127.0.0.1"], "concurrent": 0}}
    async with listening(receiver) as url:
        async with running(echo(), config=allowing) as before:
            job = (await submit(before, url))["result"]
        async with running(echo(), config=kept) as node:

            async def refused() -> bool:
                return await _state(node.fabric.store, f"hook_{job['job_id'].removeprefix('job_')}") == "rejected"

            await eventually(refused)
            assert receiver.heard == []


async def test_a_webhook_needs_a_secret_and_an_address() -> None:
    async with running(echo()) as node:
        for wrong in ({"url": "http://example.com/"}, {"url": "file:///x", "secret": "x" * 8}, {"url": ""}):
            assert (await submit(node, "", webhook=wrong))["error_code"] == "BAD_INPUT", wrong


async def _state(store: Store, job_id: str) -> str | None:
    job = await store.jobs.get(job_id)
    return job.state if job else None
