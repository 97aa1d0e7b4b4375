"""OpenAPI documents as they come: broken, endless, inside themselves, and never a reason to fall over."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamFailed
from a2a_fabric.runtimes.http.openapi.adapter import build_operation_request
from a2a_fabric.runtimes.http.openapi.document import SchemaResolver, list_candidate_urls, parse_document
from a2a_fabric.runtimes.http.openapi.operations import OpenAPIOperation, OperationSelection, read_operations
from a2a_fabric.schemas.validators import compile_schema
from tests.profiles import examples


def document(**paths: Any) -> dict[str, Any]:
    return {"openapi": "3.0.0", "paths": {f"/{name}": item for name, item in paths.items()}}


def operations(value: dict[str, Any], **given: Any) -> dict[str, OpenAPIOperation]:
    return read_operations(parse_document(json.dumps(value).encode()), OperationSelection(**given))


def test_two_operations_of_one_name_are_told_apart() -> None:
    same = {"operationId": "act", "responses": {}}
    found = operations(document(a={"get": same, "post": same}, b={"get": {**same, "operationId": "Act"}}))
    assert [each.capability.name for each in found.values()] == ["act", "act_2", "Act_3"]


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        ((), (), ["readA", "writeA", "readB"]),
        (("read*",), (), ["readA", "readB"]),
        (("tag one",), (), ["readA", "writeA"]),
        (("get /b",), (), ["readB"]),
        (("TAG ONE",), ("post *",), ["readA"]),
    ],
)
def test_operations_are_chosen_by_id_tag_or_address(
    include: tuple[str, ...], exclude: tuple[str, ...], names: list[str]
) -> None:
    tagged = {"tags": ["Tag one"]}
    value = document(
        a={"get": {"operationId": "readA", **tagged}, "post": {"operationId": "writeA", **tagged}},
        b={"get": {"operationId": "readB"}},
    )
    found = operations(value, include=include, exclude=exclude)
    assert [each.capability.name for each in found.values()] == names


def test_a_schema_that_would_grow_without_end_is_cut() -> None:
    wide = {f"S{n}": {"properties": {f"p{m}": {"$ref": f"#/x/S{n + 1}"} for m in range(10)}} for n in range(40)}
    found = SchemaResolver({"x": wide}).resolve({"$ref": "#/x/S0"}, hidden="readOnly")
    assert len(msgspec.json.encode(found)) < 500_000


def test_a_reference_in_a_circle_leads_nowhere() -> None:
    schemas = SchemaResolver({"a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}})
    assert schemas.deref({"$ref": "#/a"}) == {}
    assert schemas.resolve({"$ref": "#/a"}, hidden="readOnly") == {"description": "Another a"}


def test_a_document_that_repeats_itself_in_yaml_stays_small() -> None:
    laughs = ["a0: &a0 {type: string}"]
    laughs += [
        f"a{n}: &a{n} {{properties: {{{', '.join(f'p{m}: *a{n - 1}' for m in range(9))}}}}}" for n in range(1, 30)
    ]
    body = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/a29"}}}}}
    text = "\n".join(["openapi: 3.0.0", *laughs, f"paths: {{/x: {{post: {json.dumps(body)}}}}}"])
    (found,) = read_operations(parse_document(text.encode()), OperationSelection()).values()
    assert len(msgspec.json.encode(found.capability)) < 500_000


def test_a_yaml_document_inside_itself_ends() -> None:
    text = b"openapi: 3.0.0\npaths: {/x: {post: {requestBody: {content: {application/json: {schema: &s {not: *s}}}}}}}"
    assert read_operations(parse_document(text), OperationSelection())


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"openapi": "4.0"}', b"<html>", b"a: [", b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_document_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        parse_document(body)


def test_the_usual_places_are_below_the_address_and_at_its_origin() -> None:
    found = list_candidate_urls("http://x.example/api/v1?key=1")
    assert found[:2] == ["http://x.example/api/v1?key=1", "http://x.example/api/v1/openapi.json"]
    assert "http://x.example/openapi.json" in found
    assert len(found) == len(set(found))


def test_parameters_of_different_places_may_have_one_name() -> None:
    item = {"get": {"parameters": [{"name": "id", "in": "path"}, {"name": "id", "in": "query"}]}}
    (operation,) = operations({"openapi": "3.1.0", "paths": {"/x/{id}": item}}).values()
    asked = build_operation_request(operation, "http://x/", {"id": "a b", "id_in_query": "c"}, (), headers={})
    assert asked.url == "http://x/x/a%20b?id=c"


def test_a_body_is_only_sent_where_there_is_one() -> None:
    content = {"application/json": {"schema": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}}
    value = document(x={"post": {"requestBody": {"content": content}}}, y={"post": {}})
    optional, none = operations(value).values()
    assert build_operation_request(optional, "http://x", {}, (), headers={}).body is None
    assert build_operation_request(optional, "http://x", {"a": 1}, (), headers={}).body == b'{"a":1}'
    assert build_operation_request(none, "http://x", {}, (), headers={}).body is None


KEYS = st.sampled_from([
    "$ref", "type", "properties", "items", "required", "enum", "allOf", "anyOf", "nullable", "minimum", "pattern",
    "exclusiveMinimum", "not", "minLength", "additionalProperties", "readOnly", "format", "default", "name", "in",
    "schema", "content", "style", "explode", "description", "x",
])  # fmt: skip
WORDS = st.sampled_from([
    "#/paths", "#/components/schemas/A", "#", "http://x", "object", "array", "file", "any", "path", "query", "header",
    "binary", "^(", "body", "form", "multi", "",
])  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | WORDS
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
TYPES = ["application/json", "multipart/form-data", "application/x-www-form-urlencoded", "text/plain", "image/*", "x"]
CONTENT = st.dictionaries(st.sampled_from(TYPES), JUNK | st.fixed_dictionaries({"schema": JUNK}), max_size=3)
PARAMETER = st.fixed_dictionaries(
    {"name": WORDS, "in": st.sampled_from(["path", "query", "header", "cookie", "body", "formData"])},
    optional={"schema": JUNK, "style": WORDS, "explode": JUNK, "required": JUNK, "content": JUNK, "type": JUNK},
)
OPERATION = st.fixed_dictionaries(
    {},
    optional={
        "operationId": JUNK,
        "parameters": JUNK | st.lists(PARAMETER | JUNK, max_size=4),
        "requestBody": JUNK | st.fixed_dictionaries({"content": CONTENT}, optional={"required": JUNK}),
        "responses": JUNK | st.dictionaries(st.sampled_from(["200", "2XX", "default"]), JUNK, max_size=2),
        "tags": JUNK,
        "servers": JUNK,
        "consumes": JUNK,
        "summary": JUNK,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "paths": st.dictionaries(
            st.sampled_from(["/x", "/x/{path}", "y"]),
            JUNK | st.dictionaries(st.sampled_from(["get", "post", "parameters"]), OPERATION | JUNK, max_size=3),
            max_size=2,
        )
    },
    optional={"components": st.fixed_dictionaries({"schemas": JUNK}), "servers": JUNK, "parameters": JUNK},
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOCUMENTS, st.sampled_from([{"openapi": "3.0.1"}, {"openapi": "3.1.0"}, {"swagger": "2.0"}]), JUNK)
def test_no_document_breaks_more_than_itself(value: dict[str, Any], version: dict[str, str], argument: Any) -> None:
    try:
        found = operations({**version, **value})
    except FabricError:
        return
    for operation in found.values():
        compile_schema(operation.capability.input_schema or {})
        names = (operation.capability.input_schema or {})["properties"]
        try:
            build_operation_request(operation, "http://x", dict.fromkeys(names, argument), (), headers={})
        except BadInput:
            pass
