"""Whatever is sent to the Fabric door, the answer is never a 5xx and always the envelope."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from a2a_fabric.agent import Agent
from tests.fixtures.fuzzing import LEAK
from tests.fixtures.node import PSK, check_envelope, running_in_thread
from tests.marks import requirement
from tests.profiles import examples

FUZZ = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def talker() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def reason(task: str, depth: int = 1, mood: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"answer": task, "mood": mood}

    @agent.capability
    async def echo(task: str, thing: dict[str, Any] | None = None) -> Any:
        return {"thing": thing}

    return agent


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base: Path = tmp_path_factory.mktemp("node")
    with running_in_thread(talker(), base=base) as found:
        yield found


@pytest.fixture(scope="module")
def line(url: str) -> Iterator[http.client.HTTPConnection]:
    """One connection for all: a request that upsets it is noticed by the next."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    yield connection
    connection.close()


def check_answer(line: http.client.HTTPConnection, body: bytes, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json", **headers}
    line.request("POST", "/mcp/call", body, sent)
    response = line.getresponse()
    answer = response.read()
    assert response.status in (200, 400, 403), answer
    assert LEAK not in answer
    if response.headers["content-type"].startswith("text/event-stream"):
        frames = [frame for frame in answer.decode().split("\n\n") if frame]
        assert frames[-1].startswith("event: final\n")
        return None
    envelope = json.loads(answer)
    check_envelope(envelope)
    assert envelope["error_code"] != "INTERNAL_ERROR" if not envelope["ok"] else True
    return envelope


words = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=12
)


@requirement("000-10", "000-11", "000-21")
@FUZZ
@given(body=st.binary(max_size=300))
def test_any_bytes(line: http.client.HTTPConnection, body: bytes) -> None:
    assert check_answer(line, body)["ok"] is False


@FUZZ
@given(value=values)
def test_any_json(line: http.client.HTTPConnection, value: Any) -> None:
    check_answer(line, json.dumps(value).encode())


NAMES = [
    "fabric.agent.list", "fabric.agent.describe", "fabric.call", "fabric.route.preview", "fabric.health",
    "fabric.tool.list", "fabric.tool.call", "fabric.tool.describe", "fabric.tool.math.calculate",
    "fabric.tool.text.transform", "fabric.tool.text.diff", "fabric.tool.data.json", "fabric.tool.data.csv",
    "fabric.tool.data.validate", "fabric.tool.security.hash", "fabric.tool.security.base64", "fabric.tool.encode.url",
    "fabric.tool.docs.markdown", "fabric.tool.io.read_file", "fabric.tool.io.list_directory",
    "fabric.tool.math.statistics", "fabric.tool.system.datetime", "fabric.tool.web.parse_url",
    "fabric.tool.agent.percy.reason", "fabric.tool.agent.percy.echo", "fabric.tool.text.regex",
]  # fmt: skip
KEYS = [
    "agent_id", "capability", "task", "context", "attachments", "stream", "format", "timeout_ms", "trace", "filter",
    "status", "tag", "tool_id", "parameters", "category", "provider", "expression", "text", "data", "json", "csv",
    "schema", "path", "pattern", "markdown", "operations", "query", "timezone", "url", "original", "modified",
    "algorithm", "decode", "depth", "mood", "measures", "precision", "delimiter", "headers", "flags",
]  # fmt: skip


@FUZZ
@given(
    name=st.sampled_from(NAMES) | st.text(st.sampled_from("fabric.tool.agent.percy.reason"), max_size=30),
    arguments=st.dictionaries(st.sampled_from(KEYS) | words, values, max_size=6),
    accept=st.sampled_from(["application/json", "*/*"]),
)
def test_known_names_with_any_arguments(
    line: http.client.HTTPConnection, name: str, arguments: dict[str, Any], accept: str
) -> None:
    check_answer(line, json.dumps({"name": name, "arguments": arguments}).encode(), Accept=accept)


GOOD: dict[str, Any] = {
    "agent_id": "percy", "capability": "echo", "task": "x", "context": {"thing": {"a": [1]}}, "stream": False,
    "attachments": [{"type": "url", "content": "x", "mime_type": "text/plain"}], "format": "json", "timeout_ms": 5000,
    "trace": {"trace_id": "0af76519-16cd-43dd-8448-eb211c80319c"},
}  # fmt: skip


