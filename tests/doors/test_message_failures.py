"""A message that did not reach its agent says why, wherever it is looked at, on every store, after a restart too."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from a2a_fabric import Agent
from a2a_fabric.cli.program import app
from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.job import RetentionPolicy
from tests.fixtures.node import PSK, Node, eventually, running, running_in_thread
from tests.fixtures.percy import Percy
from tests.fixtures.postgres import shared

AWAY = {
    "agent_id": "away",
    "runtime": "http",
    "endpoint": {"uri": "http://127.0.0.1:9/"},
    "capabilities": [{"name": "reason"}],
}
QUIET: dict[str, Any] = {"health": {"interval": 0}}
LATER = "UPDATE jobs SET expires_at = expires_at - 86400 WHERE job_id LIKE 'task%'"


class MemoryPlace:
    def __init__(self, folder: Path) -> None:
        self.address = "memory"


class SqlitePlace:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "fabric.db"
        self.address = f"sqlite:{self._file}"

    def run(self, statement: str) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute(statement)


class PostgresPlace:
    def __init__(self, folder: Path) -> None:
        self.address = shared().database()

    def run(self, statement: str) -> None:
        database = self.address.partition("@/")[2].partition("?")[0]
        shared().sql(f"SET search_path TO a2a_fabric; {statement}", database)


Place = Any
KEPT = [pytest.param(SqlitePlace, id="sqlite"), pytest.param(PostgresPlace, id="postgres")]
ALL = [pytest.param(MemoryPlace, id="memory"), *KEPT]


async def sent(node: Node, agent_id: str, capability: str, **more: Any) -> Any:
    body = {"parts": [{"type": "text", "content": "?"}], "metadata": {"capability": capability, **more}}
    reply = await node.send("POST", f"/v1/agents/{agent_id}/messages", json=body)
    assert reply.status == 201, reply.body
    return reply.json


async def looked_at(node: Node, message_id: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The delivery of the message, once it is as we wait for it."""
    found: dict[str, Any] = {}

    async def has_come() -> bool:
        found.update((await node.send("GET", f"/v1/messages/{message_id}")).json["metadata"]["delivery"])
        return is_so(found)

    await eventually(has_come)
    return found


def has_failed(delivery: dict[str, Any]) -> bool:
    return bool(delivery["status"] == "failed")


@pytest.mark.parametrize("place", ALL)
async def test_why_a_message_failed_is_told_wherever_it_is_looked_at(place: Place, tmp_path: Path) -> None:
    percy = Percy()
    async with running(percy.agent, config={**QUIET, "store": place(tmp_path).address}) as node:
        message = await sent(node, "percy", "refuse")
        delivery = await looked_at(node, message["id"], has_failed)
        assert (delivery["error"]["code"], delivery["error"]["message"]) == ("BAD_INPUT", "I would rather not")
        path = f"/v1/conversations/{message['metadata']['conversation_id']}/messages"
        [listed] = (await node.send("GET", path)).json["messages"]
        assert listed["metadata"]["delivery"] == delivery
        told = await node.operation("fabric.message.status", {"message_id": message["id"]})
        assert told["result"]["delivery"] == delivery
        assert told["result"]["to"] == ["percy"]
        reply = await node.send("GET", f"/v1/messages/{message['id']}/reply")
        assert reply.json["error"]["message"] == "I would rather not"


async def test_a_message_that_the_agent_refuses_is_not_tried_again_even_if_that_would_do_no_harm() -> None:
    agent, times = Agent("clock"), []

    @agent.capability(idempotent=True)
    async def tell(task: str) -> str:
        times.append(task)
        raise UpstreamRefused(f"no time zone {task}")

    async with running(agent, config=QUIET) as node:
        message = await sent(node, "clock", "tell")
        delivery = await looked_at(node, message["id"], has_failed)
        assert delivery["error"]["message"] == "no time zone ?"
        assert times == ["?"]


