"""math.calculate and math.statistics."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_fabric.core.errors import BadInput
from a2a_fabric.tools.math import FUNCTIONS, calculate
from tests.marks import requirement
from tests.profiles import examples
from tests.unit.tool_bench import bench

numbers = st.one_of(st.integers(0, 99).map(str), st.floats(0, 99, allow_nan=False).map(lambda each: f"{each:.3f}"))
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", " - ", " + "]), inner).map("".join),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"-{each}"),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: f"({pair[0]})**{pair[1]}"),
        st.tuples(inner, st.integers(-2, 3)).map(lambda pair: f"{pair[0]}**{pair[1]}"),
    ),
    max_leaves=8,
)


@requirement("000-16")
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 2", 4),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("2 ^ 10", 1024),
        ("2 ** -1", 0.5),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 / 2", 3.5),
        ("0xff + 1", 256),
        ("1.5e3", 1500.0),
        (".5 + 1.", 1.5),
        ("sqrt(144) * 2", 24.0),
        ("max(1, 2.5, 2) + min(3, 4)", 5.5),
        ("factorial(20)", 2432902008176640000),
        ("gcd(12, 18) + abs(-3)", 9),
        ("round(2.567, 2)", 2.57),
        ("floor(2.9) + ceil(2.1)", 5),
        ("log(8, 2)", 3.0),
        ("hypot(3, 4)", 5.0),
        ("2 ** 200", 2**200),
        ("min(inf, 3)", 3),
    ],
)
async def test_it_calculates(tmp_path: Path, expression: str, value: float) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("math.calculate", expression=expression)
    assert answer == {"result": value, "expression": expression, "type": type(value).__name__}


async def test_precision_is_the_number_of_decimal_places(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("math.calculate", expression="pi"))["result"] == 3.1415926536
        assert (await tools("math.calculate", expression="pi", precision=2))["result"] == 3.14
        assert (await tools("math.calculate", expression="1 / 3 + 10 ** 20", precision=0))["type"] == "float"


@pytest.mark.parametrize(
    "expression",
    [
        "", "  ", "1 +", "(1", "1)", "1 2", "2e", "x", "foo(1)", "sqrt()", "sqrt(1, 2)", "1 ** ", "a.b", "[1]",
        "__import__('os')", "(1).__class__", "1 if 1 else 2", "lambda: 1", "1; 2", "1 = 1", "'a' * 9", "٣ + 1",
        "(" * 60 + "1" + ")" * 60, "-" * 500 + "1", "2**" * 200 + "2", "1" + "+1" * 2000,
    ],
)  # fmt: skip
async def test_what_is_not_arithmetic_is_an_invalid_expression(tmp_path: Path, expression: str) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("math.calculate", "BAD_INPUT", "INVALID_EXPRESSION", expression=expression)


@pytest.mark.parametrize(
    "expression",
    [
        "1 / 0", "1 // 0", "1 % 0", "0 ** -1", "sqrt(-1)", "log(0)", "(-8) ** 0.5", "factorial(2.5)", "factorial(-1)",
        "gcd(1.5, 2)", "9 ** 9 ** 9", "9 ^ 9 ^ 9 ^ 9", "factorial(10 ** 9)", "factorial(1000)", "10 ** 10 ** 10",
        "(10 ** 1000) ** 1000", "2 ** 5000", "1e308 * 10", "exp(1000)", "inf", "inf - inf", "1e999", "9" * 1900,
        "comb(10 ** 9, 5 * 10 ** 8)", "perm(10 ** 6, 10 ** 6)", "round(1, -10 ** 9)",
        "10 ** 1200 * 10 ** 1200 * 10 ** 600",
        "10 ** 1000 / 3", "pow(2, 10 ** 9)", "pow(10, 2000)", "lcm(10 ** 1200 + 1, 10 ** 1200 + 7)",
    ],
)  # fmt: skip
async def test_what_has_no_bounded_real_value_is_refused_at_once(tmp_path: Path, expression: str) -> None:
    started = time.process_time()
    async with bench(tmp_path) as tools:
        await tools.fails("math.calculate", "BAD_INPUT", "EVAL_ERROR", expression=expression)
    assert time.process_time() - started < 2


@settings(max_examples=examples(400), deadline=None)
@given(expressions)
def test_it_agrees_with_python(expression: str) -> None:
    try:
        expected: Any = eval(expression, {"__builtins__": {}})  # noqa: S307  # digits and operators only
    except (ZeroDivisionError, OverflowError):
        expected = None
    if isinstance(expected, complex) or (isinstance(expected, float) and not math.isfinite(expected)):
        expected = None
    try:
        found: Any = calculate(expression)
    except BadInput:
        found = None
    assert (found, type(found)) == (expected, type(expected))


words = st.sampled_from([*FUNCTIONS, "**", "^", "//", "(", ")", ",", "9", "1e300", "10**999", "-", "e", " ", "0x", "%"])


@settings(max_examples=examples(400), deadline=5000)
@given(st.one_of(st.text(max_size=60), st.lists(words, max_size=40).map("".join)))
def test_any_text_gives_a_finite_number_or_a_typed_error_and_never_hangs(text: str) -> None:
    try:
        value = calculate(text)
    except BadInput:
        return
    assert math.isfinite(value) if isinstance(value, float) else value.bit_length() <= 4096


async def test_statistics_of_a_list(tmp_path: Path) -> None:
    data = [2, 4, 4, 4, 5, 5, 7, 9]
    async with bench(tmp_path) as tools:
        answer = await tools("math.statistics", data=data)
    assert answer.pop("stddev") == pytest.approx(statistics.stdev(data))
    assert answer == {"count": 8, "sum": 40, "mean": 5, "median": 4.5, "min": 2, "max": 9}


async def test_only_the_wanted_measures_are_given(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        assert await tools("math.statistics", data=[3, 1.5], measures=["max", "median"]) == {"max": 3, "median": 2.25}
        assert await tools("math.statistics", data=[3], measures=["stddev"]) == {"stddev": 0}


async def test_statistics_of_nothing_and_of_too_much_are_typed_errors(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        await tools.fails("math.statistics", "BAD_INPUT", "EMPTY_DATA", data=[])
        await tools.fails("math.statistics", "BAD_INPUT", "STATS_ERROR", data=[1e308, 1e308])
        await tools.fails("math.statistics", "BAD_INPUT", "STATS_ERROR", data=[10**400, 1])
        await tools.fails("math.statistics", "BAD_INPUT", "STATS_ERROR", data=[math.nan])
