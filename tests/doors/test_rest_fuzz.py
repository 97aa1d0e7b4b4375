"""Whatever is sent to the REST door, the answer is never a 5xx, never a traceback, and nothing is half written."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.doors.rest_bench import mirror, percy
from tests.fixtures.node import PSK, running_in_thread
from tests.marks import requirement

FUZZ = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
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
    found = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return found.exclude(path_regex="/events$|/inbox$|/reply$")  # those wait for something


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@requirement("004-27", "004-29")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_everything_that_the_description_allows_and_what_it_does_not(api: Any, mode: Any) -> None:
    for found in api.get_all_operations():
        operation = found.ok()

        @settings(FUZZ, max_examples=8)
        @given(case=operation.as_strategy(generation_mode=mode))
        def asked(case: Any) -> None:
            answered(case)

        asked()


def answered(case: Any) -> None:
    reply = case.call(headers={"Authorization": f"Bearer {PSK}"}, timeout=30)
    assert reply.status_code < 500, reply.content
    assert b"Traceback" not in reply.content
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
    assert b"Traceback" not in answer
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


@requirement("004-28")
@FUZZ
@given(given_parts=parts, given_id=words | st.none())
def test_a_message_is_there_whole_or_not_at_all(
    line: http.client.HTTPConnection, given_parts: list[Any], given_id: str | None
) -> None:
    body = {"id": given_id, "recipient": {"id": "mirror"}, "parts": given_parts}
    status, reply = check(line, "/v1/messages", json.dumps(body).encode())
    if status in (200, 201):
        line.request("GET", f"/v1/messages/{reply['metadata']['delivery']['task_id']}", headers=HEADERS)
        assert line.getresponse().read()
        again, same = check(line, "/v1/messages", json.dumps({**body, "id": reply["id"]}).encode())
        assert again in (200, 201, 409), same
    else:
        assert status in (400, 404, 409), reply
