"""Whatever is sent to the directory, the answer is JSON-RPC (or bare, as asked), never a 5xx, never half a task."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import OUTCOME
from tests.fixtures.fuzzing import LEAK, MARKS, many
from tests.fixtures.node import PSK, running_in_thread
from tests.marks import requirement

pytestmark = MARKS

FUZZ = many(150)
PATHS = ["/a2a", "/a2a/register", "/a2a/discover", "/a2a/task", "/a2a/cancel", "/a2a/status", "/a2a/agents/percy/rpc"]
CODES = {-32700, -32600, -32601, -32602, -32001, -32002}
ENDS = {"completed", "failed", "cancelled", "timeout"}


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def echo(thing: Any = None) -> dict[str, Any]:
        return {"thing": thing}

    return agent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    doors = [{"kind": "fabric"}, {"kind": "directory"}]
    config = {"doors": doors, "registration": {"max_per_owner": 10**6}, "health": {"interval": 0}}
    with running_in_thread(percy(), config=config) as found:
        yield found


@pytest.fixture(scope="module")
def line(url: str) -> Iterator[http.client.HTTPConnection]:
    """One connection for all: a request that upsets it is noticed by the next."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    yield connection
    connection.close()


def send(line: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json", "Accept": "application/json"}
    line.request("POST", path, body, headers)
    response = line.getresponse()
    return response.status, response.read()


def check(line: http.client.HTTPConnection, path: str, body: bytes) -> Any:
    status, answer = send(line, path, body)
    assert status < 500 or b'"code":"AGENT_OFFLINE"' in answer, answer
    assert LEAK not in answer
    if status == 204:
        assert answer == b""
        return None
    reply = json.loads(answer)
    for each in reply if isinstance(reply, list) else [reply]:
        check_one(each, status)
    return reply


def check_one(reply: dict[str, Any], status: int) -> None:
    if "jsonrpc" not in reply:
        assert ("error" in reply) == (status != 200)
        return
    assert set(reply) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    assert reply["jsonrpc"] == "2.0"
    if "error" in reply:
        assert reply["error"]["code"] in CODES, reply
        assert isinstance(reply["error"]["message"], str)


words = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=10
)
METHODS = [
    "a2a/register", "a2a/heartbeat", "a2a/unregister", "a2a/discover", "a2a/agent", "a2a/task", "a2a/status",
    "a2a/answer", "a2a/cancel", "a2a/nothing",
]  # fmt: skip
KEYS = [
    "agentId", "name", "capabilities", "endpoint", "taskId", "action", "sender", "input", "chain", "actions", "async",
    "timeoutMs", "leaseSeconds", "trustTier", "answers", "limit", "after",
]  # fmt: skip
params = st.dictionaries(st.sampled_from(KEYS) | words, values, max_size=6)
GOOD: dict[str, dict[str, Any]] = {
    "a2a/register": {"agentId": "new", "name": "N", "capabilities": ["x"], "endpoint": "http://127.0.0.1:9/"},
    "a2a/discover": {"capabilities": ["echo"]},
    "a2a/task": {"taskId": "t", "action": "echo", "sender": "me", "input": {"thing": {"a": [1]}}},
}


@requirement("002-14")
@FUZZ
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_any_bytes(line: http.client.HTTPConnection, path: str, body: bytes) -> None:
    check(line, path, body)


@requirement("002-14")
@FUZZ
@given(path=st.sampled_from(PATHS), value=values)
def test_any_json(line: http.client.HTTPConnection, path: str, value: Any) -> None:
    check(line, path, json.dumps(value).encode())


@requirement("002-01", "002-14")
@FUZZ
@given(method=st.sampled_from(METHODS), given_params=params | values, identity=values, path=st.sampled_from(PATHS))
def test_any_parameters(
    line: http.client.HTTPConnection, method: str, given_params: Any, identity: Any, path: str
) -> None:
    check(line, path, json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": given_params}).encode())


@FUZZ
@given(
    batch=st.lists(st.sampled_from(METHODS).map(lambda name: {"jsonrpc": "2.0", "method": name}) | values, max_size=5)
)
def test_any_batch(line: http.client.HTTPConnection, batch: list[Any]) -> None:
    check(line, "/a2a", json.dumps(batch).encode())


@FUZZ
@given(
    method=st.sampled_from(sorted(GOOD)),
    changed=st.dictionaries(st.sampled_from(KEYS), values, max_size=2),
    is_bare=st.booleans(),
)
def test_good_requests_with_a_few_fields_changed(
    line: http.client.HTTPConnection, method: str, changed: dict[str, Any], is_bare: bool
) -> None:
    given_params = {**GOOD[method], **changed, "async": True}
    body = given_params if is_bare else {"jsonrpc": "2.0", "id": 1, "method": method, "params": given_params}
    check(line, f"/{method}", json.dumps(body).encode())


@requirement("002-07", "002-08")
@FUZZ
@given(task_id=words, thing=values)
def test_a_task_is_done_whole_or_not_at_all(line: http.client.HTTPConnection, task_id: str, thing: Any) -> None:
    """Whatever its id and its input: it is refused and not there, or it is done, and the same when looked at again."""
    asked = {"taskId": task_id, "action": "echo", "sender": "me", "input": {"thing": thing}}
    body = {"jsonrpc": "2.0", "id": "x", "method": "a2a/task", "params": asked}
    reply = check(line, "/a2a", json.dumps(body).encode())
    body = {**body, "method": "a2a/status", "params": {"taskId": task_id}}
    looked = check(line, "/a2a", json.dumps(body).encode())
    if "result" in reply:
        assert set(reply["result"]) == OUTCOME
        assert looked == reply
        assert reply["result"]["status"] in ENDS
        assert reply["result"]["output"]["thing"] == thing
    else:
        assert reply["error"]["code"] in (-32602, -32700)
        assert "error" in looked or looked["result"]["status"] in ENDS  # the same id may have been used before


@FUZZ
@given(at=st.integers(0, 250), byte=st.integers(0, 255), method=st.sampled_from(sorted(GOOD)))
def test_a_good_request_with_one_byte_wrong(line: http.client.HTTPConnection, at: int, byte: int, method: str) -> None:
    body = bytearray(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": GOOD[method]}).encode())
    body[at % len(body)] = byte
    check(line, "/a2a", bytes(body))


@FUZZ
@given(path=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=30))
def test_any_path_below_the_agents(line: http.client.HTTPConnection, path: str) -> None:
    line.request("GET", f"/a2a/agents/{path}", headers={"Authorization": f"Bearer {PSK}"})
    response = line.getresponse()
    assert response.status < 500, response.read()
    json.loads(response.read())
