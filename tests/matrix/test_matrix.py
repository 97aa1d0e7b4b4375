"""Every door with every runtime: a real client in front of the node, a real agent behind it.

What is expected stands in `aspects`, who cannot do it in `table`. One node serves the whole module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import pytest
import pytest_asyncio

from a2a_fabric import plugins
from tests.marks import requirement
from tests.matrix import aspects
from tests.matrix.agents import KINDS, RUNTIMES
from tests.matrix.aspects import EXPECTED, Pair
from tests.matrix.bench import Bench, set_up
from tests.matrix.doors import DOORS
from tests.matrix.report import PAGE, Cell, property_of, shape_of
from tests.matrix.table import ASPECTS, ROWS, Aspect, Row, exception, pairs
from tests.matrix.timeouts import SleepingCalls

pytestmark = pytest.mark.asyncio(loop_scope="module")

F = TypeVar("F", bound=Callable[..., object])


def across(aspect: Aspect) -> Callable[[F], F]:
    """For every pair of which this is expected, in full or in another form."""
    found = [
        pytest.param((*each, aspect), id="-".join(each))
        for each in pairs()
        if (row := exception(*each, aspect)) is None or row.instead is not None
    ]
    return pytest.mark.parametrize("pair", found, indirect=True)


def left_out() -> list[object]:
    return [
        pytest.param((*each, aspect), aspect, id=f"{'-'.join(each)}-{aspect}")
        for aspect in ASPECTS
        for each in pairs()
        if (row := exception(*each, aspect)) is not None and row.instead is None
    ]


def wanted_in(request: pytest.FixtureRequest) -> list[tuple[str, str, Aspect]]:
    """The cells that are looked at now."""
    calls = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    return [call.params["pair"] for call in calls if call is not None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """With the runtimes that are asked about now: all of them, unless a few are selected."""
    wanted = {runtime for _, runtime, _ in wanted_in(request)}
    async with set_up(tmp_path_factory.mktemp("matrix"), wanted) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeping_calls(bench: Bench, request: pytest.FixtureRequest) -> AsyncIterator[SleepingCalls]:
    made = SleepingCalls(
        bench, [(door, runtime) for door, runtime, aspect in wanted_in(request) if aspect == "timeout"]
    )
    yield made
    await made.aclose()


@pytest.fixture
def pair(bench: Bench, sleeping_calls: SleepingCalls, request: pytest.FixtureRequest) -> Pair:
    door, runtime, aspect = request.param
    row = exception(door, runtime, aspect)
    why, instead = (row.why, row.instead) if row else (None, None)
    cell = Cell(door, runtime, aspect, why, instead, len(DOORS) * len(RUNTIMES) * len(ASPECTS))
    request.node.user_properties.append(property_of(cell))
    return Pair(bench, sleeping_calls, door, runtime)


@requirement("001-01", "001-13", "001-16", "001-17", "001-56")
@across("reply")
async def test_a_plain_reply(pair: Pair) -> None:
    await aspects.reply(pair)


@requirement("001-33", "001-35")
@across("words")
async def test_words_reach_the_agent_as_the_argument_that_they_stand_for(pair: Pair) -> None:
    await aspects.words(pair)


@requirement("001-33", "001-35")
@across("free form")
async def test_a_capability_without_a_schema_gets_task_and_context_as_they_are(pair: Pair) -> None:
    await aspects.free_form(pair)


@requirement("001-19", "001-21", "001-23", "001-56")
@across("stream")
async def test_a_stream(pair: Pair) -> None:
    await aspects.stream(pair)


@requirement("001-19")
@across("typed error")
async def test_a_typed_error(pair: Pair) -> None:
    await aspects.typed_error(pair)


@requirement("001-44")
@across("timeout")
async def test_a_timeout(pair: Pair) -> None:
    await aspects.timeout(pair)


@across("cancel")
async def test_a_cancelled_call(pair: Pair) -> None:
    await aspects.cancel(pair)


@requirement("001-38", "001-39")
@across("failing")
async def test_a_fallback_from_an_agent_that_fails(pair: Pair) -> None:
    await aspects.failing(pair)


@requirement("001-38", "001-39")
@across("standing in")
async def test_a_fallback_to_an_agent_for_one_that_is_not_there(pair: Pair) -> None:
    await aspects.standing_in(pair)


@requirement("001-33")
@across("content")
async def test_content_of_every_kind_both_ways(pair: Pair) -> None:
    await aspects.content(pair)


@pytest.mark.parametrize(("pair", "aspect"), left_out(), indirect=["pair"])
async def test_what_is_left_out_is_still_impossible(pair: Pair, aspect: Aspect) -> None:
    with pytest.raises((AssertionError, TimeoutError, ExceptionGroup)):
        await EXPECTED[aspect](pair)


def needed(rows: Sequence[Row]) -> set[Row]:
    """Those that say something which no row before them says."""
    cells = {(door, runtime, aspect) for door, runtime in pairs() for aspect in ASPECTS}
    first = (next((row for row in rows if row.covers(*cell)), None) for cell in cells)
    return {row for row in first if row is not None}


async def test_every_row_of_the_table_is_needed() -> None:
    assert [row for row in ROWS if row not in needed(ROWS)] == []


async def test_every_door_and_every_runtime_of_the_product_stands_in_the_matrix() -> None:
    callable_doors = set(plugins.list_kinds("doors")) - {"discovery"}  # which tells of agents, and calls none
    assert callable_doors - {name.partition("-")[0] for name in DOORS} == set()
    assert set(plugins.list_kinds("runtimes")) - {kind.runtime for kind in KINDS} == set()


async def test_the_published_table_has_every_door_and_every_runtime() -> None:
    """A run of the whole matrix writes it anew."""
    doors, runtimes = shape_of(PAGE.read_text("utf-8"))
    assert (set(doors), set(runtimes)) == (set(DOORS), set(RUNTIMES))
