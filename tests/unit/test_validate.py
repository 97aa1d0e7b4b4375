from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Principal, ignore_event
from a2a_fabric.core.errors import BadInput, CallTimeout, FabricError, RateLimited, UpstreamRefused
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.testing import ScriptedRuntime
from tests.unit.made import agent, call, validate

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
        await handler(call(task=task, context=context), ignore_event)
    except FabricError as error:
        return error, len(percy.calls)
    return None, len(percy.calls)


async def test_arguments_that_fit_reach_the_agent() -> None:
    assert await asked(SCHEMA, text="hi", depth=2) == (None, 1)
    assert await asked(SCHEMA, "words fill the text") == (None, 1)
    assert await asked(None, "hi", anything="goes") == (None, 1)


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
    await handler(call("nobody"), ignore_event)
    await handler(call("percy", "fly"), ignore_event)
    assert len(percy.calls) == 2


async def test_a_changed_schema_holds_at_once() -> None:
    percy = ScriptedRuntime(agent("percy"))
    current = {"percy": agent("percy", Capability(name="reason", input_schema={"required": ["a"]}))}
    handler = validate(current.get)(percy)
    with pytest.raises(BadInput):
        await handler(call(task=""), ignore_event)
    current["percy"] = agent("percy", Capability(name="reason", input_schema={"required": []}))
    await handler(call(task=""), ignore_event)


# arguments that are checked beside the event loop

COSTLY: dict[str, Any] = {"type": "object", "properties": {"rows": {"items": {"anyOf": [{"type": "null"}] * 500}}}}
LARGE = {"rows": [None] * 10_000}


class Beside:
    """A check that ends when the test says so."""

    def __init__(self, *errors: dict[str, Any]) -> None:
        self.errors = errors
        self.started: asyncio.Queue[float] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.running = self.most = 0

    async def __call__(self, schema: bytes, data: bytes, timeout: float, /) -> Sequence[dict[str, Any]]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.put_nowait(timeout)
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return self.errors


class Caller:
    """Calls one agent with large arguments, in the name of anybody."""

    def __init__(self, beside: Beside | None) -> None:
        percy = ScriptedRuntime(agent("percy", Capability(name="reason", input_schema=COSTLY)))
        self._handler = validate(Catalog([percy.manifest]).get, beside)(percy)

    def ask(self, owner: str = "bob", timeout_ms: int = 60_000) -> asyncio.Future[Any]:
        made = call(task="", context=LARGE)
        target = msgspec.structs.replace(made.target, timeout_ms=timeout_ms)
        auth = Principal(mode="psk", principal_id=owner)
        handled = self._handler(msgspec.structs.replace(made, target=target, auth=auth), ignore_event)
        return asyncio.ensure_future(handled)


async def test_large_arguments_wait_for_a_process_one_of_each_caller_and_two_at_a_time() -> None:
    beside = Beside()
    caller = Caller(beside)
    calls = [caller.ask(owner) for owner in ("bob", "bob", "carol", "dave", "dave")]
    await beside.started.get()
    await beside.started.get()
    assert beside.running == 2
    beside.go_on.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*calls)
    assert beside.most == 2


async def test_what_a_process_finds_is_told_like_any_other_error() -> None:
    beside = Beside({"message": "the value is odd", "path": ["rows", 3], "schema_path": []})
    beside.go_on.set()
    with pytest.raises(BadInput, match=r"Bad arguments for 'reason': rows\.3: the value is odd") as caught:
        await Caller(beside).ask()
    assert caught.value.details["field"] == "rows.3"


async def test_a_process_has_no_more_time_than_the_call() -> None:
    beside = Beside()
    with pytest.raises(CallTimeout):
        await Caller(beside).ask(timeout_ms=50)
    assert beside.running == 0


async def test_a_caller_has_only_so_many_large_calls_waiting() -> None:
    beside = Beside()
    caller = Caller(beside)
    calls = [caller.ask() for _ in range(17)]
    done, _ = await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert [type(each.exception()) for each in done] == [RateLimited]
    beside.go_on.set()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, Exception) for each in outcomes) == 1


async def test_without_a_process_large_arguments_are_refused() -> None:
    with pytest.raises(BadInput, match="too large to be checked"):
        await Caller(None).ask()