@FUZZ
@given(changed=st.dictionaries(st.sampled_from(sorted(GOOD)), values, max_size=2), lost=st.sampled_from(sorted(GOOD)))
def test_a_good_call_with_a_few_fields_changed(
    line: http.client.HTTPConnection, changed: dict[str, Any], lost: str
) -> None:
    arguments = {**GOOD, **changed}
    check_answer(line, json.dumps({"name": "fabric.call", "arguments": arguments}).encode())
    arguments.pop(lost)
    check_answer(line, json.dumps({"name": "fabric.call", "arguments": arguments}).encode())


@FUZZ
@given(at=st.integers(0, 250), byte=st.integers(0, 255), cut=st.booleans())
def test_a_good_call_with_one_byte_wrong(line: http.client.HTTPConnection, at: int, byte: int, cut: bool) -> None:
    body = bytearray(json.dumps({"name": "fabric.call", "arguments": GOOD}).encode())
    at %= len(body)
    body[at : at + 1] = b"" if cut else bytes([byte])
    check_answer(line, bytes(body))


@FUZZ
@given(context=st.dictionaries(words, values, max_size=4))
def test_what_goes_in_comes_out_unchanged(line: http.client.HTTPConnection, context: dict[str, Any]) -> None:
    sent = json.loads(json.dumps(context, allow_nan=False)) if finite(context) else {}
    arguments = {"agent_id": "percy", "capability": "echo", "task": "x", "context": {"thing": sent}}
    envelope = check_answer(line, json.dumps({"name": "fabric.call", "arguments": arguments}).encode())
    assert envelope["result"] == {"thing": sent}


def finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


ENVELOPE = {
    "type": "object",
    "required": ["ok", "trace", "result", "error"],
    "properties": {
        "ok": {"type": "boolean"},
        "trace": {
            "type": "object",
            "required": ["trace_id", "span_id", "parent_span_id"],
            "properties": {
                "trace_id": {"type": "string", "format": "uuid"},
                "span_id": {"type": "string", "format": "uuid"},
                "parent_span_id": {"type": ["string", "null"]},
            },
        },
        "result": {"type": ["object", "null"]},
        "error": {"type": ["string", "null"]},
        "error_code": {"type": "string"},
        "error_details": {"type": "object"},
    },
}


def replies(*statuses: int, schema: dict[str, Any] = ENVELOPE) -> dict[str, Any]:
    good = {"description": "answered", "content": {"application/json": {"schema": schema}}}
    bad = {"description": "refused", "content": {"application/json": {"schema": ENVELOPE}}}
    return {"200": good, **{str(status): bad for status in statuses}}


def page(*parameters: str, schema: dict[str, Any] = ENVELOPE) -> dict[str, Any]:
    queries = [{"in": "query", "name": name, "schema": {"type": "string"}} for name in parameters]
    return {"get": {"parameters": queries, "responses": replies(400, 401, 404, 405, 413, schema=schema)}}


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Fabric wire", "version": "af-mcp-0.1"},
    "paths": {
        "/mcp/call": {
            "post": {
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": {"anyOf": [{"enum": NAMES}, {"type": "string"}]},
                                    "arguments": {"type": "object"},
                                },
                            }
                        }
                    },
                },
                "responses": replies(400, 401, 403, 405, 413, 415, 429),
            }
        },
        "/health": page(
            schema={
                "type": "object",
                "required": ["status", "version", "timestamp"],
                "properties": {"status": {"const": "ok"}, "version": {"const": "af-mcp-0.1"}},
            }
        ),
        "/mcp/list_agents": page("capability", "tag", "status", "trust_tier"),
        "/mcp/list_tools": page("category", "provider"),
        "/mcp/health": page(),
        "/mcp/agent/{agent_id}": {
            "parameters": [{"in": "path", "name": "agent_id", "required": True, "schema": {"type": "string"}}],
            **page(),
        },
        "/monitoring/status": page(schema={"type": "object", "required": ["services", "endpoints"]}),
        "/monitoring/health": page(schema={"type": "object", "required": ["status", "checks"]}),
    },
}

surface = schemathesis.openapi.from_dict(DOCUMENT)


@requirement("000-05", "000-21")
@surface.parametrize()
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_the_http_surface_keeps_to_its_description(case: schemathesis.Case[Any], url: str) -> None:
    case.call_and_validate(
        base_url=url,
        headers={"Authorization": f"Bearer {PSK}", "Accept": "application/json"},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )
