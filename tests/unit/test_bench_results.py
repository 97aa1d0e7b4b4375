"""What a group of the bench prints is kept, found again and written into the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.performance_page import render_page
from bench.results import Note, Results, Table, parse_blocks, read_results, record, write_results

PRINTED = """
| calls | connections | calls/s | share of forwarder |
|---|---|---|---|
| bare forwarder | 16 | 20,000 | 100% |
| fabric node | 16 | 15,500 | 78% |
| fabric node | 64 | – | 80% |

nginx: cannot be installed: there is no apt-get
"""


def test_what_a_group_prints_is_kept_as_tables_and_notes() -> None:
    table, note = parse_blocks(PRINTED)
    assert isinstance(table, Table)
    assert table.find("fabric node", "calls/s", 16) == 15_500
    assert table.find("fabric node", "share of forwarder", 64) == 0.8
    assert table.find("fabric node", "calls/s", 64) is None
    assert table.find("another", "calls/s", 16) is None
    assert note == Note("nginx: cannot be installed: there is no apt-get")
    assert table.render() in PRINTED


def test_a_run_replaces_its_own_group_and_keeps_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, results = tmp_path / "results.json", Results()
    for group, text in (("calls", "old"), ("mcp", PRINTED), ("calls", PRINTED)):
        with record(results, group, ""):
            print(text)
    assert capsys.readouterr().out.count("bare forwarder") == 2  # it is still printed
    write_results(results, path)
    kept = read_results(path)
    assert set(kept.groups) == {"calls", "mcp"}
    assert kept.find("calls", "fabric node", "calls/s", 16) == 15_500


def test_a_page_gets_the_measured_parts_and_keeps_the_others() -> None:
    results = Results()
    with record(results, "calls", ", in short rounds"):
        print(PRINTED)
    kept = "\nb\n<!-- bench:mcp begin -->\nkept\n<!-- bench:mcp end -->"
    page = f"a\n<!-- bench:calls begin -->\nold\n<!-- bench:calls end -->{kept}"
    rendered = render_page(page, results)
    assert "old" not in rendered
    assert "| fabric node | 16 | 15,500 | 78% |" in rendered
    assert "in short rounds" in rendered
    assert rendered.endswith(kept)
    assert render_page(rendered, results) == rendered
