"""Expressions in task graphs: whatever a caller writes, they end soon and make nothing huge."""

from __future__ import annotations

import time
from typing import Any

import pytest

from a2a_fabric.core.errors import BadInput
from a2a_fabric.graphs.model import GraphNode, Results, TaskGraph, fill_input, fill_task, is_wanted, plan_graph

SECONDS = 10.0  # for what takes some tenths of a second on a quiet machine; unbounded it takes minutes or all memory
ROWS = [{"id": number, "tags": ["a", "b"], "text": "x" * 50} for number in range(2000)]


def node(**fields: Any) -> GraphNode:
    return GraphNode(id="b", agent="percy", **fields)


DOUBLING = "|".join(["a", *["[@,@]"] * 100])
EXPLODING = [
    DOUBLING + "|to_string(@)",
    DOUBLING + "|@==@",
    "|".join(["a", *["[@,@][]"] * 100]),
    "|".join(["a.text", *["join('',[@,@])"] * 100]),
    "|".join(["a", *["{x:@,y:@}"] * 100]),
    "a.[rows,rows,rows,rows,rows,rows,rows,rows][]" + "|[@,@,@,@,@,@,@,@][]" * 8,
    "a.rows[?contains(to_string($$), text)]".replace("$$", "[@,@,@,@,@,@,@,@,@,@,@,@]") + "|[@,@]" * 60,
]


@pytest.mark.parametrize(
    "expression",
    [
        "join(a.text, a.rows)",  # 100 GB
        "to_string([" + ",".join(["a.wide"] * 14) + "])",  # 12 characters for each of 56 million
        "to_string([" + ",".join(["a.named"] * 100) + "])",  # 100 MB of names
        "[" + ",".join(["a.named"] * 100) + "]",
        "to_string(map(&`" + "9" * 1500 + "`, a.rows))",  # 150 MB of digits
    ],
)
def test_what_is_written_again_and_again_is_counted_each_time(expression: str) -> None:
    results = Results(
        {
            "a": {
                "text": "y" * 1_000_000,
                "wide": "\U0001f600" * 4_000_000,
                "rows": [""] * 100_000,
                "named": {"n" * 1_000_000: 1},
            }
        }
    )
    began_at = time.process_time()
    with pytest.raises(BadInput, match=r"Node 'b', when: .*takes too long"):
        is_wanted(node(when=expression), results)
    assert time.process_time() - began_at < SECONDS


def test_texts_are_joined_and_written_as_before() -> None:
    results = Results({"a": {"rows": ROWS, "text": "y" * 1_000_000}})
    joined = fill_input(node(input={"x": "${join(', ', a.rows[].text)}", "y": "${to_string(a)}"}), results)
    assert joined["x"] == ", ".join(["x" * 50] * 2000)
    assert len(joined["y"]) > 1_000_000
    by_id = fill_input(node(input={"x": "${sort_by(a.rows, &id)[-1].id}", "y": "${map(&id, a.rows)[:2]}"}), results)
    assert by_id == {"x": 1999, "y": [0, 1]}


@pytest.mark.parametrize(
    "expression",
    [
        "join(a, a)",
        "join('x')",
        "ceil(to_number('inf'))",
        "ceil(to_number('nan'))",
        "a.text > `5`",  # an agent answered with a text instead of a number
        "contains(a.text, `1`)",
        "[&a]",
        "not_null(&a)",
    ],
)
def test_a_mistake_in_an_expression_is_an_error_of_its_node(expression: str) -> None:
    with pytest.raises(BadInput, match=r"Node 'b', when: .* cannot be evaluated"):
        is_wanted(node(when=expression), Results({"a": {"text": "x"}}))


@pytest.mark.parametrize("expression", EXPLODING)
def test_an_expression_that_would_take_forever_is_an_error_of_its_node(expression: str) -> None:
    results = Results({"a": {"rows": ROWS, "text": "y" * 100_000}})
    began_at = time.process_time()
    with pytest.raises(BadInput, match=r"Node 'b', when: .*takes too long"):
        is_wanted(node(when=expression), results)
    assert time.process_time() - began_at < SECONDS


def test_so_is_one_in_a_task_or_an_input() -> None:
    results, reference = Results({"a": {"rows": ROWS}}), f"${{{EXPLODING[2]}}}"
    with pytest.raises(BadInput, match=r"Node 'b', task: .*takes too long"):
        fill_task(node(task=f"Do {reference}"), results)
    with pytest.raises(BadInput, match=r"Node 'b', input\.x: .*takes too long"):
        fill_input(node(input={"x": reference}), results)


def test_a_large_result_is_not_written_again_and_again() -> None:
    results = Results({"a": {"answer": "y" * 4_000_000}})
    assert fill_input(node(input={"x": "${a}", "y": ["${a.answer}"]}), results)["x"] is results.by_node["a"]
    for field, fields in (("task", {"task": "${a}" * 20_000}), ("input", {"input": {"x": ["${a}"] * 20_000}}),
                          ("input", {"input": {"x": "${a} " * 20_000}})):  # fmt: skip
        began_at = time.process_time()
        with pytest.raises(BadInput, match=f"Node 'b', {field}"):
            (fill_task if field == "task" else fill_input)(node(**fields), results)
        assert time.process_time() - began_at < SECONDS


def test_large_results_can_be_filtered_and_passed_on() -> None:
    results = Results({"a": {"rows": ROWS * 5, "blob": "z" * 16_000_000}})
    found = fill_input(
        node(
            input={
                "rows": "${a.rows}",
                "blob": "${a.blob}",
                "picked": "${a.rows[?contains(tags, 'a') && id > `1990`].id}",
                "count": "${length(a.rows)}",
            }
        ),
        results,
    )
    assert (len(found["rows"]), len(found["blob"]), len(found["picked"]), found["count"]) == (
        10_000,
        16_000_000,
        45,
        10_000,
    )
    assert is_wanted(node(when="a.rows[0].id == `0` && (a.rows[1].id == `1`) == `true`"), results)


def test_a_graph_of_thousands_of_long_expressions_is_refused_before_they_are_read() -> None:
    roots = "||".join(f"n{number}" for number in range(100))
    nodes = [GraphNode(id=f"n{number}", agent="percy") for number in range(100)]
    long = {"x": [f"${{{roots}||`{number}`}}" for number in range(5000)]}
    began_at = time.process_time()
    with pytest.raises(BadInput, match=r"Node 'z', input.* characters of different expressions"):
        plan_graph(TaskGraph(nodes=(*nodes, GraphNode(id="z", agent="percy", input=long))))
    assert time.process_time() - began_at < SECONDS


def test_a_graph_of_thousands_of_nodes_with_references_is_fine() -> None:
    first = GraphNode(id="n0", agent="percy")
    nodes = [
        GraphNode(id=f"n{number}", agent="percy", task=f"${{n{number - 1}.answer}}", when=f"n{number - 1}")
        for number in range(1, 5000)
    ]
    plan = plan_graph(TaskGraph(nodes=(first, *nodes)))
    assert plan.needs["n4999"] == ("n4998",)


def test_all_nodes_of_a_graph_together_end_soon() -> None:
    results = Results({"a": "x" * 16_000_000})
    asks = node(input={"x": "${a}"})
    assert fill_input(asks, results) == {"x": results.by_node["a"]}
    with pytest.raises(BadInput, match="takes too long"):  # noqa: PT012 - one of them
        for _ in range(100):
            fill_input(asks, results)


@pytest.mark.parametrize("expression", ["(" * 900 + "a" + ")" * 900, "!" * 1900 + "a", "[" * 800 + "a" + "]" * 800])
def test_an_expression_that_is_nested_too_deep_is_a_bad_expression(expression: str) -> None:
    first = GraphNode(id="a", agent="percy")
    with pytest.raises(BadInput, match=r"Node 'b', when: .* is not a JMESPath expression: it is nested too deep"):
        plan_graph(TaskGraph(nodes=(first, node(when=expression))))
