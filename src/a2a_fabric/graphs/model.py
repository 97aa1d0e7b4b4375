"""A task graph as a person writes it, and the checks and the order that follow from it; pure functions.

A node takes what it needs from results of other nodes: `${EXPRESSION}` in its task and its input, and the condition
`when`, are JMESPath expressions over the results by node id. A node waits for all nodes that its expressions name, and
for those in `depends_on`. Every error names the node and the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import LINE_PATTERN
from a2a_fabric.core.errors import BadInput, suggest_nearest
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.retry import RetryPolicy

MAX_NODES = 5000
_MAX_EXPRESSION = 2000  # as in `graphs.expressions`
_MAX_EXPRESSIONS = 50_000  # characters of all different expressions but names; reading them takes a while
_MAX_TEXT = 1_000_000  # characters of a task after its references were filled in
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_WRITTEN_CHARACTERS = 16  # of a text that is written into another one, for the price of one value
_MAX_CYCLE = 8  # nodes of a cycle that are named

NodeId = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$(?!\n)",
        description="Letters, digits and underscores; other nodes name it.",
    ),
]
NodeState = Literal["waiting", "running", "completed", "failed", "skipped", "cancelled"]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of work for one agent."""

    id: NodeId
    agent: Annotated[str, Meta(min_length=1, max_length=256, description="The agent that does it.")]
    capability: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Which of its capabilities. Unset: the one that the words of the task choose."),
    ] = None
    task: Annotated[str, Meta(max_length=100_000, description="What is to be done, in words; may hold ${…}.")] = ""
    input: Annotated[dict[str, Any], Meta(description="Arguments; texts in it may hold ${…}.")] = {}
    depends_on: Annotated[
        tuple[NodeId, ...], Meta(description="Nodes that must be done before, besides those named in ${…}.")
    ] = ()
    when: Annotated[
        Annotated[str, Meta(min_length=1, max_length=_MAX_EXPRESSION)] | None,
        Meta(description="A JMESPath expression over the results; the node is skipped if it is false, null or empty."),
    ] = None
    retry: Annotated[
        RetryPolicy | None, Meta(description="Unset: as the capability or the node's `jobs.retry` says.")
    ] = None
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Time for one attempt. Unset: the time of a job.")
    ] = None


class TaskGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work for several agents."""

    nodes: Annotated[tuple[GraphNode, ...], Meta(min_length=1, max_length=MAX_NODES)]
    graph_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128, pattern=LINE_PATTERN)] | None,
        Meta(description="A name for people."),
    ] = None
    conversation_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None, Meta(description="Of all its calls.")
    ] = None
    parallel: Annotated[int, Meta(ge=1, le=1000, description="How many nodes run at a time.")] = 64
    answer: Annotated[
        Literal["summary", "nodes"],
        Meta(description="What `answer` of the result is: how many nodes are completed, or the answer of each node."),
    ] = "summary"


class GraphPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`needs` are the nodes that each node waits for; `levels` are nodes that can run at the same time."""

    graph: TaskGraph
    needs: dict[str, tuple[str, ...]]
    levels: tuple[tuple[str, ...], ...]


def plan_graph(graph: TaskGraph) -> GraphPlan:
    """Raises BadInput for a node that is there twice, an unknown node, a bad expression and a cycle."""
    ids = [node.id for node in graph.nodes]
    seen: set[str] = set()
    for node_id in ids:
        if node_id in seen:
            raise node_error(node_id, "id", f"there are two nodes '{node_id}'")
        seen.add(node_id)
    roots = _Roots()
    needs = {node.id: _list_needs(node, seen, roots) for node in graph.nodes}
    return GraphPlan(graph=graph, needs=needs, levels=tuple(_iter_levels(needs)))


def node_error(node_id: str, field: str, problem: str, **details: Any) -> BadInput:
    return BadInput(f"Node '{node_id[:64]}', {field}: {problem}", node=node_id[:64], field=field, **details)


def fill_task(node: GraphNode, results: Results) -> str:
    """The task with the results that it refers to. Raises BadInput."""
    text = str(_fill_text(node, "task", node.task, results.for_node(), as_text=True))
    if len(text) > _MAX_TEXT:
        raise node_error(
            node.id, "task", f"it has {len(text)} characters with its references, and {_MAX_TEXT} is the most"
        )
    return text


def fill_input(node: GraphNode, results: Results) -> dict[str, Any]:
    """The arguments with the results that they refer to. Raises BadInput."""
    shared = results.for_node()
    return {name: _fill_value(node, f"input.{name}", value, shared) for name, value in node.input.items()}


def is_wanted(node: GraphNode, results: Results) -> bool:
    """Whether its condition holds. Raises BadInput."""
    return node.when is None or _is_truthy(_search(node, "when", node.when, results.for_node()))


def render_mermaid(plan: GraphPlan) -> str:
    """The graph as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    for node in plan.graph.nodes:
        label = f"{node.id}: {node.agent}" + (f" {node.capability}" if node.capability else "")
        quoted = label.replace('"', "#quot;")
        lines.append(f'  {node.id}["{quoted}"]')
    for node in plan.graph.nodes:
        arrow = "-->" if node.when is None else "-.->"
        lines += [f"  {needed} {arrow} {node.id}" for needed in plan.needs[node.id]]
    return "\n".join(lines)


class _Roots:
    """The nodes that expressions name: the fields that they look up in the results themselves."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, ...]] = {}
        self._left = _MAX_EXPRESSIONS

    def find(self, node: GraphNode, field: str, expression: str) -> tuple[str, ...]:
        """Raises BadInput."""
        found = self._found.get(expression)
        if found is None:
            found = self._found[expression] = self._read(node, field, expression)
        return found

    def _read(self, node: GraphNode, field: str, expression: str) -> tuple[str, ...]:
        if len(expression) <= _MAX_EXPRESSION and _NAMES.fullmatch(expression):
            return (expression.partition(".")[0],)
        self._left -= len(expression)
        if self._left < 0:
            raise node_error(
                node.id, field, f"the graph has more than {_MAX_EXPRESSIONS} characters of different expressions"
            )
        try:
            return tuple(_expressions().find_roots(expression))
        except ValueError as exc:
            raise node_error(
                node.id, field, f"'{expression[:200]}' is not a JMESPath expression: {_first_line(exc)}"
            ) from exc


