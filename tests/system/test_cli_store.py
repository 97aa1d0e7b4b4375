"""The store on the command line: looked at, migrated, and moved from one engine to another."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from a2a_fabric.cli.program import StoreCommands, app, load_command
from a2a_fabric.client import SyncFabricClient
from a2a_fabric.core.errors import FabricError
from a2a_fabric.stores.migrate import load_migrations
from tests.fixtures import nats
from tests.fixtures.postgres import shared
from tests.system.node import Node, run, running_node

SUM = "What is 12 * 7 + 16?"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))
    return tmp_path


def in_process(*words: str) -> tuple[int, Any]:
    """Exit code and JSON, without starting a process: for what processes have shown already."""
    done = CliRunner().invoke(app, ["store", *words, "--json"])
    return done.exit_code, json.loads(done.stdout)


def job_on(node: Node) -> str:
    with SyncFabricClient(node.url, node.token) as fabric:
        job = fabric.submit("percy", "reason", SUM)
        assert job.result(20).data["steps"] == 3
        return job.job_id


def log_at(node: Node, job_id: str) -> list[Any]:
    with SyncFabricClient(node.url, node.token) as fabric:
        return [(event.number, event.kind, event.data) for event in fabric.job(job_id).events()]


def test_everything_moves_from_a_running_nodes_file_to_postgresql_and_back(here: Path) -> None:
    database = shared().database()
    with running_node(here, "--store", "sqlite:first.db") as node:
        job_id = job_on(node)
        before = log_at(node, job_id)
        out = node.run("store", "export", "all.jsonl", "--store", "sqlite:first.db")
        assert (out.returncode, out.stdout) == (0, "")
    records = int(re.fullmatch(r"Exported (\d+) records to all\.jsonl\.\n", out.stderr)[1])  # type: ignore[index]  # matched
    assert stat.S_IMODE((here / "all.jsonl").stat().st_mode) == 0o600
    assert in_process("import", "all.jsonl", "--store", database)[1]["new"] == records
    assert in_process("import", "all.jsonl", "--store", database)[1]["new"] == 0
    assert in_process("export", "again.jsonl", "--store", database)[1]["records"] == records
    piped = CliRunner().invoke(app, ["store", "export", "--store", database])
    home = CliRunner().invoke(app, ["store", "import", "-", "--store", "sqlite:last.db"], input=piped.stdout)
    assert home.stdout == f"Imported {records} records; 0 existed already.\n", home.stderr
    with running_node(here, "--store", "sqlite:last.db") as node:
        assert log_at(node, job_id) == before


def test_everything_moves_between_nats_and_the_other_stores(here: Path) -> None:
    log, database = nats.shared().address(), shared().database()
    missing, told = in_process("status", "--store", log)
    assert (missing, told["error_code"]) == (1, "STORE_UNUSABLE")
    assert "There is no store at" in told["error"]
    with running_node(here, "--store", log) as node:
        job_id = job_on(node)
        before = log_at(node, job_id)
        assert in_process("export", "all.jsonl", "--store", log)[1]["records"] >= len(before)
    records = in_process("export", "all.jsonl", "--store", log)[1]["records"]
    copy = nats.shared().address()
    for source, target in ((log, database), (database, "sqlite:copy.db"), ("sqlite:copy.db", copy)):
        assert in_process("export", "again.jsonl", "--store", source)[1]["records"] == records
        assert in_process("import", "again.jsonl", "--store", target)[1]["new"] == records
        assert in_process("import", "again.jsonl", "--store", target)[1]["new"] == 0
    _, told = in_process("status", "--store", copy)
    assert (told["kind"], told["pending"], told["jobs"]) == ("nats", [], {"completed": 1})
    with running_node(here, "--store", copy) as node:
        assert log_at(node, job_id) == before


def test_status_says_what_is_there_and_changes_nothing(here: Path) -> None:
    newest = len(load_migrations("sqlite"))
    missing = run("store", "status", home=here, folder=here)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"Error: There is no store at sqlite:{here}/fabric.db. Name one with --store\n"
    assert not (here / "fabric.db").exists()
    made = CliRunner().invoke(app, ["store", "migrate"])
    assert made.stdout == f"sqlite:{here}/fabric.db was created with schema {newest}.\n"
    shown = CliRunner().invoke(app, ["store", "status"]).stdout
    assert re.search(r"^schema +\d+ \(current\)$", shown, re.M)
    assert re.search(r"^jobs +none$", shown, re.M)
    _, told = in_process("status")
    assert (told["ok"], told["kind"], told["pending"], told["jobs"]) == (True, "sqlite", [], {})


def test_an_older_schema_is_named_and_migrated_only_when_asked(here: Path) -> None:
    known = load_migrations("sqlite")
    with closing(sqlite3.connect("old.db")) as file:
        file.executescript("CREATE TABLE schema_migrations (number, name, checksum, applied_at);" + known[0].sql)
        file.execute("INSERT INTO schema_migrations VALUES (1, ?, ?, 0)", (known[0].name, known[0].checksum))
        file.commit()
    old = ("--store", "sqlite:old.db")
    for _ in range(2):
        failed, told = in_process("status", *old)
        assert (failed, told["schema"], told["pending"]) == (0, 1, [each.name for each in known[1:]])
    failed, told = in_process("export", "x.jsonl", *old)
    assert (failed, told["error_code"]) == (1, "STORE_UNUSABLE")
    assert "a2a-fabric store migrate" in told["error"]
    assert not (here / "x.jsonl").exists()
    assert in_process("migrate", *old)[1] == {
        "ok": True, "place": f"sqlite:{here / 'old.db'}", "schema": len(known), "was": 1
    }  # fmt: skip
    assert in_process("status", *old)[1]["pending"] == []


def test_a_store_of_a_newer_program_is_left_alone(here: Path) -> None:
    assert in_process("migrate", "--store", "sqlite:new.db")[0] == 0
    with closing(sqlite3.connect("new.db")) as file:
        file.execute("INSERT INTO schema_migrations VALUES (99, 'later', 'x', 0)")
        file.commit()
    for command in (("status",), ("migrate",), ("export", "x.jsonl")):
        failed, told = in_process(*command, "--store", "sqlite:new.db")
        assert (failed, told["error_code"]) == (1, "STORE_UNUSABLE"), command
        assert "schema 99" in told["error"]


BROKEN = {
    "": "incomplete",
    "{": "Line 1 is not part of a store export",
    '{"kind":"head","format":"other","version":1}\n': "this program reads a2a-fabric-store 2",
    '{"kind":"head","format":"a2a-fabric-store","version":1}\n': "incomplete",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_whole_export_is_refused_with_its_line(here: Path, text: str) -> None:
    (here / "bad.jsonl").write_text(text)
    failed, told = in_process("import", "bad.jsonl", "--store", "sqlite:copy.db")
    assert (failed, told["ok"], told["error_code"]) == (1, False, "BAD_INPUT")
    assert BROKEN[text] in told["error"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("status", "--store", "memory:"), "a store in memory cannot be opened from outside its node"),
        (("status", "--store", "nonsense"), "an address is"),
        (("status", "--store", "mysql://x"), "no store of kind 'mysql'"),
        (("status", "--store", "sqlite:"), "needs the path of a file"),
        (("status", "--store", "sqlite:."), "is a folder"),
        (("export", "no/where.jsonl", "--store", "sqlite:copy.db"), "no/where.jsonl: cannot be written"),
        (("import", "nowhere.jsonl", "--store", "sqlite:copy.db"), "nowhere.jsonl: cannot be read"),
    ],
)
def test_what_cannot_be_opened_is_named(here: Path, words: tuple[str, ...], complaint: str) -> None:
    done = CliRunner().invoke(app, ["store", *words])
    assert done.exit_code == 1
    assert isinstance(done.exception, FabricError)
    assert complaint in done.exception.message
    assert in_process(*words)[1]["error"] == done.exception.message
    assert list(here.glob("*.db")) == []


def test_misuse_is_told_apart_from_failure(here: Path) -> None:
    for words in (("store", "nonsense"), ("store", "import"), ("store", "export", "--json"), ("store",)):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stdout) == (2, ""), words


@pytest.mark.parametrize("name", StoreCommands.rows)
def test_every_command_has_help_with_an_example_and_the_listed_purpose(name: str) -> None:
    about = load_command(name, StoreCommands.rows[name]).help
    assert about.splitlines()[0] == StoreCommands.rows[name].about
    assert f"Example: a2a-fabric store {name}" in about
