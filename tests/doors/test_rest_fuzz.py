"""Whatever is sent to the REST door, the answer is never a 5xx, never a traceback, and nothing is half written."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance

from a2a_fabric.core.propagation import new_id
from tests.doors.rest_bench import mirror, percy
from tests.fixtures.fuzzing import LEAK, MARKS, many
from tests.fixtures.node import PSK, running_in_thread
from tests.marks import requirement

pytestmark = MARKS

FUZZ = many(100)
HEADERS = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    doors = [{"kind": "fabric"}, {"kind": "directory"}, {"kind": "rest", "requests_per_minute": None}]
    config = {"doors": doors, "health": {"interval": 0}, "jobs": {"waiting_per_principal": 10**6}}
    with running_in_thread(percy(), mirror(), config=config) as found:
        yield found


@pytest.fixture(scope="module")
def line(url: str) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def api(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@requirement("004-27", "004-29")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_everything_that_the_description_allows_and_what_it_does_not(api: Any, mode: Any) -> None:
    for found in api.get_all_operations():
        operation = found.ok()

        @many(8)
        @given(case=operation.as_strategy(generation_mode=mode))
        def asked(case: Any) -> None:
            answered(case)

        asked()


def answered(case: Any) -> None:
    if "wait" in (case.query or {}):
        case.query["wait"] = 0  # seconds: there is nothing to wait for
    reply = case.call(headers={"Authorization": f"Bearer {PSK}"}, timeout=30)
    assert reply.status_code < 500, reply.content
    assert LEAK not in reply.content
    if reply.status_code == 304:
        return
    told = json.loads(reply.content)
    if reply.status_code >= 400:
        assert set(told["error"]) == {"code", "message", "details"}
    else:
        case.validate_response(reply, checks=[response_schema_conformance])


words = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=10
)
METHODS = [
    "discover", "sendMessage", "getTaskStatus", "getTask", "cancelTask", "listTasks", "updateTaskStatus",
    "setPushConfig", "getPushConfig", "streamMessage", "downloadArtifact", "uploadArtifact", "a2a/task", "nothing",
]  # fmt: skip
KEYS = ["capability", "parts", "agentId", "taskId", "status", "limit", "since", "config", "artifactId", "contextId"]
params = st.dictionaries(st.sampled_from(KEYS) | words, values, max_size=5)


def check(line: http.client.HTTPConnection, path: str, body: bytes) -> Any:
    line.request("POST", path, body, HEADERS)
    response = line.getresponse()
    answer = response.read()
    assert response.status < 500, answer
    assert LEAK not in answer
    return response.status, json.loads(answer) if answer else None


@FUZZ
@given(body=st.binary(max_size=200))
@pytest.mark.parametrize("path", ["/", "/v1/messages", "/tasks", "/agents/percy/messages"])
def test_any_bytes(line: http.client.HTTPConnection, path: str, body: bytes) -> None:
    check(line, path, body)


@FUZZ
@given(method=st.sampled_from(METHODS), given_params=params | values, identity=values)
def test_any_parameters_of_the_rpc_client(
    line: http.client.HTTPConnection, method: str, given_params: Any, identity: Any
) -> None:
    body = {"jsonrpc": "2.0", "id": identity, "method": method, "params": given_params}
    status, reply = check(line, "/", json.dumps(body).encode())
    if not method.startswith("a2a/") and reply is not None:
        assert ("error" in reply) == (status != 200)
        assert set(reply) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})


parts = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["text", "image", "file", "json", "function_call", "our.own"]) | words,
            "content": values,
        },
        optional={"metadata": st.dictionaries(words, values, max_size=3)},
    ),
    max_size=3,
)


def looked(line: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    line.request("GET", path, headers=HEADERS)
    response = line.getresponse()
    answer = response.read()
    assert response.status < 500, answer
    return response.status, json.loads(answer)


@requirement("004-28")
@FUZZ
@given(given_parts=parts, given_id=words | st.none(), given_metadata=st.dictionaries(words, values, max_size=2))
def test_a_message_is_there_whole_or_not_at_all(
    line: http.client.HTTPConnection, given_parts: list[Any], given_id: str | None, given_metadata: dict[str, Any]
) -> None:
    conversation = f"conv_{new_id()}"
    metadata = {**given_metadata, "conversation_id": conversation}
    body = {"id": given_id, "recipient": {"id": "mirror"}, "parts": given_parts, "metadata": metadata}
    status, message = check(line, "/v1/messages", json.dumps(body).encode())
    _, listed = looked(line, f"/v1/conversations/{conversation}/messages")
    if status == 201:
        assert listed["messages"][0]["id"] == message["id"]
        assert [part["type"] for part in message["parts"]] == [part["type"] for part in given_parts]
        again, same = check(line, "/v1/messages", json.dumps(body).encode())
        assert (again, same["id"]) == (200, message["id"]) if given_id else again == 201
        _, kept = looked(line, f"/v1/tasks/{message['metadata']['delivery']['task_id']}")
        assert kept["status"] in ("pending", "running", "completed", "failed")
    else:
        assert status in (400, 409), message
        assert listed["error"]["code"] == "NOT_FOUND"


@requirement("004-27")
@FUZZ
@given(given_input=st.dictionaries(words, values, max_size=3) | values, given_parts=parts | st.none())
def test_a_task_is_there_whole_or_not_at_all(
    line: http.client.HTTPConnection, given_input: Any, given_parts: list[Any] | None
) -> None:
    task_id = f"task-{new_id()}"
    body = {"id": task_id, "agentId": "mirror", "input": given_input, **({"parts": given_parts} if given_parts else {})}
    status, task = check(line, "/v1/tasks", json.dumps(body).encode())
    seen, kept = looked(line, f"/v1/tasks/{task_id}")
    if status == 201:
        assert (seen, kept["id"], kept["input"]) == (200, task_id, task["input"])
        again, same = check(line, "/v1/tasks", json.dumps(body).encode())
        assert (again, same["id"], same["createdAt"]) == (200, task_id, task["createdAt"])
    else:
        assert (status, seen) == (400, 404), task
