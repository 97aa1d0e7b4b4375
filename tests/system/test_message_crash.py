"""No message is there without its delivery: nodes that are killed while messages come in, with real processes.

The senders here never repeat themselves, so that nothing but the node itself can see to it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import nats
from tests.fixtures.postgres import shared
from tests.marks import requirement
from tests.system.job_crash import free_address, started
from tests.system.node import Node

ROUNDS = int(os.environ.get("JOB_CRASH_ROUNDS", "1"))  # `make soak` asks for more
SENDERS = 12
CONVERSATION = "conv_crash"
PAGE = 500


@pytest.fixture(params=["sqlite", "postgresql", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "nats":
        return nats.shared().address()
    return shared().database() if request.param == "postgresql" else f"sqlite:{tmp_path / 'shared.db'}"


def asked(node: Node, verb: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    line = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=60)
    try:
        headers = {"Authorization": f"Bearer {node.token}", "Content-Type": "application/json"}
        line.request(verb, f"/v1{path}", None if body is None else json.dumps(body), headers)
        reply = line.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        line.close()


def send_on(node: Node, sent: list[str]) -> None:
    """Messages one after the other, until the node is gone; those that were acknowledged are in `sent`."""
    part = {"type": "json", "content": {"task": "word", "pause": 0, "words": 1}}
    body = {"parts": [part], "metadata": {"capability": "again", "conversation_id": CONVERSATION}}
    while True:
        try:
            status, message = asked(node, "POST", "/agents/worker/messages", body)
        except (OSError, http.client.HTTPException):
            return
        assert status == 201, message
        sent.append(message["id"])


async def kill_while_sending(node: Node, sent: list[str]) -> None:
    wanted = len(sent) + random.randint(1, 60)
    senders = [asyncio.create_task(asyncio.to_thread(send_on, node, sent)) for _ in range(SENDERS)]
    async with asyncio.timeout(60):
        while len(sent) < wanted:  # noqa: ASYNC110  # threads count them
            await asyncio.sleep(0.001)
    node.signal(signal.SIGKILL)
    await asyncio.gather(*senders)


def said_in_conversation(node: Node) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    cursor = ""
    while True:
        _, page = asked(node, "GET", f"/conversations/{CONVERSATION}/messages?limit={PAGE}{cursor}")
        messages += page["messages"]
        if page["nextCursor"] is None:
            return messages
        cursor = f"&cursor={page['nextCursor']}"


@pytest.mark.rounds
@requirement("004-02", "004-13")
async def test_what_a_killed_node_has_written_down_is_delivered_by_the_next(tmp_path: Path, store: str) -> None:
    folder, address, sent = tmp_path / "node", free_address(), list[str]()
    for _ in range(ROUNDS):
        async with started(folder, store, address) as node:
            await kill_while_sending(node, sent)
    async with started(folder, store, address) as node:
        written = [each["id"] for each in said_in_conversation(node) if each["sender"]["type"] == "client"]
        assert set(sent) <= set(written), "an acknowledged message is lost"
        for message_id in written:
            status, reply = await asyncio.to_thread(asked, node, "GET", f"/messages/{message_id}/reply?wait=60")
            assert status == 200, (message_id in sent, reply)
        replies = [each["metadata"]["in_reply_to"] for each in said_in_conversation(node) if each["id"] not in written]
        assert sorted(replies) == sorted(written), "each is answered once"
