"""JMESPath expressions that callers write, evaluated within a budget.

A caller chooses both an expression and, through an agent, what it is evaluated on. `[@, @] | [@, @] | …` doubles its
value with every step, so all work on one node of a graph is counted: it ends with an error instead of stopping the
event loop. The work on all nodes together is counted, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jmespath  # type: ignore[import-untyped]  # it has no types
from jmespath.functions import Functions  # type: ignore[import-untyped]
from jmespath.visitor import TreeInterpreter  # type: ignore[import-untyped]

MAX_EXPRESSION = 2000  # characters
_REMEMBERED_EXPRESSION = 200  # characters; the tree of a longer one takes much memory
_NODE_BUDGET = 1_000_000  # values of a result, or parts of 64 characters; some tenths of a second
_GRAPH_BUDGET = 10_000_000
_STEP = 4  # as long as so many values
_COMPILED_CHARACTER = 30
_CHARACTERS = 64  # of a text, as fast as one value
_ESCAPED, _ESCAPED_ASCII = 12, 6  # characters of JSON that `to_string` writes for one of a text, at most
_TAKE_EXPRESSIONS = ("map", "max_by", "min_by", "sort_by")
_BUILDING = ("multi_select_list", "multi_select_dict", "flatten", "function_expression")


class Budget:
    """How much work is left: for a graph, or for one of its nodes."""

    def __init__(self, graph: Budget | None = None) -> None:
        self._graph = graph
        self._left = _GRAPH_BUDGET if graph is None else _NODE_BUDGET

    def spend(self, units: int) -> None:
        """Raises ValueError if nothing is left."""
        self._left -= units
        if self._left < 0:
            raise ValueError("it takes too long, or what it makes is too large")
        if self._graph is not None:
            self._graph.spend(units)

    def spend_on(self, value: Any, measure: Callable[[str], int] = len) -> None:
        """For a value with everything in it, as often as it is in it. Raises ValueError."""
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                self.spend(measure(each) // _CHARACTERS)
            elif isinstance(each, list):
                self.spend(1 + len(each))  # before they are all copied
                waiting += each
            elif isinstance(each, Mapping):
                self.spend(1 + len(each) + sum(measure(name) for name in each if isinstance(name, str)) // _CHARACTERS)
                waiting += each.values()
            elif isinstance(each, int):
                self.spend(each.bit_length() // _CHARACTERS)  # JSON has integers of thousands of digits


class _CountingInterpreter(TreeInterpreter):  # type: ignore[misc]  # it has no types
    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget
        self._known_functions = Functions()

    def _count(self, node: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._budget.spend(_STEP)
        value = super().visit(node, *args, **kwargs)
        if node["type"] in _BUILDING:
            self._budget.spend_on(value)
        return value

    def _call_function(self, node: Mapping[str, Any], value: Any) -> Any:
        name, evaluate = node["value"], self.visit
        if name in _TAKE_EXPRESSIONS:
            evaluate = self._evaluate_argument
        arguments = [evaluate(child, value) for child in node["children"]]
        self._budget.spend_on(arguments, _measure_written if name == "to_string" else len)
        if name == "join":
            self._budget.spend(_count_separators(arguments) // _CHARACTERS)
        return self._known_functions.call_function(name, arguments)

    def _compare(self, node: Mapping[str, Any], value: Any) -> Any:
        sides = [self.visit(child, value) for child in node["children"]]
        self._budget.spend_on(sides)
        literals = [{"type": "literal", "value": each, "children": []} for each in sides]
        return super().visit_comparator({**node, "children": literals}, value)

    def _evaluate_argument(self, node: Mapping[str, Any], value: Any) -> Any:
        return super().visit_expref(node, value) if node["type"] == "expref" else self.visit(node, value)

    def _refuse_reference(self, node: Mapping[str, Any], value: Any) -> Any:
        raise ValueError(f"`&` stands only before an argument of {', '.join(_TAKE_EXPRESSIONS)}")

    # As JMESPath calls them.
    visit, visit_function_expression, visit_comparator, visit_expref = (
        _count,
        _call_function,
        _compare,
        _refuse_reference,
    )


def _measure_written(text: str) -> int:
    """The characters of JSON for a text, at most."""
    return len(text) * (_ESCAPED_ASCII if text.isascii() else _ESCAPED)


def _count_separators(arguments: list[Any]) -> int:
    """The characters of all separators that `join` writes: one argument is written once for each of many texts."""
    match arguments:
        case [str(separator), list(texts)]:
            return len(separator) * len(texts)
    return 0  # a mistake, which JMESPath reports


def search(expression: str, value: Any, budget: Budget) -> Any:
    """What the expression finds. Raises ValueError, as all errors of JMESPath are."""
    if len(expression) > _REMEMBERED_EXPRESSION:
        budget.spend(len(expression) * _COMPILED_CHARACTER)
    tree = _parse(expression)
    try:
        found = _CountingInterpreter(budget).visit(tree, value)
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc
    except (ArithmeticError, TypeError) as exc:  # of infinity; of a number and a text that are compared
        raise ValueError(str(exc)) from exc
    budget.spend_on(found)
    return found


def find_roots(expression: str) -> tuple[str, ...]:
    """The fields that it looks up in the value itself. Raises ValueError."""
    return tuple(dict.fromkeys(_iter_roots(_parse(expression))))


def _parse(expression: str) -> Mapping[str, Any]:
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"it has more than {MAX_EXPRESSION} characters")
    if not expression.strip():
        raise ValueError("it is empty")
    return _compile_cached(expression) if len(expression) <= _REMEMBERED_EXPRESSION else _compile(expression)


def _compile(expression: str) -> Mapping[str, Any]:
    try:
        parsed: Mapping[str, Any] = jmespath.compile(expression).parsed
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc
    return parsed


_compile_cached = lru_cache(maxsize=2048)(_compile)


def _iter_roots(tree: Mapping[str, Any]) -> Iterator[str]:
    """Left of a dot or a projection stands what is looked up first; everything to the right is inside of it."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        kind, children = each["type"], each["children"]
        if kind == "field":
            yield str(each["value"])
        elif kind in (
            "subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe",
        ):  # fmt: skip
            waiting.append(children[0])
        else:
            waiting += [child for child in reversed(children) if isinstance(child, Mapping)]
