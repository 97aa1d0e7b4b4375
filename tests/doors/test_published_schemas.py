"""Every schema that the node publishes can be compiled by engines without look-around (RE2, Rust, Go, pydantic)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import Field, TypeAdapter

from a2a_fabric import plugins
from a2a_fabric.cli.schema import build_agents_schema, build_fabric_schema
from a2a_fabric.doors.directory.agents import DirectoryId
from a2a_fabric.doors.directory.task_chains import TaskId
from a2a_fabric.doors.rest.models import Name
from a2a_fabric.operations.messages import AgentName, TopicName
from tests.fixtures.node import running
from tests.fixtures.percy import Percy

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


def find_patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        for key, inner in value.items():
            if key == "patternProperties" and isinstance(inner, dict):
                yield from inner
            yield from find_patterns(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from find_patterns(inner)


def check_patterns(published: Any) -> list[str]:
    patterns = sorted(set(find_patterns(published)))
    for pattern in patterns:
        TypeAdapter(Annotated[str, Field(pattern=pattern)])  # compiled by the Rust engine; raises if it refuses
        assert "\\Z" not in pattern
        assert "\\A" not in pattern  # JSON Schema has the dialect of ECMAScript, which lacks both
    return patterns


async def test_tools_operations_and_openapi_use_only_portable_patterns() -> None:
    async with running(Percy().agent) as node:
        operations = [{"in": op.input_schema, "out": op.output_schema} for op in node.fabric.operations]
        capabilities = [
            {"in": each.input_schema, "out": each.output_schema}
            for manifest in node.fabric.registry.catalog
            for each in manifest.capabilities
        ]
        openapi = (await node.send("GET", "/openapi.json")).json
        assert check_patterns(json.loads(msgspec.json.encode([operations, capabilities])))
        assert check_patterns(openapi)


def test_the_schemas_of_configuration_files_use_only_portable_patterns() -> None:
    for path in SCHEMAS.glob("*.json"):
        assert check_patterns(json.loads(path.read_text()))
    check_patterns([build_fabric_schema(), build_agents_schema()])
    for kind in plugins.list_builtin_kinds("doors"):
        check_patterns(msgspec.json.schema(plugins.load_door(kind).settings))


@pytest.mark.parametrize("kind", [AgentName, TopicName, Name, TaskId, DirectoryId])
def test_validation_still_refuses_a_final_line_break(kind: Any) -> None:
    assert msgspec.convert("percy", kind) == "percy"
    with pytest.raises(msgspec.ValidationError, match="regex"):
        msgspec.convert("percy\n", kind)
