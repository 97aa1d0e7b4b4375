"""The judge of JSON Schemas: it ends soon on anything, and never takes a costly schema for a cheap one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.a2a.cards import build_example
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.sources.files import AgentsFile
from a2a_fabric.schemas.cost import MAX_SCHEMA_BYTES, MAX_WORK, SchemaCost, UnusableSchema, assess_schema, measure
from a2a_fabric.schemas.manifest_check import MAX_SCHEMA_BYTES_OF_AGENT, sanitize_discovered_manifest
from a2a_fabric.schemas.validators import CHEAP_WORK, UNCHECKED_KEY, compile_schema
from tests.fixtures.schema_bombs import BOMBS, LOOK_AHEAD, doubling, unevaluated
from tests.profiles import examples
from tests.unit.made import agent

KEYWORDS = st.sampled_from([
    "$ref", "$dynamicRef", "$recursiveRef", "$id", "id", "$anchor", "$dynamicAnchor", "$defs", "definitions", "allOf",
    "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "properties", "items", "enum",
    "patternProperties", "additionalProperties", "prefixItems", "contains", "propertyNames", "const", "required",
    "pattern", "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "type", "format",
])  # fmt: skip
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#a", "a", "http://x/a#", "#/%24defs/a", "//[", "urn:a"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | REFERENCES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.text(max_size=2), inner, max_size=4),
    max_leaves=25,
)


@settings(deadline=None, max_examples=examples(300))
@given(schema=st.dictionaries(KEYWORDS, ANYTHING, max_size=6))
def test_any_json_is_judged_and_what_passes_is_compiled_or_refused_in_time(schema: dict[str, Any]) -> None:
    started = time.monotonic()
    judgement = assess_schema(schema)
    assert judgement.problem is not None or all(work > 0 for work in judgement.work)
    try:
        check = compile_schema(schema)
    except UnusableSchema:
        return
    for value in ({}, {"a": {"a": 1}}, [1, [2]], "text", None):
        if check.fits_inline(value):
            check.validator.is_valid(value)
            check.find_error(value)
    assert time.monotonic() - started < 30


APPLIERS = st.lists(
    st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"]), st.integers(1, 3)),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(levels=APPLIERS)
def test_work_is_never_less_than_the_checks_that_references_lead_to(levels: list[tuple[str, int]]) -> None:
    definitions: dict[str, Any] = {f"d{len(levels)}": {"type": "string"}}
    checks = 1
    for number, (keyword, times) in enumerate(levels):
        there = {"$ref": f"#/$defs/d{number + 1}"}
        applied: dict[str, Any] = {keyword: [there] * times}
        if keyword in ("if", "not"):
            applied, times = {keyword: there}, 1
        elif keyword == "dependentSchemas":
            applied = {keyword: {str(each): there for each in range(times)}}
        definitions[f"d{number}"] = applied
        checks *= times
    judgement = assess_schema({"$defs": definitions, "$ref": "#/$defs/d0"})
    if judgement.problem is None:
        assert judgement.work[0] >= checks
    else:
        assert "takes more than" in judgement.problem
        assert 4 * checks * (len(levels) + 1) > MAX_WORK  # nothing cheap is refused


@settings(deadline=None)
@given(levels=st.integers(1, 12), branches=st.integers(1, 4))
def test_branching_recursion_costs_what_the_depth_of_the_arguments_says(levels: int, branches: int) -> None:
    schema = {"type": "object", "properties": {"c": {"anyOf": [{"$ref": "#"}] * branches}}}
    assert assess_schema(schema).work_at(levels) >= branches ** (levels - 1)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once_with_a_reason(bomb: str) -> None:
    started = time.monotonic()
    assert assess_schema(BOMBS[bomb]).problem
    assert time.monotonic() - started < 5


def _wide(count: int) -> dict[str, Any]:
    return {"allOf": [{"type": "object"}] * count} | {"$defs": {str(n): {"a": n} for n in range(count)}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"enum": ["x" * 100] * 100_000}, f"is longer than {MAX_SCHEMA_BYTES} bytes"),
        ({"const": "x" * 10_000_000}, f"is longer than {MAX_SCHEMA_BYTES} bytes"),
        (_wide(6000), "has more than 5000 subschemas"),
        ({"$defs": {str(n): {"$anchor": "a", "$ref": "#a"} for n in range(2000)}}, "has references to more than"),
        ({"pattern": "("}, "has a pattern that cannot be compiled"),
        ({"pattern": "x" * 3000}, "has a pattern that is longer than 2000 characters"),
        ({"pattern": "(?=a)" * 200}, "has a pattern that needs look-around"),
        ({"allOf": [{"pattern": f"[a-z]{{{900 + n}}}"} for n in range(90)]}, "has too many or too large patterns"),
        ({"$ref": "#/nowhere"}, "refers to '#/nowhere', which is not in it"),
        (unevaluated(20), "takes more than"),
    ],
)
def test_the_reason_names_the_limit(schema: dict[str, Any], why: str) -> None:
    assert (assess_schema(schema).problem or "").startswith(why)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text"]},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"properties": {"rows": {"type": "array", "items": {"type": "object", "properties": {"a": {"enum": ["x"]}}}}}},
        {"properties": {"mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+$"}}},
        {f"{key}": {"a": {"type": "string"}} for key in ("properties", "$defs")},
    ],
)
def test_an_ordinary_schema_is_cheap_whatever_the_size_of_the_arguments(schema: dict[str, Any]) -> None:
    assert assess_schema(schema).most_work <= CHEAP_WORK
    assert compile_schema(schema).is_cheap


def test_references_are_found_however_they_are_written() -> None:
    target = {"enum": list(range(800))}
    heavy = assess_schema(target).work[0]
    for schema in (
        {"$defs": {"a": target}, "$ref": "#/$defs/a"},
        {"definitions": {"a/b": target}, "$ref": "#/definitions/a~1b"},
        {"$defs": {"ä b": target}, "$ref": "#/%24defs/%C3%A4%20b"},
        {"$defs": {"a": {"$anchor": "here", **target}}, "$ref": "#here"},
        {"$id": "http://x/y/z", "$defs": {"a": {"$id": "w", **target}}, "$ref": "http://x/y/w"},
        {"$id": "http://x/y", "$defs": {"a": target}, "$ref": "http://x/y#/$defs/a"},
        {"unknown": {"place": [target]}, "$ref": "#/unknown/place/0"},
        {"$defs": {"a": {"$dynamicAnchor": "here", **target}}, "$dynamicRef": "#here"},
    ):
        assert assess_schema(schema).work[0] > heavy, schema
    assert assess_schema({"$defs": {"a": True}, "$ref": "#/$defs/a"}).problem is None


def test_a_look_ahead_is_costly_but_allowed() -> None:
    check = compile_schema({"properties": {"amount": {"pattern": LOOK_AHEAD}}})
    assert not check.is_cheap
    assert check.fits_inline({"amount": "12.50"})
    assert check.validator.is_valid({"amount": "12.50"})
    assert not check.validator.is_valid({"amount": "much"})
    assert not check.fits_inline({"amount": "1" * 100_000})


@given(value=ANYTHING)
def test_the_size_is_about_that_of_the_json(value: Any) -> None:
    size, _ = measure(value, 1 << 30, 1000)
    assert size * 8 + 8 >= len(msgspec.json.encode(value))


def test_one_part_that_is_held_many_times_is_measured_soon() -> None:
    laugh: Any = "ha"
    for _ in range(60):
        laugh = [laugh, laugh]
    size, _ = measure(laugh, 1000, 1000)
    assert 1000 < size < 10_000_000
    assert assess_schema({"default": laugh}).problem


def test_a_judgement_says_what_deeper_arguments_cost() -> None:
    assert SchemaCost(work=(1, 2)).work_at(9) == 2
    assert SchemaCost(work=(1, 2), grows=True).work_at(9) > MAX_WORK


# where schemas join


async def test_schemas_beyond_the_room_of_one_agent_are_left_out() -> None:
    schema = {"type": "object", "description": "x" * 200_000}
    count = MAX_SCHEMA_BYTES_OF_AGENT // 200_000 + 5
    learnt = agent("large", *(Capability(name=f"c{n}", input_schema=schema) for n in range(count)))
    admitted = await sanitize_discovered_manifest(learnt)
    assert len(admitted.capabilities) == count
    left_out = [each.name for each in admitted.capabilities if each.input_schema == {"type": "object"}]
    assert 0 < len(left_out) < 20
    assert set(left_out) == set(admitted.metadata[UNCHECKED_KEY])


async def test_what_is_fine_is_not_touched() -> None:
    learnt = agent("fine", Capability(name="c", input_schema={"type": "object"}, output_schema={"type": "object"}))
    assert await sanitize_discovered_manifest(learnt) is learnt


async def test_an_output_schema_that_is_too_large_to_be_passed_on_is_left_out_alone() -> None:
    large = {"type": "object", "description": "x" * (MAX_SCHEMA_BYTES + 1)}
    learnt = agent("large", Capability(name="c", input_schema={"type": "object"}, output_schema=large))
    admitted = await sanitize_discovered_manifest(learnt)
    assert admitted.capabilities[0].output_schema is None
    assert admitted.capabilities[0].input_schema == {"type": "object"}
    assert UNCHECKED_KEY not in admitted.metadata


def _file(path: Path, schema: dict[str, Any]) -> None:
    path.write_text(
        "agents:\n- agent_id: a\n  endpoint: {uri: 'http://127.0.0.1:9'}\n  capabilities:\n"
        f"  - name: c\n    input_schema: {json.dumps(schema)}\n"
    )


async def test_agents_yaml_with_such_a_schema_is_refused_with_its_line_and_the_last_good_one_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agents.yaml"
    source = AgentsFile(path)
    registry = Registry([source], (), HealthTracker(HealthPolicy()))
    _file(path, {"type": "object"})
    await registry.load(source)
    _file(path, doubling())
    await registry.load(source)
    assert [each.agent_id for each in registry.catalog.agents] == ["a"]
    assert (
        "agents.yaml:6: agents[0].capabilities[0].input_schema: The input schema of capability 'c' takes more"
        in (registry.errors[str(path)])
    )
    with pytest.raises(ConfigError, match=r"agents\.yaml:6"):
        await source.load()


def test_the_example_of_a_card_names_each_required_argument_once() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5):
        schema = {"properties": {"a": schema}, "required": ["a"] * 1000}
    started = time.monotonic()
    assert list(build_example(schema)) == ["a"]
    assert time.monotonic() - started < 5
    assert build_example({"properties": {"a": {}}, "required": True}) == {"a": {}}
