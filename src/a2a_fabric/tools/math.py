"""The math tools: arithmetic and descriptive statistics."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from a2a_fabric.tools.calculator import FUNCTIONS, Number, calculate
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, run_in_thread, tool_error

_PIECE = 2000  # numbers that are processed between two checks of the time limit

Measure = Literal["count", "sum", "mean", "median", "stddev", "min", "max"]


class CalculateArguments(ToolArguments, frozen=True, kw_only=True):
    expression: Annotated[str, Meta(description="For example `sqrt(144) * 2`; `^` and `**` are powers.")]
    precision: Annotated[int, Meta(ge=0, le=30, description="Decimal places of a float result.")] = 10


class CalculateResult(TypedDict):
    result: int | float
    expression: str
    type: Literal["int", "float"]


async def _calculate(arguments: CalculateArguments, _: Toolbox) -> CalculateResult:
    value = calculate(arguments.expression)
    if isinstance(value, int):
        return {"result": value, "expression": arguments.expression, "type": "int"}
    return {"result": round(value, arguments.precision), "expression": arguments.expression, "type": "float"}


class StatisticsArguments(ToolArguments, frozen=True, kw_only=True):
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


async def _compute_statistics(arguments: StatisticsArguments, _: Toolbox) -> StatisticsResult:
    if not arguments.data:
        raise tool_error("EMPTY_DATA", "There are no numbers to analyse")
    try:
        measures = await run_in_thread(_compute_measures, arguments.data)
    except (OverflowError, ValueError) as exc:
        raise tool_error("STATS_ERROR", f"The numbers are too large to analyse: {exc}") from exc
    names = arguments.measures or tuple(measures)
    return {name: measures[name] for name in names}  # type: ignore[return-value]  # a subset of the same keys


def _compute_measures(time_limit: TimeLimit, data: tuple[Number, ...]) -> dict[Measure, Number]:
    count = len(data)
    are_integers = all(isinstance(value, int) for value in data)
    total: Number = sum(map(sum, _split_pieces(data, time_limit))) if are_integers else math.fsum(data)
    mean = total / count
    ordered = _sort_in_pieces(data, time_limit)
    median = ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    stddev = math.sqrt(math.fsum((value - mean) ** 2 for value in data) / (count - 1)) if count > 1 else 0.0
    measures: dict[Measure, Number] = {
        "count": count, "sum": total, "mean": mean, "median": median, "stddev": stddev,
        "min": ordered[0], "max": ordered[-1],
    }  # fmt: skip
    if not all(math.isfinite(value) for value in measures.values()):
        raise ValueError("a measure is not finite")
    return measures


def _sort_in_pieces(data: tuple[Number, ...], time_limit: TimeLimit) -> list[Number]:
    """Sort piece by piece: one sort of large, mixed integers and floats would hold the interpreter for long."""
    ordered = []
    for number, value in enumerate(heapq.merge(*map(sorted, _split_pieces(data, time_limit)))):
        if number % _PIECE == 0:
            time_limit.check()
        ordered.append(value)
    return ordered


def _split_pieces(data: tuple[Number, ...], time_limit: TimeLimit) -> Iterator[tuple[Number, ...]]:
    for start in range(0, len(data), _PIECE):
        time_limit.check()
        yield data[start : start + _PIECE]


TOOLS = (
    BuiltinTool(
        tool_id="math.calculate",
        capability="eval",
        category="math",
        display_name="Calculate",
        description=f"Evaluates an arithmetic expression, exactly for integers. Functions: {', '.join(FUNCTIONS)}.",
        arguments=CalculateArguments,
        result=CalculateResult,
        handler=_calculate,
    ),
    BuiltinTool(
        tool_id="math.statistics",
        capability="analyze",
        category="math",
        display_name="Statistics",
        description="Count, sum, mean, median, sample standard deviation, least and greatest of a list of numbers.",
        arguments=StatisticsArguments,
        result=StatisticsResult,
        handler=_compute_statistics,
    ),
)
