"""Draws the chart of README.md and docs/performance.md from the kept results: `python -m bench.chart`.

Bars on a log scale, one SVG for light and one for dark pages, in docs/images.
"""

from __future__ import annotations

import html
import math
from pathlib import Path

from bench.results import Results, Table, read_results

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_CONNECTIONS = "16"
_TITLE = "MCP tools/call per second, 16 connections, proxy on one core (log scale)"
_LEFT, _RIGHT, _TOP, _ROW = 360, 70, 62, 30
_WIDTH, _SCALE_FROM, _SCALE_TO = 1000, 10, 100_000
_NAMES = ("page", "text", "soft", "grid", "fabric", "other")
COLOURS = {
    "light": dict(zip(_NAMES, ("#ffffff", "#1f2328", "#59636e", "#d0d7de", "#4f46e5", "#8c959f"), strict=True)),
    "dark": dict(zip(_NAMES, ("#0d1117", "#f0f6fc", "#9198a1", "#30363d", "#818cf8", "#6e7681"), strict=True)),
}


def read_rows(results: Results) -> list[tuple[str, int]]:
    """Name and calls/s of each proxy, the fastest first."""
    tables = [block for block in results.groups["peers"].blocks if isinstance(block, Table)]
    column = tables[0].columns.index("calls/s")
    rows = [(row[0], int(row[column].replace(",", ""))) for row in tables[0].rows if row[1] == _CONNECTIONS]
    return sorted(rows, key=lambda row: -row[1])


def draw_chart(rows: list[tuple[str, int]], colours: dict[str, str]) -> str:
    height = _TOP + _ROW * len(rows) + 34
    bottom = height - 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"  <title>{_TITLE}</title>",
        f"  <style>text {{ font: 13px system-ui, sans-serif; fill: {colours['text']} }}",
        f"  .soft {{ fill: {colours['soft']} }} .title {{ font-size: 15px; font-weight: 600 }}</style>",
        f'  <rect width="{_WIDTH}" height="{height}" rx="10" fill="{colours["page"]}"/>',
        f'  <text class="title" x="20" y="30">{_TITLE}</text>',
    ]
    for power in range(1, 6):
        x = _position(10**power)
        parts.append(f'  <line x1="{x:.0f}" y1="{_TOP - 8}" x2="{x:.0f}" y2="{bottom}" stroke="{colours["grid"]}"/>')
        parts.append(f'  <text class="soft" x="{x:.0f}" y="{bottom + 20}" text-anchor="middle">{10**power:,}</text>')
    for number, (name, calls) in enumerate(rows):
        y = _TOP + _ROW * number
        fill = colours["fabric" if name.startswith("Fabric") else "other"]
        parts.append(f'  <text x="{_LEFT - 12}" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(
            f'  <rect x="{_LEFT}" y="{y + 3}" width="{_position(calls) - _LEFT:.0f}" height="18" rx="3" fill="{fill}"/>'
        )
        parts.append(f'  <text class="soft" x="{_position(calls) + 8:.0f}" y="{y + 16}">{calls:,}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _position(calls: int) -> float:
    share = math.log(calls / _SCALE_FROM) / math.log(_SCALE_TO / _SCALE_FROM)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def write() -> None:
    results = read_results()
    if "peers" in results.groups:
        for name, colours in COLOURS.items():
            path = _IMAGES / f"performance-{name}.svg"
            path.write_text(draw_chart(read_rows(results), colours), "utf-8")


if __name__ == "__main__":
    write()
