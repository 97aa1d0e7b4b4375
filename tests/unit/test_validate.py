from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.steps.validate import validate
from a2a_fabric.testing import ScriptedRuntime
from tests.marks import requirement
from tests.unit.made import agent, call

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "depth": {"type": "integer", "minimum": 1}},
    "required": ["text"],
    "additionalProperties": False,
}


async def asked(schema: dict[str, Any] | None, task: str = "", **context: Any) -> tuple[FabricError | None, int]:
    """How it went, and how often the agent heard of it."""
    percy = ScriptedRuntime(agent("percy", Capability(name="reason", input_schema=schema)))
    handler = validate(Catalog([percy.manifest]).get)(percy)
    try:
        await handler(call(task=task, context=context), ignore)
    except FabricError as error:
        return error, len(percy.calls)
    return None, len(percy.calls)


@requirement("001-20")
async def test_arguments_that_fit_reach_the_agent() -> None:
    assert await asked(SCHEMA, text="hi", depth=2) == (None, 1)
    assert await asked(SCHEMA, "words fill the text") == (None, 1)
    assert await asked(None, "hi", anything="goes") == (None, 1)


@requirement("001-20")
@pytest.mark.parametrize(
    ("context", "field"),
    [({}, None), ({"text": 1}, "text"), ({"text": "x", "depth": 0}, "depth"), ({"text": "", "a": 1}, None)],
)
async def test_arguments_that_do_not_fit_never_reach_the_agent(context: dict[str, Any], field: str | None) -> None:
    error, heard = await asked(SCHEMA, **context)
    assert isinstance(error, BadInput)
    assert heard == 0
    assert error.details.get("field") == field
    assert error.details["agent_id"] == "percy"


@pytest.mark.parametrize("depth", [100, 300, 900])
async def test_arguments_that_are_nested_too_deeply_to_be_checked_are_refused(depth: int) -> None:
    nested: Any = []
    for _ in range(depth):
        nested = [nested]
    for context in ({"text": nested}, {"text": "x", "surplus": nested}):
        error, heard = await asked(SCHEMA, **context)
        assert isinstance(error, BadInput)
        assert heard == 0


async def test_the_message_says_where_and_what_but_not_what_was_given() -> None:
    error, _ = await asked(SCHEMA, text="x", depth="my secret")
    assert error is not None
    assert error.message == "Bad arguments for 'reason': depth: the value is not of type \"integer\""


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": []},
        {"$ref": "http://127.0.0.1:9/evil.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"properties": {"text": {"pattern": "("}}},
    ],
)
async def test_an_agents_broken_schema_is_the_agents_fault_and_loads_nothing(schema: dict[str, Any]) -> None:
    error, heard = await asked(schema, text="hi")
    assert isinstance(error, UpstreamRefused)
    assert heard == 0


async def test_a_schema_that_allows_everything_by_being_true_is_one() -> None:
    assert await asked({"properties": {"text": True}, "required": ["text"]}, "hi", text=1) == (None, 1)


async def test_deep_and_huge_arguments_are_judged_not_stumbled_over() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"x": deep}
    assert await asked({"type": "object"}, deep=deep, number=10**300) == (None, 1)


async def test_unknown_agents_and_capabilities_are_left_to_routing() -> None:
    percy = ScriptedRuntime(agent("percy", Capability(name="reason", input_schema=SCHEMA)))
    handler = validate(Catalog([percy.manifest]).get)(percy)
    await handler(call("nobody"), ignore)
    await handler(call("percy", "fly"), ignore)
    assert len(percy.calls) == 2


async def test_a_changed_schema_holds_at_once() -> None:
    percy = ScriptedRuntime(agent("percy"))
    current = {"percy": agent("percy", Capability(name="reason", input_schema={"required": ["a"]}))}
    handler = validate(current.get)(percy)
    with pytest.raises(BadInput):
        await handler(call(task=""), ignore)
    current["percy"] = agent("percy", Capability(name="reason", input_schema={"required": []}))
    await handler(call(task=""), ignore)
