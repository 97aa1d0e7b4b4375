"""Tools: arithmetic and descriptive statistics."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from a2a_fabric.tools.calculator import FUNCTIONS, Number, calculate
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread

_PIECE = 2000  # numbers that are worked on at once

Measure = Literal["count", "sum", "mean", "median", "stddev", "min", "max"]


class CalculateArguments(Arguments, frozen=True, kw_only=True):
    expression: Annotated[str, Meta(description="For example `sqrt(144) * 2`; `^` and `**` are powers.")]
    precision: Annotated[int, Meta(ge=0, le=30, description="Decimal places of a float result.")] = 10


class CalculateResult(TypedDict):
    result: int | float
    expression: str
    type: Literal["int", "float"]


async def _calculate(given: CalculateArguments, _: Toolbox) -> CalculateResult:
    value = calculate(given.expression)
    if isinstance(value, int):
        return {"result": value, "expression": given.expression, "type": "int"}
    return {"result": round(value, given.precision), "expression": given.expression, "type": "float"}


class StatisticsArguments(Arguments, frozen=True, kw_only=True):
    data: Annotated[tuple[int | float, ...], Meta(max_length=100_000, description="The numbers.")]
    measures: Annotated[tuple[Measure, ...], Meta(max_length=20, description="Only these; all of them if empty.")] = ()


class StatisticsResult(TypedDict, total=False):
    count: int
    sum: int | float
    mean: float
    median: int | float
    stddev: float
    min: int | float
    max: int | float


async def _statistics(given: StatisticsArguments, _: Toolbox) -> StatisticsResult:
    if not given.data:
        raise tool_error("EMPTY_DATA", "There are no numbers to analyse")
    try:
        found = await in_thread(_measured, given.data)
    except (OverflowError, ValueError) as exc:
        raise tool_error("STATS_ERROR", f"The numbers are too large to analyse: {exc}") from exc
    wanted = given.measures or tuple(found)
    return {name: found[name] for name in wanted}  # type: ignore[return-value]  # a subset of the same keys


def _measured(patience: Patience, data: tuple[Number, ...]) -> dict[Measure, Number]:
    count = len(data)
    whole = all(isinstance(value, int) for value in data)
    total: Number = sum(map(sum, _pieces(data, patience))) if whole else math.fsum(data)
    mean = total / count
    ordered = _ordered(data, patience)
    middle = ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in data) / (count - 1)) if count > 1 else 0.0
    found: dict[Measure, Number] = {
        "count": count, "sum": total, "mean": mean, "median": middle, "stddev": spread,
        "min": ordered[0], "max": ordered[-1],
    }  # fmt: skip
    if not all(math.isfinite(value) for value in found.values()):
        raise ValueError("a measure is not finite")
    return found


def _ordered(data: tuple[Number, ...], patience: Patience) -> list[Number]:
    """In pieces: sorting all at once would let nobody else run, for long if integers and floats are large and mixed."""
    ordered = []
    for number, value in enumerate(heapq.merge(*map(sorted, _pieces(data, patience)))):
        if number % _PIECE == 0:
            patience.check()
        ordered.append(value)
    return ordered


def _pieces(data: tuple[Number, ...], patience: Patience) -> Iterator[tuple[Number, ...]]:
    for at in range(0, len(data), _PIECE):
        patience.check()
        yield data[at : at + _PIECE]


TOOLS = (
    Tool(
        tool_id="math.calculate",
        capability="eval",
        category="math",
        display_name="Calculate",
        description=f"Evaluates an arithmetic expression, exactly for integers. Functions: {', '.join(FUNCTIONS)}.",
        arguments=CalculateArguments,
        result=CalculateResult,
        handler=_calculate,
    ),
    Tool(
        tool_id="math.statistics",
        capability="analyze",
        category="math",
        display_name="Statistics",
        description="Count, sum, mean, median, sample standard deviation, least and greatest of a list of numbers.",
        arguments=StatisticsArguments,
        result=StatisticsResult,
        handler=_statistics,
    ),
)