@pytest.mark.parametrize("place", KEPT)
async def test_a_message_that_was_tried_in_vain_keeps_its_reason_when_its_time_is_over(
    place: Place, tmp_path: Path
) -> None:
    """It was tried, then the node was away for longer than the message may wait."""
    kept = place(tmp_path)
    config = {**QUIET, "store": kept.address}
    async with running(manifests=[AWAY], config=config) as before:
        message = await sent(before, "away", "reason")
        waiting = await looked_at(before, message["id"], lambda found: "error" in found)
        assert (waiting["status"], waiting["error"]["code"]) == ("pending", "AGENT_OFFLINE")
    kept.run(LATER)
    async with running(manifests=[AWAY], config=config) as after:
        delivery = await looked_at(after, message["id"], has_failed)
        assert delivery["error"]["code"] == "AGENT_OFFLINE"
        assert "127.0.0.1" in delivery["error"]["message"]
    async with running(manifests=[AWAY], config=config) as again:
        assert await looked_at(again, message["id"], has_failed) == delivery


async def test_a_message_that_was_never_tried_says_so(tmp_path: Path) -> None:
    kept = SqlitePlace(tmp_path)
    config = {**QUIET, "store": kept.address}
    async with running(manifests=[AWAY], config={**config, "jobs": {"concurrent": 0}}) as before:
        message = await sent(before, "away", "reason")
    kept.run(LATER)
    async with running(manifests=[AWAY], config=config) as after:
        delivery = await looked_at(after, message["id"], has_failed)
        assert (delivery["error"]["code"], delivery["attempts"]) == ("TIMEOUT", 0)


@pytest.mark.parametrize("place", ALL)
async def test_the_reason_is_remembered_as_long_as_the_message(place: Place, tmp_path: Path) -> None:
    """Jobs are forgotten after a moment here; the delivery of a message is not."""
    percy = Percy()
    config = {**QUIET, "store": place(tmp_path).address, "jobs": {"keep_seconds": 0}}
    async with running(percy.agent, config=config) as node:
        message = await sent(node, "percy", "refuse")
        await looked_at(node, message["id"], has_failed)
        assert (await node.fabric.store.jobs.prune(RetentionPolicy(max_age=0.0))).is_done
        delivery = await looked_at(node, message["id"], has_failed)
        assert delivery["error"]["message"] == "I would rather not"


async def test_a_task_that_waits_for_another_attempt_shows_no_error_yet() -> None:
    async with running(manifests=[AWAY], config=QUIET) as node:
        message = await sent(node, "away", "reason")
        waiting = await looked_at(node, message["id"], lambda found: "error" in found)
        task = (await node.send("GET", f"/v1/tasks/{waiting['task_id']}")).json
        assert task["status"] in ("pending", "running")
        assert task.get("error") is None
        job = (await node.operation("fabric.job.status", {"job_id": waiting["task_id"]}))["result"]
        assert "error" not in job


def test_the_command_line_says_why_a_message_failed() -> None:
    runner = CliRunner(env={"FABRIC_TOKEN": PSK})

    def failed(url: str) -> str:
        async def send() -> str:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {PSK}"}) as client:
                body = {"parts": [{"type": "text", "content": "?"}], "metadata": {"capability": "reason"}}
                async with client.post(f"{url}/v1/agents/away/messages", json=body) as reply:
                    message_id = str((await reply.json())["id"])

                async def is_tried() -> bool:
                    async with client.get(f"{url}/v1/messages/{message_id}") as seen:
                        return "error" in (await seen.json())["metadata"]["delivery"]

                await eventually(is_tried)
                return message_id

        return asyncio.run(send())

    with running_in_thread(manifests=[AWAY], config=QUIET) as url:
        message_id = failed(url)
        shown = runner.invoke(app, ["messages", "status", message_id, "--url", url])
        assert shown.exit_code == 0, shown.output
        assert "AGENT_OFFLINE" in shown.output
        assert "to away: pending" in shown.output
