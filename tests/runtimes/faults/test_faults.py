"""Every runtime against everything that goes wrong: told in a typed error, in time, and nothing stays behind.

The rows are `reached`, the columns `tests.fixtures.faulty` and the habits of
`tests/fixtures/agents/bad_program.py`. Each runtime has one bad day, on which all of
it happens at once; the tests look at what came of it.

    pytest tests/runtimes/faults -k acp         # one runtime alone, to find out who left something behind
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric import plugins
from tests.fixtures.faulty import FAULTS
from tests.marks import requirement
from tests.runtimes.faults.day import HABITS, Errors, with_addresses, with_programs
from tests.runtimes.faults.footprint import Footprint, watched
from tests.runtimes.faults.reached import A_PROGRAM, AT_AN_ADDRESS, Reached

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_A_TIME = 4
FAILED = {"AGENT_OFFLINE", "UPSTREAM_ERROR"}
NEVER_RAN, MAY_HAVE_RUN = {"AGENT_OFFLINE"}, {"UPSTREAM_ERROR"}


@dataclass(frozen=True)
class Days:
    """What came of the bad day of each runtime, and what they all left behind."""

    came_to: Mapping[Reached, Errors | BaseException]
    before: Footprint
    after: Footprint

    def errors(self, reached: Reached) -> Errors:
        found = self.came_to[reached]
        if isinstance(found, BaseException):
            raise found
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def days(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Days:
    """Of all runtimes that are wanted now, a few at a time: much of such a day is waiting."""
    turn = asyncio.Semaphore(AT_A_TIME)
    here = [item for item in request.session.items if item.path == request.path]
    calls = (getattr(item, "callspec", None) for item in here)
    wanted = dict.fromkeys(call.params["reached"] for call in calls if call is not None)
    for kind in {reached.runtime for reached in wanted}:
        plugins.load_runtime(kind)  # importing all of them beside a day can take longer than a connection may

    async def day_of(reached: Reached) -> Errors:
        async with turn:
            if reached in A_PROGRAM:
                return await with_programs(reached, tmp_path_factory.mktemp(reached.name))
            return await with_addresses(reached)

    async def all_of_them() -> dict[Reached, Errors | BaseException]:
        came_to = await asyncio.gather(*map(day_of, wanted), return_exceptions=True)
        return dict(zip(wanted, came_to, strict=True))

    return Days(*await watched(all_of_them))


def check(error: dict[str, Any], reached: Reached, wrong: str, cause: str, codes: set[str]) -> None:
    assert error["code"] in codes, error
    assert error["details"]["agent_id"] == reached.agent_id(wrong)
    assert error["message"].strip()
    assert re.search(cause, error["message"], re.IGNORECASE), error["message"]


def ended_by_time(reached: Reached) -> set[str]:
    return {"TIMEOUT", "AGENT_OFFLINE"} if reached.starts else {"TIMEOUT"}


@requirement("001-38", "001-42", "001-43", "001-44")
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name.replace(" ", "-"))
@pytest.mark.parametrize("reached", AT_AN_ADDRESS, ids=lambda reached: reached.name)
async def test_an_address_at_which_something_is_wrong(days: Days, reached: Reached, fault: Any, stream: bool) -> None:
    if fault.hangs:
        codes = ended_by_time(reached) | {fault.unless}
    elif not fault.arrives:
        codes = NEVER_RAN
    else:
        codes = MAY_HAVE_RUN if reached.is_met else FAILED
    check(days.errors(reached)[fault.name, stream], reached, fault.name, f"{fault.cause}|{reached.told}", codes)


@requirement("001-16", "001-38", "001-42", "001-43", "001-44")
@pytest.mark.parametrize("habit", HABITS.values(), ids=lambda habit: habit.name)
@pytest.mark.parametrize("reached", A_PROGRAM, ids=lambda reached: reached.name)
async def test_a_program_with_a_bad_habit(days: Days, reached: Reached, habit: Any) -> None:
    codes = ended_by_time(reached) | {habit.unless} if habit.hangs else FAILED
    check(days.errors(reached)[habit.name, False], reached, habit.name, habit.cause, codes)


@requirement("001-16", "001-42")
@pytest.mark.parametrize("reached", A_PROGRAM, ids=lambda reached: reached.name)
async def test_a_program_that_is_not_there(days: Days, reached: Reached) -> None:
    check(days.errors(reached)["missing", False], reached, "missing", "no-such-program", {"AGENT_OFFLINE"})


@pytest.mark.parametrize("reached", [*AT_AN_ADDRESS, *A_PROGRAM], ids=lambda reached: reached.name)
async def test_no_task_no_connection_and_no_process_stays_behind(days: Days, reached: Reached) -> None:
    """A day is over only when every connection to the faults is closed and every process is dead."""
    assert days.errors(reached)
    assert days.after.is_within(days.before), (days.before, days.after)


async def test_every_runtime_of_the_product_has_its_bad_days() -> None:
    """Except those that are code of this very process."""
    here = {each.runtime for each in (*AT_AN_ADDRESS, *A_PROGRAM)}
    assert set(plugins.list_kinds("runtimes")) - {"python", "tool"} == here