class Results:
    """The results of nodes by id, and how much work their expressions may still cause in the whole graph."""

    def __init__(self, by_node: dict[str, Any] | None = None) -> None:
        self.by_node = {} if by_node is None else by_node
        self.budget = _expressions().Budget()

    def for_node(self) -> Results:
        """The same results for the expressions of one node."""
        own = Results(self.by_node)
        own.budget = _expressions().Budget(self.budget)
        return own


def _list_needs(node: GraphNode, ids: set[str], known_roots: _Roots) -> tuple[str, ...]:
    for needed in node.depends_on:
        if needed not in ids:
            raise node_error(node.id, "depends_on", f"there is no node '{needed}'{suggest_nearest(needed, ids)}")
    named = dict.fromkeys(node.depends_on)
    for field, expression in _iter_expressions(node):
        roots = known_roots.find(node, field, expression)
        unknown = next((root for root in roots if root not in ids), None)
        if unknown is not None:
            raise node_error(
                node.id,
                field,
                f"'{expression}' names '{unknown}', and there is no such node{suggest_nearest(unknown, ids)}",
            )
        named |= dict.fromkeys(roots)
    return tuple(named)


def _iter_expressions(node: GraphNode) -> Iterator[tuple[str, str]]:
    yield from (("task", match) for match in _REFERENCE.findall(node.task))
    yield from _iter_value_expressions("input", node.input)
    if node.when is not None:
        yield "when", node.when


def _iter_value_expressions(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield from ((field, match) for match in _REFERENCE.findall(value))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _iter_value_expressions(f"{field}.{name}", inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _iter_value_expressions(f"{field}[{number}]", inner)


def _iter_levels(needs: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Kahn's algorithm, level by level. Raises BadInput for a cycle."""
    waiting = {node_id: len(needed) for node_id, needed in needs.items()}
    dependents: dict[str, list[str]] = {}
    for node_id, needed in needs.items():
        for each in needed:
            dependents.setdefault(each, []).append(node_id)
    level = [node_id for node_id, count in waiting.items() if not count]
    done = 0
    while level:
        yield tuple(level)
        done += len(level)
        following: list[str] = []
        for node_id in level:
            for dependent in dependents.get(node_id, ()):
                waiting[dependent] -= 1
                if not waiting[dependent]:
                    following.append(dependent)
        level = following
    if done < len(needs):
        cycle = _find_cycle({node_id: needs[node_id] for node_id, count in waiting.items() if count})
        path = " -> ".join(cycle[:_MAX_CYCLE]) + (" -> …" if len(cycle) > _MAX_CYCLE else "")
        raise node_error(cycle[0], "depends_on", f"the graph has a cycle: {path}", reason="TASK_GRAPH_CYCLE")


def _find_cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each of these nodes waits for another one of them, so following that leads to a cycle."""
    path: list[str] = []
    at = next(iter(needs))
    while at not in path:
        path.append(at)
        at = next(each for each in needs[at] if each in needs)
    return [*path[path.index(at) :], at]


def _fill_value(node: GraphNode, field: str, value: Any, results: Results) -> Any:
    if isinstance(value, str):
        return _fill_text(node, field, value, results, as_text=False)
    if isinstance(value, Mapping):
        return {name: _fill_value(node, f"{field}.{name}", inner, results) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fill_value(node, f"{field}[{number}]", inner, results) for number, inner in enumerate(value)]
    return value


def _fill_text(node: GraphNode, field: str, text: str, results: Results, *, as_text: bool) -> Any:
    """A text that is nothing but one reference becomes the value itself, else values are written into the text."""
    whole = _REFERENCE.fullmatch(text)
    if whole is not None and not as_text:
        return _require(node, field, whole[1], results)

    def insert(match: re.Match[str]) -> str:
        written = _to_text(_require(node, field, match[1], results))
        try:
            results.budget.spend(len(written) // _WRITTEN_CHARACTERS)
        except ValueError as exc:
            raise node_error(node.id, field, f"with its references it is too large: {exc}") from exc
        return written

    return _REFERENCE.sub(insert, text)


def _require(node: GraphNode, field: str, expression: str, results: Results) -> Any:
    value = _search(node, field, expression, results)
    if value is None:
        needed = ", ".join(f"'{root}'" for root in _Roots().find(node, field, expression))
        raise node_error(node.id, field, f"'${{{expression}}}' finds nothing in the result of {needed or 'any node'}")
    return value


def _search(node: GraphNode, field: str, expression: str, results: Results) -> Any:
    try:
        return _expressions().search(expression, results.by_node, results.budget)
    except ValueError as exc:
        raise node_error(node.id, field, f"'{expression[:200]}' cannot be evaluated: {_first_line(exc)}") from exc


def _to_text(value: Any) -> str:
    """The answer of a result that is only an answer, text as it is, and everything else as JSON."""
    if isinstance(value, Mapping) and isinstance(value.get("answer"), str):
        return str(value["answer"])
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_truthy(value: Any) -> bool:
    return value is not None and value is not False and value != "" and value != [] and value != {}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _expressions() -> Any:
    """Imported on use: few nodes of a gateway run graphs."""
    return load_module("a2a_fabric.graphs.expressions")
