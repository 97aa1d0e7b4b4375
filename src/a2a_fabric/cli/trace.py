"""`a2a-fabric trace`: what happened in one trace, as a waterfall."""

from __future__ import annotations

import shutil
from collections import defaultdict
from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import clip_text, print_json, print_line, remark, replace_unprintable
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.errors import BadInput

_BAR_SHARE = 0.35  # of the width
_MIN_BAR = 12
_MAX_WIDTH = 160
_MAX_DEPTH = 12
_MARKS = {"ok": "█", "error": "▓", "cancelled": "░"}
_SHORT_ID = 8  # digits with which `calls` names a trace


def show_trace(
    trace_id: Annotated[str, typer.Argument(metavar="ID", help="The trace's id, or its first digits.")],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show what happened in a trace: doors, attempts, runtimes and jobs, each with its time.

    The ids are in every reply, in the log, and in: a2a-fabric calls

    Example: a2a-fabric trace 5b4ec97f
    """
    trace = run_request(connect(url, token), lambda client: _read_trace(client, trace_id), as_json=as_json)
    if as_json:
        print_json(trace)
        return
    if not trace["spans"]:
        remark("The history has nothing of this trace: it is too old, another caller's, or not of this node.")
        raise typer.Exit(1)
    for line in render_waterfall(trace, min(_MAX_WIDTH, shutil.get_terminal_size((80, 24)).columns)):
        print_line(line)
    for node in trace.get("nodes", ()):
        if node.get("reason"):
            remark(replace_unprintable(f"{node['agent_id']}: {_ANSWERS[node['status']]}: {node['reason']}"))


_ANSWERS = {
    "ok": "its node was asked",
    "not_permitted": "its node was not asked, or does not permit it",
    "unreachable": "its node does not answer",
    "refused": "its node did not tell",
}


async def _read_trace(node: FabricClient, trace_id: str) -> dict[str, Any]:
    if len(trace_id) < _SHORT_ID:
        raise BadInput(f"'{trace_id}' is too short: write at least {_SHORT_ID} digits")
    if len(trace_id.replace("-", "")) < 32:
        trace_id = await _complete_id(node, trace_id.lower())
    return await node.administer("trace", trace_id=trace_id)


async def _complete_id(node: FabricClient, beginning: str) -> str:
    """Among the newest calls. Raises BadInput."""
    page = await node.administer("calls", limit=500)
    found = {call["trace_id"] for call in page["calls"] if call["trace_id"].startswith(beginning)}
    if len(found) != 1:
        problem = "no recent call has" if not found else f"{len(found)} recent calls have"
        raise BadInput(f"{problem} a trace that begins with '{beginning}'. Write the whole id")
    return str(found.pop())


def render_waterfall(trace: dict[str, Any], width: int) -> list[str]:
    """Lines of at most `width` characters: the span, its bar, its duration, and why it ended as it did."""
    spans = trace["spans"]
    begin = min(span["started_at"] for span in spans)
    total = max(max(span["started_at"] + span["duration_ms"] / 1000 for span in spans) - begin, 1e-6)
    bar_width = max(_MIN_BAR, int(width * _BAR_SHARE))
    name_width = max(16, width - bar_width - 13)
    nodes = sorted({span["node"] for span in spans})
    lines = [
        f"trace {trace['trace_id']}",
        f"{len(spans)} spans, {total * 1000:.1f} ms, node {', '.join(nodes)}"[:width],
    ]
    for depth, span in _walk(spans):
        indent = "  " * min(depth, _MAX_DEPTH)
        place = f" @{span['node']}" if len(nodes) > 1 and span["kind"] in ("door", "job", "message") else ""
        name = clip_text(replace_unprintable(f"{span['name']}{place}"), max(8, name_width - len(indent)))
        bar = _draw_bar(span, begin, total, bar_width)
        lines.append(f"{indent + name:<{name_width}} {bar} {span['duration_ms']:>8.1f} ms"[:width])
        lines += [replace_unprintable(f"{indent}  {detail}")[:width] for detail in _describe(span)]
    return lines


def _walk(spans: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Depth first. A span whose parent is not kept here is a root."""
    children: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    known = {span["span_id"] for span in spans}
    for span in spans:
        parent = span["parent_span_id"]
        children[parent if parent in known and parent != span["span_id"] else None].append(span)
    ordered: list[tuple[int, dict[str, Any]]] = []
    waiting = [(0, span) for span in reversed(children[None])]
    while waiting:
        depth, span = waiting.pop()
        ordered.append((depth, span))
        waiting += [(depth + 1, child) for child in reversed(children.pop(span["span_id"], []))]
    return ordered


def _draw_bar(span: dict[str, Any], begin: float, total: float, width: int) -> str:
    start: int = int((span["started_at"] - begin) / total * width)
    length: int = max(1, round(span["duration_ms"] / 1000 / total * width))
    start = min(max(start, 0), width - 1)
    mark = _MARKS.get(str(span["status"]), "█")
    return ("·" * start + mark * min(length, width - start)).ljust(width, "·")


def _describe(span: dict[str, Any]) -> list[str]:
    attributes = span["attributes"]
    details: list[str] = []
    if span["kind"] == "door":
        caller = attributes.get("enduser.id") or attributes.get("fabric.auth_mode")
        behalf = attributes.get("fabric.on_behalf_of")
        details.append(f"caller {caller}" + (f" on behalf of {behalf}" if behalf else ""))
    elif span["kind"] == "attempt":
        details.append(str(attributes.get("fabric.reason", "")))
    elif span["kind"] in ("job", "message"):
        runs = attributes.get("fabric.runs")
        details.append(f"{attributes.get('fabric.state')}, {runs} run{'' if runs == 1 else 's'}")
    if "error.type" in attributes and span["kind"] != "runtime":
        ran = ", may have run" if attributes.get("fabric.may_have_run") else ""
        details.append(clip_text(f"{attributes['error.type']}{ran}: {attributes.get('error.message', '')}", 300))
    for event in span["events"][:8]:
        facts = ", ".join(f"{key} {value}" for key, value in event["attributes"].items())
        details.append(clip_text(f"+{event['at_ms']:.0f} ms {event['name']}: {facts}", 200))
    if len(span["events"]) > 8:
        details.append(f"and {len(span['events']) - 8} more events")
    return details
