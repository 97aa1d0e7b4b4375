"""`Location` of what was made over REST: under the id that the reply shows, and fetchable as it stands."""

from __future__ import annotations

import pytest

from tests.fixtures.node import running
from tests.fixtures.percy import Percy

IDS = ("mine-1", "a b", "Ünïcode", "50%", "what?#", "task_of_mine", "with/slash")


@pytest.mark.parametrize("given", [*IDS, "..", "."])
@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_task_with_an_id_of_its_callers_own_is_found_at_its_location(given: str, prefix: str) -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        body = {"id": given, "agentId": "percy", "capability": "reason", "input": {"task": "?"}}
        made = await node.send("POST", f"{prefix}/tasks", json=body)
        assert (made.status, made.json["id"]) == (201, given)
        found = await node.send("GET", made.headers["location"])
        assert (found.status, found.json["id"]) == (200, given)
        again = await node.send("POST", f"{prefix}/tasks", json=body)
        assert (again.status, again.headers["location"]) == (200, made.headers["location"])


async def test_the_location_of_a_task_holds_the_id_that_the_reply_shows() -> None:
    async with running(Percy().agent) as node:
        body = {"id": "mine-1", "agentId": "percy", "capability": "reason", "input": {"task": "?"}}
        made = await node.send("POST", "/v1/tasks", json=body)
        assert made.headers["location"] == "/v1/tasks/mine-1"
        other = await node.send("POST", "/v1/tasks", json={**body, "id": "x y"})
        assert other.headers["location"] == "/v1/tasks/x%20y"


@pytest.mark.parametrize("given", IDS)
async def test_a_message_with_an_id_of_its_senders_own_is_found_at_its_location(given: str) -> None:
    keys = {"auth": {"keys": [{"id": name, "key": f"the-key-of-{name}"} for name in ("alice", "bob")]}}
    async with running(Percy().agent, config=keys) as node:
        body = {"id": given, "parts": [{"type": "text", "content": "?"}], "metadata": {"capability": "reason"}}
        for name in ("alice", "bob"):  # the second one's id is taken, and is only that sender's name for it
            token = f"the-key-of-{name}"
            made = await node.send("POST", "/v1/agents/percy/messages", json=body, token=token)
            assert (made.status, made.json["id"]) == (201, given)
            found = await node.send("GET", made.headers["location"], token=token)
            assert (found.status, found.json["id"]) == (200, given), made.headers
            assert found.json["sender"]["id"] == name
