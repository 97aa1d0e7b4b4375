"""What the pages say about the repository is true: files, functions and the chart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from bench import performance_page
from bench.chart import COLOURS, draw_chart, read_rows
from bench.results import read_results

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "a2a_fabric"
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]


def test_every_file_that_the_pages_for_maintainers_name_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"`(\w[\w/.-]*/[\w.-]+\.\w+)`", page.read_text("utf-8"))}
    assert [name for name in sorted(named) if not ((SOURCE / name).exists() or (ROOT / name).exists())] == []


def test_the_readme_leads_to_every_page() -> None:
    named = set(re.findall(r"\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text("utf-8")))
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in named] == []


def test_every_walk_of_the_contributing_page_ends_at_a_function_that_exists() -> None:
    walks = re.findall(r"`([\w/]+\.py)` → `([\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(walks) >= 4
    assert [(path, name) for path, name in walks if name not in definitions(SOURCE / path)] == []


def definitions(path: Path) -> set[str]:
    """Functions and classes of a module; methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


_METRIC_MODULES = ("metrics.py", "node_metrics.py", "history.py", "export.py", "log.py", "observer.py")


def test_the_page_about_logs_and_metrics_names_every_metric() -> None:
    page = (ROOT / "docs" / "observing.md").read_text("utf-8")
    source = "".join((SOURCE / "telemetry" / name).read_text("utf-8") for name in _METRIC_MODULES)
    named, rendered = (
        {re.sub("_(total|info)$", "", name) for name in re.findall(pattern, text)}
        for pattern, text in ((r"`(fabric_\w+)`", page), (r'"(fabric_\w+)"', source))
    )
    assert named == rendered


def test_the_chart_shows_the_kept_results_of_the_bench() -> None:
    rows = read_rows(read_results())
    for name, colours in COLOURS.items():
        drawn = (ROOT / "docs" / "images" / f"performance-{name}.svg").read_text("utf-8")
        assert drawn == draw_chart(rows, colours), "run: python -m bench.chart"


def test_the_figures_of_the_pages_are_the_kept_results_of_the_bench() -> None:
    for path in performance_page.PAGES:
        page = path.read_text("utf-8")
        assert "<!-- bench:" in page
        assert page == performance_page.render_page(page, read_results()), "run: python -m bench.performance_page"
