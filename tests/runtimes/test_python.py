"""The python runtime: agents in this process, mounted or imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, CapabilityNotFound
from a2a_fabric.core.result import Event
from a2a_fabric.runtimes.python import build
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, manifest_of
from tests.fixtures.agents.everyday import agent as everyday
from tests.marks import requirement

SAMPLES = "python:fabric_import_samples"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The base folder of a node; what was put on the import path is taken off again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return HERE / "importable"


@requirement("001-21")
async def test_a_mounted_agent_streams_reports_progress_and_answers() -> None:
    runtime, heard = build(manifest_of(), context_at(mounted={"tested": everyday})), Heard()
    result = await runtime(call_of("plan", "one two"), heard)
    assert heard.kinds == ["token", "token", "progress"]
    assert heard.events[0] == Event("token", {"text": "one"})
    assert result.data == {"answer": "ONE TWO"}


@requirement("000-14")
@pytest.mark.parametrize("attribute", ["agent", "make", "Made", "Outer.inner", "shout"])
async def test_an_import_path_may_lead_to_an_agent_a_maker_of_one_or_a_function(
    attribute: str, importable: Path
) -> None:
    runtime = build(manifest_of(uri=f"{SAMPLES}:{attribute}"), context_at(importable))
    assert (await runtime(call_of("shout", "hello"), ignore_event)).data == {"answer": "HELLO"}
    assert sys.path.count(str(importable)) == 1


async def test_a_lone_function_takes_the_name_that_its_manifest_gives() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    runtime = build(manifest_of(Capability(name="sum")), context_at(mounted={"tested": add}))
    assert (await runtime(call_of("sum", a=1, b=2), ignore_event)).data == {"result": 3}
    with pytest.raises(CapabilityNotFound):
        await runtime(call_of("add", a=1, b=2), ignore_event)


async def test_nothing_is_imported_before_the_first_use(importable: Path) -> None:
    sys.modules.pop("fabric_import_samples", None)
    runtime = build(manifest_of(uri=f"{SAMPLES}:agent"), context_at(importable))
    assert "fabric_import_samples" not in sys.modules
    assert await runtime.health() == "online"
    assert "fabric_import_samples" in sys.modules


@requirement("001-18")
async def test_describing_completes_the_manifest(importable: Path) -> None:
    described = await build(manifest_of(uri=f"{SAMPLES}:agent"), context_at(importable)).describe()
    assert described.agent_id == "tested"
    assert described.description == "Found by its import path."
    shout = described.find_capability("shout")
    assert shout is not None
    assert shout.description == "Say it louder."
    assert shout.input_schema == {
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit('enough')", "enough"),
        ("agent = 7", "neither an Agent nor a function"),
        ("other = 7", "agent"),
        ("def broken(:", "SyntaxError"),
    ],
)
async def test_an_agent_that_cannot_be_imported_is_offline_and_says_why(
    code: str, reason: str, tmp_path: Path, importable: Path
) -> None:
    name = f"fabric_broken_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    runtime = build(manifest_of(uri=f"python:{name}:agent"), context_at(tmp_path))
    for attempt in (runtime(call_of("any"), ignore_event), runtime.health(), runtime.describe()):
        with pytest.raises(AgentOffline) as caught:
            await attempt
        assert reason in caught.value.full_message
        assert caught.value.message == "The agent's code cannot be loaded"  # which callers read


async def test_an_agent_that_was_mended_works_at_the_next_call(tmp_path: Path, importable: Path) -> None:
    module = tmp_path / "fabric_mended.py"
    module.write_text("1 / 0")
    runtime = build(manifest_of(uri="python:fabric_mended:hello"), context_at(tmp_path))
    with pytest.raises(AgentOffline):
        await runtime(call_of("hello"), ignore_event)
    module.write_text("def hello():\n    return 'all is well'\n")
    assert (await runtime(call_of("hello"), ignore_event)).data == {"answer": "all is well"}


@pytest.mark.parametrize("endpoint", [{}, {"uri": "python:module"}, {"uri": "x:y", "colour": "red"}])
def test_an_endpoint_that_leads_nowhere_is_refused(endpoint: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="tested"):
        build(manifest_of(**endpoint), context_at())


async def test_closing_is_harmless_and_may_be_repeated() -> None:
    runtime = build(manifest_of(), context_at(mounted={"tested": Agent("any")}))
    await runtime.aclose()
    await runtime.aclose()
