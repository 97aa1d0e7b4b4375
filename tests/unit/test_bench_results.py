"""What a group of the bench prints is kept, found again and written into the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.performance_page import render_goals, render_page
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


# Rows as their groups print them, in a run with a smaller number of rounds.
PRINTED_BY_GROUP = {
    "memory": """
| calls so far, half of them MCP | memory MB |
|---|---|
| 0 | 100 |
| 100,000 | 111 |
| 1,000,000 | 114 |

| idle MCP sessions | number | memory KB each | goal |
|---|---|---|---|
| /mcp | 5,000 | 2.8 | under 30 |
| /agents/old/mcp | 5,000 | 3.1 | under 30 |
| /mcp, with a stream | 2,000 | 27.7 | under 30 |
""",
    "jobs": """
| durable jobs accepted | callers | jobs/s | p50 ms | p99 ms | CPU µs/job |
|---|---|---|---|---|---|
| SQLite, through a node | 64 | 16,103 | 3.90 | 9.10 | 60 |
| PostgreSQL, through a node | 64 | 16,384 | 3.80 | 9.10 | 60 |
| NATS, through a node | 64 | 2,900 | 3.80 | 9.10 | 60 |

| jobs from beginning to end, 2 events of the agent's | callers | jobs/s | p50 ms | p99 ms | CPU µs/job |
|---|---|---|---|---|---|
| SQLite, whole jobs through a node | 64 | 6,219 | 9.90 | 19.10 | 160 |
| PostgreSQL, whole jobs through a node | 64 | 5,717 | 9.90 | 19.10 | 160 |
""",
    "a2a": """
| A2A SendMessage | connections | calls/s | CPU µs/call |
|---|---|---|---|
| fabric node, tasks | 64 | 3,656 | 300 |
| fabric node, messages | 64 | 9,000 | 100 |
""",
    "telemetry": """
| telemetry, 16 connections | calls/s | CPU µs/call | calls/s, share of all off | 95 % | goal |
|---|---|---|---|---|---|
| all off | 19,700 | 50.4 | – | – | – |
| spans off | 19,650 | 50.5 | 99.7% | 99.1% to 100.6% | at least 98% |
| all on | 17,900 | 55.6 | 90.9% | 90.1% to 91.4% | at least 85% |
""",
    "rest": """
| REST, durable | connections | calls/s | of fabric.call |
|---|---|---|---|
| SQLite, POST /v1/messages | 64 | 3,000 | 74% |
| PostgreSQL, POST /v1/messages | 64 | 2,000 | 61% |
""",
}


def test_goals_of_durable_work_telemetry_and_memory_are_found_in_what_the_groups_print() -> None:
    results = Results()
    for group, printed in PRINTED_BY_GROUP.items():
        with record(results, group, ""):
            print(printed)
    goals = render_goals(results).splitlines()
    measured = dict(line.strip("| ").split(" | ") for line in goals[2:])
    assert measured["jobs from beginning to end, 64 callers, SQLite: 3,000/s"].startswith("6,219/s")
    assert measured["the same, PostgreSQL: 1,500/s"].startswith("5,717/s")
    assert measured["jobs accepted, 64 callers, NATS with one replica: 2,000/s"] == "2,900/s"
    assert measured["A2A tasks, 64 connections, SQLite: 2,000/s"].startswith("3,656/s")
    assert measured["with all telemetry at least 85 % of the calls/s without"] == "90.9% (at 16 connections)"
    assert measured["with an address for spans that are off at least 98 %"] == "99.7% (at 16 connections)"
    [messages] = [value for goal, value in measured.items() if "POST /v1/messages" in goal]
    assert messages == "74%, 61%"
    [memory] = [value for goal, value in measured.items() if goal.startswith("memory flat")]
    assert memory == (
        "111 MB after 100,000 calls, 114 MB after 1,000,000; 3 KB for each idle MCP session; "
        "28 KB for one with an open stream"
    )
