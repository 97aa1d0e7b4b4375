"""The `http` runtime with APIs that answer later: asked again until they are done, and told when no caller waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.apis.later import Later
from tests.fixtures.node import WAIT_TIMEOUT, Node, running, tasks_are_down_to
from tests.marks import requirement
from tests.matrix.agents.listening import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = {"every_ms": 10}
STATE = {
    "until": "state == 'succeeded'",
    "failed": "state == 'failed' && why",
    "location": "links.self",
    "result": "output",
    "progress": "/percent",
    **QUICK,
}
POLLS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "operation": None,
    "redirect": None,
    "silent": None,
    "away": None,
    "elsewhere": QUICK,
    "flaky": QUICK,
    "gone": QUICK,
    "state": STATE,
    "fails": STATE,
    "never": {"cancel": "DELETE", **QUICK},
    "post": {"cancel": "POST cancel", **QUICK},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peer() -> AsyncIterator[tuple[Later, str]]:
    later = Later()
    async with listening(later.app) as url:
        yield later, url


@pytest.fixture
def later(peer: tuple[Later, str]) -> Later:
    """With nothing remembered of earlier tests."""
    found = peer[0]
    found.headers.clear()
    found.cancelled.clear()
    found.waited_for.clear()
    found.told.clear()
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(peer: tuple[Later, str]) -> AsyncIterator[Node]:
    def manifest(how: str, poll: dict[str, Any] | None) -> dict[str, Any]:
        endpoint: dict[str, Any] = {"uri": f"{peer[1]}/start/{how}", "headers": {"X-Key": "k"}}
        if poll is not None:
            endpoint["poll"] = poll
        act = {"name": "act", "streaming": True}
        return {"agent_id": how, "runtime": "http", "endpoint": endpoint, "capabilities": [act]}

    alone = {"routing": {"fallback": False}, "breaker": {"failures": 1000}}
    async with running(manifests=[manifest(*each) for each in POLLS.items()], config=alone) as found:
        yield found


@requirement("001-17")
@pytest.mark.parametrize("how", ["plain", "operation", "redirect", "flaky"])
async def test_an_api_that_answers_later_is_asked_until_it_is_done(node: Node, later: Later, how: str) -> None:
    reply = await node.ask(how, "act")
    assert reply["result"] == {"answer": f"{how} is done"}, reply
    assert later.looks[how] == 3
    assert {each["x-key"] for each in later.headers} == {"k"}
    assert all("traceparent" in each and "content-type" not in each for each in later.headers)


async def test_a_streamed_call_waits_as_well(node: Node, later: Later) -> None:
    events = await node.events("plain", "act")
    assert events[-1]["data"]["answer"] == "plain is done"


async def test_a_state_in_the_body_is_read_as_the_manifest_says(node: Node, later: Later) -> None:
    events = await node.events("state", "act")
    assert events[-1]["data"]["result"] == {"answer": "printed"}
    assert [event["data"]["percent"] for event in events if event["event"] == "progress"] == [40, 80]


async def test_work_that_fails_later_is_a_typed_error_with_the_reason(node: Node, later: Later) -> None:
    reply = await node.ask("fails", "act")
    assert (reply["error_code"], reply["error"]) == ("UPSTREAM_ERROR", "no ink left")


async def test_a_result_that_is_gone_is_a_typed_error(node: Node, later: Later) -> None:
    reply = await node.ask("gone", "act")
    assert reply["error_code"] == "UPSTREAM_ERROR"
    assert "HTTP 410" in reply["error"]
    assert "it was thrown away" in reply["error"]


async def test_a_202_that_names_no_place_is_the_answer(node: Node, later: Later) -> None:
    assert (await node.ask("silent", "act"))["result"] == {"answer": "taken"}


@pytest.mark.parametrize("how", ["away", "elsewhere"])
async def test_another_origin_is_never_asked(node: Node, later: Later, how: str) -> None:
    reply = await node.ask(how, "act")
    assert reply["error_code"] == "UPSTREAM_ERROR"
    assert "another origin" in reply["error"]


@requirement("001-44")
@pytest.mark.parametrize(("how", "told"), [("never", "DELETE /jobs/never"), ("post", "POST /jobs/post/cancel")])
async def test_when_time_is_up_the_work_is_cancelled(node: Node, later: Later, how: str, told: str) -> None:
    reply = await node.ask(how, "act", timeout_ms=1000)
    assert reply["error_code"] == "TIMEOUT"
    async with asyncio.timeout(WAIT_TIMEOUT):
        await later.told.wait()
    assert later.cancelled == [told]


async def test_a_caller_who_leaves_cancels_the_work(peer: tuple[Later, str], later: Later) -> None:
    endpoint = {"uri": f"{peer[1]}/start/never", "poll": {"cancel": "DELETE", **QUICK}}
    manifest = {"agent_id": "never", "runtime": "http", "endpoint": endpoint, "capabilities": [{"name": "act"}]}
    async with running(manifests=[manifest]) as node:
        before = len(asyncio.all_tasks())
        asking = asyncio.ensure_future(node.ask("never", "act"))
        async with asyncio.timeout(WAIT_TIMEOUT):
            await later.waited_for.wait()
            asking.cancel()
            await asyncio.wait([asking])
            await later.told.wait()
        await tasks_are_down_to(before + 1)
        assert later.cancelled == ["DELETE /jobs/never"]
